// Keys that are fine by themselves and do not go together.
#include <catch2/catch.hpp>

#include "config_support.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"

using namespace ditrain;
using namespace ditrain::test;

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
  CHECK(validate_error([](config::Config& c) {
          c.train.routing = {{0.5, 2, 12}};
        }) ==
        "[train.routing] the route does not lie in the model; got {ratio: 0.5, from: 2, to: 12}, expected blocks from "
        "0 to 11, `from` not behind `to`; try from: 2, to: 8");
  CHECK(validate_error([](config::Config& c) {
          c.train.layer_sync = nn::LayerSync{};
        }).find("[train.layer_sync] no two blocks of the model; got from: 0, to: 0") == 0);
  CHECK(validate_error([](config::Config& c) { c.parallel.threads = 2, c.parallel.clusters = 3; }) ==
        "[config] parallel.clusters is above parallel.threads; got 3, expected at most 2");
  CHECK(validate_error([](config::Config& c) {
          c.optimizer.schedule = optim::LrSchedule::kCosine, c.optimizer.min_lr = 1;
        }) == "[config] optimizer.min_lr is above optimizer.lr; got 1, expected at most 0.0001");
  CHECK(validate_error([](config::Config& c) {
          c.optimizer.schedule = optim::LrSchedule::kWsd, c.optimizer.warmup_steps = 7, c.train.steps = 10;
        }).find("the learning rate would fall before its warm-up is over") != std::string::npos);
}

