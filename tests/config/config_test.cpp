// Configs: what is read, what is refused and with which words, and that text made from a config gives it back.
#include "ditrain/config/config.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>

#include "config_support.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::test;
namespace fs = std::filesystem;

namespace {

std::string configs_dir() { return std::string(DITRAIN_GOLDEN_DIR) + "/../../configs/"; }

/// Another valid value of the option, or "" if it takes only one.
std::string other_value(const config::Option& option, const config::Config& base) {
  const std::string now = option.get(base);
  for (const char* text : {"false",  "true",        "1",       "2",       "7",
                           "0.25",   "[0.25, 0.5]", "[8, 16]", "flow",    "squaredcos_cap_v2",
                           "x0",     "fixed_small", "kl",      "min_snr", "logit_normal",
                           "block",  "bf16",        "folder",  "onednn",  "skip",
                           "cosine", "ddim",        "all",     "DiT-B/4", "some where/x#y: \"z\" \\"}) {
    config::Config trial = base;
    if (message_of([&] { config::apply_set(trial, option.name() + "=" + text); }) == "no error" &&
        option.get(trial) != now)
      return text;
  }
  return "";
}

}  // namespace

TEST_CASE("a config file fills the tree") {
  const config::Config c = config::parse_config(R"(
model: {name: DiT-B/4, input_size: [16, 48], in_channels: 13, num_classes: 0, learn_sigma: false}
diffusion: {loss: mse, schedule: squaredcos_cap_v2}
train:
  steps: 12   # a comment
  global_batch: 6
optimizer: {lr: 3e-4, betas: [0.8, 0.95]}
parallel: {threads: 3, clusters: auto}
sample: {steps: 25, cfg_channels: all}
data: {path: "with: colon # and hash"}
eval:
)",
                                                "a.yaml");
  CHECK(c.model.hidden_size == 768);
  CHECK(c.model.patch_size == 4);
  CHECK((c.model.input_height == 16 && c.model.input_width == 48 && c.model.in_channels == 13));
  CHECK((c.model.num_classes == 0 && !c.model.learn_sigma));
  CHECK((c.diffusion.loss->name == "mse" && c.diffusion.schedule->name == "squaredcos_cap_v2"));
  CHECK((c.train.steps == 12 && c.train.global_batch == 6));
  CHECK((c.optimizer.lr == 3e-4 && c.optimizer.beta1 == 0.8 && c.optimizer.beta2 == 0.95));
  CHECK((c.parallel.threads == 3 && c.parallel.clusters == 0));
  CHECK((c.sample.steps == "25" && c.sample.cfg_channels == config::GuidedChannels::kAll));
  CHECK(c.data.path == "with: colon # and hash");
}

TEST_CASE("bands and their ranges are read, and written as they are read") {
  const config::Config c = config::parse_config(
      "data: {kind: tiles, bands: [B4, \"near infrared\"], scaling: [-1, 1e4], scale_low: [0.125, -3], augment: "
      "turns}\n",
      "a.yaml");
  CHECK(c.data.bands == std::vector<std::string>{"B4", "near infrared"});
  CHECK(c.data.scaling.from == dataset::ScalingFrom::kRange);
  CHECK((c.data.scaling.low == -1 && c.data.scaling.high == 1e4));
  CHECK(c.data.scale_low == std::vector<double>{0.125, -3});
  CHECK(c.data.scale_high.empty());
  const config::Config again = config::parse_config(config::to_yaml(c), "again.yaml");
  CHECK(config::to_yaml(again) == config::to_yaml(c));
  CHECK(again.data.bands == c.data.bands);
  for (const char* bad : {"scaling: [3, 3]", "scaling: [1]", "scaling: percent", "scale_low: [1, x]",
                          "scale_low: 1e999", "number_type: u64", "bands: {a: b}"})
    CHECK_THROWS_AS(config::parse_config(std::string("data: {") + bad + "}\n", "a.yaml"), InputError);
}

TEST_CASE("anchors and aliases are read") {
  const config::Config c = config::parse_config("train: {steps: &n 30}\nlog: {every_steps: *n}\n", "a.yaml");
  CHECK((c.train.steps == 30 && c.log.every_steps == 30));
}

TEST_CASE("words of the model and of training become values, and are written as words again") {
  const config::Config c = config::parse_config("model: {qk_norm: layer}\ntrain: {recompute: block}\n", "a.yaml");
  CHECK((c.model.qk_norm == nn::QkNorm::kLayer && c.train.recompute == nn::Recompute::kBlock));
  const config::Config again = config::parse_config(config::to_yaml(c), "again.yaml");
  CHECK((again.model.qk_norm == nn::QkNorm::kLayer && again.train.recompute == nn::Recompute::kBlock));
  CHECK_FALSE(config::parse_config("train: {recompute: auto}\n", "a.yaml").train.recompute);
  CHECK_THROWS_WITH(
      config::parse_config("model: {qk_norm: layr}\n", "a.yaml"),
      Catch::Contains("model.qk_norm") && Catch::Contains("none, rms or layer") && Catch::Contains("try layer"));
}

