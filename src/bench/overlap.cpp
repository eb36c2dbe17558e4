#include "ditrain/bench/overlap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/train/train_step.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

/// Cores that no worker has.
std::vector<int> free_pus(const plan::Placement& p) {
  std::vector<int> free;
  if (p.pus.empty()) return free;
  for (const int pu : p.topology.allowed_pus)
    if (std::find(p.pus.begin(), p.pus.end(), pu) == p.pus.end()) free.push_back(pu);
  return free;
}

/// One model, and several ways to make a step of it.
class OverlapMeter {
 public:
  OverlapMeter(Harness& harness, dist::Communicator& comm, const OverlapBench& bench)
      : harness_(harness),
        comm_(comm),
        alone_(dist::make_null_communicator()),
        bench_(bench),
        plan_(plan_of(config_of(comm.world_size()), comm)),
        config_(plan_.config),
        model_(config_.model),
        batch_(random_batch(config_.model, bench.batch)) {
    harness.apply(config_);
    memory_.emplace(comm, size_t(model_.parameters().arena_size()) * sizeof(float));
    allocate_weights(model_, config_.train.precision,
                     {.gradients = &*memory_, .states = optim::state_arrays(config_.optimizer, config_.ema)});
    none_ = step_of(plan_of(config_of(1), *alone_), *alone_, {});
    engine_ = step_of(plan_, comm, {.gradients = &*memory_, .comm_pus = free_pus(harness.placement())});
    harness_.note(engine_->sync().engine()->description());
    contenders_ = {{"none", [this] { none_->run(batch_, progress_); }}};
    add("engine", *engine_, [this] { engine_->run(batch_, progress_); });
    add("at the end", *engine_, [this] { step_at_the_end(); });
    if (!config_.dist.simulate_link) add_passing();
  }

  void measure() {
    take_turns(contenders_, harness_.effort().repeats, &comm_);
    for (const Contender& c : contenders_) harness_.add(row_of(c));
    note_ratio("at the end");
    if (passing_) note_ratio("no engine");
  }

 private:
  /// The config of a world in which every rank has bench.batch images.
  config::Config config_of(int ranks) const {
    const StepBench step{.model = bench_.model, .precision = bench_.precision, .sets = bench_.sets};
    config::Config config = step_config(step, bench_.batch * ranks);
    if (config.parallel.strategy == config::Strategy::kDpTp)
      refuse("ditbench", "comm measures ranks that have a model each", "parallel.strategy: dp_tp", "cftp or dp");
    if (config.dist.shard_optimizer || config.dist.reproducible)
      refuse("ditbench", "comm compares sums with and without an engine",
             config.dist.shard_optimizer ? "dist.shard_optimizer: true" : "dist.reproducible: true",
             "false: it needs the engine");
    config::validate_for_ranks(config, ranks);
    config.dist.engine = config.dist.overlap = true;  // the ways below differ in these
    return config;
  }

  /// Errors:   as check_memory
  plan::RunPlan plan_of(const config::Config& config, const dist::Communicator& comm) const {
    plan::RankPlace place = plan::place_of(harness_.placement(), comm.local_size());
    place.rank = comm.rank();
    const plan::RunPlan plan = plan::plan_run(config, comm.world_size(), place);
    plan::check_memory(plan);
    return plan;
  }

  void add_passing() {
    config::Config config = config_;
    config.dist.engine = false, config.dist.wire = DType::kF32;
    harness_.note("no engine: all gradients are summed, in f32; the engine may gather factors of adaLN's");
    passing_ = step_of(plan_of(config, comm_), comm_, {});
    add("no engine", *passing_, [this] { passing_->run(batch_, progress_); });
  }

  std::unique_ptr<train::TrainStep> step_of(const plan::RunPlan& plan, dist::Communicator& comm,
                                            const train::StepPlace& place) {
    return std::make_unique<train::TrainStep>(plan, model_, train::StepRanks{comm}, harness_.ctx(), place);
  }

  /// A step whose sums of gradients count.
  void add(const std::string& name, const train::TrainStep& step, std::function<void()> call) {
    contenders_.push_back({name, std::move(call), nullptr,
                           [this, name, &step](double) { told_[name].push_back(step.sync().communication()); }});
  }

  void step_at_the_end() {
    engine_->sync().set_overlap(false);
    engine_->run(batch_, progress_);
    engine_->sync().set_overlap(true);
  }

  void note_ratio(const std::string& other) {
    harness_.note(fmt::format("engine / {}: {:.3f} x the time", other, contender("engine").ratio_to(contender(other))));
  }
  const Contender& contender(const std::string& name) const {
    return *std::find_if(contenders_.begin(), contenders_.end(), [&](const Contender& c) { return c.name == name; });
  }

  Row row_of(const Contender& c) const {
    Row row = timed_row(fmt::format("step {} {}", config_.model.name, c.name), dtype_name(config_.train.precision),
                        c.seconds);
    row.details = {{"ranks", int64_t(comm_.world_size())},
                   {"batch", bench_.batch},
                   {"way", c.name, false},
                   {"link_gbit_s", config_.dist.simulate_link ? config_.dist.simulate_link->gbit_s : 0.0, false},
                   {"step_ratio", c.ratio_to(contender("none"))}};
    if (const auto told = told_.find(c.name); told != told_.end()) add_sums(c, told->second, row);
    return row;
  }

  static void add_sums(const Contender& c, const std::vector<dist::StepOutcome>& told, Row& row) {
    const dist::StepOutcome& of_median = told[nearest(c.seconds, row.time.median_s)];
    row.details.push_back({"communication_s", of_median.communication_s});
    row.details.push_back({"exposed_s", of_median.exposed_s});
    row.details.push_back({"overlap_efficiency", 1 - of_median.exposed_s / of_median.communication_s});
  }

  Harness& harness_;
  dist::Communicator& comm_;
  std::unique_ptr<dist::Communicator> alone_;
  const OverlapBench bench_;
  const plan::RunPlan plan_;
  const config::Config& config_;            // of the plan
  std::optional<dist::NodeMemory> memory_;  // before the model, whose gradients lie there
  nn::Model model_;
  dataset::Batch batch_;
  std::unique_ptr<train::TrainStep> none_, engine_, passing_;
  train::Progress progress_;
  std::vector<Contender> contenders_;
  std::map<std::string, std::vector<dist::StepOutcome>> told_;  // by contender, of the turns that count
};

}  // namespace

void bench_overlap(Harness& harness, dist::Communicator& comm, const OverlapBench& bench) {
  if (comm.world_size() == 1)
    refuse("ditbench", "comm needs several ranks", "", "", "mpirun -np 2 ditbench comm --model " + bench.model);
  OverlapMeter(harness, comm, bench).measure();
}

}  // namespace ditrain::bench
