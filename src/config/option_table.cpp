// The rows of the option table. A new key is a field of its struct and one row here.
#include "ditrain/config/option_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "option_table_values.hpp"
#include "reference_names.hpp"

// The name of a key that is also the path of its field, and access to that field.
#define DITRAIN_KEY(path) #path, field_at([](Config & config) -> auto& { return config.path; })

namespace ditrain::config {
namespace {

// No real model lies beyond these bounds. They keep the bytes of all parameters below 2^56 and positions (steps times
// batch) at 2^62; the bytes of a batch and its activations, which they cannot bound, are checked by validate().
constexpr int64_t kMaxSide = 4096, kMaxChannels = 1024, kMaxWidth = 65536, kMaxDepth = 1024, kMaxClasses = 1 << 24;
constexpr int64_t kMaxBatch = 1 << 22, kMaxSteps = int64_t{1} << 40, kMaxThreads = 4096;
constexpr double kMaxGib = 1 << 20;  // bytes of it fit any type
constexpr NumberRange kShare{0, 1, true};

Option input_size() {
  const std::string name = "model.input_size";
  const std::string expected = fmt::format("N or [H, W], sides from 1 to {}", kMaxSide);
  Option o = named_option(name, "height and width of the input, in pixels (or latents)", expected);
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    if (v.is_list && v.items.size() != 2) refuse(origin, name, shown(v), expected);
    const IntegerRange range{1, kMaxSide};
    const int64_t height = read_integer({{v.items.front()}}, range, origin, name);
    const int64_t width = read_integer({{v.items.back()}}, range, origin, name);
    c.model.input_height = height, c.model.input_width = width;
  };
  o.get = [](const Config& c) {
    const nn::ModelConfig& m = c.model;
    return m.input_height == m.input_width ? std::to_string(m.input_height)
                                           : fmt::format("[{}, {}]", m.input_height, m.input_width);
  };
  return o;
}

Option scaling() {
  using dataset::Scaling;
  const std::string name = "data.scaling",
                    expected = alternatives(all_words<dataset::ScalingFrom>()) + ", or [LOW, HIGH]";
  Option o = named_option(name,
                          "tiles: range of digital numbers that is scaled to [-1, 1]: LOW and HIGH for all bands; "
                          "percentiles (0.5 and 99.5) or deviation (mean -+ 2 standard deviations), from stats.json; "
                          "type (the range of the type); auto (type for u8, else percentiles)",
                          expected);
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    Scaling scaling;
    if (!v.is_list) {
      if (!find_word(v.items.front(), scaling.from)) refuse(origin, name, shown(v), expected);
    } else {
      if (v.items.size() != 2) refuse(origin, name, shown(v), expected);
      scaling.from = dataset::ScalingFrom::kRange;
      scaling.low = read_number({{v.items[0]}}, {-1e30, 1e30}, origin, name);
      scaling.high = read_number({{v.items[1]}}, {-1e30, 1e30}, origin, name);
      if (!(scaling.high > scaling.low)) refuse(origin, name, shown(v), "LOW below HIGH: scaling would divide by zero");
    }
    c.data.scaling = scaling;
  };
  o.get = [](const Config& c) { return c.data.scaling.text(); };
  return o;
}

Option betas() {
  const std::string name = "optimizer.betas", expected = "[beta1, beta2], each from 0 to below 1";
  Option o = named_option(name, "decay rates of Adam's first and second moment", expected);
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    if (!v.is_list || v.items.size() != 2) refuse(origin, name, shown(v), expected);
    const double beta1 = read_number({{v.items[0]}}, kShare, origin, name);
    const double beta2 = read_number({{v.items[1]}}, kShare, origin, name);
    c.optimizer.beta1 = beta1, c.optimizer.beta2 = beta2;
  };
  o.get = [](const Config& c) {
    return fmt::format("[{}, {}]", number_text(c.optimizer.beta1), number_text(c.optimizer.beta2));
  };
  return o;
}

Option cfg_interval() {
  const std::string name = "sample.cfg_interval", expected = "[FROM, TO], from 0 to 1";
  Option o = named_option(
      name, "where guidance acts on the way from noise (0) to data (1); outside, the model runs with the label alone",
      expected);
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    if (!v.is_list || v.items.size() != 2) refuse(origin, name, shown(v), expected);
    const double from = read_number({{v.items[0]}}, {0, 1}, origin, name);
    const double to = read_number({{v.items[1]}}, {0, 1}, origin, name);
    if (!(from < to)) refuse(origin, name, shown(v), "FROM below TO");
    c.sample.cfg_interval = {from, to};
  };
  o.get = [](const Config& c) { return c.sample.cfg_interval.text(); };
  return o;
}