TEST_CASE("every key of the contract exists") {
  for (const char* name : {"model.name",
                           "model.input_size",
                           "model.in_channels",
                           "model.num_classes",
                           "model.learn_sigma",
                           "model.qk_norm",
                           "diffusion.process",
                           "diffusion.schedule",
                           "diffusion.prediction",
                           "diffusion.loss",
                           "diffusion.loss_weight",
                           "diffusion.min_snr_gamma",
                           "train.steps",
                           "train.global_batch",
                           "train.micro_batch",
                           "train.precision",
                           "train.recompute",
                           "train.on_non_finite",
                           "train.seed",
                           "train.init_from",
                           "data.kind",
                           "data.path",
                           "data.on_bad_file",
                           "optimizer.lr",
                           "optimizer.betas",
                           "optimizer.weight_decay",
                           "optimizer.clip_norm",
                           "optimizer.schedule",
                           "optimizer.warmup_steps",
                           "ema.decay",
                           "ema.warmup",
                           "checkpoint.every_steps",
                           "checkpoint.keep_last",
                           "checkpoint.keep_every",
                           "parallel.threads",
                           "parallel.clusters",
                           "parallel.strategy",
                           "parallel.tensor_ranks",
                           "parallel.cut",
                           "parallel.comm_cores",
                           "parallel.smt",
                           "memory.fast_gib",
                           "memory.bulk_gib",
                           "memory.disk_gib",
                           "memory.disk_path",
                           "memory.pages",
                           "memory.simulate_bulk",
                           "memory.copy_cores",
                           "memory.automem",
                           "kernels.gemm",
                           "kernels.fuse",
                           "kernels.tuned",
                           "dist.bucket_mib",
                           "dist.overlap",
                           "dist.allreduce",
                           "dist.engine",
                           "dist.wire",
                           "dist.adaln",
                           "dist.shard_optimizer",
                           "dist.reproducible",
                           "dist.timeout_s",
                           "dist.verify_every",
                           "dist.simulate_link",
                           "sample.every_steps",
                           "eval.every_steps",
                           "log.every_steps"}) {
    const std::string text = name;
    const size_t dot = text.find('.');
    CHECK(config::find_option(text.substr(0, dot), text.substr(dot + 1), "").name() == text);
  }
  CHECK(config::option_sections() == std::vector<std::string>{"model", "diffusion", "data", "train", "optimizer", "ema",
                                                              "parallel", "memory", "kernels", "dist", "checkpoint",
                                                              "log", "sample", "eval"});
}

TEST_CASE("unknown sections and keys name the line and the nearest") {
  CHECK(parse_error("train:\n  steps: 3\n  globl_batch: 8\n") ==
        "[config] a.yaml:3: unknown key train.globl_batch; did you mean global_batch?");
  CHECK(parse_error("\n\ntrian: {steps: 3}\n") == "[config] a.yaml:3: unknown section trian; did you mean train?");
  CHECK(parse_error("ema:\n  zzzzzzzzzzzzzz: 3\n") ==
        "[config] a.yaml:2: unknown key ema.zzzzzzzzzzzzzz; expected decay or warmup");
  CHECK(parse_error("train: {steps: 3}\n<<: {ema: {decay: 0}}\n").find("a.yaml:2: unknown section <<") !=
        std::string::npos);
}

TEST_CASE("wrong types and ranges name file, line, key and what is expected") {
  CHECK(parse_error("train:\n  steps: many\n") ==
        "[config] a.yaml:2: train.steps: bad value; got 'many', expected an integer from 1 to 1099511627776");
  CHECK(parse_error("train:\n\n  steps: 0\n").find("[config] a.yaml:3: train.steps: bad value; got '0'") == 0);
  CHECK(parse_error("train: {seed: -1}") ==
        "[config] a.yaml:1: train.seed: bad value; got '-1', expected an integer from 0 to 2^63 - 1");
  CHECK(parse_error("train: {seed: 9223372036854775807}") == "no error");
  for (const char* seed : {"9223372036854775808", "18446744073709551615", "1e3", "0x10"})
    CHECK(parse_error("train: {seed: " + std::string(seed) + "}") == "[config] a.yaml:1: train.seed: bad value; got '" +
                                                                         std::string(seed) +
                                                                         "', expected an integer from 0 to 2^63 - 1");
  CHECK(config::config_reference().find("seed of all random numbers; an integer from 0 to 2^63 - 1 [default 0]") !=
        std::string::npos);
  CHECK(parse_error("train: {steps: 1.5}").find("got '1.5', expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: 12x}").find("got '12x', expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: 99999999999999999999}").find("expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: [1, 2]}").find("got [1, 2], expected an integer") != std::string::npos);
  CHECK(parse_error("train: {steps: {a: 1}}").find("train.steps: bad value; got a map") != std::string::npos);
  CHECK(parse_error("train: {steps: }").find("train.steps: bad value; got nothing") != std::string::npos);
  CHECK(parse_error("train: {steps: []}").find("got a list of lists or an empty list") != std::string::npos);
  CHECK(parse_error("ema: {decay: 1}") ==
        "[config] a.yaml:1: ema.decay: bad value; got '1', expected a number from 0 to below 1");
  CHECK(parse_error("ema: {decay: nan}").find("got 'nan', expected a number") != std::string::npos);
  CHECK(parse_error("optimizer: {lr: inf}").find("got 'inf', expected a number") != std::string::npos);
  CHECK(parse_error("ema: {warmup: maybe}") ==
        "[config] a.yaml:1: ema.warmup: bad value; got 'maybe', expected true or false");
  CHECK(parse_error("optimizer: {betas: 0.9}").find("got '0.9', expected [beta1, beta2]") != std::string::npos);
  CHECK(parse_error("optimizer: {betas: [0.9, 1.0]}").find("optimizer.betas: bad value; got '1.0'") !=
        std::string::npos);
  CHECK(parse_error("model: {input_size: [8, 8, 8]}").find("expected N or [H, W]") != std::string::npos);
  for (const char* text : {"0", "none", "4097"})
    CHECK(parse_error(std::string("parallel: {threads: ") + text + "}") ==
          std::string("[config] a.yaml:1: parallel.threads: bad value; got '") + text +
              "', expected auto or an integer from 1 to 4096");
  CHECK(
      parse_error("data: {kind: folders}") ==
      "[config] a.yaml:1: data.kind: bad value; got 'folders', expected shapes, folder, latents or tiles; try folder");
  CHECK(parse_error("data: {path: \"a\\x07b\"}").find("control characters") != std::string::npos);
  CHECK(parse_error("data: {path: " + std::string(5000, 'x') + "}").find("expected at most 4096 bytes") !=
        std::string::npos);
  CHECK(parse_error("model: {name: DiT-M/2}").find("a.yaml:1: model.name: bad value; got 'DiT-M/2'") !=
        std::string::npos);
}

