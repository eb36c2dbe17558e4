#include "ditrain/plan/step_timeline.hpp"

#include <algorithm>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/parallel/core_plan.hpp"
#include "ditrain/plan/memory_plan.hpp"

namespace ditrain::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kInFlight = dist::EngineConfig::kMostInFlight;

/// The engine's queue: operations in the order in which they were started, of which kInFlight are under way.
class Queue {
 public:
  void add(const TransferTime& time, double ready_s) {
    operations_.push_back({.parts_s = {time.before_s, time.wire_s, time.after_s}, .next_s = ready_s});
    admit();
  }

  /// Carries out parts, the one that can begin first before the others, until an operation is done. Returns when.
  double run_until_done(size_t operation) {
    while (operations_[operation].done_s == kNever) {
      const auto begin_s = [&](size_t i) {
        const Operation& o = operations_[i];  // the end, and a part without time, wait for nothing
        return o.part < kParts && o.parts_s[o.part] > 0 ? std::max(o.next_s, free_s_[o.part % 2]) : o.next_s;
      };
      DITRAIN_CHECK(!under_way_.empty(), "a queue without the operation that is waited for");
      carry_out(*std::min_element(under_way_.begin(), under_way_.end(),
                                  [&](size_t i, size_t j) { return begin_s(i) < begin_s(j); }));
    }
    return operations_[operation].done_s;
  }

 private:
  static constexpr int kParts = 3;
  struct Operation {
    double parts_s[kParts] = {};  // memory, wire, memory
    double next_s = 0;            // when the next part may begin
    int part = 0;
    double done_s = kNever;
  };

  void carry_out(size_t i) {
    Operation& o = operations_[i];
    if (o.part < kParts) {
      const double part_s = o.parts_s[o.part];
      double& free_s = free_s_[o.part++ % 2];
      if (part_s > 0) o.next_s = free_s = std::max(o.next_s, free_s) + part_s;
      return;
    }
    o.done_s = o.next_s;
    std::erase(under_way_, i);
    places_s_.push_back(o.done_s);
    admit();
  }
  void admit() {
    while (admitted_ < operations_.size() && !places_s_.empty()) {
      const auto place = std::min_element(places_s_.begin(), places_s_.end());
      operations_[admitted_].next_s = std::max(operations_[admitted_].next_s, *place);
      places_s_.erase(place);
      under_way_.push_back(admitted_++);
    }
  }

  std::vector<Operation> operations_;
  std::vector<size_t> under_way_;
  std::vector<double> places_s_ = std::vector<double>(kInFlight, 0.0);  // since when each free place is free
  size_t admitted_ = 0;
  double free_s_[2] = {};  // memory of the node, wire
};

/// Of the blocks, those whose forward pass runs twice.
double share_of_recomputed_blocks(const config::Config& config) {
  const auto& of_blocks = config.train.recompute_of_blocks;
  if (of_blocks.empty()) return config.train.recompute == nn::Recompute::kBlock ? 1 : 0;
  return double(std::count(of_blocks.begin(), of_blocks.end(), nn::Recompute::kBlock)) / double(of_blocks.size());
}

bool has_core_to_communicate(const config::ParallelConfig& parallel, int cores) {
  return parallel.comm_cores > 0 ||
         (parallel.comm_cores == parallel::kAutoCores && cores >= parallel::kCoresToSetAside);
}

/// What a pass over the model adds to its multiply-adds: weights that lie at another die, read in forward and twice in
/// backward; for each micro-batch but the first, weights read again and gradients added to those that are there.
double weights_time(const RunPlan& plan, const WorkerRates& rates, const ClusterDescription& platform,
                    double parameters) {
  constexpr double kAdds = 2;
  const double reads = 3 + share_of_recomputed_blocks(plan.config);
  const double micro_batches = double(plan.samples / plan.micro_batch);
  const double clusters = double(plan.place.cluster_sizes.size());
  const double width = plan.config.train.precision == DType::kBF16 ? 2 : 4;
  const double away_s = parameters * width * (clusters - 1) / clusters / platform.bytes_per_s(-1);
  const double pass_s = parameters * rates.parameter_s * rates.overhead / kPassesOfUpdate / plan.place.workers();
  return micro_batches * reads * away_s + (micro_batches - 1) * (reads * width / 4 + kAdds) * pass_s;
}

