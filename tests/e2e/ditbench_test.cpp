// ditbench from outside: its help, what it refuses, what it writes.
#include <catch2/catch.hpp>
#include <csignal>
#include <map>

#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/json.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

TEST_CASE("ditbench: help names every bench and flag") {
  const Result help = require_ok(program("ditbench", {"--help"}));
  for (const char* text :
       {"  gemm  ",         "  ops  ",         "  step  ",     "  ladder  ",     "  tune  ",
        "  comm  ",         "  data  ",        "  sample  ",   "  strategies  ", "  quality  ",
        "  paper  ",        "--only NAME,...", "  clusters  ", "--kib N,...",    "--memory-gib X",
        "--model M",        "--batch N,...",   "--threads T",  "--clusters C",   "--precision P,...",
        "--recompute MODE", "--peers",         "--repeats N",  "--quick",        "--set KEY=VALUE...",
        "--json FILE",      "--out FILE",      "--help",       "--matrix",       "--version"})
    CHECK_THAT(help.out, Contains(text));
}

TEST_CASE("ditbench: what it cannot measure is refused with exit code 2") {
  const auto refused = [](const Args& args, const std::string& text) {
    require_error(program("ditbench", args), {"ditbench: error: ", text});
  };
  refused({}, "one of gemm, ops, step, clusters, ladder");
  refused({"stpe"}, "try step");
  refused({"step", "ops"}, "one bench at a time");
  refused({"step", "--batch", "4,x"}, "integers from 1");
  refused({"step", "--batch", "0"}, "integers from 1");
  refused({"vae", "--batch", "8"},
          "--batch is not a flag of ditbench vae; expected of --precision, --peers, --set and");
  refused({"step", "--peers"}, "--peers is not a flag of ditbench step");
  refused({"tune", "--precision", "bf16"}, "--precision is not a flag of ditbench tune");
  refused({"step", "--precision", "f16"}, "f32 or bf16");
  refused({"step", "--precision", "f32,bf16"}, "one precision at a time");
  refused({"sample", "--precision", "f32,bf16"}, "one precision at a time");
  refused({"gemm", "--precision", "f32,"}, "f32 or bf16");
  refused({"gemm", "--precision", "f32,f32"}, "--precision names f32 twice");
  refused({"step", "--set", "kernels.gem=own"}, "did you mean");
  refused({"step", "--batch", "3", "--set", "train.micro_batch=2"}, "train.micro_batch does not divide");
  refused({"step", "--set", "parallel.strategy=dp_tp", "--set", "parallel.tensor_ranks=2"}, "a multiple of 2 ranks");
  refused({"gemm", "--model", "XXL"}, "unknown model");
  refused({"strategies", "--memory-gib", "0"}, "--memory-gib");
  refused({"strategies", "--threads", "1", "--clusters", "2"}, "parallel.clusters");
  refused({"step", "--set", "parallel.threads=1"}, "--set parallel.threads is not measured here");
  refused({"memory", "--set", "memory.fast_gib=1"},
          "--set memory.fast_gib is not measured here; got memory.fast_gib=1; try --fast");
  refused({"comm", "--batch", "2"}, "--batch does not go with comm without --model");
  refused({"comm", "--model", "S", "--kib", "64"}, "--kib does not go with comm --model");
  refused({"memory", "--matrix", "--fast", "0.5"}, "--fast does not go with --matrix");
  refused({"comm"}, "comm needs several ranks; try mpirun -np 2 ditbench comm");
  refused({"comm", "--model", "S"}, "comm needs several ranks; try mpirun -np 2 ditbench comm --model S");
}

