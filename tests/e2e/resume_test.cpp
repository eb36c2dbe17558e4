// A run that was interrupted and resumed ends with the same bits as one that was not.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "ditrain/files/json.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// A copy of the run as it was right after the checkpoint `earlier`, except that its metrics went on to `later`.
void copy_without_checkpoint(const std::string& from, const std::string& to, int64_t later, int64_t earlier) {
  fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(checkpoint_of(to, later));
  fs::remove(to + "/checkpoints/latest");
  fs::create_directory_symlink(fs::path(checkpoint_of(to, earlier)).filename(), to + "/checkpoints/latest");
}

void require_same_numbers(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  for (const char* key : {"step", "loss", "mse", "vb", "grad_norm", "lr"}) {
    INFO(key);
    REQUIRE(column(a, key) == column(b, key));
  }
}

void require_same_run(const std::string& resumed, const std::string& whole, int64_t steps) {
  REQUIRE(steps_are_complete(read_metrics(resumed), steps));
  require_same_numbers(read_metrics(resumed), read_metrics(whole));
  REQUIRE(different_files(checkpoint_of(resumed, steps), checkpoint_of(whole, steps)).empty());
}

}  // namespace

TEST_CASE("resume: 6 and 6 steps are the 12 steps of one run, bit for bit") {
  const int ranks = GENERATE(1, 2);
  const std::string kind = GENERATE("optimizer.kind=adamw", "optimizer.kind=muon");
  // Clipping is always active, or weights change in backward (one rank) and bucket by bucket.
  const std::string clip = GENERATE("optimizer.clip_norm=0.05", "optimizer.clip_norm=0");
  CAPTURE(ranks, clip, kind);
  const TemporaryFolder scratch;
  // 20 images are 2.5 batches: the interruption falls into the middle of an epoch.
  const Args more = sets({"data.num_images=20", clip, "optimizer.weight_decay=0.1", kind});
  REQUIRE_EXIT(run(on_ranks(ranks, tiny_ditrain(scratch / "whole", 12, more))), 0);
  REQUIRE_EXIT(run(on_ranks(ranks, tiny_ditrain(scratch / "parts", 6, more))), 0);
  const Result resumed =
      require_ok(on_ranks(ranks, tiny_ditrain(scratch / "parts", 12, more + Args{"--resume", "auto"})));
  REQUIRE_THAT(resumed.out, Contains("resuming " + checkpoint_of(scratch / "parts", 6)));
  require_same_run(scratch / "parts", scratch / "whole", 12);
  REQUIRE_FALSE(fs::exists(scratch / "parts" + "/metrics.discarded.jsonl"));
}

TEST_CASE("resume: data with another number of samples is told of") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 8, 3);
  const Args data = sets({"data.kind=folder", "data.path=" + scratch / "images"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1, data)), 0);
  fs::copy(scratch / "images/class_0/0.png", scratch / "images/class_1/more.png");
  const Result resumed = require_ok(tiny_ditrain(scratch / "run", 2, data + Args{"--resume", "auto"}));
  CHECK_THAT(resumed.err, Contains("data.path has 25 samples, had 24 when the checkpoint was written"));
}

TEST_CASE("resume: labels that mean other classes by now are refused, a branch warns, other starts say so") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 3, 3);
  const Args data = sets({"data.kind=folder", "data.path=" + scratch / "images", "model.num_classes=auto"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1, data)), 0);
  fs::rename(scratch / "images/class_0", scratch / "images/new");  // labels are numbered by the names
  require_error(tiny_ditrain(scratch / "run", 2, data + Args{"--resume", "auto"}),
                {"mean other classes than in the run: label 0 was class_0, is class_1", "train.branch_from"});
  const auto start = [&](const std::string& key) {
    const Result started = require_ok(tiny_ditrain(scratch / key, 2, data + sets({key + "=" + scratch / "run"})));
    return started.out + started.err;
  };
  CHECK_THAT(start("train.branch_from"), Contains("mean other classes than in the checkpoint: label 0 was class_0"));
  CHECK_THAT(start("train.init_from"), Contains("the label table is kept, although labels mean other classes here: "
                                                "label 0 was class_0, is class_1"));
}

