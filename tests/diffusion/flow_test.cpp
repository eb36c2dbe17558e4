// Process flow. ditverify compares path, training, times and samples with SiT and diffusers (flow).
#include "ditrain/diffusion/flow.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "rows.hpp"
#include "support/compare.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using Catch::Contains;
using test::compare;
using test::to_f64;

namespace {

constexpr Shape kShape{.channels = 2, .pixels = 3};
constexpr int64_t kSamples = 4;

Config config(const char* prediction = "velocity") {
  return {.process = test::process("flow"), .prediction = test::prediction(prediction)};
}

std::vector<float> normals(uint64_t b, int64_t n = kSamples * kShape.elements()) {
  std::vector<float> values(n);
  RandomKey(13, Stream::kTest, 2, b).fill_normal(values.data(), n);
  return values;
}

struct Batch {
  std::vector<double> time = {0, 0.3, 0.8, 0.99};
  std::vector<float> x0 = normals(1), noise = normals(2), out = normals(3), x_t = std::vector<float>(x0.size());

  explicit Batch(const Process& process) {
    q_sample(process, x0.data(), noise.data(), time.data(), x_t.data(), kShape.elements(), 0, kSamples);
  }
  std::vector<LossTerms> judge(const Process& process, double weight = 1, float* dout = nullptr) const {
    std::vector<LossTerms> terms(kSamples);
    const LossBatch batch{x0.data(), x_t.data(), noise.data(), time.data(), out.data()};
    training_loss(process, kShape, batch, weight, dout, terms.data(), 0, 2);
    training_loss(process, kShape, batch, weight, dout, terms.data(), 2, kSamples);
    return terms;
  }
};

}  // namespace

TEST_CASE("gradients of flow's losses agree with finite differences") {
  for (const char* prediction : {"velocity", "x0"}) {
    INFO(prediction);
    const auto process = make_process(config(prediction), false);
    Batch b(*process);
    std::vector<float> dout(b.out.size(), NAN);
    b.judge(*process, 0.5, dout.data());
    for (size_t i = 0; i < b.out.size(); ++i) {
      const float old = b.out[i];
      double loss[2], at[2];
      for (const int side : {0, 1}) {
        b.out[i] = old + (side == 0 ? -1e-2f : 1e-2f);
        at[side] = b.out[i];
        loss[side] = b.judge(*process)[i / size_t(kShape.elements())].loss;
      }
      b.out[i] = old;
      CHECK(dout[i] == Approx(0.5 * (loss[1] - loss[0]) / (at[1] - at[0])).epsilon(2e-4).margin(1e-6));
    }
  }
}

TEST_CASE("predicting data is trained on the same velocities, with a bounded weight near the data") {
  const auto velocity = make_process(config(), false), data = make_process(config("x0"), false);
  Batch b(*velocity);
  Batch as_velocity = b;  // the velocities that the predicted data stand for
  const int64_t elements = kShape.elements();
  for (int64_t i = 0; i < kSamples; ++i)
    for (int64_t j = i * elements; j < (i + 1) * elements; ++j)
      as_velocity.out[j] = static_cast<float>((double(b.out[j]) - b.x_t[j]) / (1 - b.time[i]));
  const auto want = as_velocity.judge(*velocity), got = b.judge(*data);
  for (const int i : {0, 1, 2}) CHECK(got[i].loss == Approx(want[i].loss).epsilon(1e-5));
  CHECK(got[3].loss == Approx(got[3].mse / (0.05 * 0.05)).epsilon(1e-9));  // t = 0.99
  for (const LossTerms& term : want) CHECK(term.loss == term.mse);
}

