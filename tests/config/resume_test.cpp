// What a resumed run may change of its config.
#include <catch2/catch.hpp>

#include "config_support.hpp"
#include "ditrain/config/differences.hpp"

using namespace ditrain;
using namespace ditrain::test;

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
    const bool unread = option.process == "flow" || option.name() == "diffusion.min_snr_gamma" ||
                        option.name() == "data.path";  // with ddpm, none and drawn images
    const bool may = option.name() == "train.steps" || option.name() == "train.recompute" ||
                     option.name() == "train.micro_batch" || option.name() == "data.loader_threads" ||
                     option.name() == "data.queue_batches" || option.name() == "data.number_scale" ||
                     option.name() == "data.number_offset" || option.name() == "data.on_bad_file" ||
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
  new_config.kernels.gemm = config::Gemm::kRef, new_config.train.precision = DType::kBF16;
  CHECK(message_of([&] {
          config::check_resume(old_config, new_config);
        }).find("train.precision: was f32, now bf16; kernels.gemm: was own, now ref") != std::string::npos);
}

TEST_CASE("micro-batches may change, but where bits of sums are promised") {
  config::Config before, now;
  before.train.micro_batch = 4, now.train.micro_batch = 2;
  CHECK(config::differences_on_resume(before, now).empty());
  before.dist.reproducible = now.dist.reproducible = true;
  CHECK(config::differences_on_resume(before, now).size() == 1);
}

TEST_CASE("outer steps are for life, although other keys of dist are not") {
  config::Config none, some, other;
  some.dist.outer.emplace(), other.dist.outer.emplace().every = 20;
  CHECK(config::differences_on_resume(some, some).empty());
  CHECK(config::differences_on_resume(none, some).size() == 1);
  CHECK(message_of([&] {
          config::check_resume(other, some);
        }).find("dist.outer: was {every: 20, lr: 0.7, momentum: 0.9, overlap: false}, now {every: 50, ") !=
        std::string::npos);
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
        "0.0001, now 0.0002; try the old values, or a new --out folder with train.branch_from, which keeps "
        "step, optimiser and EMA, or with train.init_from, which takes the weights alone");
}