TEST_CASE("branch: a branch that changes nothing has the bits of the run that goes on, and others leave the trunk") {
  const TemporaryFolder scratch;
  const Args more = sets({"data.num_images=20", "optimizer.clip_norm=1"});
  const std::string trunk = scratch / "trunk", branch = "train.branch_from=" + trunk;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", 6, more)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(trunk, 4, more)), 0);
  const Result same = require_ok(tiny_ditrain(scratch / "same", 6, more + sets({branch})));
  CHECK_THAT(same.out, Contains("branched from " + checkpoint_of(trunk, 4) + ": step 4"));
  CHECK(different_files(checkpoint_of(scratch / "same", 6), checkpoint_of(scratch / "whole", 6)).empty());
  const auto lines = read_metrics(scratch / "same");
  REQUIRE(lines.size() == 2);
  CHECK(lines.front().at("step") == 5);
  for (const auto& line : lines) CHECK(line.at("cpu_seconds").get<double>() > 0);

  // A decay of the learning rate.
  const Args decay = sets({branch, "optimizer.schedule=wsd", "optimizer.decay_share=0.34", "optimizer.warmup_steps=0"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "decay", 6, more + decay)), 0);
  const auto rates = column(read_metrics(scratch / "decay"), "lr");
  REQUIRE(rates.size() == 2);
  CHECK(rates[1] < rates[0]);
  const Args begun = sets({branch, "optimizer.schedule=wsd", "optimizer.decay_share=0.9", "optimizer.warmup_steps=0"});
  const Result late = require_ok(tiny_ditrain(scratch / "late", 6, more + begun));
  CHECK_THAT(
      late.out + late.err,
      Contains("the learning rate changes at once: the last update (4) had 8e-05 and would have 0.000556 now; ") &&
          Contains("optimizer.schedule was constant, is wsd; ") && Contains("optimizer.warmup_steps was 50, is 0"));

  for (const char* start : {"train.branch_from", "train.init_from"}) {
    const Args held = sets({start + ("=" + trunk), "data.hold_out=0.2"});
    const Result seen = require_ok(tiny_ditrain(scratch / start, 6, more + held));
    CHECK_THAT(seen.err,
               Contains("data.hold_out: 0, here it is 0.2") && Contains("may have seen images that are held"));
    CHECK_THAT(seen.err, !Contains("samples, had"));
  }

  const auto refused = [&](const Args& settings, int64_t steps, const std::string& text) {
    require_error(tiny_ditrain(scratch / "refused", steps, more + settings), {text});
    require_error(tiny_ditrain(scratch / "refused", steps, more + settings + Args{"--dry-run"}), {text});
  };
  refused(sets({branch, "model.depth=3"}), 6, "got model.depth: 2, expected 3; try --set model.depth=2");
  refused(sets({branch, "optimizer.kind=muon"}), 6, "optimizer.kind: adamw");
  refused(sets({branch}), 4, "step 4 of train.steps: 4");
  refused(sets({"sample.guide=" + trunk, "sample.every_steps=1", "model.num_classes=0"}), 6, "mean different things");
  refused(sets({branch, "train.init_from=" + trunk}), 6, "both say what a run starts from");

  // One that has lost its checkpoints begins anew where the trunk is by now, and keeps no line of before.
  const Args resume = {"--resume", "auto"};
  REQUIRE_EXIT(run(tiny_ditrain(trunk, 5, more + resume)), 0);
  fs::remove_all(scratch / "same" + "/checkpoints");
  CHECK_THAT(require_ok(tiny_ditrain(scratch / "same", 6, more + sets({branch}) + resume)).out,
             Contains("2 line(s) after step 0 moved to metrics.discarded.jsonl"));
  CHECK(column(read_metrics(scratch / "same"), "step") == std::vector<double>{6});
}

