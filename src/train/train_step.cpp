#include "ditrain/train/train_step.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/random.hpp"

namespace ditrain::train {
namespace {

nn::PassOptions pass_options(const plan::RunPlan& plan, const GradientSync& sync) {
  nn::PassOptions options = plan::pass_options(plan.config);
  options.sink = &sync.weight_gradients();
  return options;
}

}  // namespace

TrainStep::TrainStep(const plan::RunPlan& plan, nn::Model& model, const StepRanks& ranks, ops::Context& ctx,
                     const StepPlace& place)
    : plan_(plan),
      model_(model),
      comm_(ranks.samples),
      ctx_(ctx),
      process_(diffusion::make_process(plan.config.diffusion, plan.config.model.learn_sigma)),
      shape_{plan.config.model.in_channels, plan.config.model.pixels()},
      sync_(plan_, model, ranks, ctx, place),
      pass_(model, plan.micro_batch, autograd::Mode::kTraining, pass_options(plan, sync_)),
      time_(size_t(plan.micro_batch)),
      terms_(size_t(plan.micro_batch)),
      automem_(place.automem) {
  DITRAIN_CHECK(!plan.gradients.sharded || plan.gradients.rank == comm_.rank(), "the plan is that of another rank");
  ctx.set_cut(plan.cut.cut);
  memory::Allocator& home = automem_ != nullptr ? automem_->beside() : memory::system_memory();
  pass_.tape().allocate(home, automem_ != nullptr ? &automem_->source() : nullptr);
  if (automem_ != nullptr) automem_->watch(pass_.tape(), ctx.team());
  // Behind automem's: a node's tensors may leave when its weights change.
  pass_.tape().add_hook(autograd::HookPoint::kPostBackward, [this](const autograd::Node& node) {
    const autograd::ArenaSlice slice = node.parameter_slice();
    sync_.ready({slice.begin, slice.end}, *log_);
  });
  noise_ = Tensor(pass_.image().shape(), DType::kF32, home);
  if (config::outer_groups(plan_.config) > 1)
    outer_ = std::make_unique<OuterSync>(plan_, model_.parameters(), comm_, ctx_, place.comm_pus);
}

std::vector<TrainStep::MicroBatch> TrainStep::micro_batches_of(const dataset::Batch& batch) const {
  DITRAIN_CHECK(int64_t(batch.conditions.size()) == plan_.samples, "batch of another size");
  std::vector<MicroBatch> all;
  for (int64_t first = 0; first < plan_.samples; first += plan_.micro_batch)
    all.push_back({batch.images.data() + first * shape_.elements(),
                   batch.conditions.data() + first,
                   {.number = int64_t(all.size()),
                    .first_sample = comm_.rank() * plan_.samples + first,
                    .last = first + plan_.micro_batch == plan_.samples}});
  return all;
}

// Weights may have been loaded since the last step; from then on the optimiser writes the copy.
void TrainStep::refresh_bf16_copy() {
  const autograd::ParameterStore& parameters = model_.parameters();
  if (parameters.values_bf16.defined() && !copy_is_fresh_)
    for_common_parts({parameters.values, parameters.values_bf16},
                     [&](int64_t, const std::vector<Tensor>& part) { ops::to_bf16(ctx_, part[0], part[1]); });
  copy_is_fresh_ = true;
}

void drop_condition(const nn::ModelConfig& m, const RandomKey& key, Condition& condition) {
  const bool drop_label = key.uniform(0) < m.class_dropout;
  const double drop_all = m.num_classes > 0 && drop_label && m.metadata_drop > 0 ? 0.5 : m.metadata_drop;
  if (drop_label) condition.label = m.num_classes;
  const bool drop_numbers = key.uniform(1) < drop_all;
  for (size_t j = 0; j < condition.numbers.size(); ++j)
    if (drop_numbers || key.uniform(2 + j) < m.metadata_drop) condition.numbers[j] = NAN;
}

void TrainStep::prepare(const MicroBatch& micro, int64_t step) {
  const auto seed = uint64_t(plan_.config.train.seed);
  const nn::ModelConfig& m = plan_.config.model;
  const int64_t elements = shape_.elements();
  const Pin<float> x(pass_.image()), noise(noise_);
  std::vector<RandomKey> noise_keys;
  for (int64_t i = 0; i < plan_.micro_batch; ++i) {
    const auto s = uint64_t(step), g = uint64_t(micro.place.first_sample + i);
    time_[size_t(i)] = process_->draw_time(RandomKey(seed, Stream::kTimestep, s, g));
    pass_.t()[size_t(i)] = process_->model_time(time_[size_t(i)]);
    Condition& condition = pass_.conditions()[size_t(i)] = micro.conditions[i];
    drop_condition(m, RandomKey(seed, Stream::kLabelDrop, s, g), condition);
    noise_keys.emplace_back(seed, Stream::kNoise, s, g);
    pass_.draw_remaining_tokens(i, RandomKey(seed, Stream::kRoute, s, g));
  }
  ops::fill_normal(ctx_, noise_keys, elements, noise);
  ctx_.for_range(plan_.micro_batch, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::q_sample(*process_, micro.images, noise, time_.data(), x, elements, begin, end);
  });
}