/// Multiply-adds of a node's products for one image.
double macs_of(const autograd::Node& node, const nn::ModelConfig& model) {
  using autograd::ProductRows;
  double macs = 0;
  for (const autograd::Parameter* p : node.parameters())
    if (p->product != ProductRows::kNone)
      macs += double(p->product == ProductRows::kTokens ? model.tokens() : 1) * double(num_elements(p->full_shape));
  return macs;
}

double factor_bytes(const GradientPlan& gradients, const parallel::Range& bucket) {
  for (const FactorLayer& layer : gradients.factors)
    if (layer.slice.begin == bucket.begin && layer.slice.end == bucket.end)
      return double(gradients.factor_rows * layer.row_elements()) * sizeof(float);
  return 0;
}

double seconds_in(const automem::Plan& plan, bool updates) {
  double s = 0;
  for (size_t p = 0; p < plan.uses.points.size(); ++p)
    if ((plan.uses.points[p].phase == automem::Phase::kUpdate) == updates) s += plan.machine.point_s[p];
  return s;
}

/// Waiting for tensors that move, by the plan's own simulation with the points of this cluster's times.
double stall_time(const RunPlan& run, double compute_s, double update_s) {
  automem::Plan plan = *run.automem;
  const double computing = compute_s / std::max(1e-30, seconds_in(plan, false));
  const double updating = update_s / std::max(1e-30, seconds_in(plan, true));
  for (size_t p = 0; p < plan.uses.points.size(); ++p)
    plan.machine.point_s[p] *= plan.uses.points[p].phase == automem::Phase::kUpdate ? updating : computing;
  return std::max(0.0, automem::forecast_of(plan).step_s - compute_s - update_s);
}

TransferTime sum_time(const NetworkTime& network, const config::DistConfig& dist, double bytes, double wire,
                      bool only_shards) {
  if (dist.allreduce == config::AllReduce::kFlat || !dist.engine) return network.flat_allreduce(bytes);
  return only_shards ? network.reduce_scatter(bytes, wire) : network.allreduce(bytes, wire);
}

TransferTime scaled(const TransferTime& t, double memory, double wire) {
  return {.before_s = t.before_s * memory, .wire_s = t.wire_s * wire, .after_s = t.after_s * memory};
}

}  // namespace

double share_of_backward(const config::Config& config) {
  const double again = share_of_recomputed_blocks(config);
  return (2 + again) / (3 + again);
}

std::vector<double> ready_shares(const RunPlan& plan) {
  nn::Model model(plan.config.model, {.size = config::tensor_ranks(plan.config)});
  nn::ModelPass pass(model, plan.micro_batch, autograd::Mode::kTraining, pass_options(plan.config));
  const dist::BucketGrid& buckets = plan.gradients.buckets;
  std::vector<double> shares(size_t(buckets.size()), 0.0);
  const auto& nodes = pass.tape().nodes();
  double all = 0, done = 0;
  for (const auto& node : nodes) all += macs_of(*node, plan.config.model);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const autograd::ArenaSlice slice = (*node)->parameter_slice();
    done += macs_of(**node, plan.config.model);
    for (size_t k = 0; slice.begin < slice.end && k < shares.size(); ++k)
      if (const parallel::Range& b = buckets[int64_t(k)]; b.begin < slice.end && slice.begin < b.end)
        shares[k] = done / all;
  }
  for (size_t k = 1; k < shares.size(); ++k) shares[k] = std::max(shares[k], shares[k - 1]);
  return shares;
}

double tensor_sums_s(const RunPlan& plan, const ClusterDescription& platform) {
  const nn::ModelConfig& m = plan.config.model;
  const double bytes = double(plan.micro_batch * m.tokens() * m.hidden_size) * sizeof(float);
  const double passes = double(plan.samples / plan.micro_batch);
  return double(m.depth) * (4 + 2 * share_of_recomputed_blocks(plan.config)) * passes *
         NetworkTime(platform, 1).node_sum_s(bytes, config::tensor_ranks(plan.config));
}

double share_of_backward_sums(const config::Config& config) {
  const double again = share_of_recomputed_blocks(config);
  return (1 + again) / (2 + again);
}