TEST_CASE("ditbench: a file that cannot be written is refused before anything is measured") {
  const TemporaryFolder scratch;
  write_file(scratch / "file", "text");
  const auto refused = [](const Args& args, const std::string& text) {
    const Result result = run(program("ditbench", args));
    REQUIRE_EXIT(result, 2);
    CHECK_THAT(result.err, Contains("ditbench: error: ") && Contains(text));
    CHECK_THAT(result.err, !Contains(" s\n"));  // a measured row
    CHECK(result.out == "");
  };
  const std::string json = scratch / "none/rows.json";
  refused({"step", "--json", json}, "[" + json + "] cannot write this file; got no folder " + scratch / "none" +
                                        "; try mkdir -p " + scratch / "none");
  refused({"gemm", "--json", scratch.path()}, "got a folder");
  refused({"ops", "--json", ""}, "--json is given an empty name; got '', expected --json FILE");
  const auto tune_refused = [](const std::string& out, const std::string& text) {
    const Result result = run(program("ditbench", {"tune", "--model", "S", "--out", out}), {.timeout_s = 20});
    REQUIRE_EXIT(result, 2);
    CHECK_THAT(result.err, Contains("ditbench: error: ") && Contains(text));
  };
  tune_refused(scratch / "file/tuning.json", scratch / "file");
  tune_refused(scratch.path(), "[" + scratch.path() + "] cannot write this file; got a folder");
  tune_refused("", "--out is given an empty name");
  CHECK(read_file(scratch / "file") == "text");
}

TEST_CASE("ditbench: sums over ranks, once in the table and once in JSON") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  const Args command =
      program("ditbench", {"comm", "--kib", "16,1024", "--threads", "1", "--repeats", "2", "--json", json});
  const Result result = require_ok(mpirun(2, command));
  CHECK_THAT(result.out, Contains("in the memory of the node") && Contains("/ mpi_blocking"));
  const auto rows = read_json(json).at("rows");
  REQUIRE(rows.size() == 4);
  CHECK(rows.at(2).at("name") == "allreduce 1 MiB hierarchical");
  CHECK(rows.at(3).at("algorithm") == "flat");
  for (const auto& row : rows) {
    CHECK(row.at("ranks") == 2);
    CHECK(row.at("gb_s").get<double>() ==
          Approx(row.at("sum_bytes").get<double>() * 1e-9 / row.at("median_s").get<double>()));
  }
  CHECK(rows.at(2).at("peers").at("flat").get<double>() > 0);
}

TEST_CASE("ditbench: steps with sums over ranks beside steps without, over a simulated link or none") {
  const bool link = GENERATE(true, false);
  CAPTURE(link);
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  Args settings = sets(
      {"model.hidden_size=32", "model.depth=2", "model.num_heads=2", "model.patch_size=8", "dist.bucket_mib=0.05"});
  if (link) settings = settings + sets({"dist.simulate_link={gbit_s: 1, latency_us: 20000, hosts: 2}"});
  const Result result =
      require_ok(mpirun(2, program("ditbench", Args{"comm", "--model", "custom", "--batch", "2", "--threads", "1",
                                                    "--repeats", "3", "--json", json} +
                                                   settings)));
  std::map<std::string, nlohmann::json> rows;
  const auto report = read_json(json);
  for (const auto& row : report.at("rows")) rows[row.at("way")] = row;
  REQUIRE(rows.size() == (link ? 3 : 4));
  CHECK(rows.contains("no engine") == !link);
  CHECK_THAT(result.out, Contains("engine / at the end: "));
  CHECK((result.out.find("engine / no engine: ") != std::string::npos) == !link);
  for (const char* way : {"engine", "at the end"}) {
    CAPTURE(way);
    const auto& row = rows.at(way);
    CHECK(row.at("ranks") == 2);
    CHECK(row.at("step_ratio").get<double>() > 0);
    CHECK(row.at("overlap_efficiency").get<double>() ==
          Approx(1 - row.at("exposed_s").get<double>() / row.at("communication_s").get<double>()));
  }
  CHECK(rows.at("none").at("step_ratio") == 1);
  // Three buckets and more, 40 ms each on the link: a step of this model takes a fraction of that.
  if (link) CHECK(rows.at("engine").at("median_s").get<double>() > 0.12);
  if (link) CHECK(rows.at("none").at("median_s").get<double>() < 0.12);
}

TEST_CASE("ditbench: rows go to the table and to JSON") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  const Args tiny = sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "model.patch_size=8"});
  const Result result = require_ok(
      program("ditbench",
              Args{"step", "--model", "custom", "--batch", "1,2", "--threads", "1", "--quick", "--json", json} + tiny));
  CHECK_THAT(result.out, Contains("gemm: ") && Contains("step custom") && Contains("products: own, fused"));
  const auto j = read_json(json);
  CHECK(j.at("threads") == 1);
  CHECK(j.at("peak").at("f32_gflops").get<double>() > 0);
  REQUIRE(j.at("rows").size() == 2);
  CHECK(j.at("rows").at(1).at("batch") == 2);
}

