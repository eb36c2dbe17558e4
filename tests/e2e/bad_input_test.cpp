// Wrong input: the right exit code, a message that says what, what was found and what was expected, and nothing lost.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>

#include "ditrain/files/json.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

void require_texts(const Result& result, const std::vector<std::string>& texts) {
  INFO(result.text());
  for (const std::string& text : texts) CHECK_THAT(result.err, Contains(text));
}

void require_settings_refused(const std::vector<std::string>& settings, const std::vector<std::string>& texts,
                              int ranks = 1) {
  CAPTURE(settings);
  const TemporaryFolder scratch;
  const Args command = tiny_ditrain(scratch / "run", 2, sets(settings));
  require_refused(run(on_ranks(ranks, command)), scratch / "run", texts);
}

}  // namespace

// Which other texts are refused, and with which words: tests/config.
TEST_CASE("bad config: a file, a name, a setting, and sizes that do not go together") {
  const TemporaryFolder scratch;
  const std::string file = scratch / "bad.yaml", out = scratch / "run", configs = DITRAIN_CONFIG_DIR;
  write_file(file, "model:\n  name: DiT-S/2\n  num_clases: 8\n");
  require_refused(
      run(program("ditrain", {"--config", file, "--out", out})), out,
      {"ditrain: error: [config]", "bad.yaml:3:", "unknown key model.num_clases", "did you mean model.num_classes?"});
  require_refused(run(program("ditrain", {"--config", configs + "/quickstrat.yaml", "--out", out})), out,
                  {"no such config file", "try --config " + configs + "/quickstart.yaml"});
  require_settings_refused({"train.stepz=5"}, {"unknown key train.stepz", "did you mean train.steps?"});
  require_settings_refused({}, {"does not divide over the ranks", "got 8 samples over 3 ranks", "a multiple of 3"}, 3);
}

TEST_CASE("bad command line: an unknown flag, missing and empty values, and things that do not exist") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const auto refused = [&](const Args& more, const std::vector<std::string>& texts) {
    CAPTURE(more);
    require_refused(run(tiny_ditrain(out, 2, more)), out, texts);
  };
  refused({"--resum", "auto"}, {"[command line]", "unknown flag --resum", "did you mean --resume?"});
  refused({"--resume", scratch / "nowhere"}, {"--resume: there is no such folder; got " + scratch / "nowhere"});
  refused({"--resume", "atuo"}, {"no such folder; got atuo", "try --resume auto"});
  write_file(scratch / "dit.safetensors", "");
  refused({"--resume", scratch / "dit.safetensors"}, {"--resume: a file is no run", "try --set train.init_from=FILE"});
  fs::create_directory(scratch / "empty");
  refused({"--resume", scratch / "empty"}, {"no complete checkpoint in " + scratch / "empty"});
  require_refused(run(program("ditrain")), out, {"--config FILE is missing"});
  refused({"--resume", ""}, {"--resume is given an empty name", "expected --resume auto|DIR"});
  require_refused(run(tiny_ditrain("", 2)), out,
                  {"--out is given an empty name; got '', expected --out DIR; try a look at the shell variable"});
  for (const char* name : {"ditsample", "ditexport"})
    require_refused(run(program(name, {"--checkpoint", scratch / "empty", "--out", ""})), out,
                    {"--out is given an empty name; got ''"});
}

