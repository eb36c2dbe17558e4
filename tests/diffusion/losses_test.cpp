// Losses of process ddpm. ditverify compares them, their gradients and the reverse process with the reference
// (diffusion).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "rows.hpp"
#include "support/compare.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using test::compare;
using test::to_f64;

namespace {

/// A small batch at steps of all kinds, with outputs that stay clear of the 1e-12 clamp.
struct RandomBatch {
  explicit RandomBatch(const Process& process) {
    const int64_t elements = shape.elements();
    x0.resize(n * elements), noise.resize(n * elements), x_t.resize(n * elements);
    out.resize(n * process.output_channels(shape.channels) * shape.pixels);
    const RandomKey key(7, Stream::kTest, 0);
    for (int64_t i = 0; i < n * elements; ++i) x0[i] = std::clamp(0.6f * key.normal(i), -1.0f, 1.0f);
    x0[0] = -1, x0[1] = 1, x0[2] = 0.9985f;
    key.fill_normal(noise.data(), n * elements, 1000);
    key.fill_normal(out.data(), static_cast<int64_t>(out.size()), 2000);
    for (float& v : out) v *= 0.5f;
    q_sample(process, x0.data(), noise.data(), time.data(), x_t.data(), elements, 0, n);
  }
  LossBatch batch() const { return {x0.data(), x_t.data(), noise.data(), time.data(), out.data()}; }

  const int64_t n = 4;
  const Shape shape{.channels = 3, .pixels = 2};
  std::vector<double> time = {0, 1, 40, 99};
  std::vector<float> x0, x_t, noise, out;
};

struct Judged {
  std::vector<double> mse, vb, loss, dout;
};

Judged judge(const RandomBatch& b, const Process& process, int64_t cut = 0) {
  std::vector<LossTerms> terms(b.n);
  std::vector<float> dout(b.out.size(), NAN);
  const double weight = 1.0 / static_cast<double>(b.n);
  training_loss(process, b.shape, b.batch(), weight, dout.data(), terms.data(), 0, cut);
  training_loss(process, b.shape, b.batch(), weight, dout.data(), terms.data(), cut, b.n);
  Judged result{.mse = {}, .vb = {}, .loss = {}, .dout = to_f64(dout)};
  for (const LossTerms& term : terms) {
    result.mse.push_back(term.mse), result.vb.push_back(term.vb), result.loss.push_back(term.loss);
  }
  return result;
}

/// d term / d out[i] by central differences; the f32 steps are taken as they come out.
double slope(const Process& process, RandomBatch& b, int64_t sample, size_t i, double LossTerms::*term) {
  const float old = b.out[i];
  double value[2], at[2];
  for (const int side : {0, 1}) {
    b.out[i] = old + (side == 0 ? -1e-3f : 1e-3f);
    at[side] = b.out[i];
    std::vector<LossTerms> terms(b.n);
    training_loss(process, b.shape, b.batch(), 1, nullptr, terms.data(), sample, sample + 1);
    value[side] = terms[sample].*term;
  }
  b.out[i] = old;
  return (value[1] - value[0]) / (at[1] - at[0]);
}

}  // namespace

TEST_CASE("mse leaves the variance channels alone") {
  const auto with = make_process({}, true), only_mse = make_process({.loss = test::loss("mse")}, true);
  const RandomBatch b(*with);
  const Judged mse = judge(b, *only_mse), both = judge(b, *with);
  CHECK(mse.loss == both.mse);
  CHECK(mse.vb == std::vector<double>(b.n, 0.0));
  const int64_t elements = b.shape.elements();
  for (int64_t i = 0; i < b.n; ++i) {
    for (int64_t j = 0; j < elements; ++j) {
      CHECK(mse.dout[2 * i * elements + j] == both.dout[2 * i * elements + j]);
      CHECK(mse.dout[(2 * i + 1) * elements + j] == 0);
    }
  }
  // Without variance channels the two are the same loss.
  const auto plain = make_process({}, false);
  const RandomBatch narrow(*plain);
  const Judged a = judge(narrow, *make_process({.loss = test::loss("mse")}, false)), c = judge(narrow, *plain);
  CHECK((a.loss == c.loss && a.dout == c.dout));
}