TEST_CASE("ditbench: rows from before an error are not lost") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  const Args tiny = sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "model.patch_size=8"});
  const Result result = require_error(program("ditbench", Args{"step", "--model", "custom", "--batch", "2,3",
                                                               "--threads", "1", "--quick", "--json", json} +
                                                              tiny + sets({"train.micro_batch=2"})),
                                      {"train.micro_batch does not divide"});
  CHECK_THAT(result.out, Contains("step custom") && Contains("not complete: [config] train.micro_batch"));
  REQUIRE(read_json(json).at("rows").size() == 1);
  CHECK(read_json(json).at("rows").at(0).at("batch") == 2);
}

TEST_CASE("ditbench: a signal leaves no temporary folder, and the rows of before") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  fs::create_directory(scratch / "tmp");
  Process process(
      program("ditbench",
              Args{"data", "--model", "custom", "--threads", "1", "--quick", "--repeats", "40", "--json", json} +
                  sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "model.patch_size=8"})),
      {.environment = {"TMPDIR=" + scratch / "tmp"}});
  REQUIRE(wait_until([&] { return !fs::is_empty(scratch / "tmp") || !process.running(); }));
  process.send(SIGTERM);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 1);
  CHECK_THAT(result.err, Contains("stopped by a signal"));
  CHECK(fs::is_empty(scratch / "tmp"));
  CHECK(read_json(json).at("rows").at(0).at("name") == "step custom");
}