TEST_CASE("bad data: path unset, missing or empty, labels out of range") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "empty");
  require_settings_refused({"data.kind=folder"}, {"data.path is not set", "--set data.path=DIR"});
  require_settings_refused({"data.kind=folder", "data.path=" + scratch / "none"},
                           {"cannot list the folder '" + scratch / "none", "No such file or directory"});
  require_settings_refused({"data.kind=folder", "data.path=" + scratch / "empty"},
                           {"no images in '" + scratch / "empty", "got 0 other files", "expected .jpg"});
  require_settings_refused(latents_settings(scratch / "empty"), {"no latents in '" + scratch / "empty"});

  write_image_folder(scratch / "images", 9, 1);
  require_settings_refused({"data.kind=folder", "data.path=" + scratch / "images"},
                           {"label out of range", "got labels up to 8", "below model.num_classes 8"});
  fs::create_directory(scratch / "latents");
  write_latents(scratch / "latents/a.safetensors", {0, 7, 9, 1, 2, 3, 4, 5});
  require_settings_refused(latents_settings(scratch / "latents"),
                           {"label out of range", "got labels up to 9", "below model.num_classes 8"});
  write_latents(scratch / "latents/a.safetensors", {0, 7, -1, 1});
  require_settings_refused(latents_settings(scratch / "latents"), {"label out of range", "row 2", "got -1"});
}

TEST_CASE("bad data: an unreadable image stops the run, or is skipped and counted") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 8, 2);
  const std::string bad = scratch / "images/class_3/0.png";
  const std::string png = read_file(bad);
  write_file(bad, png.substr(0, png.size() / 2));
  const std::vector<std::string> settings = {"data.kind=folder", "data.path=" + scratch / "images"};

  for (const char* name : {"class_0/a.txt", "class_1/b.txt", "class_1/c.xml"})
    write_file(scratch / "images/" + name, "");
  const std::string ignored = "data: ignored 3 files (.txt 2, .xml 1)";

  require_error(tiny_ditrain(scratch / "stopped", 4, sets(settings)),
                {"unreadable sample", bad, "data.on_bad_file: skip"});

  const Result skipped =
      require_ok(tiny_ditrain(scratch / "skipped", 4, sets(settings) + sets({"data.on_bad_file=skip"})));
  const std::string log = read_file(scratch / "skipped/log.txt");
  CHECK_THAT(log, Contains(ignored));
  CHECK(log.find("ignored") == log.rfind("ignored"));  // said once
  const Result planned = require_ok(tiny_ditrain(scratch / "planned", 4, sets(settings) + Args{"--dry-run"}));
  CHECK_THAT(planned.out, Contains(ignored));
  require_texts(skipped, {"skipped a bad sample (1 so far)", bad});
  const auto metrics = read_metrics(scratch / "skipped");
  REQUIRE(steps_are_complete(metrics, 4));
  REQUIRE(metrics.back().at("bad_files") == 1);
  REQUIRE_THAT(skipped.out, Contains("bad files: 1"));
}

TEST_CASE("bad data: an image that only the last samples and validation read leaves the checkpoint of the last step") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 8, 6);
  const std::string bad = scratch / "images/class_5/3.png";
  write_file(bad, read_file(bad).substr(0, 100));
  require_error(tiny_ditrain(scratch / "run", 1,
                             sets({"data.kind=folder", "data.path=" + scratch / "images", "sample.every_steps=1",
                                   "eval.every_steps=1"})),
                {"unreadable sample", bad});
  CHECK(fs::exists(checkpoint_of(scratch / "run", 1) + "/state.json"));
  const Result again = require_ok(tiny_ditrain(
      scratch / "run", 1,
      sets({"data.kind=folder", "data.path=" + scratch / "images", "sample.every_steps=1", "eval.every_steps=1"}) +
          Args{"--resume", "auto"}));
  CHECK_THAT(again.err, Contains("ended during samples and validation of its last step"));
  // In the middle of a run, too.
  const Result early =
      run(tiny_ditrain(scratch / "early", 3,
                       sets({"data.kind=folder", "data.path=" + scratch / "images", "checkpoint.every_steps=1",
                             "eval.every_steps=1", "eval.num_images=48"})));
  REQUIRE_EXIT(early, 2);
  CHECK(fs::exists(checkpoint_of(scratch / "early", 1) + "/state.json"));
}