TEST_CASE("a loss does not depend on how the batch is cut, nor on a gradient being wanted") {
  for (const char* loss : {"mse", "mse_vb", "kl"}) {
    const auto process = make_process({.loss = test::loss(loss)}, true);
    const RandomBatch b(*process);
    const Judged whole = judge(b, *process);
    for (const int64_t cut : {1, 2, 3}) {
      CHECK(judge(b, *process, cut).loss == whole.loss);
      CHECK(judge(b, *process, cut).dout == whole.dout);
    }
    std::vector<LossTerms> terms(b.n);
    training_loss(*process, b.shape, b.batch(), 1, nullptr, terms.data(), 0, b.n);
    std::vector<double> mse(b.n);
    prediction_error(*process, b.shape, b.batch(), mse.data(), 0, b.n);
    for (int64_t i = 0; i < b.n; ++i) CHECK(terms[i].loss == whole.loss[i]);
    CHECK(mse == whole.mse);
    std::vector<float> x_t(b.x_t.size());
    for (const int64_t begin : {0, 3})
      q_sample(*process, b.x0.data(), b.noise.data(), b.time.data(), x_t.data(), b.shape.elements(), begin,
               begin == 0 ? 3 : b.n);
    CHECK(x_t == b.x_t);
  }
}

TEST_CASE("gradients of the losses agree with finite differences") {
  const Objective* kl = test::loss("kl");
  const Prediction *x0 = test::prediction("x0"), *v = test::prediction("v");
  const LossWeight* min_snr = test::loss_weight("min_snr");
  using enum Variance;
  for (Config config : {Config{}, Config{.prediction = x0}, Config{.prediction = v}, Config{.loss = kl},
                        Config{.prediction = x0, .loss = kl}, Config{.prediction = v, .loss = kl},
                        Config{.variance = kFixedSmall, .loss = kl}, Config{.variance = kFixedLarge, .loss = kl},
                        Config{.variance = kFixedLarge}, Config{.prediction = v, .variance = kFixedLarge},
                        Config{.variance = kFixedLarge, .loss_weight = min_snr},
                        Config{.prediction = x0, .variance = kFixedLarge, .loss_weight = min_snr},
                        Config{.prediction = v, .variance = kFixedLarge, .loss_weight = min_snr, .min_snr_gamma = 2}}) {
    config.num_steps = 100;
    INFO(prediction_of(config).name << ' ' << word_of(config.variance) << ' ' << config.loss->name << ' '
                                    << config.loss_weight->name);
    const auto process = make_process(config, config.variance == kAuto);
    RandomBatch b(*process);
    const int64_t stride = process->output_channels(3) * 2;
    std::vector<LossTerms> terms(b.n);
    std::vector<float> dout(b.out.size(), NAN);
    training_loss(*process, b.shape, b.batch(), 1, dout.data(), terms.data(), 0, b.n);
    const std::vector<double> gradient = to_f64(dout);
    for (int64_t sample = 0; sample < b.n; ++sample) {
      std::vector<double> want;
      for (int64_t j = 0; j < stride; ++j) {
        // Under mse_vb the bound must not reach the mean channels: their slope is that of the mse alone.
        const bool mean_of_mse = config.loss != kl && config.variance == kAuto && j < b.shape.elements();
        want.push_back(
            slope(*process, b, sample, sample * stride + j, mean_of_mse ? &LossTerms::mse : &LossTerms::loss));
      }
      INFO("t = " << b.time[sample]);
      // Central differences of step 1e-3 are off by third derivatives x 1e-6 / 6.
      CHECK(compare(std::span(gradient).subspan(sample * stride, stride), want, 2e-4));
    }
  }
}

