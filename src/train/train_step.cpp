#include "ditrain/train/train_step.hpp"

#include <cmath>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/random.hpp"
#include "ditrain/optim/optimizer.hpp"
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
      schedule_(diffusion::make_schedule(config.diffusion.schedule, config.diffusion.num_steps)),
      rules_(diffusion::make_rules(config.diffusion, config.model.learn_sigma)),
      shape_{config.model.in_channels, config.model.pixels()},
      samples_(config.train.global_batch / comm.world_size()),
      micro_batch_(micro_batch_of(config, comm.world_size())),
      pass_(model, micro_batch_, autograd::Mode::kTraining, pass_options(config)),
      t_(size_t(micro_batch_)),
      terms_(size_t(micro_batch_)) {
  ctx.set_cut(plan_cut(config, micro_batch_, ctx.team().num_clusters()).cut);
  // A node's gradients are final after its backward in the last micro-batch: its buckets may leave.
  pass_.tape().add_hook(autograd::HookPoint::kPostBackward, [this](const autograd::Node& node) {
    const autograd::ArenaSlice slice = node.parameter_slice();
    if (mark_buckets_) buckets_->mark_ready(slice.begin, slice.end);
  });
}

void TrainStep::allocate(dist::NodeMemory* gradient_memory, const std::vector<int>& comm_pus) {
  pass_.allocate();
  noise_ = Tensor(pass_.image().shape());
  const int64_t bucket = int64_t(config_.dist.bucket_mib * 0x1p20 / sizeof(float));
  grads_ = std::make_unique<Pin<float>>(model_.parameters().grads);
  const int64_t n = model_.parameters().arena_size(), elements = std::max<int64_t>(1024, bucket);
  if (gradient_memory == nullptr || !config_.dist.engine) {
    buckets_ = std::make_unique<dist::GradientBuckets>(comm_, grads_->get(), n, elements);
    return;
  }
  const dist::EngineConfig engine{.hierarchical = config_.dist.allreduce == "hierarchical",
                                  .wire = config_.dist.wire == "bf16" ? DType::kBF16 : DType::kF32,
                                  .link = config_.dist.simulate_link,
                                  .pus = comm_pus};
  engine_ = std::make_unique<dist::Engine>(comm_, *gradient_memory, engine);
  buckets_ = std::make_unique<dist::GradientBuckets>(*engine_, grads_->get(), n, elements);
}

void TrainStep::prepare(const MicroBatch& micro, int64_t step) {
  const auto seed = uint64_t(config_.train.seed);
  const nn::DitConfig& m = config_.model;
  const int64_t elements = shape_.elements();
  const Pin<float> x(pass_.image()), noise(noise_);
  std::vector<RandomKey> noise_keys;
  for (int64_t i = 0; i < micro_batch_; ++i) {
    const auto s = uint64_t(step), g = uint64_t(micro.first_sample + i);
    t_[size_t(i)] = int64_t(RandomKey(seed, Stream::kTimestep, s, g).below(0, uint64_t(schedule_.num_steps())));
    pass_.t()[size_t(i)] = double(schedule_.timestep_map[size_t(t_[size_t(i)])]);
    const bool drop = RandomKey(seed, Stream::kLabelDrop, s, g).uniform(0) < m.class_dropout;
    pass_.y()[size_t(i)] = drop ? m.num_classes : micro.labels[i];
    noise_keys.emplace_back(seed, Stream::kNoise, s, g);
  }
  ops::fill_normal(ctx_, noise_keys, elements, noise);
  ctx_.for_range(micro_batch_, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::q_sample(schedule_, micro.images, noise, t_.data(), x, elements, begin, end);
  });
}