TEST_CASE("bad data: a shard of latents that becomes shorter while ranks read it ends the run with its name") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", shard = scratch / "latents/a.safetensors";
  fs::create_directory(scratch / "latents");
  write_latents(shard, {0, 1, 2, 3, 4, 5, 6, 7});
  const Args command = tiny_ditrain(out, kForEver, sets(latents_settings(scratch / "latents")));
  Process process(on_ranks(ranks, command));
  REQUIRE(wait_until([&] { return read_metrics(out).size() > 2 || !process.running(); }));
  fs::resize_file(shard, 0);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 1);
  require_texts(result, {"ditrain: error: ", "[" + shard + "] the file became shorter while it was being read"});
}

TEST_CASE("bad output: an existing run, a place that cannot be written") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 2)), 0);
  const auto before = folder_content(out);
  require_error(tiny_ditrain(out, 4), {out + " holds a run already", "--resume auto"});
  REQUIRE(folder_content(out) == before);

  write_file(scratch / "file", "text");
  for (const std::string& place : {scratch / "file/run", std::string("/proc/ditrain_run")}) {
    CAPTURE(place);
    require_error(tiny_ditrain(place, 2), {place, "cannot"});
  }
  REQUIRE(read_file(scratch / "file") == "text");
}

namespace {

struct Damage {
  std::string name;
  std::function<void(const std::string&)> apply;  // to the checkpoint folder
  std::vector<std::string> texts;
};

void set_element(LooseTensor& tensor, size_t element, float value) {
  std::memcpy(tensor.data.data() + element * sizeof value, &value, sizeof value);
}

// As versions without checksums wrote it.
void forget_checksums(const std::string& checkpoint) {
  auto state = read_json(checkpoint + "/state.json");
  for (const char* key : {"format", "files", "checksum"}) state.erase(key);
  write_file(checkpoint + "/state.json", ditrain::files::json_text(state, 2) + "\n");
}

// Found without checksums.
std::vector<Damage> damages(const std::string& other_model) {
  const auto change = [](const char* file, auto f) {
    return [=](const std::string& folder) { rewrite_tensors(folder + "/" + file, f); };
  };
  using Tensors = std::map<std::string, LooseTensor>;
  return {
      {"truncated",
       [](const std::string& folder) {
         const std::string file = folder + "/model.safetensors";
         fs::resize_file(file, fs::file_size(file) - 100);
       },
       {"model.safetensors"}},
      {"empty",
       [](const std::string& folder) { fs::resize_file(folder + "/ema.safetensors", 0); },
       {"ema.safetensors"}},
      {"from another model",
       [=](const std::string& folder) {
         fs::copy_file(other_model + "/model.safetensors", folder + "/model.safetensors",
                       fs::copy_options::overwrite_existing);
       },
       {"model.safetensors", "shape of", "got [", "expected ["}},
      {"missing tensor",
       change("model.safetensors", [](Tensors& tensors) { tensors.erase("blocks.1.attn.qkv.weight"); }),
       {"model.safetensors", "tensor blocks.1.attn.qkv.weight is missing"}},
      {"extra tensor",
       change("ema.safetensors", [](Tensors& tensors) { tensors["blocks.2.attn.qkv.bias"] = tensors.begin()->second; }),
       {"ema.safetensors", "tensor blocks.2.attn.qkv.bias is not one of this model's"}},
      {"NaN in the weights",
       change("model.safetensors",
              [](Tensors& tensors) { set_element(tensors.at("blocks.0.mlp.fc1.weight"), 5, std::nanf("")); }),
       {"model.safetensors", "blocks.0.mlp.fc1.weight", "not finite at element 5", "got nan"}},
      {"infinity in the moments",
       change("optimizer.safetensors",
              [](Tensors& tensors) { set_element(tensors.at("x_embedder.proj.bias.exp_avg_sq"), 0, HUGE_VALF); }),
       {"optimizer.safetensors", "x_embedder.proj.bias.exp_avg_sq", "got inf"}},
      {"state.json cut off",
       [](const std::string& folder) { fs::resize_file(folder + "/state.json", 40); },
       {"state.json", "not a state of ditrain: not JSON at line ", "try an earlier checkpoint"}},
  };
}

}  // namespace

