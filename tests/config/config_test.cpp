// Configs: what is read, and that text made from a config gives it back.
#include "ditrain/config/config.hpp"

#include <catch2/catch.hpp>

#include "config_support.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("a config file fills the tree") {
  const config::Config c = config::parse_config(R"(
model: {name: DiT-B/4, input_size: [16, 48], in_channels: 13, num_classes: 0, learn_sigma: false}
diffusion: {loss: mse, schedule: squaredcos_cap_v2}
train:
  steps: 12   # a comment
  global_batch: 6
optimizer: {lr: 3e-4, betas: [0.8, 0.95]}
parallel: {threads: 3, clusters: auto}
sample: {steps: 25, cfg_channels: 3}
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
  CHECK((c.sample.steps == "25" && c.sample.cfg_channels == config::GuidedChannels::kThree));
  CHECK(config::Config().sample.cfg_channels == config::GuidedChannels::kAll);
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
                           "train.branch_from",
                           "data.kind",
                           "data.path",
                           "data.on_bad_file",
                           "optimizer.lr",
                           "optimizer.betas",
                           "optimizer.weight_decay",
                           "optimizer.clip_norm",
                           "optimizer.schedule",
                           "optimizer.warmup_steps",
                           "optimizer.decay_share",
                           "ema.decay",
                           "ema.warmup",
                           "sample.cfg_interval",
                           "sample.guide",
                           "checkpoint.every_steps",
                           "checkpoint.every_minutes",
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
                           "dist.outer",
                           "sample.every_steps",
                           "eval.every_steps",
                           "log.every_steps",
                           "log.every_seconds"}) {
    const std::string text = name;
    const size_t dot = text.find('.');
    CHECK(config::find_option(text.substr(0, dot), text.substr(dot + 1), "").name() == text);
  }
  CHECK(config::option_sections() == std::vector<std::string>{"model", "diffusion", "data", "train", "optimizer", "ema",
                                                              "parallel", "memory", "kernels", "dist", "checkpoint",
                                                              "log", "sample", "eval"});
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

TEST_CASE("a list of --set may have blanks around its items and inside of them") {
  config::Config config;
  config::apply_set(config, "data.bands=[ near infrared,B4 , B3]");
  CHECK(config.data.bands == std::vector<std::string>{"near infrared", "B4", "B3"});
  config::apply_set(config, "data.bands=[\"a, b\", 'c: #d', \"\\\"\"]");
  CHECK(config.data.bands == std::vector<std::string>{"a, b", "c: #d", "\""});
  CHECK_THAT(set_error("data.bands=[a, \"b]"), Catch::Contains("[config] --set: data.bands: bad value; got '[a, \"b]', "
                                                               "which is not YAML: ") &&
                                                   Catch::Contains("expected all, or a list of names"));
  for (const char* rest : {"[a] b]", "[a], [b]", "[a]\n---\n[b]", "[a] # b]"})
    CHECK_THAT(set_error(std::string("data.bands=") + rest),
               Catch::Contains("[config] --set: data.bands: bad value; "));
  CHECK_THAT(set_error("data.bands=[a, [b]]"), Catch::Contains("got a list of lists"));
}

TEST_CASE("the process settles what a config leaves open") {
  const auto prediction = [](const config::Config& c) { return diffusion::prediction_of(c.diffusion).name; };
  config::Config paper = config::parse_config("train: {steps: 3}", "a.yaml");
  CHECK((paper.diffusion.process->name == "ddpm" && prediction(paper) == "epsilon"));
  const config::Config flow = config::parse_config("diffusion: {process: flow}", "a.yaml");
  CHECK(prediction(flow) == "velocity");
  const config::Config open = config::parse_config("diffusion: {prediction: auto}\nsample: {sampler: auto}", "a.yaml");
  CHECK((prediction(open) == "epsilon" && open.sample.sampler == nullptr));
  CHECK_THAT(config::to_yaml(open), Catch::Contains("prediction: auto "));
  // A run of an earlier version wrote what was the only choice then.
  paper.diffusion.prediction = &diffusion::prediction_of(paper.diffusion);
  config::check_resume(config::parse_config("diffusion: {prediction: epsilon}\nsample: {sampler: ddpm}", "state.json"),
                       paper);
  CHECK_THROWS_WITH(config::check_resume(paper, flow), Catch::Contains("diffusion.process: was ddpm, now flow"));
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
  for (const std::string text : {"null", "~",    "- a",   "a: b",     "#",
                                 "'",    "\"\\", " lead", "*x",       "&x",
                                 "true", "",     "50",    "10,10,20", "\xC3\xA9t\xC3\xA9",
                                 "a #b", "a, b", "[a",    "b]",       "{c}",
                                 "it's", "a:",   "?",     "trail ",   "\xF0\x9F\x9B\xB0 a: \"b\""}) {
    config.data.path = text;
    config.data.bands = {text, "B4", text};
    const config::Config back = config::parse_config(config::to_yaml(config), "dump.yaml");
    INFO(text);
    CHECK(back.data.path == text);
    CHECK(back.data.bands == config.data.bands);
    CHECK(
        (back.optimizer.lr == config.optimizer.lr && back.optimizer.clip_norm == 1e-300 && back.ema.decay == 1.0 / 3));
  }
}