void TrainStep::compute_loss(const MicroBatch& micro, StepResult& result) {
  const Pin<float> x(pass_.image()), noise(noise_), out(pass_.out()), dout(pass_.dout());
  const diffusion::LossBatch batch{micro.images, x, noise, t_.data(), out};
  const double weight = 1.0 / double(config_.train.global_batch);
  ctx_.for_range(micro_batch_, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::training_loss(schedule_, rules_, shape_, batch, weight, dout, terms_.data(), begin, end);
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
  timed(Phase::kBackward, result,
        [&] { pass_.backward(ctx_, micro.first ? autograd::Gradients::kOverwrite : autograd::Gradients::kAdd); });
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

// In the order of the backward pass: what goes bad spoils all that comes after it.
std::string TrainStep::first_bad_gradient() {
  const auto& nodes = pass_.tape().nodes();
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const std::vector<autograd::Parameter*>& parameters = (*node)->parameters();
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
      if (ops::find_non_finite(ctx_, (*p)->grad) >= 0) return (*p)->name;
  }
  return "";
}

// The name that the lowest rank with one has; all ranks get it.
std::string TrainStep::agree_on_name(const std::string& mine) {
  std::string name;
  for (const std::string& s : comm_.gather_strings(mine))
    if (name.empty()) name = s;
  uint64_t size = name.size();
  comm_.broadcast(&size, sizeof size, 0);
  name.resize(size);
  comm_.broadcast(name.data(), size, 0);
  return name;
}

StepResult TrainStep::run(const dataset::Batch& batch, Progress& progress) {
  DITRAIN_CHECK(int64_t(batch.labels.size()) == samples_, "batch of another size");
  StepResult result;
  autograd::ParameterStore& parameters = model_.parameters();
  bad_activation_.clear();
  // Weights may have been loaded since the last time; from now on the optimiser writes the copy.
  if (parameters.values_bf16.defined() && !copy_is_fresh_)
    ops::to_bf16(ctx_, parameters.values, parameters.values_bf16);
  copy_is_fresh_ = true;
  for (int64_t first = 0; first < samples_; first += micro_batch_)
    run_micro_batch({batch.images.data() + first * shape_.elements(), batch.labels.data() + first,
                     comm_.rank() * samples_ + first, first == 0, first + micro_batch_ == samples_},
                    progress.step, result);
  {
    const PhaseTimer timer(result.seconds, result.spans, Phase::kAllreduceExposed);
    if (!config_.dist.overlap) buckets_->start_all();
    buckets_->finish();
    double sums[3] = {result.loss, result.mse, result.vb};
    comm_.allreduce_sum(sums, 3);
    result.loss = sums[0], result.mse = sums[1], result.vb = sums[2];
    result.allreduce_hidden_s = buckets_->last_step().hidden_s();
  }
  const PhaseTimer timer(result.seconds, result.spans, Phase::kOptimizer);
  // Loss and gradients are the same bits on every rank now, so all ranks decide alike.
  const std::optional<double> squares = buckets_->last_step().sum_squares;  // a by-product of the sums
  result.grad_norm = group_    ? group_->gradient_norm(ctx_, parameters)
                     : squares ? std::sqrt(*squares)
                               : optim::gradient_norm(ctx_, parameters);
  result.lr = optim::learning_rate(config_.optimizer, progress.optimizer_step, config_.train.steps);
  ++progress.step;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    result.non_finite = agree_on_name(bad_activation_);
    if (result.non_finite.empty()) {
      const std::string gradient = first_bad_gradient();
      result.non_finite = gradient.empty() ? "gradient norm (overflow)" : "gradient " + gradient;
    }
    ++progress.skipped_steps;
    return result;
  }
  optim::adamw_ema_step(ctx_, config_.optimizer,
                        {.step = progress.optimizer_step,
                         .lr = result.lr,
                         .ema_decay = optim::ema_decay(config_.ema, progress.optimizer_step),
                         .grad_scale = optim::clip_factor(result.grad_norm, config_.optimizer.clip_norm)},
                        parameters);
  ++progress.optimizer_step;
  return result;
}

}  // namespace ditrain::train