TEST_CASE("bad checkpoint: each kind of damage is named and nothing is lost") {
  const TemporaryFolder scratch;
  const std::string sound = scratch / "sound", other = scratch / "other";
  REQUIRE_EXIT(run(tiny_ditrain(sound, 2)), 0);
  forget_checksums(checkpoint_of(sound, 2));
  REQUIRE_EXIT(run(tiny_ditrain(other, 2, sets({"model.hidden_size=48"}))), 0);
  for (const Damage& damage : damages(checkpoint_of(other, 2))) {
    CAPTURE(damage.name);
    const std::string out = scratch / "damaged";
    fs::remove_all(out);
    fs::copy(sound, out, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    damage.apply(checkpoint_of(out, 2));
    const auto checkpoints = folder_content(out + "/checkpoints");
    require_error(tiny_ditrain(out, 4, {"--resume", "auto"}), damage.texts);
    CHECK(folder_content(out + "/checkpoints") == checkpoints);
    CHECK(same_file(out + "/metrics.jsonl", sound + "/metrics.jsonl"));
  }
}

TEST_CASE("bad checkpoint: resuming passes over damaged ones to the newest intact one, and says so") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", out = scratch / "run";
  const Args often = sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0"});
  REQUIRE_EXIT(run(tiny_ditrain(whole, 8, often)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(out, 6, often)), 0);
  const auto flip = [&](int64_t step, const char* name) {
    const std::string path = checkpoint_of(out, step) + "/" + name;
    std::string content = read_file(path);
    content[content.size() / 2] ^= 4;
    write_file(path, content);
  };
  flip(6, "optimizer.safetensors");
  flip(4, "state.json");
  const Result verified = run(program("ditverify", {"--checkpoint", checkpoint_of(out, 6)}));
  REQUIRE_EXIT(verified, 1);
  REQUIRE_THAT(verified.out, Contains("ok       model.safetensors") && Contains("DAMAGED") && Contains("tensor "));
  REQUIRE_EXIT(run(program("ditverify", {"--checkpoint", checkpoint_of(out, 2)})), 0);

  require_error(tiny_ditrain(out, 8, often + Args{"--resume", checkpoint_of(out, 6)}),
                {"optimizer.safetensors", "is damaged", "--resume " + checkpoint_of(out, 2)});

  const int ranks = GENERATE(1, 2);
  const Args command = tiny_ditrain(out, 8, often + Args{"--resume", "auto"});
  const Result resumed = require_ok(on_ranks(ranks, command));
  require_texts(resumed, {checkpoint_of(out, 6) + " is damaged and passed over",
                          checkpoint_of(out, 4) + " is damaged and passed over"});
  if (ranks == 1) REQUIRE(different_files(checkpoint_of(out, 8), checkpoint_of(whole, 8)).empty());
  REQUIRE(steps_are_complete(read_metrics(out), 8));
  // What lay after the intact one has gone with the next one that was whole.
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints"))
    CHECK_FALSE(entry.path().filename().string().starts_with("discarded"));

  for (const int64_t step : {2, 4, 6, 8}) flip(step, "model.safetensors");
  require_error(tiny_ditrain(out, 9, often + Args{"--resume", "auto"}),
                {"no checkpoint in " + out + " is intact", "--out"});
  const nlohmann::json status = read_json(out + "/status.json");
  CHECK((status.at("state") == "failed" && status.at("step") == 8));
  CHECK_THAT(read_file(out + "/log.txt"), Contains("is intact"));
}