void TrainStep::compute_loss(const MicroBatch& micro, StepFacts& facts) {
  const Pin<float> x(pass_.image(), Access::kRead), noise(noise_), out(pass_.out()), dout(pass_.dout());
  const diffusion::LossBatch batch{micro.images, x, noise, time_.data(), out, micro.conditions};
  const double weight = 1.0 / double(plan_.config.train.global_batch);
  ctx_.for_range(plan_.micro_batch, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    diffusion::training_loss(*process_, shape_, batch, weight * plan_.gradients.groups, dout, terms_.data(), begin,
                             end);
  });
  for (const diffusion::LossTerms& term : terms_)
    facts.loss += weight * term.loss, facts.mse += weight * term.mse, facts.vb += weight * term.vb;
}

// Its cosines are there when backward has run.
void TrainStep::add_layer_sync(StepFacts& facts) const {
  if (!plan_.config.train.layer_sync) return;
  const std::vector<double>& cosines = pass_.cosines();
  const double share = 1 / double(plan_.config.model.tokens() * plan_.config.train.global_batch);
  double mean = 0;
  for (const double cosine : cosines) mean += share * cosine;
  facts.layer_cosine += mean;
  facts.loss -= plan_.config.train.layer_sync->weight * mean;
}

// Leaves of a tree have gradients of their own; others add up. Weights that change in it are the optimiser's time.
void TrainStep::backward(const MicroBatch& micro, const optim::StepSettings* update, PhaseLog& log) {
  sync_.begin(micro.place, update);
  log_ = &log;
  const double updating = log.seconds[Phase::kOptimizer];
  const bool overwrite = micro.place.number == 0 || plan_.config.dist.reproducible;
  pass_.backward(ctx_, overwrite ? autograd::Gradients::kOverwrite : autograd::Gradients::kAdd);
  log.seconds[Phase::kBackward] -= log.seconds[Phase::kOptimizer] - updating;
}

// Time of f, less that of sums over the ranks that share the model: those are communication that nothing hides.
template <class F>
void TrainStep::timed(Phase phase, PhaseLog& log, F f) {
  const double before = sync_.summing_s();
  {
    const PhaseTimer timer(log, phase);
    f();
  }
  const double summing = sync_.summing_s() - before;
  log.seconds[phase] -= summing;
  log.seconds[Phase::kAllreduceExposed] += summing;
}

// Looked for only after a loss that is not finite: inputs, then what the nodes kept, in the order of the forward pass.
std::string TrainStep::first_non_finite() {
  const automem::Reading reading(automem_);
  if (ops::find_non_finite(ctx_, pass_.image()) >= 0) return "input image";
  for (autograd::Parameter* p : model_.parameters().state_dict())
    if (ops::find_non_finite(ctx_, p->value) >= 0) return "weight " + p->name;
  for (const auto& node : pass_.tape().nodes())
    for (const auto& a : node->kept())
      if (ops::find_non_finite(ctx_, a->tensor) >= 0) return "activation " + a->name;
  return ops::find_non_finite(ctx_, pass_.out()) >= 0 ? "model output" : "loss";
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
          .lr = optim::learning_rate(plan_.config.optimizer, k, plan_.config.train.steps),
          .ema_decay = optim::ema_decay(plan_.config.ema, k)};
}