Option tuned() {
  const std::string name = "kernels.tuned", expected = alternatives(all_words<TunedFrom>()) + ", or a path";
  Option o = named_option(
      name, "cache blocks of GEMMs: auto (the file of ditbench tune, if there is one), off, or a file", expected);
  o.set = [=](Config& c, const OptionValue& v, const std::string& origin) {
    const std::string text = read_text(v, origin, name);
    if (text.empty()) refuse(origin, name, shown(v), expected);
    if (!find_word(text, c.kernels.tuned)) c.kernels.tuned = TunedFrom::kFile;
    c.kernels.tuning_file = c.kernels.tuned == TunedFrom::kFile ? text : "";
  };
  o.get = [](const Config& c) {
    const bool file = c.kernels.tuned == TunedFrom::kFile;
    return yaml_text(file ? c.kernels.tuning_file : std::string(word_of(c.kernels.tuned)));
  };
  return o;
}

Option simulate_link() {
  using Link = dist::LinkModel;
  return map_or_off<Link>(DITRAIN_KEY(dist.simulate_link),
                          {{{"gbit_s", "above 0", &Link::gbit_s, 1e-6, 1e6},
                            {"latency_us", "0 or more", &Link::latency_us, 0, 1e9},
                            {"hosts", "2 or more", &Link::hosts, 2, 1 << 20}}},
                          "delays gradients as a link between hosts would");
}

Option outer() {
  using Outer = optim::OuterConfig;
  return map_or_off<Outer>(
      DITRAIN_KEY(dist.outer),
      {{{"every", "1 or more", &Outer::every, 1, 1e6},
        {"lr", "above 0", &Outer::lr, 1e-6, 10},
        {"momentum", "0 to below 1", &Outer::momentum, 0, 0.9999},
        {"overlap", "true or false", &Outer::overlap}}},
      "for slow links: nodes train by themselves and average their weights every so many steps (DiLoCo), by an outer "
      "optimiser with this learning rate and Nesterov momentum; overlap: the average travels during the next of these "
      "phases (eager updates). Defaults of the map: {every: 50, lr: 0.7, momentum: 0.9, overlap: false}. It changes "
      "results");
}

Option simulate_bulk() {
  using Bulk = memory::SimulatedBulk;
  return map_or_off<Bulk>(
      DITRAIN_KEY(memory.simulate_bulk),
      {{{"gb_s", "above 0", &Bulk::gb_s, 1e-6, 1e6}, {"latency_us", "0 or more", &Bulk::latency_us, 0, 1e9}}},
      "simulates a slower bulk tier: bandwidth in each direction, and latency");
}

Option routing() {
  using nn::Route;
  return maps_or_off<Route>(
      DITRAIN_KEY(train.routing),
      {{{"ratio", "above 0 and below 1", &Route::ratio, 0, 1},
        {"from", "a block, from 0", &Route::from, 0, double(kMaxDepth)},
        {"to", "a later one, or the same", &Route::to, 0, double(kMaxDepth)}}},
      "token routing (TREAD): a random share of each sample's tokens, ratio, skips the blocks from to to in training, "
      "which take no time and memory for them; samples are drawn with all tokens");
}

Option layer_sync() {
  using nn::LayerSync;
  return map_or_off<LayerSync>(DITRAIN_KEY(train.layer_sync),
                               {{{"weight", "above 0", &LayerSync::weight, 1e-6, 1e3},
                                 {"from", "a block, from 0", &LayerSync::from, 0, double(kMaxDepth)},
                                 {"to", "a later one", &LayerSync::to, 0, double(kMaxDepth)}}},
                               "LayerSync: the loss falls by weight times the mean cosine between the tokens behind "
                               "block from and those behind block to, which do not learn from it");
}

using Rows = std::vector<Option>;

