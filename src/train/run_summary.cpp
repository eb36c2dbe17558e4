#include "ditrain/train/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/dataset/kinds.hpp"
#include "ditrain/plan/gradient_plan.hpp"

namespace ditrain::train {
namespace {

constexpr double kWorthSaying = 0.05;  // of the time
constexpr int64_t kFewSteps = 10;

constexpr size_t kNumPhases = kPhaseNames.size();

double compute_of(const double* phases) {
  double sum = 0;
  for (const Phase p : {Phase::kPrepare, Phase::kForward, Phase::kLoss, Phase::kBackward, Phase::kOptimizer})
    sum += phases[size_t(p)];
  return sum;
}

/// "9 %"
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string data_advice(const RunSummary& s, const config::Config& c) {
  std::string text = fmt::format("waiting for data took {} of the time: more data.loader_threads (now {})",
                                 percent(s.mean[Phase::kData] / s.wall_s), c.data.loader_threads);
  if (!c.data.kind->advice.empty()) text += fmt::format(", or {}", c.data.kind->advice);
  return text;
}

/// What may still be set, given what is set.
std::vector<std::string> shorter_sums(const RunSummary& s, const config::Config& c) {
  std::vector<std::string> ways;
  const int64_t samples = c.train.global_batch / s.ranks;
  const double share = s.least_waited_s / s.wall_s;
  if (!c.dist.overlap) ways.push_back("dist.overlap: true");
  if (!c.dist.engine) ways.push_back("dist.engine: true");
  if (c.dist.allreduce == config::AllReduce::kFlat) ways.push_back("dist.allreduce: hierarchical");
  if (c.dist.allreduce == config::AllReduce::kHierarchical && c.dist.engine && s.nodes > 1 &&
      c.dist.wire == DType::kF32 && !c.dist.reproducible)
    ways.push_back("dist.wire: bf16 (half the bytes between nodes, gradients rounded)");
  if (c.train.micro_batch > 0 && c.train.micro_batch < samples && !c.dist.reproducible)
    ways.push_back("a larger train.micro_batch (the all-reduce hides behind backward of the last one only)");
  if (s.comm_shares_cores && share * s.most_threads > 1)  // a core for it costs 1 / threads
    ways.push_back("parallel.comm_cores: 1");
  if (const std::string way = plan::advice_on_factors(c); !way.empty()) ways.push_back(way);
  if (!c.dist.outer && s.nodes > 1 && c.dist.engine && !c.dist.shard_optimizer && !c.dist.reproducible &&
      !c.memory.moves() && c.ema.snapshots_every == 0)
    ways.push_back("dist.outer (nodes exchange every so many steps only, which changes results)");
  ways.push_back("a larger train.global_batch (work grows, what travels hardly does)");
  return ways;
}

std::string sums_advice(const RunSummary& s, const config::Config& c) {
  if (c.parallel.strategy == config::Strategy::kDpTp)
    return fmt::format(
        "every rank waited for sums, at least {} of the time: parallel.strategy: cftp exchanges no "
        "activations",
        percent(s.least_waited_s / s.wall_s));
  return fmt::format(
      "every rank waited for the all-reduce of gradients, at least {} of the time; what shortens that: {}",
      percent(s.least_waited_s / s.wall_s), fmt::join(shorter_sums(s, c), "; "));
}

std::string imbalance_advice(const RunSummary& s) {
  std::string text =
      fmt::format("rank {} ({}) computes {} longer than the mean, and the others wait for it: ", s.slowest_rank,
                  s.slowest_host, percent(s.imbalance()));
  if (s.slowest_threads < s.most_threads)
    return text + fmt::format("it has {} thread(s) where others have {}", s.slowest_threads, s.most_threads);
  return text +
         "its cores in topology.txt (does another rank or program use them?), or the node itself, if this happens "
         "every time";
}

}  // namespace

RunSummary summarise(const RankTimes& mine, dist::Communicator& comm) {
  std::vector<double> values(mine.total.seconds().begin(), mine.total.seconds().end());
  values.push_back(mine.threads);
  values.push_back(mine.comm_shares_cores);
  const std::vector<double> all = comm.gather(values.data(), int64_t(values.size()));
  RunSummary s{.ranks = comm.world_size(), .nodes = comm.num_nodes(), .steps = mine.steps, .wall_s = mine.wall_s};
  s.least_waited_s = mine.total[Phase::kAllreduceExposed];
  for (size_t at = 0; at < all.size(); at += values.size()) {
    const double *of_rank = &all[at], compute = compute_of(of_rank);
    for (size_t p = 0; p < kNumPhases; ++p) s.mean[Phase(p)] += of_rank[p] / s.ranks;
    s.compute_s += compute / s.ranks;
    s.least_waited_s = std::min(s.least_waited_s, of_rank[size_t(Phase::kAllreduceExposed)]);
    const int threads = int(of_rank[kNumPhases]);
    s.most_threads = std::max(s.most_threads, threads);
    s.comm_shares_cores = s.comm_shares_cores || of_rank[kNumPhases + 1] != 0;
    if (compute < s.slowest_compute_s) continue;
    s.slowest_compute_s = compute, s.slowest_threads = threads;
    s.slowest_rank = int(at / values.size());
  }
  s.slowest_host = comm.host(s.slowest_rank);
  return s;
}

std::string load_line(const RunSummary& s) {
  if (s.ranks == 1) return "";
  return fmt::format("load: rank {} ({}) computed longest, {:.2f} s, {:.1f} % above the mean of {:.2f} s",
                     s.slowest_rank, s.slowest_host, s.slowest_compute_s, 100 * s.imbalance(), s.compute_s);
}

std::vector<std::string> advice(const RunSummary& s, const config::Config& c) {
  std::vector<std::string> lines;
  if (s.steps < kFewSteps || s.wall_s <= 0) return lines;
  const auto matters = [&](double seconds) { return seconds > kWorthSaying * s.wall_s; };
  if (matters(s.mean[Phase::kData])) lines.push_back(data_advice(s, c));
  if (s.ranks > 1 && matters(s.least_waited_s)) lines.push_back(sums_advice(s, c));
  if (s.imbalance() > kWorthSaying) lines.push_back(imbalance_advice(s));
  if (matters(s.mean[Phase::kCheckpoint]) && c.checkpoint.every_steps > 0)
    lines.push_back(fmt::format("checkpoints took {} of the time: a larger checkpoint.every_steps (now {})",
                                percent(s.mean[Phase::kCheckpoint] / s.wall_s), c.checkpoint.every_steps));
  if (matters(s.mean[Phase::kVerify]))
    lines.push_back(fmt::format("comparing the ranks' weights took {} of the time: a larger dist.verify_every (now {})",
                                percent(s.mean[Phase::kVerify] / s.wall_s), c.dist.verify_every));
  return lines;
}

}  // namespace ditrain::train