TEST_CASE("ditbench: quality of recipes in real runs, which goes on where it was ended", "[long]") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json", out = scratch / "quality";
  write_file(scratch / "decay.yaml", "optimizer: {schedule: wsd, decay_share: 0.5, warmup_steps: 0}\n");
  write_file(scratch / "unguided.yaml", "sample: {cfg_scale: 1}\noptimizer: {schedule: constant}\n");
  const auto quality = [&](const std::string& folder, const std::string& minutes) -> Args {
    return {"quality",   "--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml",
            "--quick",   "--out",    folder,
            "--minutes", minutes,    "--threads",
            "2",         "--json",   json};
  };
  const Args base = quality(out, "1,2");
  const Args tiny = sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "optimizer.warmup_steps=0",
                          "data.num_images=200"});
  const Args recipes = {"--recipe", scratch / "decay.yaml", "--recipe", scratch / "unguided.yaml"};
  const Result result = require_ok(program("ditbench", base + tiny + recipes));
  const auto rows = [&] { return read_json(json).at("rows"); };
  // Real images; three recipes at two marks; two of them guided; two comparisons, of which one also guided.
  REQUIRE(rows().size() == 1 + 3 * 2 + 2 * 2 + 3);
  CHECK(rows().at(0).at("name") == "real images");
  CHECK(rows().at(0).at("nearest mean").get<double>() == Approx(1).margin(0.5));
  for (size_t i = 1; i <= 10; ++i) {
    const auto row = rows().at(i);
    CHECK(row.at("steps") == (i % 2 == 1 ? 2 : 4));
    CHECK(row.at("cpu_minutes").get<double>() > 0);
    CHECK(row.at("samples -> real mean").get<double>() <= 1);
  }
  CHECK(rows().at(11).at("name") == "decay / quickstart");
  CHECK(rows().at(13).at("dtype") == "guided");
  CHECK_THAT(result.out, Contains("grid.png, from left to right: quickstart, decay, unguided"));
  for (const char* file :
       {"curves.svg", "curves_guided.svg", "grid.png", "grid_guided.png", "decay/seed_0/trunk/metrics.jsonl",
        "decay/seed_0/mark_2/metrics.jsonl", "unguided/seed_0/run/metrics.jsonl"})
    CHECK(fs::exists(out + "/" + file));
  CHECK(read_metrics(out + "/decay/seed_0/mark_2").size() == 2);  // of 4 steps, 2 in the trunk
  CHECK(read_metrics(out + "/unguided/seed_0/run").size() == 4);

  // The last results are lost, one of them in the middle of its line: only those are made again, and they are the same.
  const std::string results = read_file(out + "/results.jsonl"), cut = results.substr(0, results.size() * 2 / 3);
  REQUIRE(cut.back() != '\n');
  write_file(out + "/results.jsonl", cut);
  const auto before = rows();
  REQUIRE_EXIT(run(program("ditbench", base + tiny + recipes)), 0);
  CHECK(rows() == before);
  CHECK(read_file(out + "/results.jsonl") == results);

  const auto refused = [&](const Args& bench, const Args& more, const std::string& text) {
    require_error(program("ditbench", bench + tiny + more), {text});
  };
  refused(quality(out, "1,3"), recipes, "holds another comparison");
  REQUIRE_EXIT(run(program("ditbench", quality(out, "1") + tiny + recipes)), 0);  // fewer marks of the same comparison
  CHECK(rows().size() == 1 + 3 + 2 + 3);
  CHECK(read_file(out + "/results.jsonl") == results);
  refused(quality(out, "1,3"), recipes, "holds another comparison");
  {
    const auto held = ditrain::files::lock_output_folder(out);
    refused(base, recipes, "another process writes to this folder");
  }
  refused(base, recipes + Args{"--recipe", scratch / "decay.yaml"}, "two recipes of one name");
  refused(quality(scratch / "x", "2,1"), recipes, "--minutes do not rise");
  refused(quality(scratch / "x", "2,4"), {"--recipe", scratch / "decay.yaml:1"}, "a recipe without a mark: decay");
  for (const char* limit : {":nan", ":-1", ":0", ":", ":soon"})
    refused(base, {"--recipe", scratch / "decay.yaml" + limit}, "no minutes behind the colon");
  refused(base, recipes + Args{"--against", "decay,decay"}, "named twice");
  refused(base, recipes + Args{"--against", "jit"}, "no recipe of this name to compare with; got jit");
  write_file(scratch / "other_data.yaml", "model: {num_classes: 0}\n");
  refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "other_data.yaml"}, "recipes have other data");
  write_file(scratch / "old.yaml", "train: {init_from: " + out + "/unguided/seed_0/run}\n");
  refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "old.yaml"}, "compared from random weights on");
  refused(quality(scratch / "x", "1,2"), {"--first-seed", "3"}, "--seeds 1 --first-seed 0");
  refused(quality(scratch / "x", "1,2"), {"--precision", "bf16"}, "--set train.precision=bf16");
  fs::create_directories(scratch / "names");
  for (const char* name : {"calibration", "results.jsonl", "grid.png", "..", "n\xff"}) {
    write_file(scratch / "names" + "/" + name + ".yaml", "sample: {cfg_scale: 1}\n");
    refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "names" + "/" + name + ".yaml"},
            "a file of another name");
  }
  // What was refused fixes nothing: the same folder takes another content of the recipe.
  write_file(scratch / "late.yaml", "sample: {guide: " + out + "/nowhere}\n");
  refused(base, recipes + Args{"--recipe", scratch / "late.yaml"}, "nowhere");
  write_file(scratch / "late.yaml", "sample: {guide: " + out + "/unguided/seed_0/run}\n");
  REQUIRE_EXIT(run(program("ditbench", base + tiny + recipes + Args{"--recipe", scratch / "late.yaml"})), 0);
  // One that diverges has no values, and the others go on.
  write_file(scratch / "wild.yaml", "optimizer: {lr: 1000, weight_decay: 1000}\n");
  const Args wild = {"--recipe", scratch / "wild.yaml"};
  refused(base, recipes + wild, "a run diverges within 3 steps");
  auto setup = ditrain::files::parse_json<nlohmann::ordered_json>(read_file(out + "/quality.json"));
  setup["cpu_seconds_per_step"]["wild"] = setup["cpu_seconds_per_step"]["quickstart"];  // as if it did so later
  write_file(out + "/quality.json", ditrain::files::json_text(setup));
  const Result with_wild = require_ok(program("ditbench", base + tiny + recipes + wild));
  CHECK_THAT(with_wild.out, Contains("wild with seed 0 diverged before"));
  write_file(scratch / "routed.yaml", "sample: {guide: routed}\n");
  refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "routed.yaml"}, "sample.guide: routed guides away");
  write_file(scratch / "guide.yaml", "diffusion: {noise_scale: 2}\nsample: {guide: " + out + "/unguided/seed_0/run}\n");
  refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "guide.yaml"},
          "the outputs of the guide and of the model mean different things");

  // A third recipe comes to those that are there, whose results stay as they are; one of another content does not.
  write_file(scratch / "clip.yaml", "optimizer: {clip_norm: 2}\n");
  const Args third = recipes + Args{"--recipe", scratch / "clip.yaml:1", "--against", "decay,quickstart"};
  REQUIRE_EXIT(run(program("ditbench", base + tiny + third)), 0);
  const auto rows_of = [&](const std::string& name) {
    const auto all = rows();
    return std::count_if(all.begin(), all.end(), [&](const auto& row) { return row.at("name") == name; });
  };
  CHECK(rows_of("clip") == 2);  // its first mark alone, without guidance and with it
  CHECK(rows_of("clip / decay") == 2);
  CHECK(rows_of("clip / quickstart") == 2);
  CHECK(rows_of("decay / decay") == 0);
  for (const auto& row : rows())
    if (row.at("name") == "clip / decay")
      CHECK(ditrain::files::json_text(row).find("not reached") == std::string::npos);
  CHECK(read_file(out + "/results.jsonl").starts_with(results));
  CHECK(rows().at(1) == before.at(1));
  CHECK(fs::exists(out + "/calibration/quickstart_1"));  // beside the reference alone
  CHECK(fs::exists(out + "/calibration/clip_1"));
  CHECK_FALSE(fs::exists(out + "/calibration/decay_1"));
  // With --equal-steps what comes is not measured: its steps count as those of the config, which every command tells.
  write_file(scratch / "slower.yaml", "optimizer: {lr: 1e-4}\n");
  write_file(scratch / "narrower.yaml", "model: {mlp_ratio: 2}\n");
  const Args slower = {"--recipe", scratch / "slower.yaml:1"}, equal = {"--equal-steps"};
  refused(base, equal + Args{"--recipe", scratch / "narrower.yaml"},
          "may take another time than those of the config: narrower");
  write_file(scratch / "widths.yaml", "ema: {snapshots_every: 1}\n");
  refused(base, equal + Args{"--recipe", scratch / "widths.yaml"}, "ema.snapshots_every: 1");
  for (const Args& command : {slower + equal, slower})
    CHECK_THAT(require_ok(program("ditbench", base + tiny + command)).out,
               Contains("slower: not measured, a step counts as one of quickstart"));
  CHECK_FALSE(fs::exists(out + "/calibration/slower_1"));
  const auto seconds = [&](const std::string& name) {
    return ditrain::files::parse_json<nlohmann::ordered_json>(read_file(out + "/quality.json"))
        .at("cpu_seconds_per_step")
        .at(name);
  };
  CHECK(seconds("slower") == seconds("quickstart"));
  // One that only draws in another way needs no runs of its own.
  write_file(scratch / "more_guidance.yaml", "sample: {cfg_scale: 4}\n");
  REQUIRE_EXIT(run(program("ditbench", base + tiny + Args{"--recipe", scratch / "more_guidance.yaml"})), 0);
  CHECK_FALSE(fs::exists(out + "/more_guidance/seed_0"));
  REQUIRE(rows().at(7).at("name") == "more_guidance");  // real images; two recipes at two marks; then the guided ones
  CHECK(rows().at(3).at("4x4 mean") == rows().at(1).at("4x4 mean"));
  // Such a one as the config, whose steps those that come count as.
  fs::create_directories(scratch / "full");
  std::string full = read_file(std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml");
  full.replace(full.find("cfg_scale: 1.5"), 14, "cfg_scale: 4");
  write_file(scratch / "full/more_guidance.yaml", full);
  write_file(scratch / "slowest.yaml", "optimizer: {lr: 1e-5}\n");
  Args other = base;
  *std::find(other.begin(), other.end(), std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml") =
      scratch / "full/more_guidance.yaml";
  REQUIRE_EXIT(run(program("ditbench", other + tiny + equal + Args{"--recipe", scratch / "slowest.yaml"})), 0);
  CHECK(seconds("slowest") == seconds("quickstart"));
  CHECK(rows().at(7).at("4x4 mean") != rows().at(5).at("4x4 mean"));
  // Guided by the first mark of the same run.
  write_file(scratch / "self.yaml", "sample: {guide: mark_1}\n");
  write_file(scratch / "same.yaml", "sample: {guide: " + out + "/quickstart/seed_0/mark_1}\n");
  REQUIRE_EXIT(run(program("ditbench",
                           base + tiny + Args{"--recipe", scratch / "self.yaml", "--recipe", scratch / "same.yaml"})),
               0);
  REQUIRE(rows().at(12).at("name") == "same");
  CHECK(rows().at(12).at("dtype") == "guided");
  CHECK(rows().at(12).at("4x4 mean") == rows().at(10).at("4x4 mean"));
  CHECK(rows().at(12).at("4x4 mean") != rows().at(8).at("4x4 mean"));
  write_file(scratch / "self.yaml", "optimizer: {schedule: constant}\nsample: {guide: mark_1}\n");
  refused(quality(scratch / "x", "1,2"), {"--recipe", scratch / "self.yaml"}, "keeps no checkpoint of its first mark");
  write_file(scratch / "decay.yaml", "optimizer: {schedule: wsd, decay_share: 0.25, warmup_steps: 0}\n");
  refused(base, third, "another recipe decay");
  write_file(scratch / "decay.yaml", "optimizer: {schedule: wsd, decay_share: 0.5, warmup_steps: 0}\n");
  // A later mark joins: nothing before it changes.
  const std::string two_marks = read_file(out + "/results.jsonl");
  REQUIRE_EXIT(run(program("ditbench", quality(out, "1,2,5") + tiny)), 0);
  CHECK(read_file(out + "/results.jsonl").starts_with(two_marks));
  CHECK(rows_of("quickstart") == 2 * 3);
  refused(quality(out, "1,2,6"), {}, "holds another comparison");
  // A folder of an earlier version is refused, and so are images that came or went.
  CHECK_THAT(require_ok(program("ditbench", base + tiny)).out, Contains("with the labels of the real images"));
  setup = ditrain::files::parse_json<nlohmann::ordered_json>(read_file(out + "/quality.json"));
  CHECK(setup.at("data").at("training").get<int>() + setup.at("data").at("held_out").get<int>() == 200);
  const auto refused_if = [&](const char* key, const nlohmann::ordered_json& value, const std::string& text) {
    auto changed = setup;
    changed[key] = value;
    write_file(out + "/quality.json", ditrain::files::json_text(changed));
    refused(base, {}, text);
  };
  refused_if("images", nullptr, "holds another comparison; got images");
  refused_if("data", {{"training", 1}}, "holds runs on other data");
  refused_if("quick", false, "holds another comparison; got quick true");
  refused_if("cpu_seconds_per_step", {{"quickstart", nullptr}}, "quality.json is damaged");
  write_file(out + "/quality.json", ditrain::files::json_text(setup));
  const std::string measured = read_file(out + "/results.jsonl");
  write_file(out + "/results.jsonl", measured + "{\"seed\": 0}\n");
  refused(base, {}, "results.jsonl is damaged; got key 'recipe' not found");
  write_file(out + "/results.jsonl", measured + "{\"recipe\": \"quickstart\", \"samples\": 7}\n");
  refused(base, {}, "results.jsonl holds results of another command; got samples 7");
  write_file(out + "/results.jsonl", "");
  refused(base, recipes, "has gone on beyond a mark whose result is lost");
  write_file(out + "/quality.json", "{\"minutes\": ");
  refused(base, recipes, "quality.json is damaged");
}

TEST_CASE("ditbench: quality that does not fit into memory is refused") {
  const TemporaryFolder scratch;
  require_error(program("ditbench", Args{"quality", "--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml",
                                         "--out", scratch / "quality", "--seeds", "1", "--samples", "1048576"} +
                                        sets({"model.input_size=1024", "data.num_images=200"})),
                {"[memory]", "1048576 samples and two classifiers of 8 classes", "fewer --samples"});
}

TEST_CASE("ditbench: quality that is stopped has a checkpoint of its run, and goes on", "[long]") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "quality", runs = out + "/quickstart";
  const Args command = program(
      "ditbench", Args{"quality", "--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml", "--out", out,
                       "--minutes", "0.2", "--seeds", "1", "--samples", "32", "--evaluations", "4", "--threads", "1"} +
                      sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "optimizer.warmup_steps=0",
                            "data.num_images=200", "model.num_classes=0", "sample.cfg_scale=1"}));  // no classifiers
  const auto found = [&](const auto& is_it) {
    if (fs::exists(runs))
      for (const auto& entry : fs::recursive_directory_iterator(runs))
        if (is_it(entry.path())) return true;
    return false;
  };
  Process process(command);
  REQUIRE(wait_until([&] {
    return !process.running() || found([](const fs::path& path) {
      return path.filename() == "metrics.jsonl" && read_metrics(path.parent_path()).size() > 3;
    });
  }));
  process.send(SIGTERM);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 75);
  CHECK_THAT(result.err, Contains("stopped by a signal; try the same command again"));
  CHECK(found([](const fs::path& path) { return path.filename().string().starts_with("step_"); }));
  CHECK_FALSE(fs::exists(out + "/results.jsonl"));
  require_ok(command);
  CHECK(fs::exists(out + "/results.jsonl"));
}