TEST_CASE("a word or number that a key does not take is refused with those that it does") {
  CHECK(set_error("parallel.strategy=tp") ==
        "[config] --set: parallel.strategy: bad value; got 'tp', expected cftp, dp or dp_tp; try dp");
  CHECK(set_error("memory.fast_gib=lots").find("got 'lots', expected a number") != std::string::npos);
  CHECK(set_error("memory.automem=on") ==
        "[config] --set: memory.automem: bad value; got 'on', expected off, paper or planned; try off");
  CHECK(set_error("memory.pages=huge").find("expected auto, explicit, transparent or plain") != std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gb_s: 0}").find("memory.simulate_bulk.gb_s") != std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gbs: 1}").find("off or {gb_s: above 0, latency_us: 0 or more}") !=
        std::string::npos);
  CHECK(set_error("memory.simulate_bulk={gb_s: 2, latency_us: 10}") == "no error");
  CHECK(set_error("memory.automem=planned") == "no error");
  CHECK(set_error("memory.automem=[off]").find("got [off], expected off, paper or planned") != std::string::npos);
  CHECK(set_error("dist.timeout_s=soon").find("got 'soon', expected a number") != std::string::npos);
  CHECK(config::parse_config("dist: {overlap: false, timeout_s: 0.0}", "a.yaml").dist.timeout_s == 0);
  CHECK(config::parse_config("dist: {verify_every: 10}", "a.yaml").dist.verify_every == 10);
}

TEST_CASE("sizes of memory that no machine has are refused") {
  for (const std::string key : {"fast_gib", "bulk_gib", "disk_gib"}) {
    CAPTURE(key);
    CHECK_THROWS_WITH(config::parse_config("memory: {" + key + ": 2e10}", "f.yaml"),
                      Catch::Contains("memory." + key) && Catch::Contains("from 0 to"));
    CHECK_NOTHROW(config::parse_config("memory: {" + key + ": 1048576}", "f.yaml"));
  }
}

TEST_CASE("a list of --set may have blanks around its items and inside of them") {
  config::Config config;
  config::apply_set(config, "data.bands=[ near infrared,B4 , B3]");
  CHECK(config.data.bands == std::vector<std::string>{"near infrared", "B4", "B3"});
}

TEST_CASE("keys given twice are refused") {
  CHECK(parse_error("train:\n  steps: 1\n  steps: 2\n") ==
        "[config] a.yaml:3: steps is there twice in section train; expected each key once");
  CHECK(parse_error("train:\nema:\ntrain:\n").find("[config] a.yaml:3: train is there twice in the file") == 0);
}

TEST_CASE("what is no config is refused") {
  CHECK(parse_error("").find("[config] a.yaml: holds no settings") == 0);
  CHECK(parse_error("# only a comment\n").find("holds no settings") != std::string::npos);
  CHECK(parse_error("- 1\n- 2\n").find("[config] a.yaml:1: not a map of sections") == 0);
  CHECK(parse_error("train: {steps: 1}\n---\nema: {decay: 0}\n").find("holds several documents") != std::string::npos);
  CHECK(parse_error("train: 7\n").find("[config] a.yaml:1: train: not a map of keys") == 0);
  CHECK(parse_error("train:\n  steps: [1\nema: 2\n").find("[config] a.yaml:3: not valid YAML: ") == 0);
  CHECK(parse_error("train:\n\tsteps: 1\n").find("[config] a.yaml:2: tabs are not allowed") == 0);
  CHECK(parse_error("? [1, 2]\n: 3\n").find("a key of the file is not a word") != std::string::npos);
  CHECK(parse_error("log: {every_steps: *nowhere}").find("[config] a.yaml:1: not valid YAML: ") == 0);
}

