#include "ditrain/diffusion/loss.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/diffusion/p_mean_variance.hpp"
#include "support/fixture.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using test::compare;
using test::compare_rows;
using test::Fixture;
using test::to_f64;

namespace {

// Relative tolerances: about ten times the difference between float32 and float64 runs of the reference.
constexpr double kTight = 2e-6;

/// The batch of the golden file; `out` is the frozen model output with or without its variance channels.
struct GoldenBatch {
  explicit GoldenBatch(bool learn_sigma) : file("diffusion.safetensors") {
    n = file.setting("cfg.N");
    shape = {.channels = file.setting("cfg.C"), .pixels = file.setting("cfg.H") * file.setting("cfg.H")};
    x0 = file.f32("x_start"), x_t = file.f32("q_sample.x_t"), noise = file.f32("noise"), t = file.i64("t");
    const std::vector<float> stub = file.f32("stub");
    const int64_t elements = shape.elements(), used = learn_sigma ? 2 * elements : elements;
    for (int64_t i = 0; i < n; ++i) {
      out.insert(out.end(), stub.begin() + i * 2 * elements, stub.begin() + i * 2 * elements + used);
    }
  }
  LossBatch batch() const { return {x0.data(), x_t.data(), noise.data(), t.data(), out.data()}; }

  Fixture file;
  int64_t n = 0;
  Shape shape;
  std::vector<float> x0, x_t, noise, out;
  std::vector<int64_t> t;
  Schedule schedule = make_schedule("linear", 1000);
};

struct Judged {
  std::vector<double> mse, vb, loss, dout;
};

Judged judge(const GoldenBatch& g, const Rules& rules, int64_t cut = 0) {
  std::vector<LossTerms> terms(g.n);
  std::vector<float> dout(g.out.size(), NAN);
  const double weight = 1.0 / static_cast<double>(g.n);
  training_loss(g.schedule, rules, g.shape, g.batch(), weight, dout.data(), terms.data(), 0, cut);
  training_loss(g.schedule, rules, g.shape, g.batch(), weight, dout.data(), terms.data(), cut, g.n);
  Judged result{.mse = {}, .vb = {}, .loss = {}, .dout = to_f64(dout)};
  for (const LossTerms& term : terms) {
    result.mse.push_back(term.mse), result.vb.push_back(term.vb), result.loss.push_back(term.loss);
  }
  return result;
}

}  // namespace

TEST_CASE("noised data and its posterior are those of the reference") {
  const GoldenBatch g(true);
  const int64_t elements = g.shape.elements();
  std::vector<float> x_t(g.x0.size()), mean(g.x0.size());
  q_sample(g.schedule, g.x0.data(), g.noise.data(), g.t.data(), x_t.data(), elements, 0, 3);
  q_sample(g.schedule, g.x0.data(), g.noise.data(), g.t.data(), x_t.data(), elements, 3, g.n);
  CHECK(compare(to_f64(x_t), g.file.best("q_sample.x_t"), kTight));
  q_posterior_mean(g.schedule, g.x0.data(), g.x_t.data(), g.t.data(), mean.data(), elements, 0, g.n);
  CHECK(compare(to_f64(mean), g.file.best("q_posterior.mean"), kTight));
  std::vector<double> log_variance;
  for (int64_t i = 0; i < g.n; ++i) {
    log_variance.insert(log_variance.end(), elements, g.schedule.posterior_log_variance_clipped[g.t[i]]);
  }
  CHECK(compare(log_variance, g.file.best("q_posterior.log_variance"), kTight));
}

TEST_CASE("losses and their gradients are those of the reference") {
  struct Case {
    std::string name, loss;
    bool learn_sigma;
    double vb_tolerance, loss_tolerance, gradient_tolerance;
  };
  for (const Case& c : {Case{"ls1", "mse_vb", true, 4e-5, 8e-6, 3e-5}, Case{"rls1", "mse_vb", true, 4e-5, 8e-6, 3e-5},
                        Case{"ls0", "mse_vb", false, 0, kTight, kTight}, Case{"ls0", "mse", false, 0, kTight, kTight},
                        Case{"kl1", "kl", true, 4e-5, 4e-5, 2e-4}}) {
    INFO(c.name << " as " << c.loss);
    const GoldenBatch g(c.learn_sigma);
    const Judged got = judge(g, make_rules({.loss = c.loss}, c.learn_sigma));
    const auto n = static_cast<size_t>(g.n);
    CHECK(compare_rows(got.loss, g.file.best(c.name + ".loss"), n, c.loss_tolerance));
    CHECK(compare_rows(got.dout, g.file.best(c.name + ".dstub"), n, c.gradient_tolerance));
    if (g.file.has(c.name + ".mse")) CHECK(compare_rows(got.mse, g.file.best(c.name + ".mse"), n, kTight));
    if (g.file.has(c.name + ".vb")) CHECK(compare_rows(got.vb, g.file.best(c.name + ".vb"), n, c.vb_tolerance));
  }
}

