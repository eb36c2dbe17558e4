#include "ditrain/bench/step.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/bench/shapes.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/train/train_step.hpp"

namespace ditrain::bench {
namespace {

using train::Phase;

// A model with everything that a step needs, and the times of the steps it made.
class Trainee {
 public:
  Trainee(const plan::RunPlan& plan, ops::Context& ctx)
      : comm_(dist::make_null_communicator()),
        micro_batch_(plan.micro_batch),
        model_(plan.config.model),
        step_(plan, model_, *comm_, ctx),
        ctx_(ctx),
        batch_(random_batch(plan.config.model, plan.samples)) {
    model_.parameters().allocate(autograd::ParameterStore::For::kTraining, plan.config.train.precision,
                                 {.gradient_slices = plan.gradients.gradient_slices});
    nn::initialise(model_, 0);
    copy(model_.parameters().values, model_.parameters().ema);
    step_.allocate();
  }

  void step() {
    const ops::WorkTimes before = ctx_.times();
    const ops::Meetings met = ctx_.meetings();
    const double start = now_s();
    const train::StepResult result = step_.run(batch_, progress_);
    samples_.push_back({now_s() - start, result.log.seconds, difference(ctx_.times(), before)});
    meetings_ = {ctx_.meetings().of_team - met.of_team, ctx_.meetings().of_cluster - met.of_cluster};
  }

  // Where the time went in the step that took nearest to `seconds`: phases, then what worker 0 did.
  std::vector<Field> split(double seconds) const {
    const auto nearer = [&](const Sample& a, const Sample& b) {
      return std::fabs(a.seconds - seconds) < std::fabs(b.seconds - seconds);
    };
    const Sample& s = *std::min_element(samples_.begin(), samples_.end(), nearer);
    std::vector<Field> fields = {{"forward_s", s.phases[Phase::kForward], false},
                                 {"backward_s", s.phases[Phase::kBackward], false},
                                 {"optimizer_phase_s", s.phases[Phase::kOptimizer], false}};
    for (Field& f : split_of(s.work, s.seconds)) fields.push_back(std::move(f));
    fields.push_back({"team_barriers_per_block", per_block(meetings_.of_team)});
    fields.push_back({"cluster_barriers_per_block", per_block(meetings_.of_cluster)});
    return fields;
  }
  int64_t kept_bytes_per_image() { return int64_t(step_.tape().kept_bytes()) / micro_batch_; }

 private:
  double per_block(int64_t of_step) const { return double(of_step) / double(model_.config().depth); }

