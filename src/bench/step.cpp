#include "ditrain/bench/step.hpp"

#include <numeric>

#include "ditrain/base/random.hpp"
#include "ditrain/bench/shapes.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/train/train_step.hpp"
#include "own_keys.hpp"
#include "turns.hpp"

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
        batch_(random_batch(plan.config.model, plan.samples)),
        times_(ctx) {
    allocate_weights(model_, plan.config.train.precision,
                     {.states = optim::state_arrays(plan.config.optimizer, plan.config.ema),
                      .gradient_slices = plan.gradients.gradient_slices});
    step_ = std::make_unique<train::TrainStep>(plan, model_, train::StepRanks{*comm_}, ctx);
  }

  void step(const std::function<void()>& wait_for_data) {
    times_.make([&] {
      if (wait_for_data) wait_for_data();
      phases_.push_back(step_->run(batch_, progress_).log.seconds);
    });
  }

  // Where the time of the median step went: phases, then what worker 0 did.
  void add_split(Row& row) const {
    const train::PhaseTimes& phases = phases_[times_.median_call(row)];
    row.details.push_back({"forward_s", phases[Phase::kForward], false});
    row.details.push_back({"backward_s", phases[Phase::kBackward], false});
    row.details.push_back({"optimizer_phase_s", phases[Phase::kOptimizer], false});
    times_.add_split(row);
    row.details.push_back({"team_barriers_per_block", per_block(times_.meetings().of_team)});
    row.details.push_back({"cluster_barriers_per_block", per_block(times_.meetings().of_cluster)});
  }
  int64_t kept_bytes_per_image() { return int64_t(step_->tape().kept_bytes()) / micro_batch_; }

 private:
  double per_block(int64_t of_step) const { return double(of_step) / double(model_.config().depth); }

  std::unique_ptr<dist::Communicator> comm_;
  const int64_t micro_batch_;
  nn::Model model_;
  std::unique_ptr<train::TrainStep> step_;
  dataset::Batch batch_;
  train::Progress progress_;
  CallTimes times_;
  std::vector<train::PhaseTimes> phases_;  // of each step
};

}  // namespace

void CallTimes::begin() { times_before_ = ctx_.times(), met_before_ = ctx_.meetings(); }

void CallTimes::end(double seconds) {
  const ops::Meetings& met = ctx_.meetings();
  meetings_ = {met.of_team - met_before_.of_team, met.of_cluster - met_before_.of_cluster};
  seconds_.push_back(seconds);
  ops::WorkTimes& work = work_.emplace_back(ctx_.times());
  for (size_t i = 0; i < work.working_s.size(); ++i) work.working_s[i] -= times_before_.working_s[i];
  work.waiting_s -= times_before_.waiting_s;
}

void CallTimes::make(const std::function<void()>& call) {
  begin();
  end(seconds_of(call));
}

size_t CallTimes::median_call(const Row& row) const { return nearest(seconds_, row.time.median_s); }

void CallTimes::add_split(Row& row, bool optimizer) const {
  using ops::WorkKind;
  const size_t call = median_call(row);
  const ops::WorkTimes& work = work_[call];
  const double accounted = std::accumulate(work.working_s.begin(), work.working_s.end(), work.waiting_s);
  row.details.push_back({"products_s", work[WorkKind::kProduct]});
  row.details.push_back({"attention_s", work[WorkKind::kAttention]});
  row.details.push_back({"elementwise_s", work[WorkKind::kElementwise]});
  if (optimizer) row.details.push_back({"optimizer_s", work[WorkKind::kOptimizer]});
  row.details.push_back({"waiting_s", work.waiting_s});
  row.details.push_back({"other_s", seconds_[call] - accounted});
}

config::Config step_config(const StepBench& bench, int64_t batch) {
  expect_not_set(
      bench.sets,
      {{"parallel.threads", "--threads"}, {"parallel.clusters", "--clusters"}, {"train.global_batch", "--batch"}});
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

void allocate_weights(nn::Model& model, DType precision, const autograd::ParameterStore::Homes& homes) {
  autograd::ParameterStore& store = model.parameters();
  store.allocate(autograd::ParameterStore::For::kTraining, precision, homes);
  nn::initialise(model, 0);
  copy(store.values, store.ema);
}

dataset::Batch random_batch(const nn::ModelConfig& m, int64_t batch) {
  const RandomKey key(0, Stream::kTest, 0);
  dataset::Batch b;
  b.images.resize(size_t(batch * m.in_channels * m.pixels()));
  key.fill_normal(b.images.data(), int64_t(b.images.size()));
  for (int64_t i = 0; i < batch; ++i)
    b.conditions.push_back({.label = int64_t(key.below(uint64_t(i), uint64_t(m.num_classes))),
                            .image = std::vector<float>(size_t(m.condition_channels * m.pixels()))});
  return b;
}

std::string model_name(const std::string& wanted) {
  for (const ModelShape& shape : kModelShapes)
    if (wanted == shape.name) return "DiT-" + wanted + "/2";
  nn::ModelConfig known;
  known.name = wanted;
  nn::apply_name(known);
  return wanted;
}

Row measure_step(Harness& harness, const StepBench& bench, int64_t batch, const std::string& name) {
  const config::Config config = step_config(bench, batch);
  if (config.memory.moves())
    refuse("ditbench", "--set memory.automem is not measured here", "tensors that move", "", "ditbench memory");
  const plan::RunPlan plan = plan_on_team(config, harness);
  plan::check_memory(plan);
  harness.apply(config);
  harness.restart_peak_memory();
  Trainee trainee(plan, harness.ctx());
  Row row = harness.measure({.name = name.empty() ? "step " + config.model.name : name,
                             .dtype = config.train.precision,
                             .call = [&] { trainee.step(bench.wait_for_data); },
                             .flop = 6 * nn::forward_macs(config.model, config.train.routing) * double(batch),
                             .once = bench.once});
  row.details = {{"batch", batch},
                 {"recompute", plan::recompute_text(plan.config)},
                 {"images_per_second", double(batch) / row.time.median_s},
                 {"mfu", row.share, false}};
  trainee.add_split(row);
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