TEST_CASE("hostile text ends in a message") {
  CHECK(parse_error(std::string(2 << 20, '#')).find("too large for a config") != std::string::npos);
  CHECK(parse_error(std::string("train:\0 1", 9)).find("a zero byte") != std::string::npos);
  CHECK(parse_error(std::string(500000, '[')).find("[config] a.yaml") == 0);
  CHECK(parse_error(std::string(100000, '{')).find("[config] a.yaml") == 0);
  std::string bomb = "a: &a0 [x]\n";
  for (int i = 1; i < 40; ++i)
    bomb += "b: &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) + ", *a" + std::to_string(i - 1) + "]\n";
  CHECK(parse_error(bomb).find("unknown section a") != std::string::npos);
  CHECK(parse_error("train: {steps: &a [*a]}").find("[config] a.yaml:1") == 0);
  CHECK(parse_error(", a\ntrain: {steps: 1}\n").find("several documents") != std::string::npos);
  CHECK(parse_error("\x80\xff\xfe: \x01\x02").find("[config] a.yaml") == 0);
}

TEST_CASE("a value given with --set wins over the file, the last one over the first") {
  const std::string text = "train: {steps: 1, global_batch: 4}\nmodel: {name: DiT-S/2}\n";
  const config::Config c =
      config::parse_config(text, "a.yaml",
                           {"train.steps=2", "train.steps=3", "model.name=DiT-L/8", "model.input_size=[16,24]",
                            "optimizer.betas=[0.5, 0.75]", "data.path=/a b/c=d#e", "train.init_from="});
  CHECK((c.train.steps == 3 && c.train.global_batch == 4));
  CHECK((c.model.hidden_size == 1024 && c.model.patch_size == 8 && c.model.depth == 24));
  CHECK((c.model.input_height == 16 && c.model.input_width == 24));
  CHECK((c.optimizer.beta1 == 0.5 && c.optimizer.beta2 == 0.75));
  CHECK(c.data.path == "/a b/c=d#e");
  CHECK(c.train.init_from.empty());
}

TEST_CASE("bad --set") {
  const std::string shape = ", expected section.key=value; try --set train.steps=100";
  CHECK(set_error("train.steps") == "[config] --set: no assignment; got 'train.steps'" + shape);
  CHECK(set_error("steps=1.5") == "[config] --set: no assignment; got 'steps=1.5'" + shape);
  CHECK(set_error("") == "[config] --set: no assignment; got ''" + shape);
  CHECK(set_error("train.stepps=1") == "[config] --set: unknown key train.stepps; did you mean steps?");
  CHECK(set_error("trein.steps=1") == "[config] --set: unknown section trein; did you mean train?");
  CHECK(set_error("train.steps=").find("[config] --set: train.steps: bad value; got ''") == 0);
  CHECK(set_error("model.input_size=[]").find("--set: model.input_size: bad value") != std::string::npos);
  CHECK(set_error("model.input_size=[8,]").find("--set: model.input_size: bad value") != std::string::npos);
}

TEST_CASE("sizes beside a model name have to be those of the name") {
  CHECK(parse_error("model:\n  name: DiT-S/2\n  hidden_size: 512\n") ==
        "[config] a.yaml:3: model.hidden_size contradicts model.name: DiT-S/2; got 512, expected 384; "
        "try model.name: custom");
  CHECK(parse_error("model: {name: DiT-S/2, hidden_size: 384}") == "no error");
  CHECK(set_error("model.patch_size=4").find("--set: model.patch_size contradicts model.name") != std::string::npos);
  const config::Config c =
      config::parse_config("model: {name: custom, hidden_size: 64, depth: 2, num_heads: 2, patch_size: 1}", "a");
  CHECK((c.model.hidden_size == 64 && c.model.depth == 2 && c.model.num_heads == 2 && c.model.patch_size == 1));
}

TEST_CASE("the effective config reads back to itself, every key changed in turn") {
  const config::Config base = config::parse_config("model: {name: custom, hidden_size: 96}", "base.yaml");
  CHECK(config::to_yaml(config::parse_config(config::to_yaml(base), "dump.yaml")) == config::to_yaml(base));
  int changed = 0;
  for (const config::Option& option : config::option_table()) {
    const std::string value = other_value(option, base);
    if (value.empty()) continue;
    config::Config config = base;
    config::apply_set(config, option.name() + "=" + value);
    nn::apply_name(config.model);
    const config::Config back = config::parse_config(config::to_yaml(config), "dump.yaml");
    INFO(option.name() << " = " << value);
    CHECK(option.get(back) == option.get(config));
    CHECK(option.get(back) != option.get(base));
    ++changed;
  }
  CHECK(changed >= 50);
}