Rows model_rows() {
  return {
      word(DITRAIN_KEY(model.kind), "architecture: " + nn::describe_model_kinds()),
      choice(DITRAIN_KEY(model.name), nn::model_names(),
             "size and patch, of model.kind; custom: set by the next four keys, which otherwise follow from the name"),
      integer(DITRAIN_KEY(model.hidden_size), {1, kMaxWidth}, "values per token"),
      integer(DITRAIN_KEY(model.depth), {1, kMaxDepth}, "number of blocks"),
      integer(DITRAIN_KEY(model.num_heads), {1, kMaxWidth}, "attention heads"),
      integer(DITRAIN_KEY(model.patch_size), {1, kMaxSide}, "pixels per side of a patch"),
      integer(DITRAIN_KEY(model.patch_overlap), {0, kMaxSide},
              "pixels of its neighbours that a token reads and predicts on every side of its patch, against a grid of "
              "patch borders; predictions of a pixel are added up with weights; 0: none"),
      integer(DITRAIN_KEY(model.patch_bottleneck), {0, kMaxWidth},
              "width between two linear maps of patches to tokens, which large patches gain from; 0: one map"),
      number(DITRAIN_KEY(model.mlp_ratio), {0, 64}, "width of the MLP as a multiple of hidden_size"),
      input_size(),
      integer(DITRAIN_KEY(model.in_channels), {1, kMaxChannels}, "channels of the data: 3 RGB, 4 latents"),
      integer(DITRAIN_KEY(model.condition_channels), {0, kMaxChannels},
              "channels of an image that is given and not predicted; data.condition sets it"),
      integer_or_auto(DITRAIN_KEY(model.num_classes), 0, kMaxClasses,
                      "number of classes; 0: no label conditioning; auto: the classes of the data, 0 without labels"),
      number(DITRAIN_KEY(model.class_dropout), kShare,
             "share of labels that training drops; classifier-free guidance needs it above 0"),
      names_or(
          DITRAIN_KEY(model.metadata), "none",
          "tiles: numbers that condition the model: longitude, latitude, resolution (metres per pixel), cloud_cover "
          "(a share), year, month, day"),
      number(DITRAIN_KEY(model.metadata_drop), kShare,
             "share of samples that lose all metadata in training, and of each number of the others; samples may leave "
             "out what was dropped"),
      boolean(DITRAIN_KEY(model.learn_sigma), "the model also predicts a variance: twice the output channels"),
      word(DITRAIN_KEY(model.qk_norm),
           "normalisation of queries and keys per head: rms (RMSNorm with scales) or layer (LayerNorm with scales and "
           "shifts)"),
      word(DITRAIN_KEY(model.norm),
           "norm before attention, MLP and last layer: layer (LayerNorm without parameters) or rms (RMSNorm with a "
           "weight)"),
      word(DITRAIN_KEY(model.mlp), "MLP of a block: gelu, or swiglu (two thirds of the width, as many multiply-adds)"),
      word(DITRAIN_KEY(model.position),
           "place of a token: sincos (a table added to the embeddings) or rope (rotary embedding of queries and keys, "
           "and no table)"),
  };
}

Option of_process(const char* process, Option option) {
  option.process = process;
  return option;
}

Rows diffusion_rows() {
  return {
      word(DITRAIN_KEY(diffusion.process),
           "ddpm: noise in steps of a schedule; flow: flow matching on a straight line (needs model.learn_sigma: "
           "false)"),
      word_or_auto(DITRAIN_KEY(diffusion.prediction),
                   "what the model predicts; ddpm: epsilon (noise), x0 (clean data) or v; flow: velocity or x0; auto: "
                   "the first of these"),
      of_process("ddpm", integer(DITRAIN_KEY(diffusion.num_steps), {2, 100000}, "ddpm: noise levels of the process")),
      of_process("ddpm", word(DITRAIN_KEY(diffusion.schedule), "ddpm: schedule of the noise levels")),
      of_process(
          "ddpm",
          word(DITRAIN_KEY(diffusion.variance),
               "ddpm: variance of a sampling step; auto: learned_range with model.learn_sigma, else fixed_large")),
      word(DITRAIN_KEY(diffusion.loss),
           "mse: mean square error; mse_vb adds the variational bound, which trains a learned variance; kl (ddpm): the "
           "bound alone"),
      of_process("ddpm", word(DITRAIN_KEY(diffusion.loss_weight),
                              "ddpm: weight of the mse by time step; min_snr: min(SNR, gamma) of the clean data")),
      of_process("ddpm", number(DITRAIN_KEY(diffusion.min_snr_gamma), {1e-6, 1e6}, "gamma of loss_weight: min_snr")),
      of_process("flow", word(DITRAIN_KEY(diffusion.time), "flow: distribution of the training times")),
      of_process("flow", number(DITRAIN_KEY(diffusion.time_mean), {-100, 100},
                                "flow, logit_normal: mean of the logit; below 0 more noise (t = 0 is noise, 1 data)")),
      of_process("flow", number(DITRAIN_KEY(diffusion.time_deviation), {1e-3, 100},
                                "flow, logit_normal: standard deviation of the logit")),
      of_process("flow", number(DITRAIN_KEY(diffusion.noise_scale), {1e-3, 1e3},
                                "flow: standard deviation of the noise, in training and sampling; above 1 for large "
                                "images in pixels, whose neighbours tell through more noise")),
      of_process(
          "flow",
          number(DITRAIN_KEY(diffusion.time_shift), {1e-3, 1e3},
                 "flow: shift of the times in training and sampling; above 1 more noise: photos and large images gain, "
                 "tiles do not")),
  };
}