  struct Sample {
    double seconds;
    train::PhaseTimes phases;
    ops::WorkTimes work;
  };
  std::unique_ptr<dist::Communicator> comm_;
  const int64_t micro_batch_;
  nn::Dit model_;
  train::TrainStep step_;
  ops::Context& ctx_;
  dataset::Batch batch_;
  train::Progress progress_;
  std::vector<Sample> samples_;
  ops::Meetings meetings_;  // of the last step
};

}  // namespace

ops::WorkTimes difference(ops::WorkTimes after, const ops::WorkTimes& before) {
  for (size_t i = 0; i < after.working_s.size(); ++i) after.working_s[i] -= before.working_s[i];
  after.waiting_s -= before.waiting_s;
  return after;
}

std::vector<Field> split_of(const ops::WorkTimes& work, double seconds) {
  using ops::WorkKind;
  double accounted = work.waiting_s;
  for (const double t : work.working_s) accounted += t;
  return {{"products_s", work[WorkKind::kProduct]},
          {"attention_s", work[WorkKind::kAttention]},
          {"elementwise_s", work[WorkKind::kElementwise]},
          {"optimizer_s", work[WorkKind::kOptimizer]},
          {"waiting_s", work.waiting_s},
          {"other_s", seconds - accounted}};
}

void CallTimes::make(const std::function<void()>& call) {
  const ops::WorkTimes before = ctx_.times();
  const double start = now_s();
  call();
  calls_.push_back({now_s() - start, difference(ctx_.times(), before)});
}

std::vector<Field> CallTimes::split(double seconds) const {
  const Call& nearest = *std::min_element(calls_.begin(), calls_.end(), [&](const Call& a, const Call& b) {
    return std::fabs(a.seconds - seconds) < std::fabs(b.seconds - seconds);
  });
  std::vector<Field> fields = split_of(nearest.work, nearest.seconds);
  std::erase_if(fields, [](const Field& f) { return f.name == "optimizer_s"; });
  return fields;
}

config::Config step_config(const StepBench& bench, int64_t batch) {
  config::Config config;
  config.model.name = model_name(bench.model);
  config.model.num_classes = 1000;  // as the published models
  config.train.global_batch = batch;
  config.train.precision = bench.precision;
  for (const std::string& set : bench.sets) config::apply_set(config, set);
  nn::apply_name(config.model);
  config::validate_without_data(config);
  return config;
}

automem::Copying copying_on_team(const config::Config& config, Harness& harness) {
  return plan::plan_copying(config, harness.placement(), plan::place_of(harness.placement(), 1),
                            config.memory.disk_path, &harness.ctx().team());
}

plan::RunPlan plan_on_team(const config::Config& config, Harness& harness, const automem::Copying& copying) {
  config::validate_for_ranks(config, 1);
  plan::RankPlace place = plan::place_of(harness.placement(), 1);
  place.copying = copying;
  return plan::plan_run(config, 1, place);
}

plan::RunPlan plan_on_team(const config::Config& config, Harness& harness) {
  return plan_on_team(config, harness, copying_on_team(config, harness));
}

dataset::Batch random_batch(const nn::DitConfig& m, int64_t batch) {
  const RandomKey key(0, Stream::kTest, 0);
  dataset::Batch b;
  b.images.resize(size_t(batch * m.in_channels * m.pixels()));
  key.fill_normal(b.images.data(), int64_t(b.images.size()));
  for (int64_t i = 0; i < batch; ++i) b.labels.push_back(int64_t(key.below(uint64_t(i), uint64_t(m.num_classes))));
  return b;
}

std::string model_name(const std::string& wanted) {
  for (const ModelShape& shape : kModelShapes)
    if (wanted == shape.name) return "DiT-" + wanted + "/2";
  nn::DitConfig known;
  known.name = wanted;
  nn::apply_name(known);
  return wanted;
}

Row measure_step(Harness& harness, const StepBench& bench, int64_t batch, const std::string& name) {
  const config::Config config = step_config(bench, batch);
  const plan::RunPlan plan = plan_on_team(config, harness);
  plan::check_memory(plan);
  harness.apply(config);
  Trainee trainee(plan, harness.ctx());
  Row row = harness.measure({.name = name.empty() ? "step " + config.model.name : name,
                             .dtype = config.train.precision,
                             .call =
                                 [&] {
                                   if (bench.wait_for_data) bench.wait_for_data();
                                   trainee.step();
                                 },
                             .flop = 6 * nn::forward_macs(config.model) * double(batch),
                             .once = bench.once});
  row.details = {{"batch", batch},
                 {"recompute", plan::recompute_text(plan.config)},
                 {"images_per_second", double(batch) / row.time.median_s},
                 {"mfu", row.share, false}};
  for (Field& f : trainee.split(row.time.median_s)) row.details.push_back(std::move(f));
  row.details.push_back({"peak_rss_bytes", int64_t(platform::peak_resident_bytes())});
  row.details.push_back({"kept_bytes_per_image", trainee.kept_bytes_per_image()});
  row.details.push_back({"products", harness.products(), false});
  return row;
}

void bench_steps(Harness& harness, const StepBench& bench) {
  for (const int64_t batch : bench.batches) harness.add(measure_step(harness, bench, batch));
  harness.note(harness.products());
}

}  // namespace ditrain::bench