TEST_CASE("resume: more steps of a schedule that has decayed are warned of, more of a constant one are not") {
  const TemporaryFolder scratch;
  for (const std::string schedule : {"cosine", "constant"}) {
    CAPTURE(schedule);
    const std::string out = scratch / schedule;
    const Args more = sets({"optimizer.schedule=" + schedule, "optimizer.warmup_steps=0", "optimizer.kind=muon",
                            "optimizer.muon_lr=0.02"});
    REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 4, more))), 0);
    const double rate = column(read_metrics(out), "lr").back();
    const Result resumed = require_ok(mpirun(2, tiny_ditrain(out, 8, more + Args{"--resume", "auto"})));
    const std::string text = resumed.out + resumed.err,
                      begin = "the learning rate changes at once: the last update (4)";
    const size_t at = text.find(begin);
    CHECK((at != std::string::npos) == (schedule == "cosine"));
    if (at == std::string::npos) continue;
    CHECK(text.find(begin, at + 1) == std::string::npos);  // once, not per rank
    CHECK_THAT(text.substr(at),
               Contains(fmt::format("(4) had {:.3g} and", rate)) && Contains("now; train.steps was 4, is 8"));
  }
}

TEST_CASE("resume: a model of all variants of a block and of patches goes on bit for bit, and clusters change none") {
  const TemporaryFolder scratch;
  const Args more = sets({"model.norm=rms", "model.mlp=swiglu", "model.position=rope", "model.qk_norm=rms",
                          "model.patch_overlap=1", "model.patch_bottleneck=8", "parallel.threads=2"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", 8, more)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "parts", 4, more)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "parts", 8, more + Args{"--resume", "auto"})), 0);
  require_same_run(scratch / "parts", scratch / "whole", 8);
  for (const char* cut : {"samples", "n"}) {
    CAPTURE(cut);
    const Args clusters = sets({"parallel.clusters=2", std::string("parallel.cut=") + cut});
    REQUIRE_EXIT(run(tiny_ditrain(scratch / cut, 8, more + clusters)), 0);
    CHECK(column(read_metrics(scratch / cut), "loss") == column(read_metrics(scratch / "whole"), "loss"));
  }
  const Result other =
      run(tiny_ditrain(scratch / "parts", 9, more + sets({"model.norm=layer"}) + Args{"--resume", "auto"}));
  REQUIRE_EXIT(other, 2);
  CHECK_THAT(other.err, Contains("model.norm: was rms, now layer"));
}

TEST_CASE("resume: from an earlier checkpoint, with image files, cosine schedule and gradient accumulation") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", again = scratch / "again";
  write_image_folder(scratch / "images", 8, 3);
  const Args settings = sets({"data.kind=folder", "data.path=" + scratch / "images", "data.loader_threads=3",
                              "train.micro_batch=2", "optimizer.schedule=cosine", "optimizer.warmup_steps=4",
                              "optimizer.min_lr=1e-5", "checkpoint.every_steps=6", "checkpoint.keep_last=0"});
  REQUIRE_EXIT(run(tiny_ditrain(whole, 12, settings)), 0);
  const auto metrics = read_metrics(whole);

  SECTION("in place: the lines after the checkpoint are put aside") {
    copy_without_checkpoint(whole, again, 12, 6);
    const Args thrifty = sets({"train.recompute=block"});  // which changes no bit
    REQUIRE_EXIT(run(tiny_ditrain(again, 12, settings + thrifty + Args{"--resume", "auto"})), 0);
    require_same_run(again, whole, 12);
    REQUIRE(metrics.size() == 12);
    std::istringstream lines(read_file(again + "/metrics.discarded.jsonl"));
    for (size_t i = 6; i < 12; ++i) {
      std::string line;
      std::getline(lines, line);
      REQUIRE(ditrain::files::parse_json(line) == metrics[i]);
    }
    REQUIRE(lines.peek() == EOF);
  }
  SECTION("from a checkpoint folder into a new folder") {
    REQUIRE_EXIT(run(tiny_ditrain(again, 12, settings + Args{"--resume", checkpoint_of(whole, 6)})), 0);
    require_same_numbers(read_metrics(again), {metrics.begin() + 6, metrics.end()});
    REQUIRE(different_files(checkpoint_of(again, 12), checkpoint_of(whole, 12)).empty());
  }
  SECTION("in place from an earlier checkpoint: what the run had later is put aside, not mixed with the new") {
    const std::string folder = checkpoint_of(whole, 6) + "/";
    const Args keep = sets({"checkpoint.keep_discarded=true"});
    REQUIRE_EXIT(run(tiny_ditrain(whole, 9, settings + keep + Args{"--resume", folder})), 0);
    REQUIRE(steps_are_complete(read_metrics(whole), 9));
    REQUIRE(checkpoints(whole) == std::vector<int64_t>{6, 9});
    REQUIRE(fs::exists(whole + "/checkpoints/discarded_step_00000012/model.safetensors"));
    REQUIRE(fs::read_symlink(whole + "/checkpoints/latest") == "step_00000009");
  }
  SECTION("into the folder of another run: refused, and nothing there is touched") {
    REQUIRE_EXIT(run(tiny_ditrain(again, 2)), 0);
    const auto before = folder_content(again);
    require_error(tiny_ditrain(again, 12, settings + Args{"--resume", whole}), {"holds another run"});
    REQUIRE(folder_content(again) == before);
  }
  SECTION("from a run folder without --out: inside that folder") {
    copy_without_checkpoint(whole, again, 12, 6);
    Args command = tiny_ditrain("", 12, settings + Args{"--resume", again});
    const auto out = std::find(command.begin(), command.end(), "--out");
    command.erase(out, out + 2);
    REQUIRE_EXIT(run(command), 0);
    require_same_run(again, whole, 12);
  }
}

TEST_CASE("resume: auto starts anew where nothing is, and a finished run stays as it is") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args command = tiny_ditrain(out, 3, {"--resume", "auto"});
  REQUIRE_EXIT(run(command), 0);
  REQUIRE(steps_are_complete(read_metrics(out), 3));
  const std::string weights = read_file(checkpoint_of(out, 3) + "/model.safetensors");
  const Result again = require_ok(command);
  REQUIRE_THAT(again.out, Contains("nothing to do"));
  REQUIRE(steps_are_complete(read_metrics(out), 3));
  REQUIRE(read_file(checkpoint_of(out, 3) + "/model.safetensors") == weights);
  const std::string config = read_file(out + "/config.yaml"), status = read_file(out + "/status.json");
  CHECK_THAT(require_ok(tiny_ditrain(out, 2, {"--resume", "auto"})).out, Contains("at step 3 of 2"));
  const Args dry = {"--resume", "auto", "--dry-run"};
  CHECK_THAT(require_ok(tiny_ditrain(out, 5, dry)).out, Contains("5 steps") && Contains("of which 3 are done"));
  require_error(tiny_ditrain(out, 5, dry + sets({"optimizer.lr=0.5"})), {"optimizer.lr: was", "now 0.5"});
  CHECK(read_file(out + "/config.yaml") == config);  // not those of a run of two steps
  CHECK(read_file(out + "/status.json") == status);
}