Timeline timeline_of(const StepTimes& times) {
  Timeline line;
  Queue queue;
  const size_t n = times.buckets.size();
  for (const BucketTimes& b : times.buckets)
    queue.add(b.sum, times.overlap ? b.ready_s : std::max(b.ready_s, times.compute_s));
  double now_s = times.compute_s;
  const auto wait = [&](size_t operation) {
    const double done_s = queue.run_until_done(operation);
    line.arrived_s.push_back(done_s);
    line.exposed_s += std::max(0.0, done_s - now_s);
    now_s = std::max(now_s, done_s);
  };
  const auto update = [&](size_t k) {
    now_s += times.buckets[k].update_s;
    line.update_s += times.buckets[k].update_s;
    if (times.sharded) queue.add(times.buckets[k].gather, now_s);
  };
  for (size_t k = 0; k < n; ++k) {
    wait(k);
    if (times.updates_early) update(k);
  }
  for (size_t k = 0; k < n && !times.updates_early; ++k) update(k);
  for (size_t k = 0; k < n && times.sharded; ++k) wait(n + k);
  for (const BucketTimes& b : times.buckets) line.wire_s += b.sum.wire_s + (times.sharded ? b.gather.wire_s : 0);
  line.total_s = now_s;
  return line;
}

// Arrays that optim/outer reads, and those that it writes.
OuterPasses outer_passes(const optim::OuterConfig& config) {
  return config.overlap ? OuterPasses{.take = 4 + 4, .apply = 4 + 3} : OuterPasses{.take = 2 + 1, .apply = 4 + 4};
}

double outer_wire_bytes(double elements, const config::DistConfig& dist) {
  return elements * double(dtype_bytes(dist.wire));
}

Timeline outer_timeline(const OuterStepTimes& outer, bool overlap, double phase_s) {
  StepTimes times{.compute_s = overlap ? phase_s : 0, .updates_early = false};
  for (const TransferTime& sum : outer.sums) times.buckets.push_back({.sum = sum});
  return timeline_of(times);
}

MachineRates rates_of(const Die& die, DType precision) {
  const double flop_per_s = die.training_flop_per_s(precision) / die.cores;
  WorkerRates rates;
  rates.gemm_s = 1 / flop_per_s;
  rates.attention_mac_s = 6 / flop_per_s;  // forward and backward of a multiply-add of forward
  rates.parameter_s = kPassesOfUpdate * sizeof(float) / (die.memory_gb_per_s * 1e9 / die.cores);
  return {rates, rates};
}

namespace {

/// Communication of a rank: whose workers do not stop for it, and what it takes from them otherwise.
class Communication {
 public:
  Communication(const RunPlan& plan, const ClusterDescription& platform, int cores)
      : plan_(plan),
        dist_(plan.config.dist),
        gradients_(plan.gradients),
        sharing_(plan.world_size / plan.replicas),
        has_core_(has_core_to_communicate(plan.config.parallel, cores)),
        all_nodes_(platform),
        of_group_(platform.with_nodes(std::max(1, platform.nodes / gradients_.groups))),
        wire_(dist_.wire == DType::kBF16 ? 0.5 : 1) {}

  bool sums_gradients() const { return gradients_.replicas > 1; }

  /// The sums of a group's gradients, without the times at which buckets are ready. `taken_s`: what sums in memory take
  /// from the workers, where they have no core of their own.
  StepTimes gradient_sums(double update_s, double& taken_s) const {
    const NetworkTime network(of_group_, std::clamp(plan_.place.ranks_on_node / sharing_, 1, gradients_.replicas));
    const bool beside = has_core_ || !dist_.overlap;
    StepTimes times{.overlap = dist_.overlap, .updates_early = gradients_.updates_early, .sharded = gradients_.sharded};
    for (int64_t k = 0; k < gradients_.buckets.size(); ++k) {
      const parallel::Range& bucket = gradients_.buckets[k];
      const double bytes = double(bucket.size()) * sizeof(float), factors = factor_bytes(gradients_, bucket);
      // Between nodes the engine makes sums whole, whoever needs them.
      const bool only_shards = gradients_.sharded && of_group_.nodes == 1;
      const TransferTime sum =
          factors > 0 ? network.allgather(factors) : sum_time(network, dist_, bytes, wire_, only_shards);
      const TransferTime gather = gradients_.sharded ? network.allgather(bytes) : TransferTime{};
      if (!beside) taken_s += sum.before_s + sum.after_s;
      // Ranks with other parts of the same replicas use the same wire.
      times.buckets.push_back({.sum = scaled(sum, beside ? 1 : 0, sharing_),
                               .update_s = update_s * double(bucket.size()) / double(gradients_.buckets.n()),
                               .gather = scaled(gather, 1, sharing_)});
    }
    return times;
  }