Rows data_rows() {
  return {
      word(DITRAIN_KEY(data.kind), dataset::help_of_kinds()),
      text(DITRAIN_KEY(data.path), "folder of the data (folder, latents, tiles)", "a path"),
      word(DITRAIN_KEY(data.on_bad_file), "stop at an unreadable file, or count and skip it"),
      text(DITRAIN_KEY(data.vae),
           "autoencoder that encodes images to latents while training, as ditdata encode --vae; empty: none", "a path"),
      number(
          DITRAIN_KEY(data.hold_out), kShare,
          "share of the samples, drawn once and for all, that training does not see; the validation loss and ditbench "
          "quality look at them"),
      boolean(DITRAIN_KEY(data.random_flip), "mirror half of the samples (folder, tiles, latents with flipped copies)"),
      word(DITRAIN_KEY(data.augment),
           "random orientation of each sample, for imagery from above (tiles, folder): flips also turns it upside "
           "down, turns also makes quarter turns"),
      boolean(DITRAIN_KEY(data.exif_orientation),
              "folder: rotate photographs by their EXIF orientation; the reference does not"),
      names_or(DITRAIN_KEY(data.bands), "all",
               "tiles: bands by name, in the order of the channels; latents of tiles know their own"),
      scaling(),
      numbers_or_auto(
          DITRAIN_KEY(data.scale_low),
          "tiles: the digital number of each band that becomes -1; auto: by data.scaling when a run starts"),
      numbers_or_auto(DITRAIN_KEY(data.scale_high),
                      "tiles: the digital number of each band that becomes 1; numbers beyond are clamped"),
      word_or_auto(DITRAIN_KEY(data.number_type),
                   "tiles: type of the digital numbers, also for samples; auto: that of the tiles",
                   {std::begin(dataset::kTileTypes), std::end(dataset::kTileTypes)}),
      numbers_or_auto(DITRAIN_KEY(data.number_scale),
                      "tiles: scale of each band: reflectance (or another quantity) = number * scale + offset, which "
                      "samples state too; auto: as the tiles say"),
      numbers_or_auto(DITRAIN_KEY(data.number_offset), "tiles: the offset of each band; auto: as the tiles say"),
      names_or(
          DITRAIN_KEY(data.condition), "none",
          "tiles: bands that the model is given and does not predict: [BAND, ...] of data.path, or [./FOLDER, BAND, "
          "...] of tiles of the same places (without bands: all); a last word `valid` adds a channel that tells "
          "where they have data"),
      numbers_or_auto(
          DITRAIN_KEY(data.condition_low),
          "tiles: the digital number of each band of data.condition that becomes -1; auto: by data.scaling"),
      numbers_or_auto(DITRAIN_KEY(data.condition_high), "tiles: the same of 1"),
      number_or_auto(DITRAIN_KEY(data.latent_scale), {1e-6, 1e6},
                     "factor of the latents; auto: the scale_factor that the shards state; 1 if they state none (their "
                     "latents are scaled already)"),
      integer(DITRAIN_KEY(data.num_images), {1, kMaxSteps}, "images per epoch (shapes)"),
      integer(DITRAIN_KEY(data.loader_threads), {1, 1024}, "threads that read and decode"),
      integer(DITRAIN_KEY(data.queue_batches), {1, 1024}, "batches prepared ahead of the step"),
  };
}

Rows train_rows() {
  return {
      integer(DITRAIN_KEY(train.steps), {1, kMaxSteps}, "optimiser steps in total"),
      integer(DITRAIN_KEY(train.global_batch), {1, kMaxBatch}, "samples per step, over all ranks"),
      integer(DITRAIN_KEY(train.micro_batch), {0, kMaxBatch},
              "samples that a rank processes at once (gradient accumulation); 0: all of its share"),
      word(DITRAIN_KEY(train.precision),
           "type of GEMMs and of stored activations; weights, optimiser state, EMA and sums are always f32"),
      word_or_auto(DITRAIN_KEY(train.recompute),
                   "activation checkpointing, bit-identical; none: stores all (18 values per token, channel and "
                   "block); selective: recomputes what is cheap (stores 11); block: recomputes all but the input of "
                   "each block (stores 1; a third more work); auto: the least recomputation that fits, block by block"),
      word(DITRAIN_KEY(train.on_non_finite),
           "what happens at a NaN or infinite loss or gradient, and at a gradient norm of 1e18 or more after clipping; "
           "with stop and optimizer.clip_norm 0, weights are updated before all gradients are known: several ranks "
           "update while other gradients are in flight, one rank in backward; skip gives up after 100 such steps one "
           "after the other"),
      integer(DITRAIN_KEY(train.seed), {0}, "seed of all random numbers"),
      routing(),
      layer_sync(),
      text(DITRAIN_KEY(train.init_from),
           "weights that a new run starts from: checkpoint, .safetensors, .pt or diffusers folder; weights are adapted "
           "to "
           "other classes, channels and sizes, which the log tells",
           "a path"),
      text(DITRAIN_KEY(train.branch_from),
           "checkpoint that a new run goes on from, with weights, EMA, optimiser state and step; what differs from its "
           "config is the branch (a decay of the learning rate, other data); the model stays",
           "a path"),
  };
}

