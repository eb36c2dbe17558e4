#include "ditrain/plan/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "ditrain/base/text.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/sums.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/optim/outer.hpp"
#include "ditrain/plan/inputs.hpp"

namespace ditrain::plan {
namespace {

using autograd::Mode;

// The images of a sample grid: those of a rank as they are drawn and decoded; rank 0 collects all, and makes pictures.
struct GridBytes {
  size_t own = 0, collected = 0;
};
GridBytes grid_bytes(const config::Config& c, const InputFacts& facts, int world_size) {
  if (c.sample.every_steps == 0) return {};
  const dataset::SampleShape drawn = model_shape(c.model), shown = facts.decoder ? facts.decoder->images() : drawn;
  const auto all = size_t(c.sample.num_images), mine = (all + size_t(world_size) - 1) / size_t(world_size);
  const size_t image = size_t(shown.elements()) * sizeof(float);
  const size_t own = size_t(drawn.elements()) * sizeof(float) + (facts.decoder ? 2 * image : 0);
  // One picture, or two side by side of many bands; in a list, in the grid and in the file.
  const size_t pictures = 3 * size_t(shown.height * shown.width) * 3 * (shown.channels > 3 ? 2 : 1);
  return {.own = mine * own, .collected = all * ((world_size > 1 ? 2 * image : 0) + pictures)};
}

MemoryItem sampling(nn::Model& model, const config::Config& config, const InputFacts& facts, int world_size,
                    int ranks_on_node) {
  MemoryItem item{"samples, validation", "", 0};
  const bool distances = config.eval.fid_every_steps > 0;
  if (config::draws_samples(config)) {
    const int64_t images =
        std::max(config.sample.every_steps > 0 ? config.sample.num_images : 0, distances ? config.eval.fid_samples : 0);
    const int64_t mine = (images + world_size - 1) / world_size;
    const GridBytes grid = grid_bytes(config, facts, world_size);
    const size_t drawn = eval::generate_bytes(model, config.diffusion, config::sampler_of(config),
                                              std::min(mine, eval::kDefaultBatch), !config.sample.guide.empty());
    item.bytes = drawn + grid.own + grid.collected / size_t(ranks_on_node);
    item.first_rank_bytes = drawn + grid.own + grid.collected;
  }
  if (config.eval.every_steps > 0) {
    nn::ModelPass validation(model, eval::kDefaultBatch, Mode::kInference);
    item.bytes = std::max(item.bytes, validation.tape().temporary_bytes());
  }
  return item;
}

// Most of it is rank 0's, once per node at most; each has the network.
MemoryItem distances(const config::Config& c, const InputFacts& facts, int ranks_on_node) {
  MemoryItem item{"distances", "eval.fid_every_steps, of rank 0", 0};
  if (c.eval.fid_every_steps == 0) return item;
  const bool inception = c.eval.features == config::FidFeatures::kInception;
  const size_t network = inception ? eval::kInceptionBytes : 0;
  const size_t features = eval::TrainingFid::bytes(
      inception ? eval::FeatureKind::kInception : eval::FeatureKind::kPixels,
      facts.decoder ? facts.decoder->images() : model_shape(c.model), c.eval.fid_samples, facts.reference_images);
  item.bytes = features / size_t(ranks_on_node) + network, item.first_rank_bytes = features + network;
  return item;
}

// Autoencoders that encode data and decode samples, and what they get.
size_t codec_bytes(const InputFacts& facts, int workers) {
  return (facts.encoder ? facts.encoder->bytes(/*encodes=*/true, workers) : 0) +
         (facts.decoder ? facts.decoder->bytes(/*encodes=*/false, workers) : 0);
}

size_t loaded_sample_bytes(const config::Config& c, const InputFacts& facts) {
  const dataset::SampleShape read = facts.encoder ? facts.encoder->images() : model_shape(c.model);
  const int64_t given = c.model.condition_channels * c.model.pixels();
  return size_t(read.elements() + given) * sizeof(float);
}

MemoryItem tree_of_sums(const config::Config& config, int replicas, int64_t arena_elements) {
  if (!config.dist.reproducible) return {"tree of sums", "", 0};
  const int64_t leaves = config.train.global_batch / replicas / config::micro_batch_of(config, replicas);
  const int levels = dist::SumTree(std::max<int64_t>(1, leaves)).most_waiting();
  return {"tree of sums", fmt::format("dist.reproducible: {} more gradients for {} micro-batches", levels, leaves),
          size_t(levels) * size_t(arena_elements) * sizeof(float)};
}

// Slow tiers that take memory of the machine.
std::string tiers_in_memory() {
  std::string names;
  for (const memory::TierRow& tier : memory::kTiers)
    if (tier.in_memory) names += (names.empty() ? "" : ", ") + std::string(tier.name);
  return names;
}

size_t slow_bytes(const automem::Plan& plan) {
  size_t bytes = 0;
  for (size_t i = 0; i < memory::kTiers.size(); ++i) bytes += memory::kTiers[i].in_memory ? plan.tier_bytes[i] : 0;
  return bytes;
}

// Factor layers are gathered, which takes nothing.
int64_t largest_summed_bucket(const GradientPlan& gradients) {
  int64_t most = 0;
  for (int64_t k = 0; k < gradients.buckets.size(); ++k) {
    const parallel::Range& bucket = gradients.buckets[k];
    const bool gathered = std::any_of(gradients.factors.begin(), gradients.factors.end(),
                                      [&](const FactorLayer& layer) { return layer.slice == bucket; });
    if (!gathered) most = std::max(most, bucket.size());
  }
  return most;
}

// Adds what dist/engine allocates for sums. `ranks` sum, of which a node has `on_node`.
void add_exchange(MemoryItem& item, const config::Config& config, int64_t bucket, int ranks, int on_node) {
  if (config.dist.allreduce == config::AllReduce::kHierarchical) {
    const size_t of_first = dist::exchange_bytes(bucket, (ranks + on_node - 1) / on_node, config.dist.wire);
    item.bytes += of_first / size_t(on_node), item.first_rank_bytes += of_first;
    return;
  }
  const size_t copies = dist::EngineConfig::kMostInFlight * size_t(bucket) * sizeof(float);  // Open MPI's of each
  item.bytes += copies, item.first_rank_bytes += copies;
}

MemoryItem messages(const config::Config& config, int world_size, const GradientPlan& gradients, int ranks_on_node) {
  const int ranks = gradients.replicas;
  if (ranks * gradients.groups == 1) return {"messages", "", 0};
  if (!config.dist.engine)  // buckets that are ready leave at once
    return {"messages", "copies of MPI", size_t(gradients.buckets.n()) * sizeof(float)};
  const int64_t bucket = largest_summed_bucket(gradients);
  // Those of a node that sum with each other: without the others of a replica, and of other groups.
  const int on_node = std::clamp(ranks_on_node / config::tensor_ranks(config), 1, ranks);
  MemoryItem item{"messages", "between nodes: a bucket of their first ranks", 0};
  if (config.dist.allreduce == config::AllReduce::kFlat) item.note = "copies of two buckets by MPI";
  if (ranks > 1) add_exchange(item, config, bucket, ranks, on_node);
  if (config.dist.outer) add_exchange(item, config, bucket, world_size, std::min(ranks_on_node, world_size));
  return item;
}

// What a worker asks of ops::Context::scratch at most, of the products of a block and of its attention. Workers that
// pack together share what each would have alone.
size_t scratch_bytes(const config::Config& config, int64_t micro_batch, int workers) {
  const nn::ModelConfig& m = config.model;
  const DType precision = config.train.precision;
  const int64_t rows = micro_batch * m.tokens(), D = m.hidden_size;
  size_t most =
      kernels::attention_scratch_bytes(m.tokens(), m.head_dim(), precision) +
      size_t(2 * 3 * m.tokens() * m.head_dim()) * dtype_bytes(precision);  // q, k, v turned, and their gradients
  using kernels::Trans;
  const auto product = [&](int64_t rows_of_c, int64_t columns, int64_t steps, DType type_of_c, Trans trans_a) {
    const kernels::GemmArgs g{.m = rows_of_c,
                              .n = columns,
                              .k = steps,
                              .trans_a = trans_a,
                              .a_type = precision,
                              .b_type = precision,
                              .c_type = type_of_c,
                              .arithmetic = precision};
    most = std::max(most, kernels::gemm_scratch_bytes(g, {.most_rows = rows_of_c, .keeps_b = true}));
    // Reference loops copy their rows and all columns to f64.
    if (config.kernels.gemm == config::Gemm::kRef)
      most = std::max(most, size_t((rows_of_c / workers + 1 + columns) * steps) * sizeof(double));
  };
  for (const auto& [in, out] : {std::pair{D, 3 * D}, {D, D}, {D, m.mlp_size()}, {m.mlp_size(), D}}) {
    product(rows, out, in, precision, Trans::kNo), product(rows, in, out, precision, Trans::kNo);
    product(out, in, rows, DType::kF32, Trans::kYes);
  }
  return most;
}

// In the order in which a run takes them: the gradients that ranks sum (dist/node_memory), the fast pool, slow tiers.
size_t explicit_huge_bytes(const config::Config& config, const GradientPlan& gradients, const automem::Plan* automem,
                           int ranks_on_node) {
  const platform::PagePolicy pages = config.memory.pages;
  if (pages != platform::PagePolicy::kAuto && pages != platform::PagePolicy::kExplicit) return 0;
  std::vector<size_t> blocks;
  const size_t summed = size_t(gradients.buckets.n()) * sizeof(float);
  if (gradients.replicas > 1 && config.dist.engine && summed >= platform::kHugePageBytes) blocks.push_back(summed);
  if (automem != nullptr) blocks.insert(blocks.end(), {automem->capacity.pool_bytes, slow_bytes(*automem)});
  return bytes_in_explicit_pages(blocks, platform::free_memory_at_start().explicit_huge / size_t(ranks_on_node));
}

// What products on a tile unit read that is normalised before them.
size_t normalised_bytes(const config::Config& config, int64_t micro_batch) {
  const nn::ModelConfig& m = config.model;
  const kernels::GemmArgs widest{.m = micro_batch * m.tokens(),
                                 .n = std::max(3 * m.hidden_size, m.mlp_size()),
                                 .k = m.hidden_size,
                                 .arithmetic = config.train.precision};
  return kernels::is_better_normalised_before(widest)
             ? size_t(widest.m * widest.k) * dtype_bytes(config.train.precision)
             : 0;
}

std::vector<MemoryItem> kept_by_node(nn::ModelPass& pass) {
  std::vector<MemoryItem> kept;
  for (const auto& node : pass.tape().nodes()) {
    size_t bytes = 0;
    std::string names;
    for (const auto& a : node->kept()) {
      bytes += a->bytes();
      names += (names.empty() ? "" : ", ") + a->name.substr(a->name.rfind('.') + 1);
    }
    kept.push_back({node->name(), names, bytes});
  }
  return kept;
}

}  // namespace

size_t bytes_in_explicit_pages(const std::vector<size_t>& blocks, size_t free_bytes) {
  size_t bytes = 0, left = free_bytes;
  for (const size_t block : blocks) {
    const size_t pages = (block + platform::kHugePageBytes - 1) / platform::kHugePageBytes * platform::kHugePageBytes;
    if (pages <= left) bytes += block, left -= pages;
  }
  return bytes;
}

std::string MemoryItem::full_note() const {
  if (first_rank_bytes <= bytes) return note;
  return note + (note.empty() ? "" : ", ") + "shared out over the ranks of the node";
}

size_t MemoryPlan::outside_huge_pages() const { return total() - in_huge_pages; }

MemoryPlan MemoryPlan::of_first_rank() const {
  MemoryPlan first = *this;
  for (MemoryItem& item : first.items) item.bytes = std::max(item.bytes, item.first_rank_bytes);
  return first;
}

size_t MemoryPlan::total() const {
  return std::accumulate(items.begin(), items.end(), size_t{0}, [](size_t s, const auto& i) { return s + i.bytes; });
}

size_t checkpoint_buffer_bytes(const config::CheckpointConfig& config, size_t state_bytes) {
  return config.async ? std::min(state_bytes, size_t(config.buffer_gib * 0x1p30)) : 0;
}

CheckpointDisk checkpoint_disk(const config::Config& config) {
  nn::ModelConfig sizes = config.model;
  if (sizes.num_classes == nn::kClassesOfData) sizes.num_classes = kAssumedClasses;
  nn::Model model(sizes);
  const autograd::ParameterStore& layout = model.parameters();
  double optimizer = 0, averages = 0;
  for (const autograd::StateArray& array : optim::state_arrays(config.optimizer, config.ema))
    (array.is_average() ? averages : optimizer) += double(layout.layout_of(array).size()) * sizeof(float);
  if (config.dist.outer) {
    const optim::OuterOptimizer::Arrays outer = optim::OuterOptimizer::arrays(*config.dist.outer);
    const double arena = double(layout.arena_size()) * sizeof(float), groups = config::outer_groups(config);
    optimizer = groups * (optimizer + outer.on_disk_per_group * arena) + outer.shared_on_disk * arena;
  }
  const config::CheckpointConfig& c = config.checkpoint;
  const double steps = double(config.train.steps);
  const auto multiples = [&](int64_t every) { return every == 0 ? 0 : std::ceil(steps / double(every)); };
  const double snapshots = multiples(config.ema.snapshots_every);
  const double written = std::max(1.0, multiples(c.every_steps) + snapshots);
  double kept = c.keep_last == 0 ? written : std::min(written, double(c.keep_last) + 1);  // one while it is written
  if (c.keep_every > 0) kept = std::min(written, kept + std::floor(steps / double(c.keep_every)));
  return {.checkpoint_bytes = 2.0 * sizeof(float) * double(model.parameters().num_parameters()) + optimizer + averages,
          .kept = kept,
          .snapshot_bytes = averages * snapshots};
}

double more_disk(const CheckpointDisk& disk, const std::string& run_folder, double share_done) {
  const auto there = double(files::count_checkpoints(run_folder + "/checkpoints"));
  return disk.checkpoint_bytes * std::max(1.0, disk.kept - there) + disk.snapshot_bytes * (1 - share_done);
}

std::string disk_warning(const CheckpointDisk& disk, const std::string& run_folder, double share_done,
                         double bytes_of_others) {
  const std::string checkpoints = run_folder + "/checkpoints";  // may be a link to another disk
  std::error_code ignored;
  std::optional<double> free =
      files::free_bytes(std::filesystem::exists(checkpoints, ignored) ? checkpoints : run_folder);
  if (free) *free = std::max(0.0, *free - bytes_of_others);
  const double needed = more_disk(disk, run_folder, share_done);
  if (!free || *free >= needed) return "";
  return fmt::format(
      "disk: {} are free in {}, and checkpoints need {}{} ({} each): free space, choose another --out, or "
      "lower checkpoint.keep_last",
      format_bytes(size_t(*free)), run_folder, format_bytes(size_t(needed)),
      files::count_checkpoints(run_folder + "/checkpoints") > 0 ? " more" : "",
      format_bytes(size_t(disk.checkpoint_bytes)));
}

std::string recompute_text(const config::Config& config) {
  if (config.train.recompute) return std::string(word_of(*config.train.recompute));
  std::string text = "auto";
  for (const auto& [word, mode] : nn::words_of(nn::Recompute{})) {
    const std::vector<nn::Recompute>& of_blocks = config.train.recompute_of_blocks;
    const auto n = std::count(of_blocks.begin(), of_blocks.end(), mode);
    if (n > 0) text += fmt::format("{} {} in {} block(s)", text == "auto" ? ":" : ",", word, n);
  }
  return text;
}

nn::PassOptions pass_options(const config::Config& config) {
  std::optional<nn::LayerSync> sync = config.train.layer_sync;
  // The loss is a mean over the samples of a group.
  if (sync) sync->weight *= double(config::outer_groups(config)) / double(config.train.global_batch);
  return {.recompute = config.train.recompute.value_or(nn::Recompute::kSelective),
          .precision = config.train.precision,
          .recompute_of_blocks = config.train.recompute_of_blocks,
          .routes = config.train.routing,
          .layer_sync = sync};
}

size_t temporary_bytes(nn::ModelPass& pass, const nn::ModelConfig& model, int64_t micro_batch) {
  return pass.tape().temporary_bytes() + 3 * size_t(model.in_channels * model.pixels() * micro_batch) * sizeof(float);
}

MemoryPlan plan_memory(const config::Config& config, int world_size, nn::Model& model, const GradientPlan& gradients,
                       const RankPlace& place, const InputFacts& facts, const automem::Plan* automem) {
  const int ranks_on_node = place.ranks_on_node;
  const int workers = place.workers();
  const int replicas = gradients.replicas * gradients.groups;
  const int64_t micro_batch = config::micro_batch_of(config, replicas);
  nn::ModelPass pass(model, micro_batch, Mode::kTraining, pass_options(config));
  const size_t arena = size_t(model.parameters().arena_size()) * sizeof(float);
  const size_t state = size_t(gradients.most_state_elements()) * sizeof(float);
  size_t optimizer = 0;
  std::string arrays;
  for (const autograd::StateArray& array : optim::state_arrays(config.optimizer, config.ema)) {
    optimizer += std::min(state, size_t(model.parameters().layout_of(array).size()) * sizeof(float));
    arrays += (arrays.empty() ? "" : ", ") + array.title;
  }
  const std::string share = gradients.sharded ? fmt::format("shards of {} ranks", world_size) : "";
  const nn::ModelConfig& m = config.model;
  const auto samples = size_t(config.train.global_batch / replicas);
  const std::string batch = fmt::format("micro-batch of {}", micro_batch);
  // Replicas of a group have the same state: those who have the first one write it.
  const int groups_on_node = std::max(1, gradients.groups * ranks_on_node / world_size);
  const int writers =
      gradients.sharded ? ranks_on_node : std::min(ranks_on_node, config::tensor_ranks(config) * groups_on_node);
  const optim::OuterOptimizer::Arrays outer =
      config.dist.outer ? optim::OuterOptimizer::arrays(*config.dist.outer) : optim::OuterOptimizer::Arrays{};
  const size_t buffer = checkpoint_buffer_bytes(
      config.checkpoint, 2 * state + optimizer + size_t(outer.shared_on_disk + outer.on_disk_per_group) * arena);
  const bool moved = automem != nullptr;
  const std::string& guide = config.sample.guide;
  MemoryPlan plan{.kept = kept_by_node(pass)};
  plan.items = {
      {"weights", fmt::format("{} parameters", model.parameters().num_parameters()), moved ? 0 : arena},
      {"bf16 weights", "read by products", config.train.precision == DType::kBF16 && !moved ? arena / 2 : 0},
      {"gradients", gradients.gradient_slices.empty() ? "" : "of one layer: weights change in backward",
       size_t(gradients.gradient_elements()) * sizeof(float)},
      {"optimiser state", arrays + (gradients.sharded ? ", " + share : ""), moved ? 0 : optimizer},
      {"EMA", share, moved ? 0 : state},
      {"outer steps",
       "dist.outer: weights, momentum, gradient that nodes average" +
           std::string(outer.in_memory > 3 ? "; overlap: start and momentum of the node" : ""),
       size_t(outer.in_memory) * arena},
      {"optimiser workspace", "of the largest parameter", optim::workspace_bytes(config.optimizer, model.parameters())},
      {"fast pool", "tensors that move, in what memory.fast_gib leaves free", moved ? automem->capacity.pool_bytes : 0},
      {"small tensors", "of weights and states, which stay in the fast tier", moved ? automem->uses.small_bytes : 0},
      {"slow tiers", "tensors that are away from the fast pool: " + tiers_in_memory(),
       moved ? slow_bytes(*automem) : 0},
      tree_of_sums(config, gradients.replicas, model.parameters().arena_size()),
      {"stored activations", fmt::format("{}, train.recompute: {}", batch, recompute_text(config)),
       moved ? 0 : pass.tape().kept_bytes()},
      {"temporaries", batch, temporary_bytes(pass, m, micro_batch)},
      {"data queue", fmt::format("{} batches", config.data.queue_batches),
       size_t(config.data.queue_batches + 1) * samples * loaded_sample_bytes(config, facts)},
      {"autoencoders", "data.vae, sample.vae", codec_bytes(facts, workers)},
      {"adaLN factors", "of one layer, multiplied", gradients.factor_scratch_bytes()},
      messages(config, world_size, gradients, ranks_on_node),
      {"checkpoint buffer", "checkpoint.buffer_gib, or the whole state",
       buffer * size_t(writers) / size_t(ranks_on_node), buffer},
      sampling(model, config, facts, world_size, ranks_on_node),
      {"guide", "weights of sample.guide, taken to be as many as the model's",
       config::draws_samples(config) && !guide.empty() && guide != config::kRoutedGuide ? arena : 0},
      distances(config, facts, ranks_on_node),
      {"scratch", fmt::format("packed operands and attention of {} worker(s)", workers),
       size_t(workers) * scratch_bytes(config, micro_batch, workers) + normalised_bytes(config, micro_batch)},
      {"program", "code and libraries", kProgramBytes}};
  // Free pages may differ by rank, and ranks that share products have to plan alike.
  if (moved || config::tensor_ranks(config) == 1)
    plan.in_huge_pages = explicit_huge_bytes(config, gradients, automem, ranks_on_node);
  return plan;
}

size_t usable_bytes(int ranks_on_node) {
  return std::min(platform::memory_limit(ranks_on_node).bytes, platform::free_memory_at_start().available);
}

size_t rank_limit(const MemoryPlan& plan, int ranks_on_node, size_t node_bytes) {
  const size_t process = platform::process_memory_limit().bytes, more = plan.of_first_rank().total() - plan.total();
  return std::min(node_bytes / size_t(ranks_on_node), process - std::min(process, more));
}

std::string describe(const MemoryPlan& plan) {
  std::string s = "memory plan per rank:\n";
  for (const MemoryItem& item : plan.items)
    if (item.bytes > 0) s += fmt::format("  {:<20}{:>12}  {}\n", item.name, format_bytes(item.bytes), item.full_note());
  if (plan.in_huge_pages > 0)
    s += fmt::format("  {:<20}{:>12}  of the total, reserved as vm.nr_hugepages\n", "in huge pages",
                     format_bytes(plan.in_huge_pages));
  return s + fmt::format("  {:<20}{:>12}\n", "total", format_bytes(plan.total()));
}

}  // namespace ditrain::plan
