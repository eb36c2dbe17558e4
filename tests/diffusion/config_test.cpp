#include "ditrain/diffusion/config.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "rows.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using Catch::Contains;

namespace {

const ProcessKind* flow() { return test::process("flow"); }

void refused(const Config& config, const std::string& what, const std::string& hint, bool learn_sigma = false) {
  CHECK_THROWS_WITH(make_process(config, learn_sigma), Contains(what) && Contains(hint));
  CHECK_THROWS_AS(make_process(config, learn_sigma), InputError);
}

}  // namespace

TEST_CASE("auto follows the model's channels") {
  const auto learned = make_process({}, true), fixed = make_process({}, false);
  CHECK(as_ddpm(*learned).rules().variance == Variance::kLearnedRange);
  CHECK(learned->output_channels(4) == 8);
  CHECK(as_ddpm(*fixed).rules().variance == Variance::kFixedLarge);
  CHECK(fixed->output_channels(4) == 4);
  CHECK(as_ddpm(*learned).config().loss->name == "mse_vb");
}

TEST_CASE("a config that says nothing is the paper's") {
  Config config;
  CHECK(config.process->name == "ddpm");
  CHECK(prediction_of(config).name == "epsilon");
  CHECK(config.schedule->name == "linear");
  CHECK(config.loss_weight->name == "none");
  Config other{.process = flow()};
  CHECK(prediction_of(other).name == "velocity");
  other.prediction = test::prediction("x0");
  CHECK(prediction_of(other).name == "x0");
}

TEST_CASE("every row of the registry works where it belongs, and only there") {
  for (const ProcessKind& kind : rows_of(static_cast<const ProcessKind*>(nullptr)))
    for (const Prediction& row : rows_of(static_cast<const Prediction*>(nullptr))) {
      const auto& known = kind.predictions;
      const bool fits = std::find(known.begin(), known.end(), &row) != known.end();
      INFO(kind.name << ' ' << row.name);
      const Config config{.process = &kind, .prediction = &row};
      if (fits) CHECK(&make_process(config, false)->kind() == &kind);
      if (!fits) refused(config, "prediction does not fit process", "try diffusion.prediction");
    }
  for (const Objective& row : rows_of(static_cast<const Objective*>(nullptr)))
    CHECK_NOTHROW(make_process({.loss = &row}, true));
  for (const BetaSchedule& row : rows_of(static_cast<const BetaSchedule*>(nullptr)))
    CHECK_NOTHROW(make_process({.schedule = &row}, true));
  for (const LossWeight& row : rows_of(static_cast<const LossWeight*>(nullptr)))
    CHECK_NOTHROW(make_process({.loss_weight = &row}, true));
  for (const Sampler& row : rows_of(static_cast<const Sampler*>(nullptr)))
    for (const ProcessKind& kind : rows_of(static_cast<const ProcessKind*>(nullptr))) {
      INFO(row.name << " on " << kind.name);
      const auto process = make_process({.process = &kind}, false);
      const SamplerConfig config{.sampler = &row, .spacing = "5"};
      if (row.process == &kind) CHECK_NOTHROW(config.validate(*process));
      if (row.process != &kind)
        CHECK_THROWS_WITH(config.validate(*process),
                          Contains("sampler does not fit process " + std::string(kind.name)) &&
                              Contains(std::string(samplers_of(kind).front()->name)));
    }
}

TEST_CASE("a prediction and its inverse belong together") {
  for (const ProcessKind& kind : rows_of(static_cast<const ProcessKind*>(nullptr)))
    for (const Prediction* row : kind.predictions) {
      INFO(kind.name << ' ' << row->name);
      const double alpha = kind.name == "flow" ? 0.4 : 0.8, sigma = 0.6;
      const Level level{alpha, sigma, 1 / alpha, sigma / alpha};
      const Prediction::Target target = row->target(level);
      const Prediction::Clean clean = row->clean(level);
      const double x0 = 0.3, noise = -1.7, x_t = alpha * x0 + sigma * noise;
      const double out = target.by_x0 * x0 + target.by_noise * noise;
      CHECK(clean.by_x_t * x_t + clean.by_out * out == Approx(x0).epsilon(1e-14));
    }
}

TEST_CASE("variance and model have to agree") {
  refused({.variance = Variance::kLearnedRange}, "learn_sigma off", "try variance: auto");
  refused({.variance = Variance::kFixedLarge}, "learn_sigma on", "try variance: auto", true);
  refused({.variance = Variance::kFixedSmall}, "learn_sigma on", "try variance: auto", true);
}