TEST_CASE("numbers and texts survive the dump exactly") {
  config::Config config;
  config.optimizer.lr = 0.1 + 0.2, config.optimizer.clip_norm = 1e-300, config.ema.decay = 1.0 / 3;
  for (const std::string text : {"null", "~", "- a", "a: b", "#", "'", "\"\\", " lead", "*x", "&x", "true", "", "50",
                                 "10,10,20", "\xC3\xA9t\xC3\xA9"}) {
    config.data.path = text;
    const config::Config back = config::parse_config(config::to_yaml(config), "dump.yaml");
    INFO(text);
    CHECK(back.data.path == text);
    CHECK(
        (back.optimizer.lr == config.optimizer.lr && back.optimizer.clip_norm == 1e-300 && back.ema.decay == 1.0 / 3));
  }
}

TEST_CASE("help lists every key with its default") {
  const std::string help = config::config_reference();
  for (const config::Option& option : config::option_table()) {
    INFO(option.name());
    CHECK(help.find("    " + option.key + " ") != std::string::npos);
    CHECK(!option.help.empty());
    CHECK(help.find(option.expected + " [default " + option.get(config::Config{}) + "]") != std::string::npos);
  }
}

TEST_CASE("resume accepts changes of some keys only") {
  const config::Config base = config::parse_config("model: {name: custom}", "base.yaml");
  int free = 0, fixed = 0;
  for (const config::Option& option : config::option_table()) {
    const std::string value = other_value(option, base);
    if (value.empty()) continue;
    config::Config changed = base;
    config::apply_set(changed, option.name() + "=" + value);
    const std::vector<config::Difference> differences = config::differences_on_resume(base, changed);
    const std::string& s = option.section;
    const bool unread = option.process == "flow" || option.name() == "diffusion.min_snr_gamma";  // with ddpm, none
    const bool may = option.name() == "train.steps" || option.name() == "train.recompute" ||
                     option.name() == "data.loader_threads" || option.name() == "data.queue_batches" ||
                     option.name() == "kernels.fuse" || option.name() == "kernels.tuned" || unread || s == "log" ||
                     s == "checkpoint" || s == "sample" || s == "eval" || s == "memory" || s == "parallel" ||
                     s == "dist";
    INFO(option.name() << " = " << value);
    REQUIRE(differences.size() == (may ? 0 : 1));
    (may ? free : fixed)++;
    if (may) continue;
    CHECK(differences[0].key == option.name());
    CHECK((differences[0].old_value == option.get(base) && differences[0].new_value == option.get(changed)));
  }
  CHECK((free >= 15 && fixed >= 30));
}

TEST_CASE("products and precision of a run are for life, its tuning is not") {
  config::Config old_config, new_config;
  new_config.kernels.tuned = config::TunedFrom::kOff, new_config.kernels.fuse = false;
  CHECK_NOTHROW(config::check_resume(old_config, new_config));
  new_config.kernels.gemm = config::Gemm::kOpenBlas, new_config.train.precision = DType::kBF16;
  CHECK(message_of([&] {
          config::check_resume(old_config, new_config);
        }).find("train.precision: was f32, now bf16; kernels.gemm: was own, now openblas") != std::string::npos);
}

TEST_CASE("a resumed run is held to the keys that it reads") {
  const auto differences = [](const std::string& diffusion, const std::string& before, const std::string& now) {
    const auto with = [&](const std::string& key) {
      return config::parse_config("diffusion: {" + diffusion + key + "}", "a.yaml");
    };
    return config::differences_on_resume(with(before), with(now)).size();
  };
  CHECK(differences("loss_weight: none, ", "min_snr_gamma: 5", "min_snr_gamma: 2") == 0);
  CHECK(differences("loss_weight: min_snr, ", "min_snr_gamma: 5", "min_snr_gamma: 2") == 1);
  CHECK(differences("process: flow, ", "schedule: squaredcos_cap_v2", "schedule: linear") == 0);
  CHECK(differences("process: flow, ", "time_shift: 2", "time_shift: 1") == 1);
}

TEST_CASE("a refused resume lists both values of every key") {
  config::Config old_config, new_config;
  CHECK_NOTHROW(config::check_resume(old_config, new_config));
  new_config.optimizer.lr = 2e-4, new_config.train.global_batch = 64, new_config.train.steps = 5;
  CHECK(message_of([&] { config::check_resume(old_config, new_config); }) ==
        "[resume] the config differs from that of the run: train.global_batch: was 32, now 64; optimizer.lr: was "
        "0.0001, now 0.0002; try the old values, or a new --out folder with train.init_from");
}