TEST_CASE("resume: a line that leaves out the config or the folder of its run is told of them") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 1)), 0);
  for (const Args& line : {Args{"--out", out, "--resume", "auto"}, Args{"--resume", out + "/"}})
    require_error(program("ditrain", line), {"--config FILE is missing; try --config " + out + "/config.yaml"});
  require_error(program("ditrain", {"--config", out + "/config.yaml", "--resume", "auto"}),
                {"got " + out + "/config.yaml", "try --out " + out});
}

TEST_CASE("resume: checkpoints may be a link to another disk") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", disk = scratch / "disk";
  REQUIRE_EXIT(run(tiny_ditrain(out, 3)), 0);
  fs::rename(out + "/checkpoints", disk);
  fs::create_directory_symlink(disk, out + "/checkpoints");
  REQUIRE_EXIT(run(tiny_ditrain(out, 5, {"--resume", "auto"})), 0);
  REQUIRE_EXIT(run(tiny_ditrain(out, 6, {"--resume", out + "/checkpoints/step_00000005/"})), 0);
  REQUIRE(steps_are_complete(read_metrics(out), 6));
}

TEST_CASE("resume: auto after a kill before the first checkpoint starts over, with every step once in the metrics") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 3)), 0);
  fs::remove_all(out + "/checkpoints");  // as if killed before
  REQUIRE_EXIT(run(tiny_ditrain(out, 2, {"--resume", "auto"})), 0);
  REQUIRE(steps_are_complete(read_metrics(out), 2));
  REQUIRE(fs::exists(out + "/metrics.discarded.jsonl"));
}

