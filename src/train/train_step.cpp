#include "ditrain/train/train_step.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/random.hpp"
#include "ditrain/train/cut.hpp"
#include "ditrain/train/memory_plan.hpp"

namespace ditrain::train {

TrainStep::TrainStep(const Config& config, nn::Dit& model, dist::Communicator& comm, ops::Context& ctx,
                     TensorGroup* group)
    : config_(config),
      model_(model),
      comm_(comm),
      group_(group),
      ctx_(ctx),
      process_(diffusion::make_process(config.diffusion, config.model.learn_sigma)),
      shape_{config.model.in_channels, config.model.pixels()},
      samples_(config.train.global_batch / comm.world_size()),
      micro_batch_(micro_batch_of(config, comm.world_size())),
      updates_early_(comm.world_size() > 1 && group == nullptr && config.optimizer.clip_norm == 0 &&
                     config.train.on_non_finite == "stop"),
      factors_(config, model.parameters(), comm.world_size()),
      pass_(model, micro_batch_, autograd::Mode::kTraining, pass_options(config, &factors_)),
      time_(size_t(micro_batch_)),
      terms_(size_t(micro_batch_)) {
  ctx.set_cut(plan_cut(config, micro_batch_, ctx.team().cluster_sizes()).cut);
  if (config.dist.shard_optimizer && comm.world_size() > 1)
    shards_.emplace(gradient_buckets(config, model.parameters().arena_size(), factors_), comm.rank(),
                    comm.world_size());
  if (config.dist.reproducible)
    leaf_sums_ = std::make_unique<LeafSums>(samples_ / micro_batch_, model.parameters().arena_size());
  // A node's gradients are final after its backward in the last micro-batch: its buckets may leave.
  pass_.tape().add_hook(autograd::HookPoint::kPostBackward, [this](const autograd::Node& node) {
    const autograd::ArenaSlice slice = node.parameter_slice();
    if (leaf_sums_) leaf_sums_->add(ctx_, leaf_, model_.parameters().grads, slice);
    if (mark_buckets_) buckets_->mark_ready(slice.begin, slice.end);
  });
}

void TrainStep::allocate(dist::NodeMemory* gradient_memory, const std::vector<int>& comm_pus) {
  pass_.allocate();
  noise_ = Tensor(pass_.image().shape());
  if (leaf_sums_) leaf_sums_->allocate();
  grads_ = std::make_unique<Pin<float>>(model_.parameters().grads);
  const dist::BucketGrid grid = gradient_buckets(config_, model_.parameters().arena_size(), factors_);
  if (gradient_memory == nullptr || !config_.dist.engine) {
    DITRAIN_CHECK(!shards_ && factors_.slices().empty(), "shards or factors without an engine");
    buckets_ = std::make_unique<dist::GradientBuckets>(comm_, grads_->get(), grid);
    return;
  }
  const dist::EngineConfig engine{.hierarchical = config_.dist.allreduce == "hierarchical",
                                  .wire = config_.dist.wire == "bf16" ? DType::kBF16 : DType::kF32,
                                  .shards = shards_.has_value(),
                                  .gathers = !factors_.slices().empty(),
                                  .tree = config_.dist.reproducible,
                                  .link = config_.dist.simulate_link,
                                  .pus = comm_pus};
  engine_ = std::make_unique<dist::Engine>(comm_, *gradient_memory, engine);
  buckets_ = std::make_unique<dist::GradientBuckets>(*engine_, grads_->get(), grid);
  factors_.allocate();
  factors_.declare(*buckets_);
  if (shards_) sharded_ = std::make_unique<ShardedUpdate>(*shards_, *engine_, model_.parameters(), ctx_);
}

int64_t TrainStep::state_elements() const { return shards_ ? shards_->size() : model_.parameters().arena_size(); }
const Tensor& TrainStep::whole(const Tensor& state) { return sharded_ ? sharded_->whole(state) : state; }

// Slice by slice where the optimiser updates it so.
void TrainStep::keep(const Tensor& whole, const Tensor& state) {
  if (sharded_) return sharded_->keep(whole, state);
  const Pin<float> from(whole), to(state);
  const auto copy = [&](const parallel::Range& slice) {
    optim::copy_as_updated(ctx_, from + slice.begin, to + slice.begin, slice.size());
  };
  if (!updates_early_) return copy({0, whole.size()});
  for (int64_t k = 0; k < buckets_->num_buckets(); ++k) copy(buckets_->bucket(k));
}

void TrainStep::prepare(const MicroBatch& micro, int64_t step) {
  const auto seed = uint64_t(config_.train.seed);
  const nn::DitConfig& m = config_.model;
  const int64_t elements = shape_.elements();
  const Pin<float> x(pass_.image()), noise(noise_);
  std::vector<RandomKey> noise_keys;
  for (int64_t i = 0; i < micro_batch_; ++i) {
    const auto s = uint64_t(step), g = uint64_t(micro.first_sample + i);
    time_[size_t(i)] = process_->draw_time(RandomKey(seed, Stream::kTimestep, s, g));
    pass_.t()[size_t(i)] = process_->model_time(time_[size_t(i)]);
    const bool drop = RandomKey(seed, Stream::kLabelDrop, s, g).uniform(0) < m.class_dropout;
    pass_.y()[size_t(i)] = drop ? m.num_classes : micro.labels[i];
    noise_keys.emplace_back(seed, Stream::kNoise, s, g);
  }
  ops::fill_normal(ctx_, noise_keys, elements, noise);
  ctx_.for_range(micro_batch_, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::q_sample(*process_, micro.images, noise, time_.data(), x, elements, begin, end);
  });
}