TEST_CASE("cross checks of a config") {
  CHECK(validate_error([](config::Config&) {}) == "no error");
  CHECK(validate_error([](config::Config& c) { c.model.input_height = 33; }) ==
        "[model] model.input_size; got 33 x 32, expected multiples of the patch size 2");
  CHECK(validate_error([](config::Config& c) { c.model.input_width = 31; }).find("got 32 x 31") != std::string::npos);
  CHECK(validate_error([](config::Config& c) { c.model.num_heads = 5; }).find("a multiple of model.num_heads = 5") !=
        std::string::npos);
  CHECK(validate_error([](config::Config& c) { c.model.hidden_size = 378; }).find("a multiple of 4") !=
        std::string::npos);
  CHECK(validate_error([](config::Config& c) {
          c.diffusion.variance = diffusion::Variance::kLearnedRange, c.model.learn_sigma = false;
        }).find("[diffusion] variance does not fit the model") == 0);
  CHECK(validate_error([](config::Config& c) {
          c.diffusion.variance = diffusion::Variance::kFixedLarge;
        }).find("[diffusion] variance does not fit the model") == 0);
  CHECK(validate_error([](config::Config& c) {
          c.model.learn_sigma = false, c.diffusion.loss = diffusion::named<diffusion::Objective>("mse");
        }) == "no error");
  const auto sampling = [](auto change) {
    return validate_error([=](config::Config& c) { c.sample.every_steps = 10, change(c.sample); });
  };
  CHECK(sampling([](auto& s) { s.steps = "5000"; }).find("[config] section sample is not usable: [diffusion] ") == 0);
  CHECK(sampling([](auto& s) { s.steps = "5000"; }).find("5000") != std::string::npos);
  CHECK(sampling([](auto& s) { s.cfg_scale = -1; }).find("[diffusion] cfg_scale out of range") != std::string::npos);
  CHECK(validate_error([](config::Config& c) { c.sample.every_steps = 0, c.sample.steps = "5000"; }) == "no error");
  CHECK(validate_error([](config::Config& c) { c.parallel.threads = 2, c.parallel.clusters = 3; }) ==
        "[config] parallel.clusters is above parallel.threads; got 3, expected at most 2");
  CHECK(validate_error([](config::Config& c) {
          c.optimizer.schedule = optim::LrSchedule::kCosine, c.optimizer.min_lr = 1;
        }) == "[config] optimizer.min_lr is above optimizer.lr; got 1, expected at most 0.0001");
}

TEST_CASE("the process settles what a config leaves open") {
  const config::Config paper = config::parse_config("train: {steps: 3}", "a.yaml");
  CHECK((paper.diffusion.process->name == "ddpm" && paper.diffusion.prediction->name == "epsilon"));
  const config::Config flow = config::parse_config("diffusion: {process: flow}", "a.yaml");
  CHECK(flow.diffusion.prediction->name == "velocity");
  const config::Config open = config::parse_config("diffusion: {prediction: auto}\nsample: {sampler: auto}", "a.yaml");
  CHECK((open.diffusion.prediction->name == "epsilon" && open.sample.sampler == nullptr));
  // A run of an earlier version wrote what was the only choice then.
  config::check_resume(config::parse_config("diffusion: {prediction: epsilon}\nsample: {sampler: ddpm}", "state.json"),
                       paper);
  CHECK_THROWS_WITH(config::check_resume(paper, flow), Catch::Contains("diffusion.process: was ddpm, now flow"));
}

TEST_CASE("process, model and sampler that do not go together are refused with what to change") {
  const auto refused = [](std::vector<std::string> sets, const std::string& what, const std::string& hint) {
    INFO(what);
    sets.push_back("sample.every_steps=10");
    const std::string message =
        message_of([&] { config::validate(config::parse_config("model: {num_classes: 8}", "a.yaml", sets)); });
    CHECK_THAT(message, Catch::Contains(what) && Catch::Contains(hint));
  };
  const std::string flow = "diffusion.process=flow", fixed = "model.learn_sigma=false";
  refused({flow}, "process flow has no variance to learn", "try model.learn_sigma: false");
  refused({flow, fixed, "diffusion.prediction=epsilon"}, "prediction does not fit process flow", "velocity or x0");
  refused({flow, fixed, "diffusion.loss=kl"}, "no variational bound", "try diffusion.loss: mse");
  refused({flow, fixed, "sample.sampler=ddpm"}, "sampler does not fit process flow", "euler or heun");
  refused({flow, fixed, "sample.steps=ddim25"}, "process flow has no steps", "try 25");
  refused({"sample.sampler=heun"}, "sampler does not fit process ddpm", "ddpm, ddim or dpm++");
  refused({fixed, "diffusion.variance=fixed_large", "sample.sampler=dpm++"}, "dpm++ adds no noise",
          "got variance fixed_large, expected variance auto; try sampler ddpm or ddim");
  refused({"diffusion.prediction=velocity"}, "prediction does not fit process ddpm", "epsilon, x0 or v");
  const auto accepted = [](const std::vector<std::string>& sets) {
    config::validate(config::parse_config("sample: {every_steps: 10}\nmodel: {num_classes: 8}", "a.yaml", sets));
  };
  for (const char* sampler : {"auto", "euler", "heun"})
    CHECK_NOTHROW(accepted({flow, fixed, std::string("sample.sampler=") + sampler, "diffusion.prediction=x0",
                            "diffusion.time=logit_normal", "diffusion.time_mean=-0.8", "diffusion.time_shift=2"}));
  for (const char* sampler : {"auto", "ddpm", "ddim", "dpm++"})
    CHECK_NOTHROW(accepted({std::string("sample.sampler=") + sampler, "diffusion.prediction=v",
                            "diffusion.loss_weight=min_snr", "diffusion.min_snr_gamma=2"}));
}