TEST_CASE("resume: a run that went on from another one's checkpoint never begins with random weights") {
  const TemporaryFolder scratch;
  const std::string base = scratch / "base", out = scratch / "out";
  REQUIRE_EXIT(run(tiny_ditrain(base, 2, sets({"checkpoint.every_steps=1"}))), 0);
  const Args from = {"--resume", checkpoint_of(base, 2)};
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, from)), 0);
  const std::string whole = scratch / "whole";
  fs::rename(out + "/checkpoints", whole);  // as if killed before
  const bool before_config = GENERATE(false, true);
  fs::rename(out + "/metrics.jsonl", scratch / "metrics");  // in its first step
  if (before_config) fs::remove(out + "/config.yaml");
  const std::string origin = fs::weakly_canonical(checkpoint_of(base, 2)).string();
  require_error(tiny_ditrain(out, 4, {"--resume", "auto"}),
                {out + " went on from another run, and has no checkpoint of its own yet", "--resume " + origin});
  require_error(tiny_ditrain(out, 4, {"--resume", checkpoint_of(base, 1)}), {"holds another run than"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, from)), 0);
  CHECK(different_files(checkpoint_of(out, 4), whole + "/step_00000004").empty());
  CHECK(column(read_metrics(out), "step") == std::vector<double>{3, 4});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "other", 1)), 0);
  require_error(tiny_ditrain(scratch / "other", 4, from), {"holds another run than"});
}

TEST_CASE("a start that was refused does not block the next one") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 1, sets({"train.init_from=" + scratch / "nothing"}))), 2);
  const nlohmann::json status = read_json(out + "/status.json");
  CHECK((status.at("state") == "failed" && status.at("step") == 0));
  const auto reason = status.at("reason").get<std::string>();
  CHECK_THAT(reason, Contains(scratch / "nothing"));
  CHECK_THAT(read_file(out + "/log.txt"), Contains(reason));
  REQUIRE_EXIT(run(tiny_ditrain(out, 1)), 0);
  CHECK(read_json(out + "/status.json").at("state") == "finished");
}

TEST_CASE("resume: checkpoints are kept as configured and latest is a relative link") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args more = sets({"checkpoint.every_steps=2", "checkpoint.keep_last=2", "checkpoint.keep_every=6"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 13, more)), 0);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  REQUIRE(names == std::vector<std::string>{"latest", "step_00000006", "step_00000012", "step_00000013"});
  REQUIRE(fs::read_symlink(out + "/checkpoints/latest") == "step_00000013");

  const std::string guide = checkpoint_of(out, 6);  // which the run reads when it starts again, too
  const Args guided = sets({"checkpoint.keep_every=0", "sample.guide=" + guide}) + Args{"--resume", "auto"};
  REQUIRE_EXIT(run(tiny_ditrain(out, 17, more + guided)), 0);
  CHECK(checkpoints(out) == std::vector<int64_t>{6, 16, 17});
}

