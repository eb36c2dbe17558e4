// Load and advice at the end of a run.
#include "ditrain/train/run_summary.hpp"

#include <catch2/catch.hpp>

#include "dist/thread_world.hpp"
#include "ditrain/dataset/kinds.hpp"

using namespace ditrain;
using namespace ditrain::train;
using Catch::Contains;

namespace {

/// 100 s on two nodes in which all is well.
RunSummary good_run() {
  RunSummary s{.ranks = 4, .nodes = 2, .steps = 100, .wall_s = 100};
  s.mean[Phase::kData] = 1, s.mean[Phase::kForward] = 30, s.mean[Phase::kBackward] = 60;
  s.compute_s = 90, s.slowest_compute_s = 92, s.slowest_rank = 3, s.slowest_host = "node7";
  s.slowest_threads = s.most_threads = 8;
  return s;
}

config::Config on_16_samples() {
  config::Config c;
  c.train.global_batch = 16;
  return c;
}

std::string only_advice(const RunSummary& s, const config::Config& c) {
  const std::vector<std::string> lines = advice(s, c);
  REQUIRE(lines.size() == 1);
  return lines.front();
}

}  // namespace

TEST_CASE("advice: none where nothing is to be gained, nor from a handful of steps") {
  CHECK(advice(good_run(), {}).empty());
  RunSummary bad = good_run();
  bad.mean[Phase::kData] = bad.least_waited_s = 40;
  CHECK(advice(bad, on_16_samples()).size() == 2);
  bad.steps = 9;
  CHECK(advice(bad, on_16_samples()).empty());
}

TEST_CASE("advice: waiting for data asks for loader threads") {
  RunSummary s = good_run();
  s.mean[Phase::kData] = 12;
  config::Config c;
  c.data.loader_threads = 3;
  CHECK(only_advice(s, c) == "waiting for data took 12 % of the time: more data.loader_threads (now 3)");
  c.data.kind = dataset::find_kind("folder");
  CHECK_THAT(only_advice(s, c), Contains("or smaller image files"));
}

TEST_CASE("advice: what shortens sums is what is not set yet") {
  RunSummary s = good_run();
  s.least_waited_s = 9;
  config::Config c = on_16_samples();
  CHECK_THAT(only_advice(s, c), Contains("9 % of the time") && Contains("dist.wire: bf16") &&
                                    Contains("train.global_batch") && !Contains("micro_batch") &&
                                    !Contains("dist.overlap") && !Contains("comm_cores") && !Contains("allreduce"));
  c.dist.wire = DType::kBF16, c.dist.overlap = false, c.train.micro_batch = 2;
  CHECK_THAT(only_advice(s, c), !Contains("dist.wire") && Contains("dist.overlap: true") && Contains("micro_batch"));
  CHECK_THAT(only_advice(s, c), Contains("dist.outer (nodes exchange every so many steps only"));
  c.dist.outer.emplace();
  CHECK_THAT(only_advice(s, c), !Contains("dist.outer"));
  c.train.micro_batch = 4;  // all that a rank has
  CHECK_THAT(only_advice(s, c), !Contains("micro_batch"));
  c = on_16_samples(), c.dist.engine = false, c.dist.allreduce = config::AllReduce::kFlat;
  CHECK_THAT(only_advice(s, c),
             Contains("dist.engine: true; dist.allreduce: hierarchical") && !Contains("dist.wire: bf16"));
  s.nodes = 1;
  CHECK_THAT(only_advice(s, on_16_samples()),
             !Contains("dist.wire") && !Contains("dist.adaln") && !Contains("dist.outer"));
  c = on_16_samples(), c.dist.adaln = config::AdalnExchange::kReduce;
  CHECK_THAT(only_advice(s, c), Contains("dist.adaln: auto"));
  c.dist.reproducible = true;  // which has no factors
  CHECK_THAT(only_advice(s, c), !Contains("dist.adaln"));
  // A core of eight is worth it from 12.5 % on.
  s.comm_shares_cores = true;
  CHECK_THAT(only_advice(s, on_16_samples()), !Contains("comm_cores"));
  s.least_waited_s = 13;
  CHECK_THAT(only_advice(s, on_16_samples()), Contains("parallel.comm_cores: 1"));
  c = on_16_samples(), c.parallel.strategy = config::Strategy::kDpTp;  // these are mostly sums of activations
  CHECK_THAT(only_advice(s, c), Contains("parallel.strategy: cftp") && !Contains("comm_cores"));
}

TEST_CASE("advice: a slow rank is named, with its threads if they are fewer") {
  RunSummary s = good_run();
  s.slowest_compute_s = 99;
  CHECK_THAT(only_advice(s, {}), Contains("rank 3 (node7) computes 10 % longer") && Contains("topology.txt"));
  s.slowest_threads = 6;
  CHECK_THAT(only_advice(s, {}), Contains("it has 6 thread(s) where others have 8") && !Contains("topology.txt"));
}

TEST_CASE("advice: checkpoints and comparisons that take long ask for a larger interval") {
  RunSummary s = good_run();
  s.mean[Phase::kCheckpoint] = 10;
  config::Config c;
  c.checkpoint.every_steps = 5;
  CHECK_THAT(only_advice(s, c), Contains("checkpoint.every_steps (now 5)"));
  c.checkpoint.every_steps = 0;  // the last one has to be
  CHECK(advice(s, c).empty());
  s = good_run(), s.mean[Phase::kVerify] = 6, c.dist.verify_every = 1;
  CHECK_THAT(only_advice(s, c), Contains("dist.verify_every (now 1)"));
}

TEST_CASE("the slowest of three ranks, and how little the others waited, are found on rank 0") {
  ThreadWorld world{.ranks = 3, .ranks_per_node = 2};
  RunSummary s;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    const double rank = comm.rank();
    RankTimes mine{.wall_s = 20, .steps = 50, .threads = 4 - int(rank), .comm_shares_cores = rank == 1};
    mine.total[Phase::kForward] = 3 + rank, mine.total[Phase::kBackward] = 6, mine.total[Phase::kSample] = 100;
    mine.total[Phase::kAllreduceExposed] = 5 - rank;
    const RunSummary found = summarise(mine, comm);
    if (comm.rank() == 0) s = found;
  });
  CHECK(s.slowest_rank == 2);
  CHECK(s.slowest_compute_s == 11);
  CHECK(s.compute_s == Approx(10));
  CHECK(s.imbalance() == Approx(0.1));
  CHECK(s.least_waited_s == 3);
  CHECK(s.mean[Phase::kForward] == Approx(4));
  CHECK((s.slowest_threads == 2 && s.most_threads == 4 && s.comm_shares_cores && s.nodes == 2));
  CHECK_THAT(load_line(s), Contains("load: rank 2 (") && Contains("11.00 s, 10.0 % above the mean of 10.00 s"));
  s.ranks = 1;
  CHECK(load_line(s).empty());
}