namespace {

struct FailingCall {
  std::string call, path;
  int error_number;
};

// The run ends with exit code 1 and says which call failed on what; its checkpoints are as they were.
void require_untouched(const Args& command, const std::string& out, const FailingCall& failing, int ranks = 1) {
  const auto& [call, path, error_number] = failing;
  CAPTURE(call, path, error_number);
  const auto before = folder_content(out + "/checkpoints");
  const Result result =
      run(on_ranks(ranks, command), {.environment = trap(call, path, std::to_string(error_number), ranks - 1)});
  REQUIRE_EXIT(result, 1);
  require_texts(result, {path, std::strerror(error_number)});
  CHECK_THAT(result.text(), !Contains("damaged"));
  CHECK(folder_content(out + "/checkpoints") == before);
}

}  // namespace

// Errors of the system say nothing of what is in a file: a run that took them for damage would go on from an older
// checkpoint and let the newer one go.
TEST_CASE("bad checkpoint: one that cannot be read now is not damaged, and nothing is touched") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0"}))), 0);
  const std::string newest = "step_00000004";
  const Args command = tiny_ditrain(out, 5, {"--resume", "auto"});
  for (const auto& [call, path, error_number] : {FailingCall{"pread", newest + "/model.safetensors", EIO},
                                                 {"pread", newest + "/optimizer.safetensors", ESTALE},
                                                 {"open", newest + "/ema.safetensors", EMFILE},
                                                 {"open", newest + "/model.safetensors", EACCES},
                                                 {"open", newest + "/state.json", ENFILE},
                                                 {"read", newest + "/state.json", EIO},
                                                 {"stat", newest + "/ema.safetensors", ESTALE},
                                                 {"readlink", "checkpoints/latest", EIO},
                                                 {"stat", "run/config.yaml", EIO},
                                                 {"open", "run/metrics.jsonl", EMFILE},
                                                 {"open", "run/metrics.jsonl", EACCES},
                                                 {"read", "run/metrics.jsonl", EIO}})
    // Of two ranks, the last one alone cannot read.
    require_untouched(command, out, {call, path, error_number}, error_number == ESTALE && call == "pread" ? 2 : 1);
  const std::string signal = std::to_string(EINTR);
  const Result interrupted = require_ok(command, {.environment = trap("open", newest + "/ema.safetensors", signal)});
  CHECK_THAT(interrupted.out, Contains("resuming " + checkpoint_of(out, 4)));
}

TEST_CASE("bad checkpoint: a `latest` that a killed commit has made, but that cannot be read now, is not removed") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", latest = out + "/checkpoints/latest";
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0"}))), 0);
  fs::remove(latest);
  fs::create_symlink("step_00000002", latest);
  fs::create_symlink("step_00000004", out + "/checkpoints/.tmp_latest.0123456789abcdef");
  const Args command = tiny_ditrain(out, 5, {"--resume", "auto"});
  for (const char* link : {"checkpoints/latest", ".tmp_latest"}) require_untouched(command, out, {"lstat", link, EIO});
  const Result resumed = require_ok(command);
  CHECK_THAT(resumed.out, Contains("resuming " + checkpoint_of(out, 4)));
}

// A run that took it for a missing one would give `best` to the next checkpoint and remove the one that was best.
TEST_CASE("bad checkpoint: a best one that cannot be read now is not chosen anew") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args fid = sets({"eval.fid_every_steps=2", "eval.fid_samples=12", "sample.steps=2", "data.num_images=40",
                         "model.input_size=8", "checkpoint.keep_last=1"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 2, fid)), 0);
  const Args command = tiny_ditrain(out, 4, fid + Args{"--resume", "auto"});
  require_untouched(command, out, {"open", "checkpoints/best/state.json", EACCES});
  require_untouched(command, out, {"readlink", "checkpoints/best", EIO});
  fs::remove(out + "/metrics.jsonl");
  const Result resumed = require_ok(command);
  require_texts(resumed, {"the best checkpoint is chosen anew: metrics.jsonl has no fid_pixels of step 2"});
}