void TrainStep::compute_loss(const MicroBatch& micro, StepResult& result) {
  const Pin<float> x(pass_.image()), noise(noise_), out(pass_.out()), dout(pass_.dout());
  const diffusion::LossBatch batch{micro.images, x, noise, time_.data(), out};
  const double weight = 1.0 / double(config_.train.global_batch);
  ctx_.for_range(micro_batch_, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::training_loss(*process_, shape_, batch, weight, dout, terms_.data(), begin, end);
  });
  for (const diffusion::LossTerms& term : terms_)
    result.loss += weight * term.loss, result.mse += weight * term.mse, result.vb += weight * term.vb;
}

// Time of f, less that of sums over the ranks that share the model: those are communication that nothing hides.
template <class F>
void TrainStep::timed(Phase phase, StepResult& result, F f) {
  const double before = group_ ? group_->summing_s() : 0;
  {
    const PhaseTimer timer(result.seconds, result.spans, phase);
    f();
  }
  const double summing = group_ ? group_->summing_s() - before : 0;
  result.seconds[phase] -= summing;
  result.seconds[Phase::kAllreduceExposed] += summing;
}

void TrainStep::run_micro_batch(const MicroBatch& micro, int64_t step, StepResult& result) {
  {
    const PhaseTimer timer(result.seconds, result.spans, Phase::kPrepare);
    prepare(micro, step);
  }
  timed(Phase::kForward, result, [&] { pass_.forward(ctx_); });
  {
    const PhaseTimer timer(result.seconds, result.spans, Phase::kLoss);
    compute_loss(micro, result);
  }
  if (!std::isfinite(result.loss) && bad_activation_.empty()) bad_activation_ = first_non_finite();
  mark_buckets_ = micro.last && config_.dist.overlap;
  factors_.start_at(micro.first_sample);
  const bool overwrite = micro.first || leaf_sums_;
  timed(Phase::kBackward, result,
        [&] { pass_.backward(ctx_, overwrite ? autograd::Gradients::kOverwrite : autograd::Gradients::kAdd); });
}

void TrainStep::run_micro_batches(const dataset::Batch& batch, int64_t step, StepResult& result) {
  leaf_ = 0;
  leaf_losses_.clear();
  for (int64_t first = 0; first < samples_; first += micro_batch_, ++leaf_) {
    run_micro_batch({batch.images.data() + first * shape_.elements(), batch.labels.data() + first,
                     comm_.rank() * samples_ + first, first == 0, first + micro_batch_ == samples_},
                    step, result);
    if (!leaf_sums_) continue;
    leaf_losses_.insert(leaf_losses_.end(), {result.loss, result.mse, result.vb});
    result.loss = result.mse = result.vb = 0;
  }
}

