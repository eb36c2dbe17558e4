// Runs whose tensors move between memory tiers: from one setting to another, killed, and refused.
#include <signal.h>

#include <catch2/catch.hpp>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// Large enough for tensors that move.
const Args kModel =
    sets({"model.hidden_size=128", "model.num_heads=4", "model.depth=2", "model.input_size=16", "model.patch_size=2"});
const Args kBulk = sets({"memory.automem=planned", "memory.fast_gib=0.012"});
const Args kPaper = sets({"memory.automem=paper", "memory.fast_gib=0.012"});

Args on_disk(const std::string& folder) { return kBulk + sets({"memory.disk_gib=0.1", "memory.disk_path=" + folder}); }

}  // namespace

TEST_CASE("tiers: a run that goes on in other tiers, and on 2 ranks, ends with the same bits") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", parts = scratch / "parts", ranks = scratch / "ranks";
  REQUIRE_EXIT(run(tiny_ditrain(whole, 6, kModel)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(parts, 2, kModel + on_disk(scratch / "."))), 0);
  const Args by_workers = sets({"memory.copy=workers"});
  const Result workers = run(tiny_ditrain(parts, 4, kModel + kPaper + by_workers + Args{"--resume", "auto"}));
  REQUIRE_EXIT(workers, 0);
  REQUIRE_THAT(workers.out,
               Contains("copies in memory by the workers, at the borders of nodes (memory.copy: workers)"));
  const Result last = run(tiny_ditrain(parts, 6, kModel + kBulk + Args{"--resume", "auto", "--trace"}));
  REQUIRE_EXIT(last, 0);
  REQUIRE_THAT(last.out, Contains("automem: ") && Contains("expected per step") && Contains("bulk tier"));
  REQUIRE(different_files(checkpoint_of(parts, 6), checkpoint_of(whole, 6)).empty());
  const auto metrics = read_metrics(parts);
  REQUIRE(metrics.front()["automem"]["bytes_in"] > 0);
  REQUIRE(metrics.front()["memory"]["disk_bytes"] > 0);
  for (const auto& line : metrics) REQUIRE(line["memory"]["fast_peak_bytes"] <= 0.012 * 0x1p30);

  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "two", 4, kModel))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(ranks, 4, kModel + on_disk(scratch / ".")))), 0);
  REQUIRE(different_files(checkpoint_of(ranks, 4), checkpoint_of(scratch / "two", 4)).empty());
  const Args sharded = sets({"dist.shard_optimizer=true"});
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "shards", 4, kModel + sharded + on_disk(scratch / ".")))), 0);
  REQUIRE(different_files(checkpoint_of(scratch / "shards", 4), checkpoint_of(scratch / "two", 4)).empty());
}

TEST_CASE("tiers: checkpoints that are written while tensors move hold what those without tiers hold") {
  const TemporaryFolder scratch;
  const Args each = sets({"checkpoint.every_steps=1", "checkpoint.keep_last=5", "checkpoint.buffer_gib=0.0001"});
  const Args in_backward = sets({"optimizer.clip_norm=0", "train.on_non_finite=stop"});  // weights change in it
  for (const Args& how : {Args(), in_backward}) {
    const std::string all = scratch / ("all" + std::to_string(how.size())),
                      moved = scratch / ("moved" + std::to_string(how.size()));
    REQUIRE_EXIT(run(tiny_ditrain(all, 5, kModel + each + how + sets({"checkpoint.async=false"}))), 0);
    REQUIRE_EXIT(run(tiny_ditrain(moved, 5, kModel + each + how + on_disk(scratch / "."))), 0);
    for (int step = 1; step <= 5; ++step)
      REQUIRE(different_files(checkpoint_of(moved, step), checkpoint_of(all, step)).empty());
  }
}

TEST_CASE("tiers: nothing of the disk tier is left behind by a run that is killed") {
  const TemporaryFolder scratch;
  const std::string disk = scratch / "disk";
  fs::create_directory(disk);
  Process training(tiny_ditrain(scratch / "out", kForEver, kModel + on_disk(disk)));
  REQUIRE(wait_until([&] { return fs::exists(scratch / "out" + "/metrics.jsonl"); }));
  training.send(SIGKILL);
  REQUIRE(training.wait().exit_code == 128 + SIGKILL);
  REQUIRE(fs::is_empty(disk));
}

TEST_CASE("tiers: what cannot be is refused before anything is allocated") {
  const TemporaryFolder scratch;
  const auto refusal = [&](const Args& settings) {
    const Result r = run(tiny_ditrain(scratch / "out", 2, kModel + settings));
    CHECK(r.exit_code == 2);
    return r.err;
  };
  CHECK_THAT(refusal(sets({"memory.automem=planned"})), Contains("memory.fast_gib"));
  CHECK_THAT(refusal(sets({"memory.automem=planned", "memory.fast_gib=0.001"})),
             Contains("the fast tier is too small for") && Contains("that never move"));
  CHECK_THAT(refusal(kBulk + sets({"memory.bulk_gib=0", "memory.disk_gib=0.001"})),
             Contains("do not fit the slow tiers") && Contains("--set memory.disk_gib="));
  CHECK_THAT(refusal(on_disk(scratch / "none")), Contains("memory.disk_path"));
  CHECK_THAT(refusal(kBulk + sets({"parallel.strategy=dp_tp"})), Contains("memory.automem: off"));
  const Result dry = run(tiny_ditrain(scratch / "out", 2, kModel + kBulk + Args{"--dry-run"}));
  REQUIRE_EXIT(dry, 0);
  REQUIRE_THAT(dry.out, Contains("fast pool") && Contains("expected per step"));
}