// In f64: x_t = t x0 + (1 - t) s e, velocity = x0 - s e, and sampling starts from s e.
TEST_CASE("noise of another scale: path, losses and the start of sampling") {
  constexpr double kScale = 2.5;
  for (const char* prediction : {"velocity", "x0"}) {
    INFO(prediction);
    Config c = config(prediction);
    c.noise_scale = kScale;
    const auto process = make_process(c, false);
    const Batch b(*process);
    const std::vector<LossTerms> terms = b.judge(*process);
    const int64_t elements = kShape.elements();
    for (int64_t i = 0; i < kSamples; ++i) {
      double sum = 0;
      for (int64_t j = i * elements; j < (i + 1) * elements; ++j) {
        const double t = b.time[i], noise = kScale * b.noise[j];
        CHECK(b.x_t[j] == Approx(t * b.x0[j] + (1 - t) * noise).margin(1e-6));
        const double target = *prediction == 'v' ? b.x0[j] - noise : double(b.x0[j]);
        sum += (target - b.out[j]) * (target - b.out[j]);
      }
      const double sigma = *prediction == 'v' ? 1 : std::max(1 - b.time[i], 0.05);
      CHECK(terms[i].loss == Approx(sum / double(elements) / (sigma * sigma)).epsilon(1e-6));
    }
    // One step of Euler from noise ends at the data that the model gives at t = 0, which see the scaled noise.
    std::vector<float> z = normals(9), seen(z.size());
    const std::vector<float> start = z;
    const ModelFn model = [&](const float* x, const double*, const Condition*, int64_t n, float* out) {
      std::copy_n(x, n * elements, seen.begin());
      for (int64_t i = 0; i < n * elements; ++i) out[i] = *prediction == 'v' ? 0.25f - x[i] : 0.25f;
    };
    sample_loop(*process, {.sampler = test::sampler("euler"), .spacing = "1"}, kShape, model,
                {.n = kSamples, .z = z.data()}, {});
    for (size_t i = 0; i < z.size(); ++i) {
      CHECK(seen[i] == Approx(kScale * start[i]).epsilon(1e-6));
      CHECK(z[i] == Approx(0.25).margin(1e-6));
    }
    CHECK(process->data_share(0.5) == Approx(1 / (1 + kScale)));
  }
  Config c = config();
  c.noise_scale = 0;
  CHECK_THROWS_WITH(make_process(c, false), Contains("noise_scale"));
}

TEST_CASE("times of flow follow their distribution") {
  const auto moments = [](const Config& c) {
    const auto process = make_process(c, false);
    double sum = 0, squares = 0, least = 1, most = 0;
    constexpr int kDraws = 4000;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const double t = process->draw_time(RandomKey(1, Stream::kTimestep, 0, i));
      CHECK(process->model_time(t) == t);
      const double logit = std::log(t / (1 - t));
      sum += c.time == TimeDraw::kUniform ? t : logit, squares += c.time == TimeDraw::kUniform ? t * t : logit * logit;
      least = std::min(least, t), most = std::max(most, t);
    }
    CHECK((least > 0 && most < 1));
    const double mean = sum / kDraws;
    return std::pair(mean, std::sqrt(squares / kDraws - mean * mean));
  };
  const auto [mean, deviation] = moments(config());
  CHECK(mean == Approx(0.5).margin(0.02));  // five standard errors are 5 x 0.29 / sqrt(4000) = 0.023
  CHECK(deviation == Approx(std::sqrt(1.0 / 12)).margin(0.02));
  Config logit = config();
  logit.time = TimeDraw::kLogitNormal, logit.time_mean = -0.8, logit.time_deviation = 0.5;
  const auto [logit_mean, logit_deviation] = moments(logit);
  CHECK(logit_mean == Approx(-0.8).margin(0.04));
  CHECK(logit_deviation == Approx(0.5).margin(0.03));
  // A shift by s moves the logit of the time by -ln s.
  logit.time_shift = 3;
  CHECK(moments(logit).first == Approx(-0.8 - std::log(3)).margin(0.04));
}

TEST_CASE("validation looks at all times alike, whatever training draws") {
  Config c = config();
  c.time = TimeDraw::kLogitNormal, c.time_shift = 5;
  const auto process = make_process(c, false);
  for (int64_t i = 0; i < 8; ++i) CHECK(process->spread_time(i, 8) == (i + 0.5) / 8);
}