TEST_CASE("v is learned with its own target, and is zero for a model that knows it") {
  const auto process = make_process({.prediction = test::prediction("v"), .num_steps = 100}, false);
  const Schedule& s = as_ddpm(*process).schedule();
  RandomBatch b(*process);
  for (int64_t i = 0; i < b.n; ++i) {
    const auto t = static_cast<size_t>(b.time[i]);
    for (int64_t j = i * 6; j < i * 6 + 6; ++j) {
      b.out[j] =
          static_cast<float>(s.sqrt_alphas_cumprod[t] * b.noise[j] - s.sqrt_one_minus_alphas_cumprod[t] * b.x0[j]);
    }
  }
  std::vector<LossTerms> terms(b.n);
  training_loss(*process, b.shape, b.batch(), 1, nullptr, terms.data(), 0, b.n);
  for (const LossTerms& term : terms) CHECK(term.mse < 1e-13);  // squares of f32 roundings
}

TEST_CASE("a target made in pieces is the same in every piece") {
  // More elements than one piece holds: v of a long sample is v of its parts.
  constexpr int64_t kPixels = 2500;
  const auto process = make_process({.prediction = test::prediction("v")}, false);
  std::vector<float> x0(kPixels), noise(kPixels), out(kPixels), whole(kPixels), part(1);
  const RandomKey key(3, Stream::kTest, 5);
  key.fill_normal(x0.data(), kPixels), key.fill_normal(noise.data(), kPixels, 10000);
  key.fill_normal(out.data(), kPixels, 20000);
  const double time = 700;
  LossTerms terms, one;
  training_loss(*process, {.channels = 1, .pixels = kPixels}, {x0.data(), x0.data(), noise.data(), &time, out.data()},
                kPixels, whole.data(), &terms, 0, 1);
  double sum = 0;
  for (int64_t i = 0; i < kPixels; ++i) {
    training_loss(*process, {.channels = 1, .pixels = 1}, {&x0[i], &x0[i], &noise[i], &time, &out[i]}, 1, part.data(),
                  &one, 0, 1);
    CHECK(whole[i] == part[0]);
    sum += one.mse;
  }
  CHECK(terms.mse == Approx(sum / kPixels).epsilon(1e-12));
}

TEST_CASE("min_snr weighs what every prediction says of the clean data alike") {
  // At low noise min(SNR, 5) is 5, at high noise it is the SNR itself.
  for (const char* name : {"epsilon", "x0", "v"}) {
    INFO(name);
    const auto process = make_process(
        {.prediction = test::prediction(name), .num_steps = 100, .loss_weight = test::loss_weight("min_snr")}, false);
    RandomBatch b(*process);
    std::vector<LossTerms> terms(b.n);
    training_loss(*process, b.shape, b.batch(), 1, nullptr, terms.data(), 0, b.n);
    for (int64_t i = 0; i < b.n; ++i) {
      const double a = as_ddpm(*process).schedule().alphas_cumprod[static_cast<size_t>(b.time[i])];
      const double snr = a / (1 - a), least = std::min(snr, 5.0);
      const double want = *name == 'e' ? least / snr : *name == 'v' ? least / (snr + 1) : least;
      CHECK(terms[i].loss == Approx(want * terms[i].mse).epsilon(1e-9));
      CHECK(terms[i].mse > 0);
    }
  }
}

TEST_CASE("a likelihood under the clamp has a value but no gradient") {
  const auto process = make_process({.num_steps = 100, .loss = test::loss("kl")}, true);
  const float x0[] = {0.25f, -1, 1}, x_t[] = {0.25f, -1, 1}, out[] = {50, -50, 50, 0, 0, 0};
  const double t = 0;
  LossTerms terms;
  float dout[6];
  training_loss(*process, {.channels = 1, .pixels = 3}, {x0, x_t, x0, &t, out}, 1, dout, &terms, 0, 1);
  CHECK(terms.vb == Approx(-std::log(1e-12) / std::log(2)));
  for (const float d : dout) CHECK(d == 0);
}