TEST_CASE("bad checkpoint: incomplete ones are passed over by name, and no reason to start anew") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 6, sets({"checkpoint.every_steps=2", "checkpoint.keep_last=0"}))), 0);
  fs::remove(checkpoint_of(out, 6) + "/ema.safetensors");
  fs::remove(checkpoint_of(out, 4) + "/state.json");
  const Args sample = {"--checkpoint", out, "--num", "1", "--steps", "2", "--out", scratch / "samples"};
  const Result sampled = require_ok(program("ditsample", sample));
  require_texts(sampled, {checkpoint_of(out, 6) + " is passed over: ema.safetensors is missing"});
  const Result resumed = require_ok(tiny_ditrain(out, 8, {"--resume", "auto"}));
  require_texts(resumed, {checkpoint_of(out, 6) + " is damaged and passed over: ema.safetensors is missing",
                          checkpoint_of(out, 4) + " is damaged and passed over: state.json is missing"});
  REQUIRE_THAT(resumed.out, Contains("resuming " + checkpoint_of(out, 2)));
  CHECK(checkpoints(out) == std::vector<int64_t>{2, 8});
  CHECK_FALSE(fs::exists(checkpoint_of(out, 6)));  // no checkpoint of that name is left to mislead

  for (const int64_t step : {2, 8}) fs::remove(checkpoint_of(out, step) + "/model.safetensors");
  const auto before = folder_content(out + "/checkpoints");
  require_error(tiny_ditrain(out, 9, {"--resume", "auto"}),
                {"no checkpoint in " + out + " is intact", "model.safetensors is missing", "--out"});
  CHECK(folder_content(out + "/checkpoints") == before);
}

TEST_CASE("bad output: a second run in a folder is refused while the first one lives, and waits if it resumes") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process first(tiny_ditrain(out, kForEver));
  REQUIRE(wait_until([&] { return fs::exists(out + "/metrics.jsonl") || !first.running(); }));
  require_error(tiny_ditrain(out, 4),
                {out + " is used by a run that is alive: host ", "process " + std::to_string(first.pid()), "since ",
                 "--out with another folder"});
  Process third(tiny_ditrain(out, 4, {"--resume", "auto"}));
  REQUIRE(wait_until([&] { return has_open(third.pid(), out + "/.lock"); }));
  first.send(SIGUSR2);
  REQUIRE_EXIT(first.wait(), 75);
  const Result waited = third.wait();
  REQUIRE_EXIT(waited, 0);
  REQUIRE_THAT(waited.out, Contains("waiting up to 30 s for it to end"));
  const std::string signal = std::to_string(EINTR);  // says nothing of another run
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "new", 1), {.environment = trap("fcntl", "/.lock", signal)}), 0);
}

TEST_CASE("bad checkpoint: a changed key is refused with both values, what may change may") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 2)), 0);
  const auto before = folder_content(out);
  const Args changed = sets({"train.global_batch=16", "optimizer.lr=0.5"}) + Args{"--resume", "auto"};
  require_error(tiny_ditrain(out, 4, changed), {"train.global_batch: was 8, now 16", "optimizer.lr: was ", "now 0.5"});
  require_error(tiny_ditrain(out, 4, sets({"optimizer.kind=muon"}) + Args{"--resume", "auto"}),
                {"optimizer.kind: was adamw, now muon", "try the old values, or a new --out folder"});
  CHECK(folder_content(out) == before);
  const Args free = sets({"log.every_steps=1", "checkpoint.every_steps=3", "sample.every_steps=0", "eval.every_steps=0",
                          "parallel.threads=1", "dist.bucket_mib=1"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, free + Args{"--resume", "auto"})), 0);
}