TEST_CASE("settings of the processes that do not go together are refused with what to change") {
  refused({.process = flow()}, "no variance to learn", "try model.learn_sigma: false", true);
  refused({.process = flow(), .loss = test::loss("kl")}, "no variational bound", "try diffusion.loss: mse");
  refused({.process = flow(), .time_shift = 0}, "time_shift out of range", "above 0");
  refused({.process = flow(), .time_shift = NAN}, "time_shift out of range", "above 0");
  refused({.process = flow(), .time = TimeDraw::kLogitNormal, .time_deviation = -1}, "time_deviation out of range",
          "0");
  refused({.process = flow(), .time_mean = 1}, "those of logit_normal times", "try diffusion.time: logit_normal");
  refused({.loss = test::loss("kl"), .loss_weight = test::loss_weight("min_snr")}, "no square error", "loss: mse");
  refused({.loss_weight = test::loss_weight("min_snr"), .min_snr_gamma = 0}, "min_snr_gamma out of range", "above 0");
  refused({.num_steps = 0}, "num_steps out of range", "2 to");
  CHECK_NOTHROW(make_process({.process = flow(), .time = TimeDraw::kLogitNormal, .time_mean = -0.8}, false));
}

TEST_CASE("unknown words name the nearest word") {
  CHECK_THROWS_WITH(parse_word<const BetaSchedule*>("config", "diffusion.schedule", "linaer"),
                    Contains("linaer") && Contains("try linear"));
  CHECK_THROWS_WITH(parse_word<const Prediction*>("config", "diffusion.prediction", "epsilom"),
                    Contains("try epsilon"));
  CHECK_THROWS_WITH(parse_word<Variance>("config", "diffusion.variance", "fixed_larg"), Contains("try fixed_large"));
  CHECK_THROWS_WITH(parse_word<const Objective*>("config", "diffusion.loss", "mse_bv"),
                    Contains("try mse_vb") && Contains("mse_vb, mse or kl"));
  CHECK_THROWS_WITH(parse_word<const Sampler*>("command line", "--sampler", "dpm+"),
                    Contains("ddpm, ddim, dpm++, euler or heun"));
  CHECK_THROWS_AS(parse_word<const ProcessKind*>("config", "diffusion.process", ""), InputError);
  CHECK_THROWS_AS(named<Sampler>("dpm"), LogicFault);
}

TEST_CASE("sampler settings out of range are refused") {
  const auto process = make_process({}, true);
  const auto bad = [&](const SamplerConfig& config, const std::string& what) {
    INFO(what);
    CHECK_THROWS_WITH(config.validate(*process), Contains(what));
  };
  CHECK_NOTHROW(SamplerConfig{}.validate(*process));
  CHECK_NOTHROW(
      SamplerConfig{.sampler = test::sampler("ddim"), .spacing = "ddim50", .eta = 1, .cfg_scale = 0, .cfg_channels = -1}
          .validate(*process));
  bad({.spacing = "1001"}, "spacing");
  bad({.sampler = test::sampler("ddim"), .eta = 1.5}, "eta");
  bad({.eta = NAN}, "eta");
  bad({.cfg_scale = -1}, "cfg_scale");
  bad({.cfg_scale = INFINITY}, "cfg_scale");
  bad({.cfg_channels = 0}, "cfg_channels");
  bad({.cfg_interval = {0.5, 0.5}}, "cfg_interval does not rise within [0, 1]");
  bad({.cfg_interval = {-0.1, 0.5}}, "[-0.1, 0.5]");
  bad({.cfg_interval = {0, NAN}}, "cfg_interval");
  bad({.eta = 0.5}, "sampler ddpm has no choice of noise");
  bad({.sampler = test::sampler("dpm++"), .eta = 0.5}, "sampler dpm++ has no choice of noise");
  for (const Variance variance : {Variance::kFixedLarge, Variance::kFixedSmall}) {
    const auto fixed = make_process({.variance = variance}, false);
    CHECK_NOTHROW(SamplerConfig{}.validate(*fixed));
    CHECK_THROWS_WITH((SamplerConfig{.sampler = test::sampler("dpm++")}.validate(*fixed)),
                      Contains("dpm++ adds no noise") && Contains("expected variance auto; try sampler ddpm or ddim"));
  }
  CHECK_NOTHROW(SamplerConfig{.sampler = test::sampler("dpm++")}.validate(*process));
  CHECK_NOTHROW(SamplerConfig{.sampler = test::sampler("dpm++")}.validate(*make_process({}, false)));
}