TEST_CASE("ditbench: strategies in real runs, with memory and without") {
  const TemporaryFolder scratch;
  const std::string json = scratch / "rows.json";
  const Args tiny = sets({"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "model.patch_size=8"});
  const Args command = program("ditbench", {"strategies", "--model", "custom", "--batch", "4", "--threads", "2",
                                            "--clusters", "2", "--repeats", "1", "--json", json}) +
                       tiny;
  const RunOptions in_scratch{.environment = {"TMPDIR=" + scratch / "tmp"}};
  fs::create_directory(scratch / "tmp");
  const auto rows = [&] { return read_json(json).at("rows"); };

  const Result result = require_ok(command, in_scratch);
  CHECK_THAT(result.out, Contains("cftp / dp: ") && Contains("cftp / dp_tp: ") && Contains("x the memory"));
  REQUIRE(rows().size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const auto row = rows().at(i);
    CHECK(row.at("strategy") == std::vector<std::string>{"cftp", "dp", "dp_tp"}[i]);
    CHECK(row.at("ranks") == (i == 0 ? 1 : 2));
    CHECK(row.at("clusters") == 2);
    CHECK(row.at("repeats") == 3);
    CHECK(row.at("images_per_second").get<double>() == Approx(4 / row.at("median_s").get<double>()));
    CHECK(row.at("peak_bytes").get<double>() > 5e6);
    CHECK(row.at("result") == "ok");
  }
  CHECK(rows().at(0).at("peers").at("dp").get<double>() > 0);
  CHECK(fs::is_empty(scratch / "tmp"));

  // Room for one process, but not for two: 400 MiB per replica.
  const Args larger = sets({"model.hidden_size=512", "model.depth=4", "model.num_heads=8"});
  REQUIRE_EXIT(run(command + larger + Args{"--memory-gib", "0.8"}, in_scratch), 0);
  CHECK(rows().at(0).at("result") == "ok");
  CHECK(rows().at(1).at("result") == "out of memory");

  const Result too_small = require_ok(command + Args{"--memory-gib", "0.05"}, in_scratch);
  CHECK_THAT(too_small.out, Contains("memory limit: ") && Contains("cftp / dp: cftp is out of memory"));
  for (const auto& row : rows()) {
    CHECK(row.at("result") == "out of memory");
    for (const char* key : {"median_s", "images_per_second", "peak_bytes"}) CHECK(row.at(key).is_null());
  }
  CHECK(fs::is_empty(scratch / "tmp"));
}

TEST_CASE("ditbench: strategies that are stopped leave nothing behind") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "tmp");
  Process process(program("ditbench", {"strategies", "--model", "S", "--batch", "64", "--threads", "2"}),
                  {.environment = {"TMPDIR=" + scratch / "tmp"}});
  const auto log_of_run = [&] {
    for (const auto& entry : fs::recursive_directory_iterator(scratch / "tmp"))
      if (entry.path().filename() == "run1.log") return true;
    return false;
  };
  REQUIRE(wait_until([&] { return log_of_run() || !process.running(); }));
  process.send(SIGINT);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 1);
  CHECK_THAT(result.err, Contains("stopped by a signal"));
  CHECK(fs::is_empty(scratch / "tmp"));
}
