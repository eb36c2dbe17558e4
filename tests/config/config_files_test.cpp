// Config files: where they are found, and what those say that come along.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "config_support.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::test;
namespace fs = std::filesystem;

namespace {

std::string configs_dir() { return std::string(DITRAIN_GOLDEN_DIR) + "/../../configs/"; }

}  // namespace

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
    const std::string looked = fs::path(path).is_absolute() ? "; try " : ", expected one of: " + path;
    CHECK(message.starts_with("[config] no such config file; got " + path + looked));
    const size_t at = message.find("; try ");
    return at == std::string::npos ? "" : message.substr(at + 6);
  };
  CHECK(proposal(folder / "quickstrat.yaml") == "--config " + folder / "quickstart.yaml");
  CHECK(proposal(folder / "quickstart") == "--config " + folder / "quickstart.yaml");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  CHECK(proposal("quickstrat.yaml") == "--config quickstart.yaml");
  CHECK(config::load_config("dit_b2.yaml").train.steps == 1);  // as from the root of a clone
  CHECK(proposal("othr.yaml") == "--config other.yml");
  CHECK(proposal("elsewhere/othr.yaml") == "--config other.yml");
  CHECK(proposal("dit_b.yaml") == "--config dit_b2.yaml");
  CHECK(proposal("notes.md") == "");
  CHECK(proposal("somethingelse.yaml") == "");
  fs::current_path(before);
}

TEST_CASE("all configs that come along parse, and validate once their path is set") {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(configs_dir())) {
    if (entry.path().extension() != ".yaml") continue;
    INFO(entry.path().string());
    const config::Config config = config::load_config(entry.path().string());
    ++count;
    const bool of_paper = entry.path().filename().string().starts_with("dit_");  // guided as the original DiT
    CHECK(config.sample.cfg_channels == (of_paper ? config::GuidedChannels::kThree : config::GuidedChannels::kAll));
    if (config.data.kind->name == "shapes") {
      CHECK_NOTHROW(config::validate(config));
      continue;
    }
    CHECK(message_of([&] { config::validate(config); }).find("[config] data.path is not set") == 0);
    CHECK_NOTHROW(validate(config::load_config(entry.path().string(), {"data.path=/some/where"})));
  }
  CHECK(count >= 8);
}

TEST_CASE("configs that come along give no warning: their EMA forgets the initial weights in their own steps") {
  for (const auto& entry : fs::directory_iterator(configs_dir())) {
    if (entry.path().extension() != ".yaml") continue;
    INFO(entry.path().string());
    CHECK(config::warnings(config::load_config(entry.path().string())).empty());
  }
}

TEST_CASE("the configs of the paper hold its settings") {
  for (const char* name : {"S", "B", "L", "XL"}) {
    std::string file = std::string("dit_") + name + "2.yaml";
    std::transform(file.begin(), file.end(), file.begin(), [](unsigned char c) { return std::tolower(c); });
    const config::Config c = config::load_config(configs_dir() + file);
    INFO(file);
    CHECK(c.model.name == std::string("DiT-") + name + "/2");
    CHECK((c.model.tokens() == 256 && c.model.in_channels == 4 && c.model.num_classes == nn::kClassesOfData));
    CHECK((c.model.learn_sigma && c.diffusion.loss->name == "mse_vb" && c.data.kind->name == "latents"));
    CHECK((c.train.global_batch == 112 && c.optimizer.lr == 1e-4 && c.ema.decay == 0.9999));
    CHECK(c.ema.warmup);  // departs from the reference, see the comment there
  }
}

TEST_CASE("recipes that come along lie over the config of small pictures, and change nothing else") {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(configs_dir() + "recipes")) {
    INFO(entry.path().string());
    const config::Config base = config::load_config(configs_dir() + "cifar10.yaml", {"data.path=/some/where"});
    const config::Config c =
        config::load_config(configs_dir() + "cifar10.yaml", {"data.path=/some/where"}, {entry.path().string()});
    CHECK_NOTHROW(config::validate(c));
    CHECK(config::warnings(c).empty());
    CHECK((c.train.steps == base.train.steps && c.model.hidden_size == base.model.hidden_size));
    ++count;
  }
  CHECK(count >= 6);
}

TEST_CASE("recipes that name a process lie over the paper's configs, which have another one") {
  for (const char* config : {"dit_s2", "sentinel2"})
    for (const char* recipe : {"jit", "published_dit", "published_tuned", "muon", "decay"}) {
      INFO(config << " with " << recipe);
      CHECK_NOTHROW(config::validate(config::load_config(configs_dir() + config + ".yaml", {"data.path=/some/where"},
                                                         {configs_dir() + "recipes/" + recipe + ".yaml"})));
    }
  CHECK_NOTHROW(config::validate(config::load_config(configs_dir() + "dit_s2.yaml",
                                                     {"data.path=/some/where", "model.name=DiT-S/4"},
                                                     {configs_dir() + "recipes/small_pixels.yaml"})));
}

TEST_CASE("the published recipes lie over every config of pixels") {
  for (const char* config : {"cifar10", "caltech101", "photos", "quickstart", "sentinel2_small", "gaofen2_small"})
    for (const char* recipe : {"published_dit", "published_tuned"}) {
      INFO(config << " with " << recipe);
      const std::string path = config == std::string("quickstart") ? "data.path=" : "data.path=/some/where";
      const config::Config c = config::load_config(configs_dir() + config + ".yaml", {path},
                                                   {configs_dir() + "recipes/" + recipe + ".yaml"});
      CHECK_NOTHROW(config::validate(c));
      CHECK(diffusion::prediction_of(c.diffusion).name == std::string("epsilon"));
      const bool tuned = recipe == std::string("published_tuned");
      CHECK(c.optimizer.beta2 == (tuned ? 0.95 : 0.999));
      CHECK(c.optimizer.schedule == (tuned ? optim::LrSchedule::kCosine : optim::LrSchedule::kConstant));
    }
}

TEST_CASE("a file that is laid over a config replaces its keys, and --set replaces those") {
  const TemporaryFolder folder;
  put_file(folder / "base.yaml", "train: {steps: 41, seed: 1}\nmodel: {name: DiT-B/4}\n");
  put_file(folder / "a.yaml", "train: {steps: 42}\nmodel: {name: DiT-S/8}\n");
  put_file(folder / "b.yaml", "train: {steps: 43, global_batch: 2}\n");
  const auto load = [&](const std::vector<std::string>& sets) {
    return config::load_config(folder / "base.yaml", sets, {folder / "a.yaml", folder / "b.yaml"});
  };
  const config::Config c = load({"train.global_batch=4"});
  CHECK((c.train.steps == 43 && c.train.seed == 1 && c.train.global_batch == 4));
  CHECK((c.model.hidden_size == 384 && c.model.patch_size == 8));
  put_file(folder / "b.yaml", "train: {stepss: 43}\n");
  CHECK(message_of([&] { load({}); }).find("[config] " + (folder / "b.yaml") + ":1: unknown key train.stepss") == 0);
}