  /// `pass_s`: of one pass through memory. `taken_s` is that of an outer step.
  OuterStepTimes outer_step(double pass_s, double& taken_s) const {
    const OuterPasses passes = outer_passes(*dist_.outer);
    OuterStepTimes times{.take_s = passes.take * pass_s, .apply_s = passes.apply * pass_s};
    const NetworkTime network(all_nodes_, plan_.place.ranks_on_node);
    const bool beside = has_core_ || !dist_.outer->overlap;
    for (int64_t k = 0; k < gradients_.buckets.size(); ++k) {
      const double elements = double(gradients_.buckets[k].size()), bytes = elements * sizeof(float);
      const TransferTime sum =
          sum_time(network, dist_, bytes, outer_wire_bytes(elements, dist_) / bytes, /*only_shards=*/false);
      if (!beside) taken_s += sum.before_s + sum.after_s;
      times.sums.push_back(scaled(sum, beside ? 1 : 0, 1));
    }
    return times;
  }

 private:
  const RunPlan& plan_;
  const config::DistConfig& dist_;
  const GradientPlan& gradients_;
  const int sharing_;
  const bool has_core_;
  const ClusterDescription& all_nodes_;
  const ClusterDescription of_group_;
  const double wire_;
};

void add_outer_step(ClusterStep& step, const RunPlan& plan, const Communication& communication, double pass_s) {
  const optim::OuterConfig& outer = *plan.config.dist.outer;
  const auto every = double(outer.every);
  double taken_s = 0;
  const OuterStepTimes times = communication.outer_step(pass_s, taken_s);
  const Timeline line = outer_timeline(times, outer.overlap, every * step.total_s);
  step.outer = {.passes_s = times.passes_s(), .wire_s = line.wire_s, .exposed_s = line.exposed_s + taken_s};
  step.outer_s = step.outer->passes_s / every;
  step.exposed_s += step.outer->exposed_s / every;
  step.wire_s += step.outer->wire_s / every;
  step.total_s += (step.outer->passes_s + step.outer->exposed_s) / every;
}

}  // namespace

ClusterStep predict_step(const RunPlan& plan, const MachineRates& rates, const ClusterDescription& platform,
                         int cores) {
  const StepTime work = predict_step(plan, rates);
  ClusterStep step;
  step.compute_s = work.compute_s();
  step.weights_s = weights_time(plan, rates.of(plan), platform, double(plan.gradients.buckets.n()));
  step.tensor_s = tensor_sums_s(plan, platform);
  step.update_s = work.update_s;
  double pass_s = step.compute_s + step.weights_s + step.tensor_s;
  if (plan.automem) step.stall_s = stall_time(plan, pass_s, step.update_s);
  const Communication communication(plan, platform, cores);
  if (communication.sums_gradients()) {
    double taken_s = 0;
    StepTimes times = communication.gradient_sums(step.update_s, taken_s);
    pass_s += taken_s + step.stall_s;
    const double backward_s = pass_s / double(plan.samples / plan.micro_batch) * share_of_backward(plan.config);
    const std::vector<double> ready = ready_shares(plan);
    for (size_t k = 0; k < ready.size(); ++k) times.buckets[k].ready_s = pass_s - backward_s * (1 - ready[k]);
    times.compute_s = pass_s;
    const Timeline line = timeline_of(times);
    step.exposed_s = line.exposed_s + taken_s;
    step.total_s = line.total_s;
    step.wire_s = line.wire_s;
  } else {
    step.total_s = pass_s + step.stall_s + step.update_s;
  }
  if (plan.gradients.groups > 1)
    add_outer_step(step, plan, communication, (work.update_s - work.update_products_s) / kPassesOfUpdate);
  return step;
}

}  // namespace ditrain::plan
