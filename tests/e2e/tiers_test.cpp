// Runs whose tensors move between memory tiers: from one setting to another, killed, and refused.
#include <signal.h>

#include <catch2/catch.hpp>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// Large enough for tensors that move.
const Args kModel = sets({"model.hidden_size=128", "model.num_heads=4", "model.depth=2", "model.input_size=16",
                          "model.patch_size=2", "model.patch_overlap=1", "model.patch_bottleneck=8"});
const Args kBulk = sets({"memory.automem=planned", "memory.fast_gib=0.012"});
const Args kPaper = sets({"memory.automem=paper", "memory.fast_gib=0.012"});

// The environment of a system that does what tests/support/refusing_system.cpp says.
std::vector<std::string> refusing(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  all.insert(all.begin(), preload(DITRAIN_REFUSING_SYSTEM));
  return all;
}

Args on_disk(const std::string& folder) { return kBulk + sets({"memory.disk_gib=0.1", "memory.disk_path=" + folder}); }

}  // namespace

TEST_CASE("tiers: a run that goes on in other tiers, and on 2 ranks, ends with the same bits") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", parts = scratch / "parts", ranks = scratch / "ranks";
  REQUIRE_EXIT(run(tiny_ditrain(whole, 6, kModel)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(parts, 2, kModel + on_disk(scratch / "."))), 0);
  const Args by_workers = sets({"memory.copy=workers"});
  const Result workers = require_ok(tiny_ditrain(parts, 4, kModel + kPaper + by_workers + Args{"--resume", "auto"}));
  REQUIRE_THAT(workers.out,
               Contains("copies in memory by the workers, at the borders of nodes (memory.copy: workers)"));
  const Result last = require_ok(tiny_ditrain(parts, 6, kModel + kBulk + Args{"--resume", "auto", "--trace"}));
  REQUIRE_THAT(last.out, Contains("automem: ") && Contains("expected per step") && Contains("bulk tier"));
  REQUIRE(different_files(checkpoint_of(parts, 6), checkpoint_of(whole, 6)).empty());
  const auto metrics = read_metrics(parts);
  REQUIRE(metrics.front()["automem"]["disk_bytes_in"] > 0);
  for (const auto& line : metrics) {  // counted where it is allocated
    REQUIRE(line["memory"]["fast_peak_bytes"] <= 0.012 * 0x1p30);
    REQUIRE(line["memory"]["fast_peak_bytes"] > 0.5 * 0.012 * 0x1p30);
  }

  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "two", 4, kModel))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(ranks, 4, kModel + on_disk(scratch / ".")))), 0);
  REQUIRE(different_files(checkpoint_of(ranks, 4), checkpoint_of(scratch / "two", 4)).empty());
  const Args sharded = sets({"dist.shard_optimizer=true"});
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "shards", 4, kModel + sharded + on_disk(scratch / ".")))), 0);
  REQUIRE(different_files(checkpoint_of(scratch / "shards", 4), checkpoint_of(scratch / "two", 4)).empty());
}