Rows optimizer_rows() {
  return {
      word(DITRAIN_KEY(optimizer.kind),
           "what updates the weights: adamw, or muon for the matrices of blocks and AdamW for all else"),
      number(DITRAIN_KEY(optimizer.lr), {0, 1000}, "learning rate of AdamW"),
      number(DITRAIN_KEY(optimizer.muon_lr), {1e-12, 1000},
             "muon: learning rate of the matrices of blocks, with the schedule of optimizer.lr; set with that, often "
             "10 times as large"),
      betas(),
      number(DITRAIN_KEY(optimizer.eps), {1e-30, 1}, "added to the root of the second moment"),
      number(DITRAIN_KEY(optimizer.weight_decay), {0, 1000}, "decoupled weight decay, on every parameter"),
      number(DITRAIN_KEY(optimizer.clip_norm), {0}, "maximum L2 norm of all gradients together; 0: no clipping"),
      word(DITRAIN_KEY(optimizer.schedule), "learning rate schedule after the warm-up"),
      integer(DITRAIN_KEY(optimizer.warmup_steps), {0, kMaxSteps}, "steps in which the learning rate rises linearly"),
      number(DITRAIN_KEY(optimizer.min_lr), {0, 1000}, "final learning rate of schedules cosine and wsd"),
      number(DITRAIN_KEY(optimizer.decay_share), {0, 1},
             "wsd: share of train.steps, the last ones, in which the learning rate falls linearly to min_lr"),
      number(DITRAIN_KEY(ema.decay), kShare, "decay of the EMA of the weights per step"),
      boolean(DITRAIN_KEY(ema.warmup),
              "smaller decay in the first steps, min(decay, (1 + k) / (10 + k)), so that a short run forgets its "
              "initial weights"),
      integer(DITRAIN_KEY(ema.snapshots_every), {0, kMaxSteps},
              "keep two power averages of the weights, and store them every so many steps, so that ditexport "
              "--ema-width can make an average of any width after the run; 0: off"),
  };
}

/// memory.NAME_gib of each slow tier.
Rows tier_rows() {
  Rows rows;
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    rows.push_back(number_or_auto(
        fmt::format("memory.{}_gib", memory::kTiers[i].name), [i](auto& c) -> auto& { return c.memory.tier_gib[i]; },
        {0, kMaxGib}, memory::kTiers[i].help));
  return rows;
}

Rows parallel_rows() {
  return {
      integer_or_auto(DITRAIN_KEY(parallel.threads), 1, kMaxThreads,
                      "worker threads per rank; auto: the least of affinity mask, cgroup CPU quota, "
                      "SLURM_CPUS_PER_TASK and OMP_NUM_THREADS, less the cores set aside"),
      integer_or_auto(DITRAIN_KEY(parallel.clusters), 1, kMaxThreads,
                      "thread clusters per rank (one per NUMA domain), a divisor of its threads; auto: one per NUMA "
                      "domain, or one per L3 cache where the rank has a single domain"),
      word(DITRAIN_KEY(parallel.strategy),
           "cftp: one rank per die, whose thread clusters share one copy of everything; for comparison with one rank "
           "per thread cluster: dp (each rank has a replica) and dp_tp (ranks share a replica by tensor parallelism "
           "over MPI)"),
      integer_or_auto(DITRAIN_KEY(parallel.tensor_ranks), 1, kMaxThreads,
                      "ranks that share a replica (dp_tp); auto: all of a node"),
      word(DITRAIN_KEY(parallel.cut),
           "how work is split over thread clusters: by samples of the micro-batch, or by columns of GEMMs and "
           "attention heads (n); auto: the split that moves fewer bytes"),
      integer_or_auto(DITRAIN_KEY(parallel.comm_cores), 0, kMaxThreads,
                      "cores per rank that only communicate; auto: 1 from 8 cores per rank on, if there are several "
                      "ranks; 0: the workers' cores also communicate"),
      boolean(DITRAIN_KEY(parallel.smt), "one worker per hardware thread instead of one per core"),
      number(DITRAIN_KEY(memory.fast_gib), {0, kMaxGib},
             "[GiB per rank] fast tier of memory.automem; 0: the rank's part of the on-package memory (HBM)"),
  };
}