TEST_CASE("kernels.tuned is a word or a file, and never empty") {
  const auto tuned = [](const std::string& text) {
    return config::parse_config("kernels: {tuned: " + text + "}", "a.yaml").kernels;
  };
  CHECK((tuned("auto").tuned == config::TunedFrom::kAuto && tuned("off").tuned == config::TunedFrom::kOff));
  const config::KernelsConfig file = tuned("\"some where/t.json\"");
  CHECK((file.tuned == config::TunedFrom::kFile && file.tuning_file == "some where/t.json"));
  CHECK(set_error("kernels.tuned=") ==
        "[config] --set: kernels.tuned: bad value; got '', expected auto or off, or a path");
  config::Config config;
  config::apply_set(config, "kernels.tuned=/t.json");
  CHECK(config::parse_config(config::to_yaml(config), "b.yaml").kernels.tuning_file == "/t.json");
  config::apply_set(config, "kernels.tuned=off");
  CHECK(config.kernels.tuning_file.empty());
}

TEST_CASE("train.routing is off or a list of maps, each with all of its numbers") {
  CHECK(config::Config{}.train.routing.empty());
  const auto routes = [](const std::string& value) {
    return config::parse_config("train: {routing: " + value + "}", "a.yaml").train.routing;
  };
  CHECK(routes("off").empty());
  const nn::Routes two = routes("[{ratio: 0.5, from: 0, to: 3}, {to: 9, from: 5, ratio: 0.25}]");
  REQUIRE(two.size() == 2);
  CHECK((two[0].ratio == 0.5 && two[0].from == 0 && two[0].to == 3));
  CHECK((two[1].ratio == 0.25 && two[1].from == 5 && two[1].to == 9));
  CHECK(
      config::parse_config("train:\n  routing:\n    - {ratio: 0.5, from: 2, to: 8}\n", "a.yaml").train.routing.size() ==
      1);

  config::Config config;
  config::apply_set(config, "train.routing=[{ratio: 0.3, from: 2, to: 8}, {ratio: 0.5, from: 9, to: 9}]");
  REQUIRE(config.train.routing.size() == 2);
  const config::Config again = config::parse_config(config::to_yaml(config), "a.yaml");
  REQUIRE(again.train.routing.size() == 2);
  CHECK((again.train.routing[0].ratio == 0.3 && again.train.routing[1].from == 9));
  config::Config off = config;
  config::apply_set(off, "train.routing=off");
  CHECK(off.train.routing.empty());
  const auto differences = config::differences_on_resume(off, config);
  REQUIRE(differences.size() == 1);
  CHECK(differences[0].old_value == "off");
  CHECK(differences[0].new_value == "[{ratio: 0.3, from: 2, to: 8}, {ratio: 0.5, from: 9, to: 9}]");

  for (const char* value :
       {"on", "[]", "{ratio: 0.5, from: 1, to: 2}", "[0.5, 1, 2]", "[{ratio: 0.5, from: 1}]", "[{share: 0.5}]",
        "[{ratio: 0.5, from: 1, to: 2, to: 3}]", "[{ratio: 0.5, from: 1, to: 2}, off]", "[{ratio: {a: 1}}]", "[{}]"}) {
    INFO(value);
    CHECK(parse_error("train: {routing: " + std::string(value) + "}").find("train.routing: bad value") !=
          std::string::npos);
  }
  CHECK(set_error("train.routing=[{ratio: 0.5, from: -1, to: 2}]").find("train.routing.from: bad value; got '-1'") !=
        std::string::npos);
  CHECK(set_error("train.routing=[{ratio: half, from: 1, to: 2}]").find("train.routing.ratio: bad value") !=
        std::string::npos);
  CHECK(set_error("train.routing=[{ratio: 0.5, from: 1, to: 2}, {ratio: 1}]").find("got [ratio: 1]") !=
        std::string::npos);
}

TEST_CASE("train.layer_sync is off or a map") {
  CHECK_FALSE(config::Config{}.train.layer_sync);
  config::Config config;
  config::apply_set(config, "train.layer_sync={from: 2, to: 6}");
  REQUIRE(config.train.layer_sync);
  CHECK((config.train.layer_sync->weight == 0.2 && config.train.layer_sync->from == 2 &&
         config.train.layer_sync->to == 6));
  const config::Config again = config::parse_config(config::to_yaml(config), "a.yaml");
  REQUIRE(again.train.layer_sync);
  CHECK(again.train.layer_sync->to == 6);
  CHECK(config::differences_on_resume({}, config).size() == 1);
  CHECK(set_error("train.layer_sync={weight: 0, from: 1, to: 2}").find("train.layer_sync.weight: bad value") !=
        std::string::npos);
}