TEST_CASE("resume: a checkpoint without averages is passed over, and a kill in a commit loses none") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args more = sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0", "ema.snapshots_every=2"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 6, more)), 0);
  fs::copy(out, scratch / "killed", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(checkpoint_of(out, 6) + "/averages.safetensors");
  const Result passed = require_ok(tiny_ditrain(out, 7, more + Args{"--resume", "auto"}));
  CHECK_THAT(passed.out, Contains("resuming " + checkpoint_of(out, 4)));
  CHECK_THAT(passed.err, Contains("averages.safetensors is missing"));

  // Between the name of the checkpoint and that of `latest`.
  const std::string killed = scratch / "killed";
  fs::remove(killed + "/checkpoints/latest");
  fs::create_symlink("step_00000004", killed + "/checkpoints/latest");
  fs::create_symlink("step_00000006", killed + "/checkpoints/.tmp_latest.0123456789abcdef");
  const Result resumed = require_ok(tiny_ditrain(killed, 7, more + Args{"--resume", killed}));
  CHECK_THAT(resumed.out, Contains("resuming ") && Contains("step_00000006 ->"));
}

TEST_CASE("resume: grids of steps that are discarded are no results") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", grid = out + "/samples/step_0000000";
  const Args more = sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0", "sample.every_steps=2",
                          "sample.num_images=2", "sample.steps=2"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 6, more)), 0);
  const Result resumed = require_ok(tiny_ditrain(out, 4, more + Args{"--resume", checkpoint_of(out, 2)}));
  CHECK_THAT(resumed.out, Contains("samples: " + grid + "4.png\n"));
  CHECK((fs::exists(grid + "2.png") && fs::exists(grid + "4.png") && !fs::exists(grid + "6.png")));
  CHECK(fs::exists(out + "/samples/discarded_step_00000006.png"));
}

TEST_CASE("time: checkpoints and lines of the log by time change nothing in the training, on ranks alike") {
  const TemporaryFolder scratch;
  const std::string steps = scratch / "steps", time = scratch / "time";
  const auto trained = [&](const std::string& out, std::vector<std::string> settings) {
    settings.insert(settings.end(), {"train.micro_batch=2", "checkpoint.keep_last=0", "checkpoint.async=false",
                                     "log.every_steps=1000"});
    REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 30, sets(settings)))), 0);
  };
  trained(steps, {"log.every_seconds=0", "checkpoint.every_minutes=0"});
  trained(time, {"log.every_seconds=1e-6", "checkpoint.every_minutes=1e-6"});
  // No step is so quick that its time is not over.
  for (const int64_t step : {1, 2, 15, 30}) CHECK(fs::exists(checkpoint_of(time, step)));
  CHECK_FALSE(fs::exists(checkpoint_of(steps, 15)));
  CHECK(different_files(checkpoint_of(steps, 30), checkpoint_of(time, 30)).empty());
  CHECK(column(read_metrics(steps), "loss") == column(read_metrics(time), "loss"));
  const std::string log = read_file(time + "/log.txt"), quiet = read_file(steps + "/log.txt");
  CHECK_THAT(log, Contains("/30: micro-batch ") && Contains(" of 2, ") && Contains(" s so far"));
  for (const char* step : {"step 1/30 (", "step 2/30 (", "step 29/30 ("}) {
    CHECK_THAT(log, Contains(step));
    CHECK_THAT(quiet, !Contains(step));
  }
  CHECK_THAT(quiet, Contains("step 30/30 (") && !Contains("so far"));
}

TEST_CASE("resume: samples and validation change nothing in the training") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "bare", 6)), 0);
  const Args watched = sets({"sample.every_steps=2", "sample.num_images=4", "sample.steps=3", "eval.every_steps=3",
                             "eval.num_images=16", "log.every_steps=1"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "watched", 6, watched)), 0);
  require_same_run(scratch / "watched", scratch / "bare", 6);
  for (const char* name : {"step_00000002.png", "step_00000004.png", "step_00000006.png"})
    REQUIRE(fs::is_regular_file(scratch / "watched/samples/" + name));
}