Rows machine_rows() {
  return {
      text(DITRAIN_KEY(memory.disk_path), "folder of the disk tier, on a local disk; empty: the run folder", "a path"),
      word(DITRAIN_KEY(memory.pages),
           "pages of the memory tiers in memory and of gradients that ranks of a node share: explicit: reserved huge "
           "pages (vm.nr_hugepages); transparent: huge where the kernel grants them; plain; auto: the first of these "
           "that is available"),
      simulate_bulk(),
      integer_or_auto(DITRAIN_KEY(memory.copy_cores), 0, kMaxThreads,
                      "cores per rank that only copy between memory tiers; auto: 1 from 8 cores per rank on, if "
                      "memory.automem is on"),
      word(DITRAIN_KEY(memory.copy),
           "which threads copy between memory tiers when no core is reserved for it: threads (beside the workers, on "
           "their cores) or workers (at the borders of nodes); auto: the faster, as measured at the start"),
      word(DITRAIN_KEY(memory.automem),
           "offloads tensors to ordinary memory and disk and prefetches them while the cores compute, bit-identical; "
           "paper: module by module, as published; planned: as a simulation of the step finds best"),
      word(DITRAIN_KEY(kernels.gemm), "what computes the matrix products (GEMM): ditrain, or the slow reference"),
      boolean(DITRAIN_KEY(kernels.fuse), "fuse normalisation, GELU, gate and residual into the GEMMs (own only)"),
      tuned(),
  };
}

Rows dist_rows() {
  return {
      number(DITRAIN_KEY(dist.bucket_mib), {0.001, 65536}, "size of a gradient bucket [MiB]"),
      boolean(DITRAIN_KEY(dist.overlap), "the all-reduce of gradients starts while backward still runs"),
      boolean(DITRAIN_KEY(dist.engine),
              "a thread of its own runs the all-reduce; false: the computing thread runs it between its other work"),
      word(DITRAIN_KEY(dist.allreduce),
           "all-reduce of gradients: flat (MPI over all ranks), or hierarchical (in the memory of a node, then between "
           "nodes)"),
      word(DITRAIN_KEY(dist.wire), "type in which gradients travel between nodes (hierarchical); sums stay f32"),
      word(DITRAIN_KEY(dist.adaln),
           "how adaLN weight gradients are reduced: reduce = all-reduce; factors = all-gather their low-rank factors, "
           "which each rank multiplies after backward (less traffic for small batches; refused where a layer cannot); "
           "auto = factors where they take no more memory than the gradient (global batch up to 6/7 of the width, in "
           "the final layer up to 2/3), with dist.engine and without dist.reproducible"),
      boolean(DITRAIN_KEY(dist.shard_optimizer),
              "sharded optimiser (ZeRO-1), bit-identical (with muon up to rounding of the gradient norm, which "
              "optimizer.clip_norm uses): each rank keeps optimiser state and EMA of its share of the "
              "parameters, which divides 12 bytes per parameter by the number of ranks; traffic between nodes grows by "
              "half (needs dist.engine)"),
      boolean(DITRAIN_KEY(dist.reproducible),
              "bit-identical results for 1, 2, 4, ... ranks: gradients of train.micro_batch samples each are added as "
              "a binary tree; costs log2(micro-batches per rank) extra gradient buffers and up to four passes over the "
              "gradients per micro-batch"),
      number_or_auto(
          DITRAIN_KEY(dist.timeout_s), {0},
          "seconds that ranks wait for another in a step or a checkpoint before the run ends and names it, unless it "
          "is writing a checkpoint; 0: wait for ever; auto: the larger of 300 s and 30 recent steps"),
      integer(DITRAIN_KEY(dist.verify_every), {0, kMaxSteps},
              "steps between comparisons of the ranks' weights, bit by bit (ranks whose kernels differ in bits do not "
              "start), also made before every checkpoint; 0: never"),
      simulate_link(),
      outer(),
  };
}

