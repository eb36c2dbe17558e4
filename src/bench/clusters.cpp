#include "ditrain/bench/clusters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/train/train_step.hpp"
#include "quantile.hpp"

namespace ditrain::bench {
namespace {

struct Contender {
  std::string name, cut;
  Harness& workers;
  std::unique_ptr<train::TrainStep> step;
  std::vector<double> seconds = {};  // of each round
  std::vector<ops::WorkTimes> work = {};
  ops::Meetings meetings = {};
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
    model_.parameters().allocate(autograd::ParameterStore::For::kTraining, automatic_.config.train.precision);
    nn::initialise(model_, 0);
    copy(model_.parameters().values, model_.parameters().ema);
    add("one core", plan_of("auto", one_), one_);
    add("clusters", automatic_, harness);
    add("clusters, n", plan_of("n", harness), harness);
  }

  void measure() {
    for (int64_t round = -1; round < harness_.effort().repeats; ++round)  // the first one pays for page faults
      for (Contender& c : contenders_) make_step(c, round >= 0);
    for (const Contender& c : contenders_) harness_.add(row_of(c));
    const Contender &automatic = contenders_[1], &columns = contenders_[2];
    harness_.note(fmt::format("parallel.cut auto ({}) / n: {:.3f} x the images/s", automatic.cut,
                              median_ratio(columns.seconds, automatic.seconds)));
    harness_.note(fmt::format("memory read: {:.1f} GB/s by one core, {:.1f} GB/s by {}", one_.report().read_gb_s,
                              harness_.report().read_gb_s, harness_.num_threads()));
  }

 private:
  plan::RunPlan plan_of(const std::string& cut, Harness& workers) const {
    StepBench step{.model = bench_.model, .precision = bench_.precision, .sets = bench_.sets};
    step.sets.push_back("parallel.cut=" + cut);
    return plan_on_team(step_config(step, bench_.batch), workers);
  }

  void add(const std::string& name, const plan::RunPlan& plan, Harness& workers) {
    workers.apply(plan.config);
    auto step = std::make_unique<train::TrainStep>(plan, model_, *comm_, workers.ctx());
    step->allocate();
    const bool samples = workers.ctx().cut() == ops::Cut::kSamples;
    contenders_.push_back({name, samples ? "samples" : "n", workers, std::move(step)});
  }

  void make_step(Contender& c, bool counts) {
    ops::Context& ctx = c.workers.ctx();
    ctx.set_cut(c.cut == "samples" ? ops::Cut::kSamples : ops::Cut::kN);  // two of them share a team
    const ops::Meetings met = ctx.meetings();
    const ops::WorkTimes before = ctx.times();
    const double start = now_s();
    c.step->run(batch_, progress_);
    if (!counts) return;
    c.seconds.push_back(now_s() - start);
    c.work.push_back(difference(ctx.times(), before));
    c.meetings = {ctx.meetings().of_team - met.of_team, ctx.meetings().of_cluster - met.of_cluster};
  }

  Row row_of(const Contender& c) const {
    Row row{.name = fmt::format("step {} {}", model_.config().name, c.name),
            .dtype = dtype_name(automatic_.config.train.precision)};
    row.time = {quantile(c.seconds, 0.5), quantile(c.seconds, 0), quantile(c.seconds, 0.9), int64_t(c.seconds.size())};
    row.share = std::numeric_limits<double>::quiet_NaN();
    const int threads = c.workers.num_threads();
    const double depth = double(model_.config().depth);
    row.details = {{"threads", int64_t(threads)},
                   {"clusters", int64_t(c.workers.placement().clusters)},
                   {"cut", c.workers.placement().clusters > 1 ? c.cut : "-"},
                   {"batch", bench_.batch},
                   {"images_per_second", double(bench_.batch) / row.time.median_s},
                   {"efficiency", median_ratio(contenders_.front().seconds, c.seconds) / threads},
                   {"team_barriers_per_block", double(c.meetings.of_team) / depth},
                   {"cluster_barriers_per_block", double(c.meetings.of_cluster) / depth}};
    const auto median = std::find(c.seconds.begin(), c.seconds.end(), row.time.median_s) - c.seconds.begin();
    for (Field& f : split_of(c.work[size_t(median)], row.time.median_s)) row.details.push_back(std::move(f));
    return row;
  }

  Harness& harness_;
  const ClustersBench bench_;
  Harness one_;
  std::unique_ptr<dist::Communicator> comm_;
  const plan::RunPlan automatic_;  // parallel.cut: auto on all workers
  nn::Dit model_;
  dataset::Batch batch_;
  train::Progress progress_;
  std::vector<Contender> contenders_;
};

}  // namespace

void bench_clusters(Harness& harness, const ClustersBench& bench) {
  if (harness.placement().clusters < 2)
    throw InputError({.where = "ditbench",
                      .what = "clusters are compared with one core",
                      .got = "1 cluster of " + std::to_string(harness.num_threads()) + " thread(s)",
                      .expected = "at least 2 clusters"});
  Meter(harness, bench).measure();
}

}  // namespace ditrain::bench