TEST_CASE("Muon is refused where ranks have parts of matrices, and without learning rates") {
  const auto refused = [](std::vector<std::string> sets, const std::string& what, const std::string& hint) {
    INFO(what);
    sets.push_back("optimizer.kind=muon");
    const std::string message =
        message_of([&] { config::validate(config::parse_config("model: {num_classes: 8}", "a.yaml", sets)); });
    CHECK_THAT(message, Catch::Contains(what) && Catch::Contains(hint));
  };
  refused({"parallel.strategy=dp_tp"}, "optimizer.kind: muon updates whole matrices", "parallel.strategy: cftp or dp");
  refused({"optimizer.lr=0"}, "optimizer.muon_lr has the schedule of optimizer.lr", "optimizer.lr above 0");
  refused({"optimizer.muon_lr=0"}, "optimizer.muon_lr: bad value; got '0'", "expected a number");
  refused({"optimizer.muon_lr=-1"}, "optimizer.muon_lr: bad value; got '-1'", "expected a number");
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

TEST_CASE("sizes of memory tiers that do not go together") {
  const auto refused = [](const std::string& keys, const std::string& what, const std::string& got) {
    const std::string text = "model: {num_classes: 8}\nmemory: {fast_gib: 1, " + keys + "}";
    CHECK_THAT(message_of([&] { config::validate(config::parse_config(text, "a.yaml")); }),
               Catch::Contains(what) && Catch::Contains(got));
  };
  refused("automem: planned, disk_gib: auto", "memory.disk_gib: auto takes what memory.bulk_gib leaves",
          "a number of memory.bulk_gib");
  const std::string slower = "automem: paper, disk_gib: 1, simulate_bulk: {gb_s: 1}";
  refused(slower + ", bulk_gib: 0", "memory.simulate_bulk is a slower bulk tier", "memory.bulk_gib: 0");
  refused(slower, "memory.simulate_bulk is a slower bulk tier",
          "memory.bulk_gib: auto, which is 0 beside memory.disk_gib");
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
  CHECK(guided(8, 0, 10, 4) ==
        "[config] sample.cfg_scale needs a model that knows labels and their absence; got 4 with model.class_dropout "
        "0, expected a class_dropout above 0; try sample.cfg_scale: 1");
  CHECK(guided(0, 0.1, 10, 4) == "no error");  // off by itself
  config::Config unlabelled = labelled_config();
  unlabelled.model.num_classes = 0, unlabelled.sample.cfg_scale = 4;
  CHECK(config::sampler_of(unlabelled).cfg_scale == 1);
  CHECK(guided(8, 0.1, 10, 4) == "no error");
  CHECK(guided(0, 0.1, 10, 1) == "no error");
  CHECK(guided(0, 0.1, 0, 4) == "no error");
  const std::string for_distances = validate_error([](config::Config& c) {
    c.model.class_dropout = 0, c.sample.every_steps = 0, c.sample.cfg_scale = 4, c.eval.fid_every_steps = 5;
  });
  CHECK(for_distances.find("sample.cfg_scale needs") != std::string::npos);
}

TEST_CASE("sample.guide: routed needs routes, and labels are not needed for it") {
  const auto error = [](bool routes, double cfg_scale) {
    return validate_error([=](config::Config& c) {
      c.sample.every_steps = 10, c.sample.guide = "routed", c.sample.cfg_scale = cfg_scale, c.model.class_dropout = 0;
      if (routes) c.train.routing = {{0.5, 2, 8}};
      CHECK(config::guide_routes(c.sample.guide, c).size() == (routes ? 1 : 0));
    });
  };
  CHECK(error(true, 2) == "no error");
  CHECK(error(true, 1).find("sample.guide guides by sample.cfg_scale, which is off") != std::string::npos);
  CHECK(error(false, 2).find("sample.guide: routed guides away from the model with the routes of its training") !=
        std::string::npos);
  config::Config other;
  other.train.routing = {{0.5, 2, 8}};
  CHECK(config::guide_routes("runs/a", other).empty());
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

TEST_CASE("a path that the kind of data would not read is refused") {
  const std::string error = validate_error([](config::Config& c) { c.data.path = "photos"; });
  CHECK(error.find("draws its images and does not read data.path") != std::string::npos);
  CHECK(error.find("--set data.kind=folder") != std::string::npos);
}

TEST_CASE("the defaults go together: a config with nothing but a number of steps is a run") {
  const config::Config config = config::parse_config("train: {steps: 10}", "a.yaml");
  CHECK(message_of([&] { config::validate(config); }) == "no error");
  CHECK(config.model.num_classes == nn::kClassesOfData);
  // With pictures, validation and distances too.
  for (const char* set : {"sample.every_steps=5", "eval.every_steps=5", "eval.fid_every_steps=5"})
    CHECK(message_of([&] { config::validate(config::parse_config("train: {steps: 10}", "a.yaml", {set})); }) ==
          "no error");
}

TEST_CASE("a model that is narrower than the noise of a patch is warned of if it has to predict noise") {
  const auto warnings = [](const std::string& model, const std::string& diffusion) {
    return config::warnings(
        config::parse_config("ema: {warmup: true}\ndata: {kind: tiles, path: a}\nmodel: {name: custom, "
                             "hidden_size: 128, depth: 2, num_heads: 4, input_size: 32, " +
                                 model + "}\ndiffusion: {" + diffusion + "}",
                             "a.yaml"));
  };
  const std::string bands = "in_channels: 13, patch_size: 4", flow = "process: flow, prediction: ";
  REQUIRE(warnings(bands, "process: ddpm").size() == 1);
  CHECK(
      warnings(bands, "process: ddpm")
          .front()
          .starts_with("model.hidden_size: 128 is less than the 208 values of a patch (4 x 4 pixels of 13 channels)"));
  CHECK(warnings(bands, flow + "velocity").size() == 1);
  CHECK(warnings(bands, flow + "x0").empty());
  CHECK(warnings("in_channels: 13, patch_size: 2", "process: ddpm").empty());
  const std::string narrow = "in_channels: 4, patch_size: 4, patch_bottleneck: 16";
  REQUIRE(warnings(narrow, flow + "velocity").size() == 1);
  CHECK(
      warnings(narrow, flow + "velocity").front().starts_with("model.patch_bottleneck: 16 is less than the 64 values"));
  CHECK(warnings(narrow, flow + "x0").empty());
}

TEST_CASE("keys of data that the kind of data does not read are warned of") {
  const auto warnings = [](const std::string& data) {
    return config::warnings(config::parse_config("ema: {warmup: true}\ndata: {path: a, " + data + "}", "a.yaml"));
  };
  using Lines = std::vector<std::string>;
  CHECK(warnings("kind: folder, bands: [B4, B3, B2]") == Lines{"data.bands has no effect with data.kind: folder"});
  CHECK(warnings("kind: folder, latent_scale: 3") == Lines{"data.latent_scale has no effect with data.kind: folder"});
  CHECK(warnings("kind: tiles, exif_orientation: true").size() == 1);
  CHECK(warnings("kind: folder, num_images: 7") == Lines{"data.num_images has no effect with data.kind: folder"});
  CHECK(warnings("kind: folder, number_scale: [2]").size() == 1);
  CHECK(warnings("kind: folder, condition_low: [2]").size() == 1);
  CHECK(warnings("kind: shapes}\noptimizer: {muon_lr: 0.02") ==
        Lines{"optimizer.muon_lr has no effect with optimizer.kind: adamw"});
  CHECK(warnings("kind: shapes}\noptimizer: {min_lr: 1e-5") ==
        Lines{"optimizer.min_lr has no effect with optimizer.schedule: constant"});
  CHECK(warnings("kind: shapes}\noptimizer: {schedule: cosine, min_lr: 1e-5, decay_share: 0.2") ==
        Lines{"optimizer.decay_share has no effect with optimizer.schedule: cosine"});
  CHECK(warnings("kind: shapes}\noptimizer: {kind: muon, muon_lr: 0.02, schedule: wsd, decay_share: 0.2").empty());
  CHECK(warnings("kind: tiles, bands: [B4], scaling: deviation").empty());
  CHECK(warnings("kind: latents, latent_scale: 3").empty());
}

TEST_CASE("an EMA that still is its first weights at the end is warned of, with what to set") {
  const auto warnings = [](const std::vector<std::string>& sets) {
    return config::warnings(config::parse_config("ema: {decay: 0.9999}", "a.yaml", sets));
  };
  const std::string ema = "step(s) the EMA, from which samples are drawn, will still be ";
  using Lines = std::vector<std::string>;
  CHECK(warnings({"train.steps=1000"}) ==
        Lines{"after 1000 " + ema + "90 % the initial random weights; set ema.warmup: true, or ema.decay: 0.99"});
  CHECK(warnings({"train.steps=1000", "ema.decay=0.99"}).empty());
  CHECK(warnings({"train.steps=1000", "ema.warmup=true"}).empty());
  CHECK(warnings({"train.steps=1", "ema.warmup=true"}).empty());
  CHECK(warnings({"train.steps=23000"}).size() == 1);  // 10.03 %
  CHECK(warnings({"train.steps=23100"}).empty());
  CHECK(warnings({"train.steps=400000"}).empty());
  // Fine-tuning: they are no random weights, but what is trained hardly shows.
  CHECK(warnings({"train.steps=500", "train.init_from=a.pt"}) ==
        Lines{"after 500 " + ema + "95 % the weights of train.init_from; set ema.warmup: true, or ema.decay: 0.98"});
  CHECK_THAT(warnings({"train.steps=4"}).at(0), Catch::Contains("or ema.decay: 0"));
}

TEST_CASE("a warm-up that is longer than the run is warned of") {
  const auto warnings = [](const std::vector<std::string>& sets) {
    return config::warnings(config::parse_config("ema: {warmup: true}\ntrain: {steps: 20}", "a.yaml", sets));
  };
  CHECK(warnings({"optimizer.warmup_steps=20"}).empty());
  const std::vector<std::string> lines = warnings({"optimizer.warmup_steps=80", "optimizer.lr=1e-3"});
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::Contains("the learning rate will rise to 0.00025 alone, not to optimizer.lr: 0.001; "
                                       "set optimizer.warmup_steps: 2"));
}

TEST_CASE("the number of classes is that of the data, unless a config says a number") {
  const config::Config c = config::parse_config("train: {steps: 3}\n", "a.yaml", {"model.in_channels=3"});
  CHECK(c.model.num_classes == nn::kClassesOfData);
  CHECK_NOTHROW(config::validate(c));
  CHECK_THAT(config::to_yaml(c), Catch::Contains("num_classes: auto"));
  CHECK(config::parse_config(config::to_yaml(c), "b.yaml").model.num_classes == nn::kClassesOfData);
  CHECK(config::parse_config("model: {num_classes: 0}\n", "a.yaml").model.num_classes == 0);
  CHECK(config::parse_config("model: {num_classes: 7}\n", "a.yaml", {"model.num_classes=auto"}).model.num_classes ==
        nn::kClassesOfData);
  CHECK_THAT(parse_error("model: {num_classes: -1}\n"), Catch::Contains("auto or an integer from 0 to"));
  CHECK_THROWS_WITH(nn::validate(c.model), Catch::Contains("got auto, which needs the data"));
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