TEST_CASE("a step that the schedule does not have is our own mistake") {
  const auto process = make_process({.num_steps = 100, .loss = test::loss("mse")}, false);
  const float x[2] = {0, 0};
  float out;
  for (const double t : {-1.0, 100.0}) {
    CHECK_THROWS_AS(q_sample(*process, x, x, &t, &out, 1, 0, 1), LogicFault);
    LossTerms terms;
    CHECK_THROWS_AS(training_loss(*process, {.channels = 1, .pixels = 1}, {x, x, x, &t, x}, 1, nullptr, &terms, 0, 1),
                    LogicFault);
  }
}

TEST_CASE("times of ddpm are its steps, drawn and spread as ever") {
  const auto process = make_process({.num_steps = 100}, true);
  std::vector<int> drawn(100);
  for (uint64_t i = 0; i < 3000; ++i) {
    const RandomKey key(5, Stream::kTimestep, 1, i);
    const double t = process->draw_time(key);
    CHECK(t == static_cast<double>(key.below(0, 100)));
    CHECK(process->model_time(t) == t);
    ++drawn.at(static_cast<size_t>(t));
  }
  CHECK(*std::min_element(drawn.begin(), drawn.end()) > 0);
  for (int64_t i = 0; i < 7; ++i) CHECK(process->spread_time(i, 7) == static_cast<double>((2 * i + 1) * 100 / 14));
}

TEST_CASE("the loss leaves out pixels without data, whatever is predicted there") {
  const auto process = make_process({.num_steps = 100}, true);
  RandomBatch batch(*process);
  const int64_t n = batch.n, outputs = process->output_channels(3);
  // The first pixel alone counts: the loss is that of samples of one pixel.
  std::vector<Condition> conditions(static_cast<size_t>(n));
  for (Condition& c : conditions) c.valid = {1, 0};
  const auto judge = [&](const Shape& shape, const LossBatch& b, std::vector<float>& dout) {
    std::vector<LossTerms> terms(static_cast<size_t>(n));
    dout.assign(size_t(n * outputs * shape.pixels), 9.0f);
    training_loss(*process, shape, b, 1, dout.data(), terms.data(), 0, n);
    return terms;
  };
  const auto first_pixels = [](const std::vector<float>& from) {
    std::vector<float> to;
    for (size_t i = 0; i < from.size(); i += 2) to.push_back(from[i]);
    return to;
  };
  const auto x0 = first_pixels(batch.x0), x_t = first_pixels(batch.x_t), noise = first_pixels(batch.noise),
             out = first_pixels(batch.out);
  std::vector<float> of_one, of_both;
  const auto want = judge({3, 1}, {x0.data(), x_t.data(), noise.data(), batch.time.data(), out.data()}, of_one);
  LossBatch masked = batch.batch();
  masked.conditions = conditions.data();
  const auto got = judge(batch.shape, masked, of_both);
  std::vector<double> mse(static_cast<size_t>(n));
  prediction_error(*process, batch.shape, masked, mse.data(), 0, n);
  for (size_t i = 0; i < size_t(n); ++i) {
    CHECK(got[i].loss == want[i].loss);
    CHECK(got[i].vb == want[i].vb);
    CHECK(mse[i] == want[i].mse);
  }
  for (size_t i = 0; i < of_one.size(); ++i) {
    CHECK(of_both[2 * i] == of_one[i]);
    CHECK(of_both[2 * i + 1] == 0);
  }
  for (Condition& c : conditions) c.valid = {0, 0};
  for (const LossTerms& terms : judge(batch.shape, masked, of_both)) CHECK(terms.loss == 0);
  for (const float x : of_both) CHECK(x == 0);
}
