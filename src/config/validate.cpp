// Checks that join several keys, or keys and the number of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "option_table_values.hpp"

namespace ditrain::config {
namespace {

constexpr double kMaxBytes = 0x1p60;  // more than any machine has, and far from the end of int64_t

/// Afterwards, sums of bytes in the memory plan fit into int64_t. The terms are bounds, in bytes per sample.
void check_memory_sizes(const Config& c) {
  const nn::ModelConfig& m = c.model;
  // Of a block; SwiGLU has two columns before the product with which it has one behind.
  const double mlp_columns = (m.mlp == nn::Mlp::kSwiglu ? 12.0 : 8.0) * double(m.mlp_size());
  const double token = 32.0 * double(m.hidden_size) + mlp_columns + double(m.num_heads);
  const double activations = 4.0 * double(m.depth + 2) * (double(m.tokens()) * token + 16.0 * double(m.hidden_size));
  const double images =
      4.0 * double((m.in_channels + m.condition_channels) * m.pixels()) * double(c.data.queue_batches + 16);
  const int64_t samples = std::max(c.train.global_batch, 2 * eval::kDefaultBatch);  // training, or guided sampling
  const double bytes = double(samples) * (activations + images);
  if (bytes > kMaxBytes)
    fail("model and train.global_batch are too large for any machine",
         fmt::format("about 2^{:.0f} bytes for a batch", std::log2(bytes)), "at most 2^60 bytes");
}

/// A key that another process reads would be ignored in silence.
void check_process_keys(const Config& c) {
  const std::string process(c.diffusion.process->name);
  const Config defaults;
  std::string other, changed, resets;
  for (const Option& o : option_table()) {
    if (o.process.empty() || o.process == process || o.get(c) == o.get(defaults)) continue;
    other = o.process;
    changed += fmt::format("{}{}: {}", changed.empty() ? "" : ", ", o.name(), o.get(c));
    resets += fmt::format("--set {}={} ", o.name(), o.get(defaults));
  }
  if (changed.empty()) return;
  fail(fmt::format("diffusion.process: {} does not read keys of process {}", process, other), changed, "the defaults",
       fmt::format("{}or --set diffusion.process={}", resets, other));
}

void check_sampling(const Config& c) {
  try {
    diffusion::Spacing parsed(c.sample.steps);  // ditsample reads it after the run, whatever the run draws
  } catch (const InputError& error) {
    fail(std::string("sample.steps: ") + error.what(), "", "");
  }
  if (!draws_samples(c)) return;
  if (!c.sample.vae.empty() && learns_pixels(c))
    fail("sample.vae decodes latents, and the model learns pictures", c.sample.vae, "a model of latents",
         "--set sample.vae=");
  try {
    sampler_of(c).validate(*diffusion::make_process(c.diffusion, c.model.learn_sigma));
  } catch (const InputError& error) {  // it does not know the section
    fail(std::string("section sample is not usable: ") + error.what(), "", "");
  }
  const bool guided = c.sample.cfg_scale != 1 && c.sample.guide.empty();
  if (c.sample.cfg_scale == 1 && !c.sample.guide.empty())
    fail("sample.guide guides by sample.cfg_scale, which is off", "sample.cfg_scale: 1", "a number above 1",
         "sample.cfg_scale: 2, or --set sample.guide=");
  if (c.sample.guide == kRoutedGuide && c.train.routing.empty())
    fail("sample.guide: routed guides away from the model with the routes of its training, and it has none",
         "train.routing: off", "routes", "--set sample.guide=, or ./routed for a folder of that name");
  if (guided && c.model.num_classes != 0 && !eval::takes_guidance(c.model))  // without labels it is off by itself
    fail("sample.cfg_scale needs a model that knows labels and their absence",
         fmt::format("{} with model.class_dropout {}", c.sample.cfg_scale, c.model.class_dropout),
         "a class_dropout above 0", "sample.cfg_scale: 1");
}

void check_fid(const Config& c) {
  if (c.eval.fid_every_steps == 0) return;
  const bool inception = c.eval.features == FidFeatures::kInception, decoded = !c.sample.vae.empty();
  const bool pictures = decoded || (learns_pixels(c) && (c.model.in_channels == 1 || c.model.in_channels == 3));
  if (inception && !pictures)
    fail("eval.features: inception sees grey or RGB pictures, which the samples of this model are not",
         fmt::format("{} channels", c.model.in_channels), "eval.features: pixels, or sample.vae");
  if (inception && c.eval.weights.empty())
    fail("eval.features: inception needs the weights of the network", "eval.weights: \"\"",
         "pt_inception-2015-12-05-6726825d.pth; the guide \"Evaluate: published FIDs\" says where to get it",
         "--set eval.weights=FILE");
  if (decoded && !c.data.kind->pixels && c.eval.reference.empty())
    fail("decoded samples cannot be compared with latents of the data", "eval.reference: \"\"",
         "a folder of pictures or statistics", "--set eval.reference=PATH");
  if (!decoded && !c.data.vae.empty() && c.eval.reference.empty())
    fail("samples that are latents cannot be compared with pictures of the data", "sample.vae: \"\"",
         "the autoencoder of data.vae", "--set sample.vae=" + c.data.vae);
}

void check_optimizer(const Config& c) {
  if (c.optimizer.schedule != optim::LrSchedule::kConstant && c.optimizer.min_lr > c.optimizer.lr)
    fail("optimizer.min_lr is above optimizer.lr", fmt::format("{}", c.optimizer.min_lr),
         fmt::format("at most {}", c.optimizer.lr));
  const double warmup = double(c.optimizer.warmup_steps), decay = c.optimizer.decay_share * double(c.train.steps);
  if (c.optimizer.schedule == optim::LrSchedule::kWsd && warmup + decay > double(c.train.steps))
    fail("the learning rate would fall before its warm-up is over",
         fmt::format("optimizer.warmup_steps: {}, and optimizer.decay_share: {} of train.steps: {}",
                     c.optimizer.warmup_steps, c.optimizer.decay_share, c.train.steps),
         "at most train.steps together", "a smaller optimizer.decay_share or fewer warmup_steps");
  if (optim::algorithm_of(c.optimizer).whole_cost == nullptr) return;
  if (c.optimizer.lr == 0)
    fail("optimizer.muon_lr has the schedule of optimizer.lr, which is 0", "0", "optimizer.lr above 0");
  if (c.parallel.strategy == Strategy::kDpTp)
    fail(fmt::format("optimizer.kind: {} updates whole matrices, of which ranks that share a replica have parts",
                     c.optimizer.kind),
         "parallel.strategy: dp_tp", "parallel.strategy: cftp or dp", "optimizer.kind: adamw");
}

void check_log(const Config& c) {
  const std::string& file = c.log.prometheus;
  if (!file.empty() && !file.ends_with(".prom"))
    fail("log.prometheus: node_exporter reads no file of this name", file, "a path that ends in .prom", file + ".prom");
}

void check_start(const Config& c) {
  if (!c.train.init_from.empty() && !c.train.branch_from.empty())
    fail("train.init_from and train.branch_from both say what a run starts from",
         fmt::format("{} and {}", c.train.init_from, c.train.branch_from), "one of them",
         "train.branch_from to go on with optimiser state and step");
}

void check_threads(const Config& c) {
  if (c.parallel.threads > 0 && c.parallel.clusters > c.parallel.threads)
    fail("parallel.clusters is above parallel.threads", std::to_string(c.parallel.clusters),
         fmt::format("at most {}", c.parallel.threads));
}

void check_strategy(const Config& c) {
  const Strategy strategy = c.parallel.strategy;
  if (strategy != Strategy::kCftp && c.parallel.clusters > 1)
    fail(fmt::format("parallel.strategy: {} has one cluster per rank", strategy),
         fmt::format("parallel.clusters: {}", c.parallel.clusters), "parallel.clusters: auto or 1",
         fmt::format("mpirun -np {}, or parallel.strategy: cftp", c.parallel.clusters));
  if (strategy == Strategy::kDpTp && (draws_samples(c) || c.eval.every_steps > 0))
    fail("pictures and validation need one replica per rank, which parallel.strategy: dp_tp does not have",
         fmt::format("sample.every_steps: {}, eval.every_steps: {}, eval.fid_every_steps: {}", c.sample.every_steps,
                     c.eval.every_steps, c.eval.fid_every_steps),
         "0 for all, or parallel.strategy: cftp or dp");
  if (strategy == Strategy::kDpTp && (c.dist.shard_optimizer || c.dist.reproducible))
    fail("parallel.strategy: dp_tp divides replicas over ranks in its own way",
         fmt::format("dist.shard_optimizer: {}, dist.reproducible: {}", c.dist.shard_optimizer, c.dist.reproducible),
         "false for both, or parallel.strategy: cftp or dp");
}

// A replica that several ranks share.
void check_tensor_ranks(const Config& c, int64_t ranks) {
  const int64_t group = tensor_ranks(c), heads = c.model.num_heads, width = c.model.mlp_size();
  const std::string sharing = fmt::format("parallel.tensor_ranks: {}", group);
  if (ranks % group != 0)
    fail("the ranks do not divide into groups that share a replica", fmt::format("{} for {} rank(s)", sharing, ranks),
         fmt::format("a multiple of {} ranks", group));
  if (heads % group != 0 || width % group != 0)
    fail("attention heads and MLP width do not divide over the ranks that share a replica",
         fmt::format("{} heads and width {} for {}", heads, width, sharing), "multiples",
         fmt::format("parallel.tensor_ranks: {}", std::gcd(std::gcd(heads, width), group)));
}

void check_automem(const Config& c) {
  const MemoryConfig& m = c.memory;
  const auto& bulk = m.tier_gib[memory::tier("bulk")];
  const auto& disk = m.tier_gib[memory::tier("disk")];
  if (!m.moves()) return;
  if (!disk && !bulk)
    fail("memory.disk_gib: auto takes what memory.bulk_gib leaves, which is no number", "memory.bulk_gib: auto",
         "a number of memory.bulk_gib", "memory.bulk_gib: 0 for a disk alone");
  const bool disk_alone = !bulk && disk && *disk > 0;  // bulk_gib: auto is 0 beside it
  if (m.simulate_bulk && (disk_alone || (bulk && *bulk == 0)))
    fail("memory.simulate_bulk is a slower bulk tier, and this run has none",
         disk_alone ? "memory.bulk_gib: auto, which is 0 beside memory.disk_gib" : "memory.bulk_gib: 0",
         "memory.bulk_gib above 0, or auto without memory.disk_gib", "without memory.simulate_bulk");
  if (c.parallel.strategy == Strategy::kDpTp)
    fail("memory.automem does not combine with ranks that share a replica", "parallel.strategy: dp_tp",
         "parallel.strategy: cftp or dp", "memory.automem: off");
}

void check_dist(const Config& c) {
  if (c.dist.wire == DType::kBF16 && (c.dist.allreduce == AllReduce::kFlat || !c.dist.engine))
    fail("dist.wire: bf16 is for hierarchical sums",
         fmt::format("dist.allreduce: {}, dist.engine: {}", c.dist.allreduce, c.dist.engine),
         "dist.allreduce: hierarchical and dist.engine: true", "dist.wire: f32");
  if (c.dist.simulate_link && !c.dist.engine)
    fail("dist.simulate_link is a task of the engine", "dist.engine: false", "dist.engine: true");
  if (c.dist.shard_optimizer && !c.dist.engine)
    fail("dist.shard_optimizer is a task of the engine", "dist.engine: false", "dist.engine: true");
  if (c.dist.adaln != AdalnExchange::kFactors) return;
  if (!may_exchange_factors(c))
    fail("dist.adaln: factors are gathered by the engine, and not added as dist.reproducible adds",
         fmt::format("dist.engine: {}, dist.reproducible: {}", c.dist.engine, c.dist.reproducible),
         "dist.engine: true, dist.reproducible: false", "dist.adaln: auto");
  // The final layer's [2C, C] has the least room.
  const int64_t most = 2 * c.model.hidden_size / 3;
  if (c.train.global_batch > most)
    fail("dist.adaln: the factors of this many samples are larger than the gradients",
         fmt::format("train.global_batch: {} with width {}", c.train.global_batch, c.model.hidden_size),
         fmt::format("at most {}", most), "dist.adaln: auto");
}

// Ranks differ between outer steps: whatever needs one state of the run is due at outer steps.
void check_outer_intervals(const Config& c) {
  const int64_t every = c.dist.outer->every;
  const std::pair<const char*, int64_t> intervals[] = {{"train.steps", c.train.steps},
                                                       {"checkpoint.every_steps", c.checkpoint.every_steps},
                                                       {"sample.every_steps", c.sample.every_steps},
                                                       {"eval.every_steps", c.eval.every_steps},
                                                       {"eval.fid_every_steps", c.eval.fid_every_steps},
                                                       {"dist.verify_every", c.dist.verify_every}};
  for (const auto& [key, steps] : intervals)
    if (steps % every != 0)
      fail(
          fmt::format("{} is no multiple of dist.outer.every: ranks have the same weights after outer steps only", key),
          fmt::format("{}: {}, every: {}", key, steps, every), fmt::format("a multiple of {}", every),
          fmt::format("--set {}={}, or an `every` that divides {}", key, (steps / every + 1) * every, steps));
}

void check_outer(const Config& c) {
  if (!c.dist.outer) return;
  if (c.dist.adaln == AdalnExchange::kFactors)
    fail("dist.adaln: factors are of the samples of all ranks, which sum gradients in groups with dist.outer",
         "dist.adaln: factors", "dist.adaln: auto", "--set dist.adaln=auto");
  const auto exclude = [](bool has, const char* what, const char* got, const char* instead) {
    if (has) fail(fmt::format("dist.outer does not combine with {}", what), got, instead, "--set dist.outer=off");
  };
  exclude(c.dist.shard_optimizer, "shards: each node has optimiser state of its own", "dist.shard_optimizer: true",
          "dist.shard_optimizer: false");
  exclude(c.dist.reproducible, "dist.reproducible: results depend on the number of nodes", "dist.reproducible: true",
          "dist.reproducible: false");
  exclude(!c.dist.engine, "sums by the computing thread", "dist.engine: false", "dist.engine: true");
  exclude(c.parallel.strategy == Strategy::kDpTp, "ranks that share a replica", "parallel.strategy: dp_tp",
          "parallel.strategy: cftp or dp");
  exclude(c.ema.snapshots_every > 0, "power averages, which take the weights of every step",
          "ema.snapshots_every is set", "ema.snapshots_every: 0");
  check_outer_intervals(c);
}

void check_reproducible(const Config& c) {
  if (!c.dist.reproducible) return;
  if (c.dist.allreduce == AllReduce::kFlat || !c.dist.engine || c.dist.wire != DType::kF32)
    fail(
        "dist.reproducible needs sums whose order ditrain makes itself, in f32",
        fmt::format("dist.allreduce: {}, dist.engine: {}, dist.wire: {}", c.dist.allreduce, c.dist.engine, c.dist.wire),
        "dist.allreduce: hierarchical, dist.engine: true and dist.wire: f32");
  if (c.train.micro_batch == 0)
    fail("dist.reproducible adds the gradients of micro-batches, whose size must not follow from the ranks",
         "train.micro_batch: 0", "a number that divides the batch of a rank",
         "train.micro_batch: 1, or a divisor of the fewest samples per rank");
}

void check_data(const Config& c) {
  const dataset::DataKind& kind = *c.data.kind;
  const int64_t classes = c.model.num_classes;
  if (kind.num_classes != 0 && classes != 0 && classes != nn::kClassesOfData && classes != kind.num_classes)
    fail(fmt::format("data.kind: {} has {} classes", kind.name, kind.num_classes),
         fmt::format("model.num_classes {}", classes),
         fmt::format("model.num_classes: {}, or 0 for none", kind.num_classes));
  if (!c.data.vae.empty() && !kind.pixels)
    fail(fmt::format("data.vae encodes pictures, and data.kind: {} are latents already", kind.name), c.data.vae,
         "data.kind: folder, or no data.vae", "--set data.vae=");
  if (!c.data.condition.empty() && !kind.of_bands)
    fail("data.condition names bands of tiles", fmt::format("data.kind: {}", kind.name), "data.kind: tiles",
         "data.condition: none");
  if (!c.data.condition.empty() && !c.data.vae.empty())
    fail("data.condition gives bands to a model of bands, and data.vae makes latents of them", c.data.vae,
         "no data.vae", "--set data.vae=");
  if (kind.path.empty() && !c.data.path.empty())
    fail(fmt::format("data.kind: {} draws its images and does not read data.path", kind.name), c.data.path,
         "data.kind: folder, latents or tiles, which read it (ditdata inspect PATH tells which)",
         "--set data.kind=folder, or --set data.path= to keep the drawn images");
  if (kind.path.empty() || !c.data.path.empty()) return;
  fail(fmt::format("data.path is not set, and data.kind: {} reads from it", kind.name), "", std::string(kind.path),
       "--set data.path=DIR, or in section data of the config the line `path: DIR`");
}

/// A key of a memory tier that is set although nothing moves between tiers; "" if no such key is set.
std::string idle_tier_key(const MemoryConfig& m) {
  if (m.moves()) return "";
  const auto defaults = memory::default_gib();
  for (size_t i = 0; i < defaults.size(); ++i)
    if (m.tier_gib[i] != defaults[i]) return fmt::format("memory.{}_gib", memory::kTiers[i].name);
  return m.fast_gib > 0         ? "memory.fast_gib"
         : !m.disk_path.empty() ? "memory.disk_path"
         : m.simulate_bulk      ? "memory.simulate_bulk"
                                : "";
}

/// A key of `data` that is set although the kind of data does not read it; "" if no such key is set.
std::string idle_data_key(const dataset::Config& d) {
  const dataset::DataKind& kind = *d.kind;
  const bool latents = !kind.pixels;
  const std::pair<const char*, bool> keys[] = {
      {"data.bands", !kind.of_bands && !latents && !d.bands.empty()},
      {"data.scaling", !kind.of_bands && !latents && d.scaling.from != dataset::ScalingFrom::kAuto},
      {"data.scale_low", !kind.of_bands && !latents && !d.scale_low.empty()},
      {"data.scale_high", !kind.of_bands && !latents && !d.scale_high.empty()},
      {"data.number_type", !kind.of_bands && !latents && d.number_type.has_value()},
      {"data.number_scale", !kind.of_bands && !latents && !d.number_scale.empty()},
      {"data.number_offset", !kind.of_bands && !latents && !d.number_offset.empty()},
      {"data.condition_low", !kind.of_bands && !latents && !d.condition_low.empty()},
      {"data.condition_high", !kind.of_bands && !latents && !d.condition_high.empty()},
      {"data.latent_scale", !latents && d.latent_scale.has_value()},
      {"data.num_images", !kind.path.empty() && d.num_images != dataset::Config().num_images},
      {"data.exif_orientation", std::string(kind.name) != "folder" && d.exif_orientation}};
  for (const auto& [key, idle] : keys)
    if (idle) return key;
  return "";
}

/// "KEY has no effect with OTHER: VALUE" of a key of `optimizer` that is set although nothing reads it; "" if none is.
std::string idle_optimizer_key(const optim::Config& o) {
  const optim::Config defaults;
  const bool constant = o.schedule == optim::LrSchedule::kConstant, wsd = o.schedule == optim::LrSchedule::kWsd;
  const std::string with_schedule = fmt::format("optimizer.schedule: {}", o.schedule);
  if (o.kind != optim::Kind::kMuon && o.muon_lr != defaults.muon_lr)
    return fmt::format("optimizer.muon_lr has no effect with optimizer.kind: {}", o.kind);
  if (constant && o.min_lr != defaults.min_lr) return "optimizer.min_lr has no effect with " + with_schedule;
  if (!wsd && o.decay_share != defaults.decay_share) return "optimizer.decay_share has no effect with " + with_schedule;
  return "";
}

/// Noise has as many independent values as a patch; a model through which fewer pass cannot predict it, at any learning
/// rate (tests/bench/reports/2026-11-26-recipes-bands).
std::string narrow_for_noise(const Config& c) {
  const nn::ModelConfig& m = c.model;
  const std::string_view prediction = diffusion::prediction_of(c.diffusion).name;
  const int64_t values = m.patch_size * m.patch_size * m.in_channels;
  const bool bottleneck = m.patch_bottleneck > 0 && m.patch_bottleneck < m.hidden_size;
  const int64_t width = bottleneck ? m.patch_bottleneck : m.hidden_size;
  if (prediction == "x0" || values <= width) return "";
  return fmt::format(
      "model.{}: {} is less than the {} values of a patch ({} x {} pixels of {} channels), which are as many values "
      "of noise: the model cannot predict them (diffusion.prediction: {}); set diffusion.prediction: x0, or a smaller "
      "model.patch_size",
      bottleneck ? "patch_bottleneck" : "hidden_size", width, values, m.patch_size, m.patch_size, m.in_channels,
      prediction);
}

}  // namespace

std::vector<std::string> warnings(const Config& c) {
  std::vector<std::string> lines;
  if (const std::string line = idle_optimizer_key(c.optimizer); !line.empty()) lines.push_back(line);
  if (const std::string key = idle_data_key(c.data); !key.empty())
    lines.push_back(fmt::format("{} has no effect with data.kind: {}", key, c.data.kind->name));
  if (const std::string key = idle_tier_key(c.memory); !key.empty())
    lines.push_back(key + " has no effect: nothing moves between memory tiers (memory.automem: off)");
  if (const std::string line = narrow_for_noise(c); !line.empty()) lines.push_back(line);
  constexpr double kMuch = 0.1;
  const double start = c.ema.warmup ? 0 : optim::ema_share_of_start(c.ema, c.train.steps);
  if (start > kMuch && c.train.branch_from.empty())
    lines.push_back(fmt::format(
        "after {} step(s) the EMA, from which samples are drawn, will still be {:.0f} % {}; set ema.warmup: true, or "
        "ema.decay: {:.4g}",
        c.train.steps, 100 * start,
        c.train.init_from.empty() ? "the initial random weights" : "the weights of train.init_from",
        std::max(0.0, 1 - 10 / double(c.train.steps))));
  if (c.optimizer.lr == 0) lines.push_back("optimizer.lr: 0 changes no weight: the run trains nothing");
  if (c.optimizer.warmup_steps > c.train.steps)
    lines.push_back(fmt::format(
        "optimizer.warmup_steps: {} is more than train.steps: {}; the learning rate will rise to {:.4g} alone, not to "
        "optimizer.lr: {:.4g}; set optimizer.warmup_steps: {}",
        c.optimizer.warmup_steps, c.train.steps, optim::learning_rate(c.optimizer, c.train.steps - 1, c.train.steps),
        c.optimizer.lr, c.train.steps / 10));
  return lines;
}

bool learns_pixels(const Config& c) { return c.data.kind->pixels && c.data.vae.empty(); }

bool draws_samples(const Config& c) { return c.sample.every_steps > 0 || c.eval.fid_every_steps > 0; }

diffusion::SamplerConfig sampler_of(const Config& c) {
  // Pixel models are limited to the range of their data; what latents are limited to is not known.
  const bool pixels = learns_pixels(c);
  return {.sampler = c.sample.sampler,
          .spacing = c.sample.steps,
          .eta = 0,
          .clip_denoised = pixels,
          .cfg_scale = eval::takes_guidance(c.model) || !c.sample.guide.empty() ? c.sample.cfg_scale : 1.0,
          .cfg_channels = number_of(c.sample.cfg_channels),
          .cfg_interval = c.sample.cfg_interval};
}

nn::Routes guide_routes(const std::string& guide, const Config& c) {
  return guide == kRoutedGuide ? c.train.routing : nn::Routes();
}

void validate_without_data(const Config& config) {
  nn::ModelConfig model = config.model;
  if (model.num_classes == nn::kClassesOfData) model.num_classes = 0;  // any number is good
  nn::validate(model);
  nn::validate(config.train.routing, model);
  if (config.train.layer_sync) nn::validate(*config.train.layer_sync, model, config.train.routing);
  check_process_keys(config);
  diffusion::make_process(config.diffusion, config.model.learn_sigma);
  check_memory_sizes(config);
  check_sampling(config);
  check_optimizer(config);
  check_log(config);
  check_start(config);
  check_threads(config);
  check_strategy(config);
  check_fid(config);
  check_automem(config);
  check_outer(config);
  check_dist(config);
  check_reproducible(config);
}

void check_bands(const Config& config) {
  // Channels of latents are not the bands that they were made of.
  const int64_t channels = learns_pixels(config) ? config.model.in_channels : int64_t(config.data.bands.size());
  dataset::check_channels(config.data, channels, config.model.condition_channels);
}

void validate(const Config& config) {
  validate_without_data(config);
  check_data(config);
}

void validate_for_ranks(const Config& config, int world_size) {
  DITRAIN_CHECK(world_size >= 1, "a run has ranks");
  check_tensor_ranks(config, world_size);
  const int64_t batch = config.train.global_batch, micro = config.train.micro_batch;
  const int64_t ranks = replicas(config, world_size);  // with samples of their own
  const char* who = tensor_ranks(config) > 1 ? "replicas" : "ranks";
  if (batch < ranks)
    fail(fmt::format("more {} than samples in a batch", who),
         fmt::format("{} {} for train.global_batch {}", ranks, who, batch), fmt::format("at most {} {}", batch, who),
         fmt::format("train.global_batch: {}", ranks));
  if (batch % ranks != 0) {
    const int64_t below = batch / ranks * ranks;
    fail(fmt::format("train.global_batch does not divide over the {}", who),
         fmt::format("{} samples over {} {}", batch, ranks, who), fmt::format("a multiple of {}", ranks),
         fmt::format("train.global_batch: {} or {}", below, below + ranks));
  }
  const int64_t share = batch / ranks;
  const bool divides = micro == 0 || share % micro == 0;
  if (!divides && (micro < share || config.dist.reproducible))  // else all at once (micro_batch_of)
    fail("train.micro_batch does not divide the batch of a rank",
         fmt::format("{} for {} samples per rank (train.global_batch {} over {} {})", micro, share, batch, ranks, who),
         fmt::format("a divisor of {}{}", share, config.dist.reproducible ? "" : ", or 0 for all at once"));
  if (config.dist.reproducible && !std::has_single_bit(uint64_t(ranks)))
    fail("dist.reproducible needs a number of ranks that is a power of two", fmt::format("{} ranks", ranks),
         "1, 2, 4, 8, ... ranks");
}

}  // namespace ditrain::config