TEST_CASE("disk full: the last good checkpoint stays and the run can go on") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 2)), 0);
  const auto before = folder_content(out + "/checkpoints");
  // Room for model.safetensors but not for optimizer.safetensors, which is twice as large.
  const auto room = int64_t(fs::file_size(checkpoint_of(out, 2) + "/model.safetensors") * 3 / 2);

  const Result full = run(tiny_ditrain(out, 4, {"--resume", "auto"}), {.max_file_bytes = room});
  REQUIRE_EXIT(full, 1);
  require_texts(full, {"[checkpoint]", "step 4 could not be written", "optimizer.safetensors", "File too large",
                       "try free disk space, then --resume auto: earlier checkpoints are intact"});
  CHECK(folder_content(out + "/checkpoints") == before);

  const Result first = run(tiny_ditrain(scratch / "first", 2), {.max_file_bytes = room});
  REQUIRE_EXIT(first, 1);
  require_texts(first, {"File too large",
                        "try free disk space, then --resume auto, which starts anew: there is no earlier checkpoint"});

  const Args periodic = sets({"checkpoint.every_steps=1"}) + Args{"--resume", "auto"};
  const Result warned = run(tiny_ditrain(out, 6, periodic), {.max_file_bytes = room});
  REQUIRE_EXIT(warned, 1);
  require_texts(warned, {"checkpoint failed, training goes on, earlier ones are intact"});
  CHECK(folder_content(out + "/checkpoints") == before);

  REQUIRE_EXIT(run(tiny_ditrain(out, 6, {"--resume", "auto"})), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", 6)), 0);
  CHECK(different_files(checkpoint_of(out, 6), checkpoint_of(scratch / "whole", 6)).empty());
  CHECK(steps_are_complete(read_metrics(out), 6));
}

TEST_CASE("a first checkpoint that cannot be written: no earlier one is promised, nor is the disk said to be full") {
  const TemporaryFolder scratch;
  const RunOptions refuses{.environment = trap("rename", "/.tmp_step_", std::to_string(EIO))};
  const Result broken = run(tiny_ditrain(scratch / "broken", 2), refuses);
  REQUIRE_EXIT(broken, 1);
  require_texts(broken, {"Input/output error", "try --resume auto, which starts anew: there is no earlier checkpoint"});
  const Result goes_on = run(tiny_ditrain(scratch / "warned", 3, sets({"checkpoint.every_steps=1"})), refuses);
  REQUIRE_EXIT(goes_on, 0);
  CHECK_THAT(goes_on.out + goes_on.err, Contains("training goes on, there is no earlier one: "));
}

TEST_CASE("a file system without symlinks costs the link latest, not the run") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const RunOptions refuses{.environment = trap("symlink", "/.tmp_latest", std::to_string(EPERM))};
  const Result first = run(tiny_ditrain(out, 2), refuses);
  REQUIRE_EXIT(first, 0);
  CHECK_THAT(first.out + first.err, Contains("takes no symlinks (Operation not permitted)"));
  CHECK_FALSE(fs::is_symlink(out + "/checkpoints/latest"));
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, {"--resume", "auto"})), 0);
  CHECK(steps_are_complete(read_metrics(out), 4));
}

namespace {

constexpr int64_t kGib = int64_t{1} << 30;

Args large_ditrain(const std::string& out, const Args& more) {
  return tiny_ditrain(out, 2) + sets({"model.patch_size=2"}) + more;
}

// The setting train.micro_batch=N of the first proposal that begins with `begin`.
std::string proposed_micro_batch(const std::string& err, const std::string& begin) {
  std::istringstream lines(err.substr(std::min(err.size(), err.find("what fits:"))));
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("--set train.micro_batch="); at != line.npos && line.starts_with("  " + begin))
      return line.substr(at + 6, line.find_first_of(" \n", at + 6) - at - 6);
  return "";
}

}  // namespace