TEST_CASE("the variance channels have a gradient of their own scale") {
  // Beside the mean channels' gradient an error in theirs could hide.
  const GoldenBatch g(true);
  const std::vector<double> got = judge(g, make_rules({}, true)).dout, want = g.file.best("ls1.dstub");
  const int64_t elements = g.shape.elements();
  for (int64_t i = 0; i < g.n; ++i) {
    INFO("t = " << g.t[i]);
    const int64_t at = (2 * i + 1) * elements;
    CHECK(compare(std::span(got).subspan(at, elements), std::span(want).subspan(at, elements), 3e-5));
  }
}

TEST_CASE("mse leaves the variance channels alone") {
  const GoldenBatch g(true);
  const Judged mse = judge(g, make_rules({.loss = "mse"}, true)), both = judge(g, make_rules({}, true));
  CHECK(mse.loss == both.mse);
  CHECK(mse.vb == std::vector<double>(g.n, 0.0));
  const int64_t elements = g.shape.elements();
  for (int64_t i = 0; i < g.n; ++i) {
    for (int64_t j = 0; j < elements; ++j) {
      CHECK(mse.dout[2 * i * elements + j] == both.dout[2 * i * elements + j]);
      CHECK(mse.dout[(2 * i + 1) * elements + j] == 0);
    }
  }
}

TEST_CASE("a loss does not depend on how the batch is cut, nor on a gradient being wanted") {
  const GoldenBatch g(true);
  for (const char* loss : {"mse", "mse_vb", "kl"}) {
    const Rules rules = make_rules({.loss = loss}, true);
    const Judged whole = judge(g, rules);
    for (const int64_t cut : {1, 5, 7}) {
      CHECK(judge(g, rules, cut).loss == whole.loss);
      CHECK(judge(g, rules, cut).dout == whole.dout);
    }
    std::vector<LossTerms> terms(g.n);
    training_loss(g.schedule, rules, g.shape, g.batch(), 1, nullptr, terms.data(), 0, g.n);
    for (int64_t i = 0; i < g.n; ++i) CHECK(terms[i].loss == whole.loss[i]);
  }
}

namespace {

/// A small batch at steps of all kinds, with outputs that stay clear of the 1e-12 clamp.
struct RandomBatch {
  RandomBatch(const Schedule& schedule, int64_t output_channels) {
    const int64_t elements = shape.elements();
    x0.resize(n * elements), noise.resize(n * elements), x_t.resize(n * elements);
    out.resize(n * output_channels * shape.pixels);
    const RandomKey key(7, Stream::kTest, 0);
    for (int64_t i = 0; i < n * elements; ++i) x0[i] = std::clamp(0.6f * key.normal(i), -1.0f, 1.0f);
    x0[0] = -1, x0[1] = 1, x0[2] = 0.9985f;
    key.fill_normal(noise.data(), n * elements, 1000);
    key.fill_normal(out.data(), static_cast<int64_t>(out.size()), 2000);
    for (float& v : out) v *= 0.5f;
    q_sample(schedule, x0.data(), noise.data(), t.data(), x_t.data(), elements, 0, n);
  }

  const int64_t n = 4;
  const Shape shape{.channels = 3, .pixels = 2};
  std::vector<int64_t> t = {0, 1, 40, 99};
  std::vector<float> x0, x_t, noise, out;
};

/// d term / d out[i] by central differences; the f32 steps are taken as they come out.
double slope(const Schedule& schedule, const Rules& rules, RandomBatch& b, int64_t sample, size_t i,
             double LossTerms::*term) {
  const float old = b.out[i];
  const LossBatch batch{b.x0.data(), b.x_t.data(), b.noise.data(), b.t.data(), b.out.data()};
  double value[2], at[2];
  for (const int side : {0, 1}) {
    b.out[i] = old + (side == 0 ? -1e-3f : 1e-3f);
    at[side] = b.out[i];
    std::vector<LossTerms> terms(b.n);
    training_loss(schedule, rules, b.shape, batch, 1, nullptr, terms.data(), sample, sample + 1);
    value[side] = terms[sample].*term;
  }
  b.out[i] = old;
  return (value[1] - value[0]) / (at[1] - at[0]);
}

}  // namespace