TEST_CASE("tiers: two ranks end with the same bits whatever moves to which tier, in both precisions") {
  const TemporaryFolder scratch;
  const auto train = [&](const std::string& out, const Args& settings) {
    const Result r = require_ok(mpirun(2, tiny_ditrain(scratch / out, 3, kModel + settings)));
    return r.out.find("automem: ") != std::string::npos;
  };
  for (const std::string precision : {"f32", "bf16"}) {
    const Args type = sets({"train.precision=" + precision});
    train(precision, type);
    for (const Args& how : {kBulk, kPaper})
      for (const Args& tier :
           {Args(), sets({"memory.bulk_gib=0", "memory.disk_gib=0.1", "memory.disk_path=" + (scratch / ".")})}) {
        const std::string out =
            precision + (how == kPaper ? "_paper" : "_planned") + (tier.size() > 2 ? "_disk" : "_bulk");
        INFO(out);
        CHECK(train(out, type + how + tier));
        CHECK(different_files(checkpoint_of(scratch / out, 3), checkpoint_of(scratch / precision, 3)).empty());
        const auto last = read_metrics(scratch / out).back();
        CHECK(last["memory"]["fast_peak_bytes"] <= 0.012 * 0x1p30);
        // What bulk memory holds is used there where that is no slower.
        const std::string moved = tier.size() > 2 ? "disk_bytes_in" : "bulk_bytes_in";
        if (out.find("planned_bulk") == out.npos) CHECK(last["automem"][moved] > 0);
      }
  }
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

TEST_CASE("tiers: a disk that cannot hold its tier is refused by plans and by runs, before anything is made") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "runs/out", file = scratch / "file";
  write_file(file, "no folder");
  const auto check_refused = [&](const Args& settings, const std::string& got, const RunOptions& options = {}) {
    for (const Args& how : {Args{"--dry-run"}, Args{"--explain-memory"}, Args()}) {
      CAPTURE(how, got);
      const Result r = run(tiny_ditrain(out, 2, kModel + settings + how), options);
      REQUIRE_EXIT(r, 2);
      CHECK_THAT(r.err, Contains("[memory] the disk tier cannot be made; got " + got) &&
                            Contains("expected a folder on a local disk with ") &&
                            Contains("try --set memory.disk_path=FOLDER"));
      CHECK_FALSE(fs::exists(scratch / "runs"));
    }
  };
  check_refused(on_disk(scratch / "none"), scratch / "none" + ": No such file or directory");
  check_refused(on_disk(file), file + ": Not a directory");
  const RunOptions full{.environment = refusing({"DITRAIN_TEST_FREE_BYTES=1048576"})};
  check_refused(on_disk(scratch.path()), scratch.path() + ": not enough free space, 1.0 MiB free", full);
  // The run folder, which does not exist yet.
  check_refused(kBulk + sets({"memory.disk_gib=0.1"}), scratch.path() + ": not enough free space, 1.0 MiB free", full);
}

TEST_CASE("tiers: a run goes on where memory may not be pinned and io_uring is refused, and says what would mend it") {
  const TemporaryFolder scratch;
  const Args both = on_disk(scratch.path()) + sets({"memory.bulk_gib=0.005"});
  const Result r = require_ok(tiny_ditrain(scratch / "refused", 3, kModel + both),
                              {.environment = refusing({"DITRAIN_TEST_REFUSES=mlock io_uring"})});
  CHECK_THAT(r.err, Contains("the bulk tier is not pinned (mlock: Operation not permitted): ulimit -l unlimited"));
  CHECK_THAT(r.err, Contains("the disk tier uses pread and pwrite: io_uring: Operation not permitted; "));
  CHECK(read_metrics(scratch / "refused").back().at("automem").at("disk_bytes_in") > 0);
  const std::string places = r.out.substr(r.out.rfind("bulk tier: "));  // as read back from the system
  CHECK_THAT(places.substr(0, places.find('\n')), Contains(" MiB on node "));
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "off", 3, kModel)), 0);
  CHECK(different_files(checkpoint_of(scratch / "refused", 3), checkpoint_of(scratch / "off", 3)).empty());
}