std::string TrainStep::name_of_non_finite() {
  std::string name = agree_on_name(bad_activation_);
  if (!name.empty()) return name;
  name = agree_on_name(sync_.first_bad_gradient());
  return name.empty() ? "gradient norm (overflow)" : "gradient " + name;
}

StepResult TrainStep::run(const dataset::Batch& batch, Progress& progress, const std::function<StepFacts()>& mine) {
  DITRAIN_CHECK(!weights_are_spoilt_, "a step after one that was to be the last");
  StepResult result;
  PhaseLog& log = result.log;
  bad_activation_.clear();
  refresh_bf16_copy();
  optim::StepSettings update = next_update(progress);
  const double ema_decay = update.ema_decay;
  if (outer_) update.ema_decay = 1;  // the EMA averages what outer steps make
  for (const MicroBatch& micro : micro_batches_of(batch)) {
    micro_number_ = micro.place.number;
    if (automem_ != nullptr) automem_->begin_micro_batch(micro_number_);
    timed(Phase::kPrepare, log, [&] { prepare(micro, progress.step); });
    timed(Phase::kForward, log, [&] { pass_.forward(ctx_); });
    timed(Phase::kLoss, log, [&] { compute_loss(micro, result.facts); });
    if (!std::isfinite(result.facts.loss) && bad_activation_.empty()) bad_activation_ = first_non_finite();
    timed(Phase::kBackward, log, [&] { backward(micro, std::isfinite(result.facts.loss) ? &update : nullptr, log); });
    add_layer_sync(result.facts);
    sync_.add_losses(result.facts);
  }
  result.lr = update.lr;
  sync_.collect(update, log);
  if (mine) result.facts.add(mine());
  timed(Phase::kAllreduceExposed, log, [&] { sync_.exchange(result.facts); });
  double norm = 0;
  timed(Phase::kOptimizer, log, [&] { norm = sync_.norm(); });
  timed(Phase::kAllreduceExposed, log, [&] { result.grad_norm = sync_.norm_of_groups(norm); });
  ++progress.step;
  // Loss and norm are the same bits on every rank now, so all ranks decide alike.
  const double clip_norm = plan_.config.optimizer.clip_norm;
  const double largest = result.grad_norm * std::sqrt(double(plan_.gradients.groups));  // no group has a larger norm
  if (!std::isfinite(result.facts.loss) || !std::isfinite(result.grad_norm) ||
      optim::squares_overflow(largest, clip_norm)) {
    result.non_finite = name_of_non_finite();
    weights_are_spoilt_ = sync_.has_updated();
    ++progress.skipped_steps, ++progress.skipped_in_a_row;
  } else {
    update.grad_scale = optim::clip_factor(norm, clip_norm);
    sync_.update(update, log);
    ++progress.optimizer_step, progress.skipped_in_a_row = 0;
    if (outer_) outer_->count_update(ema_decay);
  }
  if (automem_ != nullptr) automem_->end_step();
  result.allreduce_hidden_s = sync_.communication().hidden_s();
  result.allreduce_bytes = sync_.communication().bytes;
  // Whether weights are spoilt may differ between ranks; that the run ends does not.
  const bool ends = !result.non_finite.empty() && plan_.config.train.on_non_finite == config::OnNonFinite::kStop;
  if (outer_ && !ends && config::is_outer_step(plan_.config, progress.step)) {
    const dist::StepOutcome outer = outer_->step(log);
    result.allreduce_hidden_s += outer.hidden_s(), result.allreduce_bytes += outer.bytes;
    copy_is_fresh_ = false;
    refresh_bf16_copy();  // ranks are compared now
  }
  return result;
}

}  // namespace ditrain::train