// Looked for only after a loss that is not finite: inputs, then what the nodes kept, in the order of the forward pass.
std::string TrainStep::first_non_finite() {
  if (ops::find_non_finite(ctx_, pass_.image()) >= 0) return "input image";
  for (autograd::Parameter* p : model_.parameters().state_dict())
    if (ops::find_non_finite(ctx_, p->value) >= 0) return "weight " + p->name;
  for (const auto& node : pass_.tape().nodes())
    for (const auto& a : node->kept())
      if (ops::find_non_finite(ctx_, a->tensor) >= 0) return "activation " + a->name;
  return ops::find_non_finite(ctx_, pass_.out()) >= 0 ? "model output" : "loss";
}

// In the order of the backward pass, which is that of the arena from its end: what goes bad spoils all that comes after
// it. A rank may have the sums of its shards only, or the weights that came of them: those of a bad gradient are bad.
std::string TrainStep::first_bad_gradient() {
  double begin = -1;
  for (const autograd::Parameter* p : model_.parameters().state_dict())
    if (p->trainable && double(p->slice.begin) > begin && ops::find_non_finite(ctx_, p->grad) >= 0)
      begin = double(p->slice.begin);
  comm_.allreduce_max(&begin, 1);
  if (group_) group_->communicator().allreduce_max(&begin, 1);  // its stores have one layout
  return begin < 0 ? "" : model_.parameters().at(int64_t(begin)).name;
}

// The name that the lowest rank with one has; all ranks get it.
std::string TrainStep::agree_on_name(const std::string& mine) {
  std::string name;
  for (const std::string& s : comm_.gather_strings(mine))
    if (name.empty()) name = s;
  return dist::broadcast_text(comm_, name);
}

optim::StepSettings TrainStep::next_update(const Progress& progress) const {
  const int64_t k = progress.optimizer_step;
  return {.step = k,
          .lr = optim::learning_rate(config_.optimizer, k, config_.train.steps),
          .ema_decay = optim::ema_decay(config_.ema, k)};
}

void TrainStep::update_bucket(int64_t k, const optim::StepSettings& update) {
  if (sharded_) return sharded_->update(k, config_.optimizer, update);
  const parallel::Range bucket = buckets_->bucket(k);
  optim::adamw_ema_step(ctx_, config_.optimizer, update, model_.parameters(),
                        {{bucket.begin, bucket.end}, bucket.begin});
}

// Returns when all gradients are those of the global batch; where updates are early, the weights of a bucket change as
// soon as it is here.
void TrainStep::collect_gradients(const optim::StepSettings& update, StepResult& result) {
  factor_squares_ = 0;
  const auto next_arrived = [&] {
    const PhaseTimer waiting(result.seconds, result.spans, Phase::kAllreduceExposed);
    return buckets_->finish_next();
  };
  int64_t k = 0;
  for (auto bucket = next_arrived(); bucket; bucket = next_arrived(), ++k) {
    if (factors_.hold(*bucket)) {
      const PhaseTimer timer(result.seconds, result.spans, Phase::kBackward);
      factors_.multiply(ctx_, *bucket);
      factor_squares_ += squares_of(*bucket);
    }
    if (!updates_early_) continue;
    const PhaseTimer timer(result.seconds, result.spans, Phase::kOptimizer);
    update_bucket(k, update);
  }
  buckets_->finish();
  communication_ = buckets_->last_step();
  result.allreduce_hidden_s = communication_.hidden_s();
}

void TrainStep::update_all(const optim::StepSettings& update, StepResult& result) {
  {
    const PhaseTimer timer(result.seconds, result.spans, Phase::kOptimizer);
    if (!sharded_) return optim::adamw_ema_step(ctx_, config_.optimizer, update, model_.parameters());
    for (int64_t k = 0; k < buckets_->num_buckets(); ++k) update_bucket(k, update);
  }
  collect_weights(result);
}

