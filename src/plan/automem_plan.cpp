#include "ditrain/plan/automem_plan.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "ditrain/automem/uses.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/plan/memory_plan.hpp"

namespace ditrain::plan {
namespace {

using automem::Phase;

// Gives every block the same address, which nothing can read or write.
class NoMemory final : public memory::Allocator {
 public:
  NoMemory() : nothing_(::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (nothing_ == MAP_FAILED) throw RunError({.where = "plan", .what = "no page without access can be had"});
  }
  ~NoMemory() override { ::munmap(nothing_, kBytes); }
  std::string name() const override { return "none"; }

 private:
  static constexpr size_t kBytes = 4096;
  void* allocate_block(size_t) override { return nothing_; }
  void deallocate_block(void*, size_t) override {}
  void* const nothing_;
};

constexpr double kUpdateBytesPerS = 8e9;  // of the optimiser, which reads and writes what it holds
constexpr double kShareOfPeak = 0.85;     // that products reach

// The share of a block's forward pass that `none`, `selective` and `block` recompute: measured on DiT-B/2.
constexpr double kShareAgain[] = {0, 0.15, 0.95};

nn::Recompute recompute_of_block(const config::Config& config, int64_t block) {
  const std::vector<nn::Recompute>& of_blocks = config.train.recompute_of_blocks;
  return of_blocks.empty() ? *config.train.recompute : of_blocks[size_t(block)];
}

// FLOP/s of a core. Other programs can only lower a measurement: the highest of many counts, taken once, so that all
// plans of a process are compared by the same.
double core_peak(DType type) {
  const auto highest = [](DType t) {
    double peak = 0;
    for (int i = 0; i < 20; ++i) peak = std::max(peak, kernels::measure_fma_peak(t, 1e-3));
    return peak;
  };
  static const double f32 = highest(DType::kF32), bf16 = highest(DType::kBF16);
  return type == DType::kBF16 && bf16 > 0 ? bf16 : f32;
}

automem::Machine expected_machine(const config::Config& config, const automem::Uses& uses, int64_t samples, int workers,
                                  const automem::Copying& copying) {
  automem::Machine machine;
  machine.copy_by = copying.by;
  machine.in_place_bytes_s = copying.in_place_bytes_s;
  for (size_t i = 0; i < machine.tiers.size(); ++i) {
    const memory::TierRow& row = memory::kTiers[i];
    memory::TierRates& rates = machine.tiers[i];
    rates = copying.rates[i];
    if (rates.in_bytes_s <= 0 || rates.out_bytes_s <= 0)
      rates = {.in_bytes_s = row.bytes_s, .out_bytes_s = row.bytes_s};
    const auto& link = config.memory.simulate_bulk;
    if (!link || !row.in_memory) continue;
    const double bytes_s = link->gb_s * 1e9;
    rates = {.in_bytes_s = bytes_s, .out_bytes_s = bytes_s, .latency_s = link->latency_us * 1e-6};
    machine.in_place_bytes_s = bytes_s;
  }
  // Forward a third of the work of the products, in each phase by the bytes that its points hold.
  const double peak = core_peak(config.train.precision) * workers * kShareOfPeak;
  const double step_s = 6 * nn::forward_macs(config.model, config.train.routing) * double(samples) / peak;
  double again_s = 0;  // what backward computes again
  for (int64_t i = 0; i < config.model.depth; ++i)
    again_s += step_s / 3 / double(config.model.depth) * kShareAgain[size_t(recompute_of_block(config, i))];
  double bytes[3] = {};
  for (const automem::Point& point : uses.points) bytes[size_t(point.phase)] += double(uses.bytes_of(point));
  const double seconds[3] = {step_s / 3, step_s * 2 / 3 + again_s, bytes[size_t(Phase::kUpdate)] / kUpdateBytesPerS};
  for (const automem::Point& point : uses.points) {
    const auto phase = size_t(point.phase);
    machine.point_s.push_back(seconds[phase] * double(uses.bytes_of(point)) / std::max(1.0, bytes[phase]));
  }
  return machine;
}

bool updates_weights(const autograd::Node& node) {
  const autograd::ArenaSlice slice = node.parameter_slice();
  return slice.begin < slice.end;
}

// Groups of updates in backward belong to the nodes with parameters, from the last one on.
automem::StepOrder order_of_step(const autograd::Tape& tape, const GradientPlan& gradients, int64_t micro_batches) {
  std::vector<int64_t> behind(tape.nodes().size(), 0);
  if (!gradients.updates_in_backward) return {micro_batches, behind, gradients.updates.size};
  size_t group = 0;
  for (size_t node = behind.size(); node-- > 0;)
    if (updates_weights(*tape.nodes()[node])) behind[node] = int64_t(gradients.updates.groups[group++].pieces.size());
  return {micro_batches, behind, 0};
}

// The rates of the plan's tiers that nothing has measured yet.
std::string assumed_rates(const automem::Plan& plan, const automem::Copying& copying, bool simulated) {
  std::string text;
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    if (plan.tier_bytes[i] > 0 && copying.rates[i].in_bytes_s <= 0 && !(simulated && memory::kTiers[i].in_memory))
      text += fmt::format("{}{} {:.1f} GB/s", text.empty() ? "" : ", ", memory::kTiers[i].name,
                          plan.machine.tiers[i].in_bytes_s * 1e-9);
  return text;
}

}  // namespace

automem::Uses record_step(const config::Config& config, const GradientPlan& planned, int64_t samples,
                          int64_t micro_batch) {
  NoMemory nowhere;
  automem::Recorder recorder(automem::Written::kInUpdates);
  nn::Model model(config.model);
  autograd::ParameterStore& store = model.parameters();
  GradientPlan gradients = planned;
  gradients.updates = schedule_updates(gradients, store);
  store.allocate(autograd::ParameterStore::For::kTraining, config.train.precision,
                 {.home = &nowhere,
                  .states = optim::state_arrays(config.optimizer, config.ema),
                  .state_parts = gradients.state_parts(),
                  .gradient_slices = gradients.gradient_slices,
                  .segments = &recorder});
  recorder.set_written(automem::Written::kInForward);
  nn::ModelPass pass(model, micro_batch, autograd::Mode::kTraining, pass_options(config));
  autograd::Tape& tape = pass.tape();
  tape.allocate(nowhere, &recorder);
  const automem::StepOrder order = order_of_step(tape, gradients, samples / micro_batch);
  recorder.set_order(order);
  parallel::Team team({.num_workers = 1});
  ops::Context ctx(team);
  ctx.set_dry(true);
  const auto update = [&](const UpdateGroup& group) {
    for (size_t i = 0; i < group.pieces.size(); ++i) {
      const autograd::ArenaSlice& piece = group.pieces[i];
      recorder.begin(order.update(group.first_update + int64_t(i)), Phase::kUpdate, store.name_at(piece.begin));
      optim::update(ctx, config.optimizer, {}, store, piece);
    }
  };
  int64_t micro = 0;
  size_t next_group = 0;
  tape.add_hook(autograd::HookPoint::kPreForward, [&](const autograd::Node& node) {
    recorder.begin(order.forward(micro, node.number()), Phase::kForward, node.name());
  });
  tape.add_hook(autograd::HookPoint::kPreBackward, [&](const autograd::Node& node) {
    recorder.begin(order.backward(micro, node.number()), Phase::kBackward, node.name());
  });
  tape.add_hook(autograd::HookPoint::kPostBackward, [&](const autograd::Node& node) {
    if (gradients.updates_in_backward && micro == samples / micro_batch - 1 && updates_weights(node))
      update(gradients.updates.groups[next_group++]);
  });
  for (; micro < samples / micro_batch; ++micro) {
    pass.forward(ctx);
    pass.backward(ctx);
  }
  if (gradients.updates_in_backward) return recorder.uses();
  for (const UpdateGroup& group : gradients.updates.groups) update(group);
  for (const UpdateGroup& group : gradients.updates.groups)
    for (size_t i = 0; i < group.taken.size(); ++i) {
      const int64_t begin = group.taken[i].begin;
      recorder.begin(order.update(group.first_take + int64_t(i)), Phase::kUpdate, "new " + store.name_at(begin));
      optim::take_weights(ctx, store, group.taken[i]);
    }
  return recorder.uses();
}

size_t fixed_fast_bytes(const config::Config& config, const GradientPlan& gradients, int64_t micro_batch) {
  nn::Model model(config.model);
  nn::ModelPass pass(model, micro_batch, autograd::Mode::kTraining, pass_options(config));
  size_t frozen = 0;
  for (const autograd::Parameter* p : model.parameters().state_dict())
    if (!p->trainable) frozen += size_t(p->size()) * sizeof(float);
  return size_t(gradients.gradient_elements()) * sizeof(float) + frozen +
         temporary_bytes(pass, config.model, micro_batch) +
         optim::workspace_bytes(config.optimizer, model.parameters());
}

memory::PerTier<size_t> tier_capacities(const config::MemoryConfig& m) {
  memory::PerTier<size_t> bytes{};
  bool slower = false;  // one has a size
  for (size_t i = bytes.size(); i-- > 0;) {
    bytes[i] = m.tier_gib[i] ? size_t(*m.tier_gib[i] * 0x1p30) : slower ? 0 : SIZE_MAX;
    slower = slower || m.tier_gib[i].value_or(0) > 0;
  }
  return bytes;
}

automem::Copying plan_copying(const config::Config& config, const Placement& placement, const RankPlace& place,
                              const std::string& disk_folder, parallel::Team* team) {
  const config::MemoryConfig& m = config.memory;
  if (!m.moves()) return {};
  automem::CopyingRequest request{.tier_bytes = tier_capacities(m),
                                  .trial = {.pus = placement.pus_of_copies(),
                                            .fast_nodes = distinct_fast_nodes(place),
                                            .bulk_nodes = place.bulk_nodes,
                                            .simulate = m.simulate_bulk},
                                  .disk_folder = disk_folder};
  if (!placement.copy_pus.empty()) {
    request.by = memory::CopyBy::kThreads;
  } else if (m.copy != config::Copy::kAuto) {
    request.by = m.copy == config::Copy::kWorkers ? memory::CopyBy::kWorkers : memory::CopyBy::kThreads;
    request.why = fmt::format("memory.copy: {}", m.copy);
  }
  return automem::plan_copying(request, team);
}

std::optional<automem::Plan> plan_automem(const config::Config& config, const GradientPlan& gradients, int64_t samples,
                                          int64_t micro_batch, const RankPlace& place) {
  const config::MemoryConfig& m = config.memory;
  if (!m.moves()) return std::nullopt;
  const size_t fast = m.fast_gib > 0 ? size_t(m.fast_gib * 0x1p30) : place.fast_bytes;
  const automem::Uses uses = record_step(config, gradients, samples, micro_batch);
  if (uses.tensors.empty()) return std::nullopt;
  const size_t fixed = fixed_fast_bytes(config, gradients, micro_batch) + uses.small_bytes;
  const size_t all = fixed + uses.total_bytes();
  if (fast == 0)
    throw InputError(
        {.where = "memory",
         .what = "memory.automem needs to know how large the fast tier is: this machine shows no memory on "
                 "the package",
         .hint = fmt::format("--set memory.fast_gib=N; all of this run's tensors are {}", format_bytes(all))});
  const size_t largest = uses.bytes_of(uses.largest());
  if (fast < fixed + largest)
    throw InputError({.where = "memory",
                      .what = "the fast tier is too small for " + uses.largest().name + " (" +
                              automem::phase_name(uses.largest().phase) + "), which uses " + format_bytes(largest) +
                              " beside " + format_bytes(fixed) +
                              " of gradients, temporaries and small tensors that never move",
                      .got = format_bytes(fast),
                      .expected = "at least " + format_bytes(fixed + largest),
                      .hint = "a larger memory.fast_gib, or a smaller train.micro_batch"});
  const automem::Capacity capacity{
      .fixed_bytes = fixed,
      .pool_bytes = std::min(fast - fixed, uses.total_bytes() + uses.tensors.size() * memory::kBlock),
      .tier_bytes = tier_capacities(m)};
  automem::Plan plan = automem::place_tensors(
      uses, m.automem == config::AutoMem::kPaper ? automem::Strategy::kPaper : automem::Strategy::kPlanned, capacity,
      expected_machine(config, uses, samples, place.workers(), place.copying));
  plan.copying = place.copying.why;
  plan.assumed = assumed_rates(plan, place.copying, m.simulate_bulk.has_value());
  return plan;
}

}  // namespace ditrain::plan