Rows output_rows() {
  return {
      integer(DITRAIN_KEY(checkpoint.every_steps), {0, kMaxSteps}, "steps between checkpoints; 0: none by steps"),
      number(DITRAIN_KEY(checkpoint.every_minutes), {0, 1e6},
             "maximum time between checkpoints [min]; 0: no limit. The end of a run always writes one"),
      integer(DITRAIN_KEY(checkpoint.keep_last), {0, kMaxSteps}, "number of newest checkpoints to keep; 0: all"),
      integer(DITRAIN_KEY(checkpoint.keep_every), {0, kMaxSteps},
              "checkpoints of steps divisible by it are kept for ever; 0: none"),
      boolean(DITRAIN_KEY(checkpoint.keep_discarded),
              "whether later checkpoints stay when a run resumes from an earlier step: they are renamed to "
              "discarded_step_*; false: deleted when the next checkpoint is whole"),
      boolean(DITRAIN_KEY(checkpoint.async), "write checkpoints asynchronously, while training continues"),
      number(DITRAIN_KEY(checkpoint.buffer_gib), {0, 65536},
             "[GiB per rank] copy-on-write buffer for asynchronous checkpoints; when full, the optimiser waits"),
      number(DITRAIN_KEY(checkpoint.timeout_s), {0, 1e6},
             "seconds in which a rank that works on a checkpoint finishes no write, sync or rename before the run ends "
             "and names it, for disks that may hang; 0: wait for ever"),
      word(DITRAIN_KEY(checkpoint.on_error),
           "what happens if a checkpoint cannot be written: stop ends the run, warn continues; a failed last "
           "checkpoint always ends the run"),
      integer(DITRAIN_KEY(log.every_steps), {1, kMaxSteps},
              "steps between progress lines; metrics.jsonl has every step"),
      number(DITRAIN_KEY(log.every_seconds), {0, 1e6},
             "maximum time without a progress line [s]; a line within a step says which micro-batch and layer it is "
             "at; 0: no limit"),
      word(DITRAIN_KEY(log.level),
           "what is printed: info, or debug with machine, plans and settled keys; log.txt has both"),
      boolean(DITRAIN_KEY(log.tensorboard), "event files of scalars and sample grids in OUT/tensorboard"),
      text(DITRAIN_KEY(log.prometheus),
           "text file for node_exporter's textfile collector, replaced every few seconds; empty: none",
           "a path that ends in .prom"),
      integer(DITRAIN_KEY(sample.every_steps), {0, kMaxSteps}, "steps between sample grids; 0: none"),
      integer(DITRAIN_KEY(sample.num_images), {1, 65536}, "samples per grid"),
      text(DITRAIN_KEY(sample.vae),
           "autoencoder that decodes the samples of a latent model for the grids; empty: grids of latents", "a path"),
      text(DITRAIN_KEY(sample.steps), "sampling steps: \"50\", \"ddim25\" or \"10,10,20\"", "a number of steps"),
      word_or_auto(DITRAIN_KEY(sample.sampler), "sampler; " + diffusion::sampler_words()),
      number(DITRAIN_KEY(sample.cfg_scale), {0, 1000}, "scale of classifier-free guidance; 1: off"),
      word(DITRAIN_KEY(sample.cfg_channels),
           "channels that guidance acts on: all, or the first 3, as in the reference DiT (ditimport sets this for its "
           "weights)"),
      cfg_interval(),
      text(DITRAIN_KEY(sample.guide),
           "checkpoint of a weaker model of the same data, such as an earlier one of the run, that cfg_scale guides "
           "away "
           "from (autoguidance); routed: away from the model itself with the routes of train.routing; empty: away from "
           "samples without labels",
           "a path, or routed"),
      integer(DITRAIN_KEY(eval.every_steps), {0, kMaxSteps}, "steps between validation losses; 0: none"),
      integer(DITRAIN_KEY(eval.num_images), {1, kMaxBatch},
              "number of fixed images of the validation loss, held-out ones if data.hold_out is set"),
      integer(DITRAIN_KEY(eval.fid_every_steps), {0, kMaxSteps},
              "steps between Frechet distances of samples of the EMA weights; 0: none. A checkpoint is written before "
              "each, and the best one by it is linked as checkpoints/best"),
      integer(DITRAIN_KEY(eval.fid_samples), {2, 1000000}, "samples per distance; other settings as in `sample`"),
      text(DITRAIN_KEY(eval.reference),
           "images or statistics to compare with, as ditfid --real; empty: the training data", "a path"),
      word(DITRAIN_KEY(eval.features),
           "features to compare: pixels (a trend, not comparable with published FIDs) or inception (needs "
           "eval.weights)"),
      text(DITRAIN_KEY(eval.weights), "weights of the FID Inception network, as ditfid --weights", "a path"),
  };
}

// What a resumed run may change, besides the keys that it does not read (is_read).
bool free_on_resume(const Option& o) {
  static const std::set<std::string> kSections = {"log", "checkpoint", "sample", "eval", "memory", "parallel", "dist"};
  // train.recompute and kernels.tuned change memory and time, but no bit of the results; nor does kernels.fuse in f32
  // (in bf16 it changes where values are rounded, and the run says so). Other products have another order of sums.
  // Training does not use the quantities of bands, which older runs do not know. A run that met an unreadable file may
  // go on without it: what can be read is trained as before.
  // train.micro_batch changes the order of sums, as another number of ranks does; dist.reproducible fixes both
  // (differences_on_resume).
  static const std::set<std::string> kKeys = {
      "train.steps",       "train.recompute",    "train.micro_batch", "data.loader_threads", "data.queue_batches",
      "data.number_scale", "data.number_offset", "data.on_bad_file",  "kernels.fuse",        "kernels.tuned"};
  // Outer steps are another way to train, with state of their own.
  return (kSections.contains(o.section) && o.name() != "dist.outer") || kKeys.contains(o.name());
}

Rows all_rows() {
  Rows all;
  for (const auto& rows : {model_rows(), diffusion_rows(), data_rows(), train_rows(), optimizer_rows(), parallel_rows(),
                           tier_rows(), machine_rows(), dist_rows(), output_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  for (Option& o : all) o.may_change_on_resume = free_on_resume(o);
  return all;
}

}  // namespace

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = all_rows();
  return table;
}