TEST_CASE("a key that only another process reads is refused, with how to reset it") {
  const auto message = [](std::vector<std::string> sets) {
    sets.push_back("model.learn_sigma=false");
    return message_of([&] { config::validate(config::parse_config("model: {num_classes: 8}", "a.yaml", sets)); });
  };
  CHECK(message({"diffusion.process=flow", "diffusion.schedule=squaredcos_cap_v2", "diffusion.num_steps=500"}) ==
        "[config] diffusion.process: flow does not read keys of process ddpm; got diffusion.num_steps: 500, "
        "diffusion.schedule: squaredcos_cap_v2, expected the defaults; try --set diffusion.num_steps=1000 --set "
        "diffusion.schedule=linear or --set diffusion.process=ddpm");
  for (const char* set : {"variance=fixed_small", "loss_weight=min_snr", "min_snr_gamma=2"})
    CHECK_THAT(message({"diffusion.process=flow", std::string("diffusion.") + set}),
               Catch::Contains("flow does not read keys of process ddpm"));
  CHECK(
      message({"diffusion.time=logit_normal", "diffusion.time_mean=-0.8"}) ==
      "[config] diffusion.process: ddpm does not read keys of process flow; got diffusion.time: logit_normal, "
      "diffusion.time_mean: -0.8, expected the defaults; try --set diffusion.time=uniform --set diffusion.time_mean=0 "
      "or --set diffusion.process=flow");
  for (const char* set : {"time_deviation=2", "time_shift=3"})
    CHECK_THAT(message({std::string("diffusion.") + set}), Catch::Contains("ddpm does not read keys of process flow"));
  // The defaults may be written down.
  CHECK(message({"diffusion.process=flow", "diffusion.schedule=linear", "diffusion.num_steps=1000"}) == "no error");
}

TEST_CASE("sizes whose bytes no integer holds are refused") {
  const std::vector<std::string> largest = {"model.name=custom",       "model.input_size=4096",  "model.patch_size=1",
                                            "model.hidden_size=65536", "model.depth=1024",       "model.num_heads=1024",
                                            "model.mlp_ratio=64",      "model.in_channels=1024", "model.num_classes=0",
                                            "data.queue_batches=1024"};
  const auto with_batch = [&](const std::string& batch) {
    std::vector<std::string> sets = largest;
    sets.push_back("train.global_batch=" + batch);
    return message_of([&] { validate(config::parse_config("train:", "a.yaml", sets)); });
  };
  CHECK(with_batch("4194304") ==
        "[config] model and train.global_batch are too large for any machine; got about 2^83 bytes for a batch, "
        "expected at most 2^60 bytes");
  CHECK(with_batch("1").find("bytes for a batch") != std::string::npos);
  for (const char* set : {"train.global_batch=4194305", "model.input_size=4097", "model.hidden_size=65537",
                          "model.depth=1025", "model.mlp_ratio=65", "model.in_channels=1025", "optimizer.eps=0"})
    CHECK(set_error(set).find(": bad value") != std::string::npos);
  CHECK(validate_error(
            [](config::Config& c) {  // the largest model of the names with a batch beyond all that was published
              c.model.name = "DiT-XL/2", nn::apply_name(c.model);
              c.model.input_height = c.model.input_width = 64, c.train.global_batch = 1 << 20;
            }) == "no error");
}

TEST_CASE("guided samples need a model with labels and their absence") {
  const auto guided = [](int64_t classes, double dropout, int64_t every, double scale) {
    return validate_error([=](config::Config& c) {
      c.model.num_classes = classes, c.model.class_dropout = dropout;
      c.sample.every_steps = every, c.sample.cfg_scale = scale;
    });
  };
  CHECK(guided(0, 0.1, 10, 4) ==
        "[config] sample.cfg_scale needs a model that knows labels and their absence; got 4 with model.num_classes 0 "
        "and model.class_dropout 0.1, expected classes and a class_dropout above 0; try sample.cfg_scale: 1");
  CHECK(guided(8, 0, 10, 4).find("sample.cfg_scale needs") != std::string::npos);
  CHECK(guided(8, 0.1, 10, 4) == "no error");
  CHECK(guided(0, 0.1, 10, 1) == "no error");
  CHECK(guided(0, 0.1, 0, 4) == "no error");
  const std::string for_distances = validate_error([](config::Config& c) {
    c.model.num_classes = 0, c.sample.every_steps = 0, c.sample.cfg_scale = 4, c.eval.fid_every_steps = 5;
  });
  CHECK(for_distances.find("sample.cfg_scale needs") != std::string::npos);
}

TEST_CASE("the drawn data fits models of any channels, and of its classes") {
  for (const int64_t channels : {1, 4, 13})
    CHECK(validate_error([=](config::Config& c) { c.model.in_channels = channels; }) == "no error");
  CHECK(validate_error([](config::Config& c) { c.model.num_classes = 10; }) ==
        "[config] data.kind: shapes has 8 classes; got model.num_classes 10, expected model.num_classes: 8, or 0 for "
        "none");
  CHECK(validate_error([](config::Config& c) { c.model.num_classes = 0; }) == "no error");
  CHECK_NOTHROW(config::validate_without_data(config::Config{}));
}