TEST_CASE("memory: XL/2 on two ranks that do not fit is refused with the plan before anything is allocated") {
  const TemporaryFolder scratch;
  const std::string config = scratch / "xl2.yaml", out = scratch / "run";
  write_file(config, "model: {name: DiT-XL/2, num_classes: 8, in_channels: 3}\ntrain: {global_batch: 2, steps: 2}\n");
  const Args command = mpirun(2, program("ditrain", {"--config", config, "--out", out}));
  const Result result = run(command, {.timeout_s = 60, .max_data_bytes = 8 * kGib});
  REQUIRE_EXIT(result, 2);
  require_texts(result, {"[memory] 2 rank(s) on this node do not fit", "GiB", "memory plan per rank", "optimiser state",
                         "stored activations", "what fits:"});
  CHECK(result.peak_bytes < kGib / 2);
  CHECK(result.seconds < 30);
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("memory: what is proposed does fit") {
  const TemporaryFolder scratch;
  const Args sizes = sets({"model.hidden_size=384", "model.depth=12", "model.num_heads=6", "train.global_batch=256"});
  const RunOptions limits{.max_data_bytes = 4 * kGib};
  const Result refused = run(large_ditrain(scratch / "run", sizes), limits);
  REQUIRE_EXIT(refused, 2);
  CHECK_FALSE(fs::exists(scratch / "run"));
  const std::string proposal = proposed_micro_batch(refused.err, "--set train.micro_batch=");
  CAPTURE(refused.err, proposal);
  REQUIRE_THAT(proposal, Catch::StartsWith("train.micro_batch="));
  REQUIRE_EXIT(run(large_ditrain(scratch / "run", sizes + sets({proposal}) + Args{"--dry-run"}), limits), 0);
}

TEST_CASE("memory: where two copies of the state do not fit, one rank with a smaller micro-batch is proposed",
          "[long]") {
  // A depth at which one rank's state takes 60 % of the limit of this node; nothing of it is ever allocated.
  const TemporaryFolder scratch;
  const auto command = [&](int64_t depth, const Args& more) {
    return large_ditrain(scratch / "run", sets({"model.hidden_size=1152", "model.num_heads=16", "train.global_batch=64",
                                                "model.depth=" + std::to_string(depth)}) +
                                              more);
  };
  const Result far_too_large =
      run(command(1000, sets({"model.hidden_size=16384", "model.num_heads=128"}) + Args{"--dry-run"}));
  REQUIRE_EXIT(far_too_large, 2);
  CHECK(far_too_large.out.find("predicted from rates") == std::string::npos);  // nothing was measured
  const std::string at_most = "expected at most ";
  const size_t at = far_too_large.err.find(at_most);
  REQUIRE(at != std::string::npos);
  const double limit_gib = std::stod(far_too_large.err.substr(at + at_most.size()));
  const double block_gib = 5 * 4 * 18.0 * 1152 * 1152 / double(kGib);  // weights, gradients, moments, EMA of a block
  const auto depth = int64_t(0.6 * limit_gib / block_gib);

  const Result refused = run(mpirun(2, command(depth, {})), {.timeout_s = 60});
  REQUIRE_EXIT(refused, 2);
  // A dry run that two ranks are only assumed in says the same; on two nodes, or of another machine, they fit.
  const Args assumed = command(depth, {"--dry-run", "--ranks", "2", "--set", "train.micro_batch=1"});
  const auto exit_code = [&](const std::string& variable) {
    return run(assumed, {.environment = {variable}}).exit_code;
  };
  const Result dry = run(assumed, {.environment = {"SLURM_NTASKS_PER_NODE=2"}});
  REQUIRE_EXIT(dry, 2);
  require_texts(dry, {"[memory] 2 rank(s) on this node do not fit"});
  CHECK(exit_code("SLURM_NTASKS_PER_NODE=1") == 0);
  CHECK(exit_code("HWLOC_SYNTHETIC=package:1 core:8 pu:1") == 0);
  const std::string proposal = proposed_micro_batch(refused.err, "1 rank(s) per node");
  CAPTURE(refused.err, proposal);
  REQUIRE_THAT(refused.err, Contains("1 rank(s) per node with --set train.micro_batch="));
  REQUIRE_EXIT(run(command(depth, sets({proposal}) + Args{"--dry-run"})), 0);
}