std::vector<std::string> option_sections() {
  std::vector<std::string> sections;
  for (const Option& o : option_table())
    if (sections.empty() || sections.back() != o.section) sections.push_back(o.section);
  return sections;
}

namespace {

// What was meant by a word that stands where a section should: the keys of that name, in the form that is wanted, or
// the one that the reference implementations call so.
std::string keys_called(const std::string& word, fmt::format_string<const std::string&, const std::string&> form) {
  std::string keys;
  for (const Option& o : option_table())
    if (o.key == word || o.name() == word) keys += (keys.empty() ? "" : " or ") + fmt::format(form, o.section, o.key);
  const ReferenceName* known = keys.empty() ? find_reference_name(word) : nullptr;
  if (known == nullptr || known->key.empty()) return keys;
  const std::string key(known->key);
  const std::string section = key.substr(0, key.find('.')), own = key.substr(section.size() + 1);
  return fmt::format(form, section, own) + (known->note.empty() ? "" : fmt::format(" ({})", known->note));
}

std::set<std::string> words_of(const std::string& key) {
  std::set<std::string> words;
  std::istringstream parts(key);
  for (std::string word; std::getline(parts, word, '_');)
    if (word.size() >= 4) words.insert(word);
  return words;
}

std::string key_that_begins_with(const std::string& begin, const std::vector<std::string>& keys) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const std::string& k) { return k.starts_with(begin); });
  return found == keys.end() ? "" : *found;
}

// Up to three keys of a section that share a word with this one: global_batch or micro_batch for batch_size.
std::string keys_with_words_of(const std::string& key, const std::vector<std::string>& keys) {
  const std::set<std::string> wanted = words_of(key);
  std::string found;
  int left = 3;
  for (const std::string& k : keys) {
    const std::set<std::string> words = words_of(k);
    if (std::any_of(words.begin(), words.end(), [&](const std::string& word) { return wanted.count(word) > 0; }) &&
        left-- > 0)
      found += (found.empty() ? "" : " or ") + k;
  }
  return found;
}

}  // namespace

std::string settings_called(std::string word) {
  std::replace(word.begin(), word.end(), '-', '_');
  const std::vector<std::string> sections = option_sections();
  if (std::find(sections.begin(), sections.end(), word) != sections.end())
    return fmt::format("--set {}.KEY=VALUE (ditrain --help {})", word, word);
  return keys_called(word, "--set {}.{}=...");
}

const Option& find_option(const std::string& section, const std::string& key, const std::string& origin) {
  std::vector<std::string> keys;
  for (const Option& o : option_table()) {
    if (o.section != section) continue;
    if (o.key == key) return o;
    keys.push_back(o.key);
  }
  const bool known_section = !keys.empty();
  if (const std::string meant = keys_called(section, "`{}: {{{}: ...}}`"); !known_section && !meant.empty())
    throw InputError({.where = "config", .what = origin + "unknown section " + section, .hint = meant});
  const std::vector<std::string> candidates = known_section ? keys : option_sections();
  const std::string full = section + "." + key;
  std::string elsewhere, near;
  if (find_reference_name(full) != nullptr)
    elsewhere = keys_called(full, "{}.{}");
  else if (!known_section || find_reference_name(key) == nullptr)
    near = nearest_word(known_section ? key : section, candidates);
  if (near.empty() && elsewhere.empty() && known_section) near = key_that_begins_with(key + "_", keys);
  if (near.empty() && elsewhere.empty()) elsewhere = keys_called(key, "{}.{}");
  if (near.empty() && elsewhere.empty() && known_section) near = keys_with_words_of(key, keys);
  const std::string what = known_section ? "unknown key " + full : "unknown section " + section;
  throw InputError({.where = "config",
                    .what = origin + what +
                            (near.empty() ? "" : "; did you mean " + (known_section ? section + "." : "") + near + "?"),
                    .expected = near.empty() && elsewhere.empty() ? alternatives(candidates) : "",
                    .hint = elsewhere});
}

void apply_set(Config& config, const std::string& assignment) {
  const size_t equal = assignment.find('='), dot = assignment.find('.');
  if (equal == std::string::npos || dot == std::string::npos || dot > equal) {
    const std::string meant = keys_called(assignment.substr(0, equal), "--set {}.{}=...");
    throw InputError({.where = "config",
                      .what = equal == std::string::npos ? "--set: no assignment" : "--set: the key has no section",
                      .got = shown({{assignment}}),
                      .expected = "section.key=value",
                      .hint = meant.empty() ? "--set train.steps=100" : meant});
  }
  const std::string section = assignment.substr(0, dot), key = assignment.substr(dot + 1, equal - dot - 1);
  const Option& option = find_option(section, key, "--set: ");
  option.set(config, value_of_text(assignment.substr(equal + 1), option, "--set: "), "--set: ");
}

}  // namespace ditrain::config