TEST_CASE("an unset data path tells the line to set") {
  CHECK(validate_error([](config::Config& c) { c.data.kind = dataset::find_kind("folder"); }) ==
        "[config] data.path is not set, and data.kind: folder reads from it; expected a folder of images, or one "
        "with a sub-folder of images per class; try --set data.path=DIR, or in section data of the config the line "
        "`path: DIR`");
  CHECK(validate_error([](config::Config& c) {
          c.data.kind = dataset::find_kind("latents");
        }).find("safetensors shards") != std::string::npos);
  CHECK(validate_error([](config::Config& c) { c.data.kind = dataset::find_kind("latents"), c.data.path = "/x"; }) ==
        "no error");
}

TEST_CASE("config files are found, read and capped") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    put_file(folder / name, text);
    return folder / name;
  };
  const std::string path = write("good.yaml", "train: {steps: 41}\n");
  CHECK(config::load_config(path, {"train.seed=5"}).train.steps == 41);
  CHECK(config::load_config(path, {"train.seed=5"}).train.seed == 5);
  const std::string bad = write("bad.yaml", "train:\n  stepss: 41\n");
  CHECK(message_of([&] { config::load_config(bad); }).find("[config] " + bad + ":2: unknown key train.stepss") == 0);
  const std::string big = write("big.yaml", std::string((1 << 20) + 1, '#'));
  CHECK(message_of([&] {
          config::load_config(big);
        }).find("[" + big + "] the file is too large; expected at most 1048576") != std::string::npos);
  CHECK(message_of([&] { config::load_config(folder.path()); }).find("is a folder") != std::string::npos);
  const std::string missing = message_of([] { config::load_config("no_such.yaml"); });
  CHECK(missing.find("[config] no such config file; got no_such.yaml, expected one of: no_such.yaml, ") == 0);
  CHECK(missing.find("share/ditrain/configs/no_such.yaml") != std::string::npos);
  CHECK(message_of([] { config::load_config(""); }).find("no config file given") != std::string::npos);
}

TEST_CASE("a config that does not exist: the one with the nearest name is proposed") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "configs");
  for (const char* name : {"quickstart.yaml", "other.yml", "configs/dit_b2.yaml", "notes.txt"})
    std::ofstream(folder / name) << "train: {steps: 1}\n";
  const auto proposal = [](const std::string& path) {
    const std::string message = message_of([&] { config::load_config(path); });
    CHECK(message.starts_with("[config] no such config file; got " + path + ", expected one of: " + path));
    const size_t at = message.find("; try ");
    return at == std::string::npos ? "" : message.substr(at + 6);
  };
  CHECK(proposal(folder / "quickstrat.yaml") == "--config " + folder / "quickstart.yaml");
  CHECK(proposal(folder / "quickstart") == "--config " + folder / "quickstart.yaml");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  CHECK(proposal("quickstrat.yaml") == "--config quickstart.yaml");
  CHECK(proposal("othr.yaml") == "--config other.yml");
  CHECK(proposal("elsewhere/othr.yaml") == "--config other.yml");
  CHECK(proposal("dit_b.yaml") == "--config configs/dit_b2.yaml");
  CHECK(proposal("notes.md") == "");
  CHECK(proposal("somethingelse.yaml") == "");
  fs::current_path(before);
}

TEST_CASE("tabs in YAML are named as such") {
  CHECK(parse_error("train:\n\tsteps: 5\n") == "[config] a.yaml:2: tabs are not allowed in YAML; use spaces");
  CHECK(parse_error("train:\n  steps: 5\n  \tseed: 3\n") ==
        "[config] a.yaml:3: tabs are not allowed in YAML; use spaces");
  CHECK(parse_error("train:\n  steps:\t5\n") == "no error");
  CHECK(parse_error("optimizer:\n  betas: [0.9,\n\t0.95]\n") == "no error");
  CHECK(parse_error("train: [\n").starts_with("[config] a.yaml:2: not valid YAML: "));
}

TEST_CASE("all configs that come along parse, and validate once their path is set") {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(configs_dir())) {
    if (entry.path().extension() != ".yaml") continue;
    INFO(entry.path().string());
    const config::Config config = config::load_config(entry.path().string());
    ++count;
    if (config.data.kind->name == "shapes") {
      CHECK_NOTHROW(config::validate(config));
      continue;
    }
    CHECK(message_of([&] { config::validate(config); }).find("[config] data.path is not set") == 0);
    CHECK_NOTHROW(validate(config::load_config(entry.path().string(), {"data.path=/some/where"})));
  }
  CHECK(count >= 8);
}

TEST_CASE("the configs of the paper hold its settings") {
  for (const char* name : {"S", "B", "L", "XL"}) {
    std::string file = std::string("dit_") + name + "2.yaml";
    std::transform(file.begin(), file.end(), file.begin(), [](unsigned char c) { return std::tolower(c); });
    const config::Config c = config::load_config(configs_dir() + file);
    INFO(file);
    CHECK(c.model.name == std::string("DiT-") + name + "/2");
    CHECK((c.model.tokens() == 256 && c.model.in_channels == 4 && c.model.num_classes == 1000));
    CHECK((c.model.learn_sigma && c.diffusion.loss->name == "mse_vb" && c.data.kind->name == "latents"));
    CHECK((c.train.global_batch == 112 && c.optimizer.lr == 1e-4 && c.ema.decay == 0.9999));
  }
}