TEST_CASE("resume: a sharded optimiser on 2, 1 and 3 ranks leaves what a whole one leaves, bit for bit") {
  const TemporaryFolder scratch;
  const Args more = sets({"train.global_batch=6", "sample.every_steps=4", "sample.num_images=4", "sample.steps=2",
                          "eval.every_steps=4", "eval.num_images=8", "checkpoint.keep_last=0"});
  const auto run_to = [&](const std::string& name, int64_t steps, int ranks, bool sharded) {
    CAPTURE(name, steps, ranks);
    const Args which = sets({sharded ? "dist.shard_optimizer=true" : "dist.shard_optimizer=false"});
    REQUIRE_EXIT(run(on_ranks(ranks, tiny_ditrain(scratch / name, steps, more + which + Args{"--resume", "auto"}))), 0);
  };
  // The last one goes from sharded to whole and back.
  const std::map<std::string, std::vector<bool>> runs = {
      {"whole", {false, false, false}}, {"sharded", {true, true, true}}, {"mixed", {true, false, true}}};
  for (const auto& [name, sharded] : runs) {
    run_to(name, 4, 2, sharded[0]);
    run_to(name, 8, 1, sharded[1]);
    run_to(name, 12, 3, sharded[2]);
  }
  for (const char* name : {"sharded", "mixed"}) {
    CAPTURE(name);
    for (const int64_t step : {4, 8, 12})
      CHECK(different_files(checkpoint_of(scratch / name, step), checkpoint_of(scratch / "whole", step)).empty());
    for (const char* picture : {"step_00000004.png", "step_00000012.png"})
      CHECK(same_file(scratch / name + "/samples/" + picture, scratch / "whole" + "/samples/" + picture));
    require_same_numbers(read_metrics(scratch / name), read_metrics(scratch / "whole"));
    CHECK(read_metrics(scratch / name)[3].at("val_mse") == read_metrics(scratch / "whole")[3].at("val_mse"));
  }
  CHECK_THAT(read_file(scratch / "sharded/log.txt"), Contains("ranks that update a shard each"));
}

TEST_CASE("resume: shards of buckets so small that one rank keeps the whole state") {
  const TemporaryFolder scratch;
  const Args small =
      sets({"dist.shard_optimizer=true", "dist.bucket_mib=0.004", "dist.adaln=reduce", "checkpoint.keep_last=0"});
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "whole", 8, small))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "parts", 4, small))), 0);
  const Result resumed = require_ok(mpirun(2, tiny_ditrain(scratch / "parts", 8, small + Args{"--resume", "auto"})));
  CHECK_THAT(resumed.text(), Contains("resuming " + checkpoint_of(scratch / "parts", 4)) && !Contains("damaged"));
  require_same_run(scratch / "parts", scratch / "whole", 8);
}

// The run in tests/golden was written by the version before configs were settled in one place and steps had numbered
// points; the losses are those with which that version goes on.
TEST_CASE("resume: a checkpoint of an earlier version goes on as it did there") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  fs::copy(DITRAIN_GOLDEN_DIR "/run_of_step_2", out, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const Result resumed = require_ok(program(
      "ditrain", Args{"--config", out + "/config.yaml", "--out", out, "--resume", "auto"} + sets({"train.steps=4"})));
  CHECK_THAT(resumed.out, Contains("resuming " + checkpoint_of(out, 2)));
  const auto losses = column(read_metrics(out), "loss");
  REQUIRE(losses.size() == 4);
  CHECK(losses[2] == Approx(1.299867757781409).epsilon(1e-5));
  CHECK(losses[3] == Approx(1.7581673410150136).epsilon(1e-5));
}