TEST_CASE("tiers: a run goes on without huge pages and past a file system without O_DIRECT, to the same bits") {
  const TemporaryFolder scratch;
  const Args both = on_disk(scratch.path()) + sets({"memory.bulk_gib=0.005", "memory.pages=explicit"});
  const Result r = require_ok(tiny_ditrain(scratch / "refused", 1, kModel + both),
                              {.environment = refusing({"DITRAIN_TEST_REFUSES=huge o_direct"})});
  CHECK_THAT(r.err, Contains("memory.pages: explicit: ") && Contains("raise vm.nr_hugepages by "));
  CHECK_THAT(r.err, Contains("the disk tier goes through the page cache: the file system of ") &&
                        Contains(" has no O_DIRECT; memory.disk_path: a folder on a local disk"));
  CHECK_THAT(r.out, Contains("fast tier: transparent huge pages, "));  // read back, of a run of one step, too
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "off", 1, kModel)), 0);
  CHECK(different_files(checkpoint_of(scratch / "refused", 1), checkpoint_of(scratch / "off", 1)).empty());
  const Result strict = run(tiny_ditrain(scratch / "strict", 1, kModel + both + Args{"--strict"}),
                            {.environment = refusing({"DITRAIN_TEST_REFUSES=huge o_direct"})});
  CHECK(strict.exit_code == 2);
  CHECK_THAT(strict.err, Contains("[strict]"));
  // What the page cache takes and the disk does not.
  const Result unsynced = run(tiny_ditrain(scratch / "unsynced", 3, kModel + both),
                              {.environment = refusing({"DITRAIN_TEST_REFUSES=huge o_direct fdatasync"})});
  REQUIRE_EXIT(unsynced, 1);
  CHECK_THAT(unsynced.err, Contains("the disk tier in " + scratch.path() + " cannot be written: Input/output error"));
}

TEST_CASE("tiers: a key of a tier that nothing moves to is told") {
  const TemporaryFolder scratch;
  const Result r = require_ok(tiny_ditrain(scratch / "out", 1, sets({"memory.disk_gib=1"})));
  CHECK_THAT(r.text(), Contains("memory.disk_gib has no effect: nothing moves between memory tiers"));
}

TEST_CASE("tiers: a disk that breaks ends the run on all ranks, and earlier checkpoints are intact") {
  const TemporaryFolder scratch;
  const int ranks = GENERATE(1, 2);
  const auto job = [&](const std::string& out, int64_t steps, const Args& more) {
    const Args command = tiny_ditrain(out, steps, kModel + more);
    return on_ranks(ranks, command);
  };
  const std::string out = scratch / "run", whole = scratch / "whole";
  const Args going = tiny_ditrain(out, kForEver, kModel + on_disk(scratch.path()) + sets({"checkpoint.every_steps=1"}));
  const std::vector<std::string> breaks =
      refusing({"DITRAIN_TEST_REFUSES=io_uring", "DITRAIN_TEST_DISK_BREAKS_AT=" + checkpoint_of(out, 3)});
  Args last_rank;  // the disk of one rank
  for (const std::string& variable : breaks) last_rank = last_rank + Args{"-x", variable};
  const Result broken = ranks == 1 ? run(going, {.environment = breaks})
                                   : run(mpirun(1, going) + Args{":", "-np", "1"} + last_rank + going);
  REQUIRE_EXIT(broken, 1);
  INFO(broken.text());
  CHECK_THAT(broken.err, Contains("the disk tier in " + scratch.path() + " cannot be ") &&
                             Contains("Input/output error") && Contains("--resume auto"));

  const int64_t steps = 1 + checkpoints(out).back();
  CHECK(steps >= 4);
  REQUIRE_EXIT(run(job(out, steps, {"--resume", "auto"})), 0);
  REQUIRE_EXIT(run(job(whole, steps, {})), 0);
  CHECK(different_files(checkpoint_of(out, steps), checkpoint_of(whole, steps)).empty());
}

TEST_CASE("tiers: a model of small tensors alone has nothing to move, and trains without") {
  const TemporaryFolder scratch;
  const Args small = sets({"model.hidden_size=16", "model.num_heads=2", "model.depth=2", "train.global_batch=2",
                           "memory.automem=planned", "memory.fast_gib=0.02"});
  const Result r = require_ok(tiny_ditrain(scratch / "out", 2, small));
  CHECK_THAT(r.text(), Contains("memory.automem: planned has no effect"));
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
  CHECK_THAT(refusal(kBulk + sets({"parallel.strategy=dp_tp"})), Contains("memory.automem: off"));
  const Result dry = require_ok(tiny_ditrain(scratch / "out", 2, kModel + kBulk + Args{"--dry-run"}));
  REQUIRE_THAT(dry.out, Contains("fast pool") && Contains("expected per step"));
}