TEST_CASE("sampling times rise from noise to data") {
  const auto times = [](const Spacing& spacing, double shift = 1) {
    Config c = config();
    c.time_shift = shift;
    return as_flow(*make_process(c, false)).sampling_times(spacing);
  };
  CHECK(times("4") == std::vector<double>{0, 0.25, 0.5, 0.75, 1});
  CHECK(times("1") == std::vector<double>{0, 1});
  CHECK(times("1,2") == std::vector<double>{0, 0.25, 0.5, 1});  // as in a schedule, the first section is at the data
  CHECK(times("2", 3) == std::vector<double>{0, 0.25, 1});      // 1 - 3 x 0.5 / 2
  CHECK(times(Spacing::at({0, 0.1, 1})) == std::vector<double>{0, 0.1, 1});
  CHECK_THROWS_WITH(times("ddim25"), Contains("spacing") && Contains("\"ddim25\"") && Contains("try 25"));
  for (const std::vector<double>& list : {std::vector<double>{0, 0.5}, {0.1, 1}, {0, 0.5, 0.5, 1}, {1}})
    CHECK_THROWS_AS(times(Spacing::at(list)), InputError);
}

namespace {

struct Call {
  double t;
  int64_t n;
};

/// Samples of the model that knows the data, and the calls that it got.
std::vector<double> sampled(const Process& process, const SamplerConfig& sampler, const std::vector<float>& x0,
                            std::vector<Call>* calls = nullptr) {
  const Prediction& prediction = *as_flow(process).config().prediction;
  const int64_t elements = kShape.elements();
  const ModelFn model = [&](const float* x, const double* t, const Condition*, int64_t n, float* out) {
    if (calls != nullptr) calls->push_back({t[0], n});
    for (int64_t i = 0; i < n * elements; ++i) {
      const int64_t at = i % (kSamples * elements);
      const double sigma = 1 - t[0], noise = sigma == 0 ? 0 : (x[i] - t[0] * x0[at]) / sigma;
      const Prediction::Target target = prediction.target({t[0], sigma, 1 / t[0], sigma / t[0]});
      out[i] = static_cast<float>(target.by_x0 * x0[at] + target.by_noise * noise);
    }
  };
  std::vector<float> z = normals(9);
  const std::vector<Condition> labels(kSamples, {.label = 1});
  sample_loop(process, sampler, kShape, model,
              {.n = kSamples, .z = z.data(), .conditions = labels.data(), .null_class = 5},
              [](int64_t, int64_t, float*) { FAIL("no noise is wanted"); });
  return to_f64(z);
}

}  // namespace

TEST_CASE("euler and heun evaluate where they should and end at the data of a model that knows it") {
  std::vector<float> x0 = normals(8);
  for (float& v : x0) v = std::tanh(v);
  for (const char* prediction : {"velocity", "x0"})
    for (const bool clip : {false, true}) {
      INFO(prediction << (clip ? " clipped" : ""));
      const auto process = make_process(config(prediction), false);
      const auto run = [&](const char* name, double scale = 1) {
        std::vector<Call> calls;
        const SamplerConfig sampler{
            .sampler = test::sampler(name), .spacing = "4", .clip_denoised = clip, .cfg_scale = scale};
        const std::vector<double> got = sampled(*process, sampler, x0, &calls);
        // The last velocity at t = 1 is made up by this model: 0 as noise.
        if (name == std::string("euler") || clip || *prediction == 'x') CHECK(compare(got, to_f64(x0), 1e-5));
        std::vector<double> times;
        for (const Call& call : calls) {
          CHECK(call.n == (scale == 1 ? 1 : 2) * kSamples);
          times.push_back(call.t);
        }
        return times;
      };
      CHECK(run("euler") == std::vector<double>{0, 0.25, 0.5, 0.75});
      std::vector<double> heun = {0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75};
      if (*prediction == 'v' && !clip) heun.push_back(1);
      CHECK(run("heun") == heun);
      CHECK(run("heun", 2) == heun);
    }
}

