#include "ditrain/train/gradient_sync.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/train/sharded_update.hpp"

namespace ditrain::train {
namespace {

constexpr int kLosses = StepFacts::kLosses;
constexpr size_t kNumSums = std::size(StepFacts::kSums), kNumFlags = std::size(StepFacts::kFlags);

// StepFacts as numbers whose sums over ranks mean the same; losses first.
using Numbers = std::array<double, kNumSums + kNumFlags>;
Numbers numbers_of(const StepFacts& f) {
  Numbers n;
  for (size_t i = 0; i < kNumSums; ++i) n[i] = f.*StepFacts::kSums[i];
  for (size_t i = 0; i < kNumFlags; ++i) n[kNumSums + i] = double(f.*StepFacts::kFlags[i]);
  return n;
}
StepFacts facts_of(const Numbers& n) {
  StepFacts f;
  for (size_t i = 0; i < kNumSums; ++i) f.*StepFacts::kSums[i] = n[i];
  for (size_t i = 0; i < kNumFlags; ++i) f.*StepFacts::kFlags[i] = n[kNumSums + i] > 0;
  return f;
}

// Losses along the tree, all else one by one.
Numbers tree_sums(const double* terms, int64_t n) {
  Numbers sums{};
  for (size_t i = 0; i < sums.size(); ++i)
    if (i < kLosses)
      sums[i] = dist::tree_sum(terms + i, n, int64_t(sums.size()));
    else
      for (int64_t term = 0; term < n; ++term) sums[i] += terms[term * int64_t(sums.size()) + int64_t(i)];
  return sums;
}

}  // namespace

GradientSync::GradientSync(const plan::RunPlan& plan, nn::Model& model, const StepRanks& ranks, ops::Context& ctx,
                           const StepPlace& place)
    : plan_(plan),
      parameters_(model.parameters()),
      comm_(ranks.samples),
      summing_(ranks.summing()),
      ctx_(ctx),
      group_(ranks.group),
      overlap_(plan.config.dist.overlap),
      low_rank_(plan.gradients, parameters_, ctx, /*squares=*/ranks.group == nullptr) {
  const config::DistConfig& dist = plan_.config.dist;
  const plan::GradientPlan& gradients = plan_.gradients;
  grads_ = std::make_unique<Pin<float>>(parameters_.grads);
  if (place.gradients != nullptr && dist.engine) {
    const dist::EngineConfig engine{.hierarchical = dist.allreduce == config::AllReduce::kHierarchical,
                                    .wire = dist.wire,
                                    .shards = gradients.sharded,
                                    .gathers = !gradients.factors.empty(),
                                    .tree = dist.reproducible,
                                    .link = dist.outer ? std::nullopt : dist.simulate_link,  // in a node
                                    .pus = place.comm_pus};
    engine_ = std::make_unique<dist::Engine>(summing_, *place.gradients, engine);
    buckets_ = std::make_unique<dist::GradientBuckets>(*engine_, grads_->get(), gradients.buckets);
  } else {
    DITRAIN_CHECK(!gradients.sharded && gradients.factors.empty(), "shards or factors without an engine");
    buckets_ = std::make_unique<dist::GradientBuckets>(summing_, grads_->get(), gradients.buckets);
  }
  if (dist.reproducible) {
    leaf_sums_ = std::make_unique<LeafSums>(plan_.samples / plan_.micro_batch, parameters_.grads, ctx_);
    policies_.push_back(leaf_sums_.get());
  }
  if (!gradients.factors.empty()) {
    low_rank_.allocate(*buckets_);
    policies_.push_back(&low_rank_);
  }
  const optim::Config& optimizer = plan_.config.optimizer;
  if (gradients.sharded)
    state_ = std::make_unique<ShardedUpdate>(gradients, *engine_, optimizer, parameters_, ctx_);
  else
    state_ = std::make_unique<ReplicatedUpdate>(gradients, optimizer, parameters_, ctx_);
  state_->set_automem(place.automem);
  policies_.push_back(state_.get());
}

void GradientSync::begin(const MicroBatchPlace& micro, const optim::StepSettings* update) {
  micro_ = micro, update_ = plan_.gradients.updates_in_backward ? update : nullptr;
  squares_ = 0, bad_gradient_.clear(), has_updated_ = false, next_group_ = 0;
  low_rank_.start_at(micro.first_sample);
}

// After the last micro-batch the buckets of the slice may leave.
void GradientSync::ready(const parallel::Range& slice, PhaseLog& log) {
  for (SyncPolicy* policy : policies_) policy->ready(micro_, slice);
  if (!micro_.last) return;
  if (plan_.gradients.updates_in_backward)
    update_in_backward(slice, log);
  else if (overlap_)
    buckets_->mark_ready(slice.begin, slice.end);
}

// Nothing changes any more once a gradient is not finite, or its square overflows f32: the run is going to stop.
void GradientSync::update_in_backward(const parallel::Range& slice, PhaseLog& log) {
  if (slice.empty()) return;
  const int64_t group = next_group_++;
  const PhaseTimer timer(log, Phase::kOptimizer);
  parameters_.clear_between_gradients({slice.begin, slice.end});
  squares_ += ops::sum_squares(ctx_, parameters_.gradients_of({slice.begin, slice.end}));
  if (bad_gradient_.empty() && !(squares_ < double(std::numeric_limits<float>::max()))) {
    const int64_t begin = last_bad_gradient(slice);
    bad_gradient_ = begin < 0 ? "norm (overflow)" : parameters_.at(begin).name;
  }
  if (update_ == nullptr || !bad_gradient_.empty()) return;
  state_->update_group(group, *update_);
  has_updated_ = true;
}

void GradientSync::add_losses(StepFacts& facts) {
  if (!leaf_sums_) return;
  const Numbers losses = numbers_of({.loss = facts.loss, .mse = facts.mse, .vb = facts.vb});
  leaf_losses_.insert(leaf_losses_.end(), losses.begin(), losses.end());
  facts.loss = facts.mse = facts.vb = 0;
}

void GradientSync::collect(const optim::StepSettings& update, PhaseLog& log) {
  if (plan_.gradients.updates_in_backward) return;
  if (!overlap_) buckets_->start_all();
  const auto next_arrived = [&] {
    const PhaseTimer waiting(log, Phase::kAllreduceExposed);
    return buckets_->finish_next().has_value();
  };
  for (int64_t k = 0; next_arrived(); ++k) {
    for (SyncPolicy* policy : policies_) policy->arrived(k, log);
    if (!plan_.gradients.updates_early) continue;
    has_updated_ = true;
    const PhaseTimer timer(log, Phase::kOptimizer);
    for (SyncPolicy* policy : policies_) policy->update(k, k + 1, update);
  }
  buckets_->finish();
  communication_ = buckets_->last_step();
  if (plan_.gradients.updates_early) finish(log);
}

void GradientSync::finish(PhaseLog& log) {
  if (!plan_.gradients.sharded) return;  // there is nothing to wait for
  const PhaseTimer timer(log, Phase::kAllreduceExposed);
  for (SyncPolicy* policy : policies_) policy->finish(communication_);
}

void GradientSync::exchange(StepFacts& facts) {
  Numbers numbers = numbers_of(facts);
  if (!leaf_sums_) {
    comm_.allreduce_sum(numbers.data(), int64_t(numbers.size()));
  } else {
    const Numbers losses = tree_sums(leaf_losses_.data(), int64_t(leaf_losses_.size() / numbers.size()));
    std::copy_n(losses.begin(), kLosses, numbers.begin());
    leaf_losses_.clear();
    const std::vector<double> of_ranks = comm_.gather(numbers.data(), int64_t(numbers.size()));
    if (!of_ranks.empty()) numbers = tree_sums(of_ranks.data(), int64_t(of_ranks.size() / numbers.size()));
    comm_.broadcast(numbers.data(), sizeof numbers, 0);
  }
  facts = facts_of(numbers);
  if (group_ == nullptr) return;
  // Ranks that share a replica have the same losses, but signals of their own.
  uint64_t mine = 0;
  for (size_t i = 0; i < kNumFlags; ++i) mine |= uint64_t{facts.*StepFacts::kFlags[i]} << i;
  group_->communicator().allreduce_sum(&facts.cpu_seconds, 1);
  const uint64_t any = group_->communicator().allreduce_or(mine);
  for (size_t i = 0; i < kNumFlags; ++i) facts.*StepFacts::kFlags[i] = (any >> i & 1) != 0;
}

double GradientSync::norm() {
  if (group_) return group_->gradient_norm(ctx_, parameters_);
  if (plan_.gradients.updates_in_backward) return std::sqrt(squares_);
  std::optional<double> squares = communication_.sum_squares;  // a by-product of the sums
  if (!squares && leaf_sums_) {                                // one rank: what the engine computes on several
    squares = 0.0;
    for (int64_t k = 0; k < buckets_->num_buckets(); ++k)
      *squares += squares_of(ctx_, grads_->get(), buckets_->bucket(k));
  }
  return squares ? std::sqrt(*squares + low_rank_.take_squares()) : optim::gradient_norm(ctx_, parameters_);
}

double GradientSync::norm_of_groups(double norm) {
  if (plan_.gradients.groups == 1) return norm;
  double squares = norm * norm / comm_.world_size();
  comm_.allreduce_sum(&squares, 1);
  return std::sqrt(squares);
}

void GradientSync::update(const optim::StepSettings& settings, PhaseLog& log) {
  if (has_updated_) return;
  {
    const PhaseTimer timer(log, Phase::kOptimizer);
    for (SyncPolicy* policy : policies_) policy->update(0, int64_t(plan_.gradients.updates.groups.size()), settings);
  }
  finish(log);
}

// Where in the slice the last parameter begins whose gradient is not finite; -1: none.
int64_t GradientSync::last_bad_gradient(const parallel::Range& slice) {
  int64_t last = -1;
  for (const autograd::Parameter* p : parameters_.state_dict())
    if (p->trainable && slice.begin <= p->slice.begin && p->slice.end <= slice.end && p->slice.begin > last &&
        ops::find_non_finite(ctx_, p->grad) >= 0)
      last = p->slice.begin;
  return last;
}

// In the order of the backward pass, which is that of the arena from its end: what goes bad spoils all that comes after
// it. A rank may have the sums of its shards only, or the weights that came of them: those of a bad gradient are bad.
std::string GradientSync::first_bad_gradient() {
  if (plan_.gradients.updates_in_backward) return bad_gradient_;
  double begin = double(last_bad_gradient({0, parameters_.arena_size()}));
  comm_.allreduce_max(&begin, 1);
  if (group_) group_->communicator().allreduce_max(&begin, 1);  // its stores have one layout
  return begin < 0 ? "" : parameters_.at(int64_t(begin)).name;
}

}  // namespace ditrain::train