// Those that other ranks have updated.
void TrainStep::collect_weights(StepResult& result) {
  if (!sharded_) return;
  const PhaseTimer timer(result.seconds, result.spans, Phase::kAllreduceExposed);
  sharded_->finish(communication_);
  result.allreduce_hidden_s = communication_.hidden_s();
}

void TrainStep::sum_losses(StepResult& result) {
  constexpr int kLosses = 3;
  const PhaseTimer timer(result.seconds, result.spans, Phase::kAllreduceExposed);
  double sums[kLosses] = {result.loss, result.mse, result.vb};
  if (!leaf_sums_) {
    comm_.allreduce_sum(sums, kLosses);
  } else {
    const auto add = [&sums](const std::vector<double>& terms) {
      for (int i = 0; i < kLosses; ++i)
        sums[i] = dist::tree_sum(terms.data() + i, int64_t(terms.size()) / kLosses, kLosses);
    };
    add(leaf_losses_);
    if (const std::vector<double> of_ranks = comm_.gather(sums, kLosses); !of_ranks.empty()) add(of_ranks);
    comm_.broadcast(sums, sizeof sums, 0);
  }
  result.loss = sums[0], result.mse = sums[1], result.vb = sums[2];
}

// Sum of squares of gradients, as the engine makes it of what it sums.
double TrainStep::squares_of(const parallel::Range& slice) {
  std::vector<double> pieces(size_t(dist::num_pieces(slice.size())));
  ctx_.for_range(int64_t(pieces.size()), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = slice.begin + piece * dist::kPiece;
      pieces[size_t(piece)] = kernels::sum_squares(grads_->get() + first, std::min(dist::kPiece, slice.end - first));
    }
  });
  return std::accumulate(pieces.begin(), pieces.end(), 0.0);
}

double TrainStep::gradient_norm() {
  if (group_) return group_->gradient_norm(ctx_, model_.parameters());
  std::optional<double> squares = communication_.sum_squares;  // a by-product of the sums
  if (!squares && leaf_sums_) {                                // one rank: what the engine computes on several
    squares = 0.0;
    for (int64_t k = 0; k < buckets_->num_buckets(); ++k) *squares += squares_of(buckets_->bucket(k));
  }
  return squares ? std::sqrt(*squares + factor_squares_) : optim::gradient_norm(ctx_, model_.parameters());
}

std::string TrainStep::name_of_non_finite() {
  std::string name = agree_on_name(bad_activation_);
  if (!name.empty()) return name;
  name = first_bad_gradient();
  return name.empty() ? "gradient norm (overflow)" : "gradient " + name;
}

StepResult TrainStep::run(const dataset::Batch& batch, Progress& progress) {
  DITRAIN_CHECK(int64_t(batch.labels.size()) == samples_, "batch of another size");
  DITRAIN_CHECK(!weights_are_spoilt_, "a step after one that was to be the last");
  StepResult result;
  autograd::ParameterStore& parameters = model_.parameters();
  bad_activation_.clear();
  // Weights may have been loaded since the last time; from now on the optimiser writes the copy.
  if (parameters.values_bf16.defined() && !copy_is_fresh_)
    ops::to_bf16(ctx_, parameters.values, parameters.values_bf16);
  copy_is_fresh_ = true;
  run_micro_batches(batch, progress.step, result);
  optim::StepSettings update = next_update(progress);
  result.lr = update.lr;
  if (!config_.dist.overlap) buckets_->start_all();
  collect_gradients(update, result);
  if (updates_early_) collect_weights(result);
  sum_losses(result);
  {
    const PhaseTimer timer(result.seconds, result.spans, Phase::kOptimizer);
    result.grad_norm = gradient_norm();
  }
  ++progress.step;
  // Loss and gradients are the same bits on every rank now, so all ranks decide alike.
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    result.non_finite = name_of_non_finite();
    weights_are_spoilt_ = updates_early_;
    ++progress.skipped_steps;
    return result;
  }
  update.grad_scale = optim::clip_factor(result.grad_norm, config_.optimizer.clip_norm);
  if (!updates_early_) update_all(update, result);
  ++progress.optimizer_step;
  return result;
}

}  // namespace ditrain::train