TEST_CASE("gradients of the losses agree with finite differences") {
  const Schedule schedule = make_schedule("linear", 100);
  for (const Config& config :
       {Config{}, Config{.prediction = "x0"}, Config{.loss = "kl"}, Config{.prediction = "x0", .loss = "kl"},
        Config{.variance = "fixed_small", .loss = "kl"}, Config{.variance = "fixed_large", .loss = "kl"},
        Config{.variance = "fixed_large"}}) {
    INFO(config.prediction << ' ' << config.variance << ' ' << config.loss);
    const Rules rules = make_rules(config, config.variance == "auto");
    const int64_t stride = rules.output_channels(3) * 2;
    RandomBatch b(schedule, rules.output_channels(3));
    std::vector<LossTerms> terms(b.n);
    std::vector<float> dout(b.out.size(), NAN);
    training_loss(schedule, rules, b.shape, {b.x0.data(), b.x_t.data(), b.noise.data(), b.t.data(), b.out.data()}, 1,
                  dout.data(), terms.data(), 0, b.n);
    const std::vector<double> gradient = to_f64(dout);
    for (int64_t sample = 0; sample < b.n; ++sample) {
      std::vector<double> want;
      for (int64_t j = 0; j < stride; ++j) {
        // Under mse_vb the bound must not reach the mean channels: their slope is that of the mse alone.
        const bool mean_of_mse = config.loss != "kl" && j < b.shape.elements();
        want.push_back(
            slope(schedule, rules, b, sample, sample * stride + j, mean_of_mse ? &LossTerms::mse : &LossTerms::loss));
      }
      INFO("t = " << b.t[sample]);
      // Central differences of step 1e-3 are off by third derivatives x 1e-6 / 6.
      CHECK(compare(std::span(gradient).subspan(sample * stride, stride), want, 2e-4));
    }
  }
}

TEST_CASE("a likelihood under the clamp has a value but no gradient") {
  const Schedule schedule = make_schedule("linear", 100);
  const Rules rules = make_rules({.loss = "kl"}, true);
  const float x0[] = {0.25f, -1, 1}, x_t[] = {0.25f, -1, 1}, out[] = {50, -50, 50, 0, 0, 0};
  const int64_t t = 0;
  LossTerms terms;
  float dout[6];
  training_loss(schedule, rules, {.channels = 1, .pixels = 3}, {x0, x_t, x0, &t, out}, 1, dout, &terms, 0, 1);
  CHECK(terms.vb == Approx(-std::log(1e-12) / std::log(2)));
  for (const float d : dout) CHECK(d == 0);
}

TEST_CASE("a step that the schedule does not have is our own mistake") {
  const Schedule schedule = make_schedule("linear", 100);
  const float x[2] = {0, 0};
  float out;
  for (const int64_t t : {int64_t{-1}, int64_t{100}}) {
    CHECK_THROWS_AS(q_sample(schedule, x, x, &t, &out, 1, 0, 1), LogicFault);
    LossTerms terms;
    CHECK_THROWS_AS(training_loss(schedule, make_rules({.loss = "mse"}, false), {.channels = 1, .pixels = 1},
                                  {x, x, x, &t, x}, 1, nullptr, &terms, 0, 1),
                    LogicFault);
  }
}

TEST_CASE("mean, variance and clean data of the reverse process are those of the reference") {
  struct Case {
    std::string name;
    Config config;
    bool learn_sigma, clip;
    double variance, pred_x0;
  };
  for (const Case& c : {Case{"ls1_clip", {}, true, true, 9e-6, 3e-5}, Case{"ls1_noclip", {}, true, false, 9e-6, 3e-6},
                        Case{"large_noclip", {}, false, false, kTight, 3e-6},
                        Case{"small_clip", {.variance = "fixed_small"}, false, true, kTight, 3e-5},
                        Case{"xstart_noclip", {.prediction = "x0"}, true, false, 9e-6, kTight}}) {
    INFO(c.name);
    const GoldenBatch g(c.learn_sigma);
    std::vector<float> mean(g.x0.size()), variance(g.x0.size()), log_variance(g.x0.size()), pred_x0(g.x0.size());
    const PMeanVariance result{mean.data(), variance.data(), log_variance.data(), pred_x0.data()};
    const Rules rules = make_rules(c.config, c.learn_sigma);
    for (const int64_t begin : {int64_t{0}, g.n / 2}) {
      p_mean_variance(g.schedule, rules, g.shape, c.clip, g.x_t.data(), g.t.data(), g.out.data(), result, begin,
                      begin == 0 ? g.n / 2 : g.n);
    }
    const auto n = static_cast<size_t>(g.n);
    CHECK(compare_rows(to_f64(mean), g.file.best("pmv." + c.name + ".mean"), n, kTight));
    CHECK(compare_rows(to_f64(variance), g.file.best("pmv." + c.name + ".variance"), n, c.variance));
    CHECK(compare_rows(to_f64(log_variance), g.file.best("pmv." + c.name + ".log_variance"), n, kTight));
    CHECK(compare_rows(to_f64(pred_x0), g.file.best("pmv." + c.name + ".pred_xstart"), n, c.pred_x0));
  }
}
