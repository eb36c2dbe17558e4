#include "ditrain/bench/clusters.hpp"

#include <fmt/format.h>

#include <memory>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/train/train_step.hpp"
#include "own_keys.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

// The workers of a contender, and where the time of its steps went.
struct TimedStep {
  TimedStep(Harness& w, const plan::RunPlan& plan, nn::Model& model, dist::Communicator& comm)
      : workers(w), step(plan, model, {comm}, w.ctx()), cut(w.ctx().cut()), times(w.ctx()) {}
  Harness& workers;
  train::TrainStep step;
  const ops::ClusterSplit cut;
  CallTimes times;
};

class Meter {
 public:
  Meter(Harness& harness, const ClustersBench& bench)
      : harness_(harness),
        bench_(bench),
        one_(1, harness.effort(), 1),  // on the core of this thread, the team's first
        comm_(dist::make_null_communicator()),
        automatic_(plan_of("auto", harness)),
        model_(automatic_.config.model),
        batch_(random_batch(model_.config(), bench.batch)) {
    plan::check_memory(automatic_);
    allocate_weights(model_, automatic_.config.train.precision,
                     {.states = optim::state_arrays(automatic_.config.optimizer, automatic_.config.ema)});
    add("one core", plan_of("auto", one_), one_);
    add("clusters", automatic_, harness);
    add("clusters, n", plan_of("n", harness), harness);
  }

  void measure() {
    take_turns(contenders_, harness_.effort().repeats);
    for (size_t i = 0; i < contenders_.size(); ++i) harness_.add(row_of(contenders_[i], *timed_steps_[i]));
    harness_.note(fmt::format("parallel.cut auto ({}) / n: {:.3f} x the images/s", text_of(timed_steps_[1]->cut),
                              contenders_[2].ratio_to(contenders_[1])));
    harness_.note(fmt::format("memory read: {:.1f} GB/s by one core, {:.1f} GB/s by {}", one_.report().read_gb_s,
                              harness_.report().read_gb_s, harness_.num_threads()));
  }

 private:
  plan::RunPlan plan_of(const std::string& cut, Harness& workers) const {
    expect_not_set(bench_.sets, {{"parallel.cut", "no cut of your own: all are compared"}});
    StepBench step{.model = bench_.model, .precision = bench_.precision, .sets = bench_.sets};
    step.sets.push_back("parallel.cut=" + cut);
    return plan_on_team(step_config(step, bench_.batch), workers);
  }

  void add(const std::string& name, const plan::RunPlan& plan, Harness& workers) {
    workers.apply(plan.config);
    TimedStep& timed = *timed_steps_.emplace_back(std::make_unique<TimedStep>(workers, plan, model_, *comm_));
    const auto before = [&timed] {
      timed.workers.ctx().set_cut(timed.cut);  // two of them share a team
      timed.times.begin();
    };
    contenders_.push_back({name, [this, &timed] { timed.step.run(batch_, progress_); }, before,
                           [&timed](double seconds) { timed.times.end(seconds); }});
  }

  static std::string text_of(ops::ClusterSplit cut) { return cut == ops::ClusterSplit::kSamples ? "samples" : "n"; }

  Row row_of(const Contender& c, const TimedStep& timed) const {
    Row row = timed_row(fmt::format("step {} {}", model_.config().name, c.name),
                        dtype_name(automatic_.config.train.precision), c.seconds);
    const int threads = timed.workers.num_threads(), clusters = timed.workers.placement().clusters;
    const double depth = double(model_.config().depth);
    row.details = {{"threads", int64_t(threads)},
                   {"clusters", int64_t(clusters)},
                   {"cut", clusters > 1 ? text_of(timed.cut) : "-"},
                   {"batch", bench_.batch},
                   {"images_per_second", double(bench_.batch) / row.time.median_s},
                   {"efficiency", contenders_.front().ratio_to(c) / threads},
                   {"team_barriers_per_block", double(timed.times.meetings().of_team) / depth},
                   {"cluster_barriers_per_block", double(timed.times.meetings().of_cluster) / depth}};
    timed.times.add_split(row);
    return row;
  }

  Harness& harness_;
  const ClustersBench bench_;
  Harness one_;
  std::unique_ptr<dist::Communicator> comm_;
  const plan::RunPlan automatic_;  // parallel.cut: auto on all workers
  nn::Model model_;
  dataset::Batch batch_;
  train::Progress progress_;
  std::vector<std::unique_ptr<TimedStep>> timed_steps_;
  std::vector<Contender> contenders_;
};

}  // namespace

void bench_clusters(Harness& harness, const ClustersBench& bench) {
  if (harness.placement().clusters < 2)
    refuse("ditbench", "clusters are compared with one core",
           "1 cluster of " + std::to_string(harness.num_threads()) + " thread(s)", "at least 2 clusters");
  Meter(harness, bench).measure();
}

}  // namespace ditrain::bench