TEST_CASE("heun's whole way from noise to predicted data, guided within an interval, as f64 goes it") {
  const std::vector<double> times = {0, 0.1, 0.35, 0.6, 0.9, 1};
  constexpr double kScale = 2;
  const auto data = [](double x, double t, int64_t label) {
    return std::tanh(0.8 * x + 0.3 * t - 0.2 * double(label));
  };
  const ModelFn model = [&](const float* x, const double* t, const Condition* c, int64_t n, float* out) {
    for (int64_t i = 0; i < n * kShape.elements(); ++i)
      out[i] = float(data(x[i], t[i / kShape.elements()], c[i / kShape.elements()].label));
  };
  const auto velocity = [&](double x, double t) {
    const double free = data(x, t, 5), with_label = data(x, t, 1);
    const bool guided = 0.2 < t && t < 0.7;
    return ((guided ? free + kScale * (with_label - free) : with_label) - x) / (1 - t);
  };
  std::vector<float> z = normals(9);
  std::vector<double> want = to_f64(z);
  for (double& x : want)
    for (size_t k = 0; k + 1 < times.size(); ++k) {
      const double dt = times[k + 1] - times[k], v = velocity(x, times[k]);
      const bool last = k + 2 == times.size();
      x += dt * (last ? v : (v + velocity(x + dt * v, times[k + 1])) / 2);
    }
  const std::vector<Condition> labels(kSamples, {.label = 1});
  sample_loop(*make_process(config("x0"), false),
              {.sampler = test::sampler("heun"),
               .spacing = Spacing::at(times),
               .cfg_scale = kScale,
               .cfg_interval = {0.2, 0.7}},
              kShape, model, {.n = kSamples, .z = z.data(), .conditions = labels.data(), .null_class = 5}, {});
  CHECK(compare(to_f64(z), want, 2e-6));
}

TEST_CASE("clipping limits the data that a velocity stands for") {
  const auto process = make_process(config(), false);
  const Flow& flow = as_flow(*process);
  const float x[3] = {0.5f, 0.5f, -0.2f}, out[3] = {4, 0.25f, -4};
  float v[3];
  flow.velocity(0.5, x, out, true, v, 3);  // data: 2.5, 0.625, -2.2
  CHECK(v[0] == Approx(1.0));
  CHECK(v[1] == Approx(0.25));
  CHECK(v[2] == Approx(-1.6));
  flow.velocity(0.5, x, out, false, v, 3);
  CHECK(v[0] == 4);
  CHECK_FALSE(flow.has_final_velocity(true));
  CHECK(flow.has_final_velocity(false));
}

TEST_CASE("heun is of second order, euler of first") {
  // dx/dt = velocity(x, t) for data that is normal with deviation 0.5: known in closed form.
  const auto process = make_process(config(), false);
  const ModelFn model = [](const float* x, const double* t, const Condition*, int64_t n, float* out) {
    for (int64_t i = 0; i < n * kShape.elements(); ++i) {
      const double s = 1 - t[0], variance = 0.25 * t[0] * t[0] + s * s;
      out[i] = static_cast<float>((0.25 * t[0] - s) / variance * x[i]);
    }
  };
  const auto error = [&](const char* name, const char* spacing) {
    std::vector<float> z = normals(4);
    const std::vector<float> start = z;
    sample_loop(*process, {.sampler = test::sampler(name), .spacing = spacing}, kShape, model,
                {.n = kSamples, .z = z.data()}, {});
    double worst = 0;  // the exact way multiplies x by the deviation at t = 1, 0.5
    for (size_t i = 0; i < z.size(); ++i) worst = std::max(worst, std::abs(z[i] - 0.5 * start[i]));
    return worst;
  };
  CHECK(error("euler", "20") / error("euler", "40") == Approx(2).epsilon(0.2));
  CHECK(error("heun", "20") / error("heun", "40") == Approx(4).epsilon(0.25));
}

TEST_CASE("a time outside [0, 1] is our own mistake") {
  const auto process = make_process(config(), false);
  const float x = 0;
  float out;
  for (const double t : {-0.1, 1.1, double(NAN)}) CHECK_THROWS_AS(process->add_noise(t, &x, &x, &out, 1), LogicFault);
  CHECK_THROWS_AS(as_ddpm(*process), LogicFault);
  CHECK_THROWS_AS(as_flow(*make_process({}, false)), LogicFault);
}
