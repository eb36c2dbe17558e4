// Samplers. ditverify compares trajectories with the references (sample_traj, samplers, flow).
#include "ditrain/diffusion/sampler.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "rows.hpp"
#include "support/compare.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;
using test::compare;
using test::to_f64;

namespace {

constexpr Shape kShape{.channels = 2, .pixels = 3};
constexpr int64_t kSamples = 3;

std::vector<float> normals(int64_t n, uint64_t b) {
  std::vector<float> values(n);
  RandomKey(11, Stream::kTest, 1, b).fill_normal(values.data(), n);
  return values;
}

/// The model that knows the data: its output is exact for any x_t.
struct Oracle {
  const Process& process;
  const std::vector<float>& x0;

  void operator()(const float* x, const double* t, const Condition*, int64_t n, float* out) const {
    const int64_t elements = kShape.elements(), stride = process.output_channels(kShape.channels) * kShape.pixels;
    const Ddpm& ddpm = as_ddpm(process);
    for (int64_t i = 0; i < n * elements; ++i) {
      const auto step = static_cast<size_t>(t[i / elements]);
      const double alpha = ddpm.schedule().sqrt_alphas_cumprod[step];
      const double sigma = ddpm.schedule().sqrt_one_minus_alphas_cumprod[step];
      const double noise = (x[i] - alpha * x0[i]) / sigma;
      const Prediction::Target target = ddpm.rules().prediction->target({alpha, sigma, 1 / alpha, sigma / alpha});
      out[i / elements * stride + i % elements] = static_cast<float>(target.by_x0 * x0[i] + target.by_noise * noise);
    }
  }
};

void philox_noise(int64_t step, int64_t sample, float* out) {
  const std::vector<float> values = normals(kShape.elements(), 100 + 10 * step + sample);
  std::copy(values.begin(), values.end(), out);
}

std::vector<double> sampled(const Process& process, const SamplerConfig& config, const ModelFn& model) {
  std::vector<float> z = normals(kSamples * kShape.elements(), 0);
  const SampleRequest request{.n = kSamples, .z = z.data()};
  sample_loop(process, config, kShape, model, request, philox_noise);
  return to_f64(z);
}

}  // namespace

TEST_CASE("samplers return the data of a model that knows it") {
  const std::vector<float> x0 = normals(kSamples * kShape.elements(), 1);
  for (const char* prediction : {"epsilon", "x0", "v"}) {
    const auto process = make_process({.prediction = test::prediction(prediction),
                                       .num_steps = 200,
                                       .schedule = named<BetaSchedule>("squaredcos_cap_v2")},
                                      false);
    for (const SamplerConfig& config : {SamplerConfig{.spacing = "20"}, SamplerConfig{.spacing = "1"},
                                        SamplerConfig{.sampler = test::sampler("ddim"), .spacing = "20"},
                                        SamplerConfig{.sampler = test::sampler("ddim"), .spacing = "ddim40", .eta = 1},
                                        SamplerConfig{.sampler = test::sampler("dpm++"), .spacing = "20"},
                                        SamplerConfig{.sampler = test::sampler("dpm++"), .spacing = "2"}}) {
      INFO(prediction << ' ' << sampler_of(config, *process).name << ' ' << config.spacing.text());
      // The last step divides float rounding of eps by about sqrt(A) only.
      CHECK(compare(sampled(*process, config, Oracle{*process, x0}), to_f64(x0), 1e-5));
    }
  }
}

namespace {

/// A model whose answers depend on x and t, as noise.
void wavy_model(const float* x, const double* t, const Condition*, int64_t n, float* out) {
  for (int64_t i = 0; i < n * kShape.elements(); ++i) {
    out[i] = 0.5f * x[i] + 0.1f * std::sin(static_cast<float>(t[i / kShape.elements()]));
  }
}

}  // namespace

TEST_CASE("leaving out the unconditional half does not change the samples") {
  const auto process = make_process({}, false);
  const std::vector<Condition> labels = conditions_of({4, 0, 2, 7, 7, 7});
  const ModelFn model = [](const float* x, const double* t, const Condition* y, int64_t n, float* out) {
    wavy_model(x, t, y, n, out);
    for (int64_t i = 0; i < n * kShape.elements(); ++i)
      out[i] += 0.05f * static_cast<float>(y[i / kShape.elements()].label);
  };
  for (const char* sampler : {"ddpm", "ddim"}) {
    std::vector<std::vector<float>> runs;
    for (const bool both : {true, false}) {
      runs.push_back(normals((both ? 2 : 1) * kSamples * kShape.elements(), 0));
      const SamplerConfig config{.sampler = test::sampler(sampler), .spacing = "10", .cfg_scale = 3};
      std::vector<float>& z = runs.back();
      const SampleRequest request{
          .n = kSamples, .z = z.data(), .conditions = labels.data(), .null_class = 7, .keep_unconditional_half = both};
      int64_t steps = 0;
      std::vector<float> last;
      sample_loop(*process, config, kShape, model, request, philox_noise,
                  [&](int64_t step, int64_t num_steps, const float* x) {
                    CHECK(step == steps++);
                    CHECK(num_steps == 10);
                    last.assign(x, x + z.size());
                  });
      CHECK((steps == 10 && last == z));
    }
    runs[0].resize(runs[1].size());
    CHECK(runs[0] == runs[1]);
  }
}

TEST_CASE("implicit sampling with eta 1 is ancestral sampling with the posterior's variance") {
  const auto process = make_process({.variance = Variance::kFixedSmall}, false);
  for (const bool clip : {false, true}) {
    const SamplerConfig ddpm{.spacing = "25", .clip_denoised = clip};
    const SamplerConfig ddim{.sampler = test::sampler("ddim"), .spacing = "25", .eta = 1, .clip_denoised = clip};
    CHECK(compare(sampled(*process, ddim, wavy_model), sampled(*process, ddpm, wavy_model), 1e-5));
  }
}

TEST_CASE("dpm++ of two steps is implicit sampling: there is no step of second order") {
  const auto process = make_process({}, false);
  for (const bool clip : {false, true}) {
    const auto run = [&](const char* sampler, const std::vector<double>& steps) {
      return sampled(*process,
                     {.sampler = test::sampler(sampler), .spacing = Spacing::at(steps), .clip_denoised = clip},
                     wavy_model);
    };
    CHECK(compare(run("dpm++", {500, 999}), run("ddim", {500, 999}), 1e-5));
    CHECK_FALSE(compare(run("dpm++", {333, 666, 999}), run("ddim", {333, 666, 999}), 1e-4));
  }
}

TEST_CASE("dpm++ leaves out the step that is nearly clean") {
  const auto process = make_process({.num_steps = 100}, false);
  const auto visited = [&](const char* spacing) {
    std::vector<double> steps;
    const ModelFn model = [&](const float*, const double* t, const Condition*, int64_t n, float* out) {
      steps.push_back(t[0]);
      std::fill_n(out, n * kShape.elements(), 0.1f);
    };
    sampled(*process, {.sampler = test::sampler("dpm++"), .spacing = spacing}, model);
    return steps;
  };
  CHECK(visited("3") == std::vector<double>{99, 66, 33});
  CHECK(visited("1") == std::vector<double>{99});
  CHECK(visited("2,1") == std::vector<double>{50, 49, 24});
  CHECK(visited("ddim4") == std::vector<double>{99, 74, 49, 24});
  CHECK(visited("100").size() == 100);  // all there are
  CHECK(visited("99").back() == 1);
}

TEST_CASE("dpm++ nears the limit of many steps faster than implicit sampling") {
  const auto process = make_process({}, false);
  // The exact noise of data that is normal with deviation 0.5.
  const ModelFn model = [&](const float* x, const double* t, const Condition*, int64_t n, float* out) {
    for (int64_t i = 0; i < n * kShape.elements(); ++i) {
      const double a = as_ddpm(*process).schedule().alphas_cumprod[static_cast<size_t>(t[i / kShape.elements()])];
      out[i] = static_cast<float>(std::sqrt(1 - a) * x[i] / (0.25 * a + 1 - a));
    }
  };
  const auto run = [&](const char* sampler, const char* spacing) {
    return sampled(*process, {.sampler = test::sampler(sampler), .spacing = spacing}, model);
  };
  const std::vector<double> limit = run("ddim", "1000");
  const auto error = [&](const std::vector<double>& got) {
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - limit[i]));
    return worst;
  };
  CHECK(error(run("dpm++", "20")) < 0.4 * error(run("ddim", "20")));
}

TEST_CASE("the loop gives the model original timesteps and asks for noise only where it is used") {
  const auto process = make_process({}, true);
  const std::vector<Condition> labels = conditions_of({4, 0, 2});
  struct Case {
    SamplerConfig config;
    int64_t model_n, noisy_steps;
    double least_timestep = 0;
  };
  for (const Case& c : {Case{{.spacing = "5"}, kSamples, 4}, Case{{.spacing = "5", .cfg_scale = 2}, 2 * kSamples, 4},
                        Case{{.sampler = test::sampler("ddim"), .spacing = "5"}, kSamples, 0},
                        Case{{.sampler = test::sampler("dpm++"), .spacing = "5", .cfg_scale = 2}, 2 * kSamples, 0, 200},
                        Case{{.sampler = test::sampler("ddim"), .spacing = "5", .eta = 0.3}, kSamples, 4}}) {
    std::vector<int64_t> noise_calls;
    std::vector<double> timesteps;
    const ModelFn model = [&](const float* x, const double* t, const Condition* y, int64_t n, float* out) {
      CHECK(n == c.model_n);
      timesteps.push_back(t[0]);
      for (int64_t i = 0; i < n; ++i) {
        CHECK(t[i] == t[0]);
        CHECK(y[i].label == (i < kSamples ? labels[size_t(i)].label : 7));
        CHECK(std::equal(x, x + kShape.elements(), x + (n / kSamples - 1) * kSamples * kShape.elements()));
      }
      std::fill_n(out, n * 2 * kShape.elements(), 0.25f);
    };
    const NoiseFn noise = [&](int64_t step, int64_t sample, float* out) {
      CHECK(sample == static_cast<int64_t>(noise_calls.size()) % kSamples);
      noise_calls.push_back(step);
      std::fill_n(out, kShape.elements(), 0.5f);
    };
    std::vector<float> z = normals(kSamples * kShape.elements(), 2);
    const SampleRequest request{.n = kSamples, .z = z.data(), .conditions = labels.data(), .null_class = 7};
    sample_loop(*process, c.config, kShape, model, request, noise);
    CHECK(model_times(*process, c.config) == timesteps);
    if (c.least_timestep == 0) CHECK(timesteps == std::vector<double>{999, 749, 500, 250, 0});
    CHECK(timesteps.front() == 999);
    CHECK(timesteps.back() == c.least_timestep);
    REQUIRE(static_cast<int64_t>(noise_calls.size()) == c.noisy_steps * kSamples);
    for (size_t i = 0; i < noise_calls.size(); ++i) CHECK(noise_calls[i] == static_cast<int64_t>(i) / kSamples);
  }
}

TEST_CASE("a sampler's step does not depend on the cut and may work in place") {
  const Schedule schedule = respace(test::make_schedule("linear", 1000), "10");
  const Rules rules{.prediction = test::prediction("epsilon"), .variance = Variance::kLearnedRange};
  const std::vector<float> x = normals(kSamples * kShape.elements(), 3),
                           noise = normals(kSamples * kShape.elements(), 4),
                           out = normals(kSamples * 2 * kShape.elements(), 5);
  const int64_t t[kSamples] = {9, 0, 4};
  for (const auto step : {ddpm_step, ddim_step}) {
    std::vector<float> whole(x.size()), pieces(x);
    const StepSettings settings{.clip_denoised = true, .eta = 0.7};
    step(schedule, rules, kShape, settings, {x.data(), t, out.data(), noise.data(), whole.data()}, 0, kSamples);
    for (int64_t i = 0; i < kSamples; ++i) {
      step(schedule, rules, kShape, settings, {pieces.data(), t, out.data(), noise.data(), pieces.data()}, i, i + 1);
    }
    CHECK(pieces == whole);
    // Sample 1 is at t = 0: noise must not show there, but at the others.
    std::vector<float> quiet(x.size());
    step(schedule, rules, kShape, settings, {x.data(), t, out.data(), nullptr, quiet.data()}, 0, kSamples);
    for (int64_t i = 0; i < kSamples * kShape.elements(); ++i) {
      CHECK((quiet[i] == whole[i]) == (i / kShape.elements() == 1));
    }
  }
}

TEST_CASE("guidance touches the channels it is asked to") {
  for (const int64_t cfg_channels : {1, 2, 3, -1}) {
    // one sample, 2 data channels of one pixel, 4 output channels; conditional, then unconditional
    float out[8] = {1, 2, 3, 4, 10, 20, 30, 40};
    guided_output(out, 1, 2, 4, 1, 3, cfg_channels);
    const bool second = cfg_channels != 1;
    const float want[8] = {-17, second ? -34.0f : 2, 3, 4, -17, second ? -34.0f : 20, 30, 40};
    for (int i = 0; i < 8; ++i) CHECK(out[i] == want[i]);
  }
}

TEST_CASE("guidance acts within its interval, outside of which the model runs once") {
  const std::vector<Condition> labels = conditions_of({4, 0, 2});
  const ProgressFn quiet;
  const auto sample = [&](const Process& process, const SamplerConfig& config, bool keeps,
                          std::vector<double>& guided) {
    const ModelFn model = [&](const float* x, const double* t, const Condition* y, int64_t n, float* out) {
      const int64_t each = process.output_channels(kShape.channels) * kShape.pixels;
      if (n == 2 * kSamples && !keeps) guided.push_back(process.data_share(t[0]));
      for (int64_t i = 0; i < n * each; ++i)
        out[i] = 0.1f * float(y[i / each].label) + 0.01f * x[i % kShape.elements()];
    };
    std::vector<float> z = normals((keeps ? 2 : 1) * kSamples * kShape.elements(), 2);
    const SampleRequest request{
        .n = kSamples, .z = z.data(), .conditions = labels.data(), .null_class = 7, .keep_unconditional_half = keeps};
    sample_loop(process, config, kShape, model, request, philox_noise, quiet);
    z.resize(size_t(kSamples * kShape.elements()));
    return z;
  };
  for (const char* kind : {"ddpm", "flow"}) {
    Config c;
    c.process = test::process(kind);
    if (c.process->name == "flow") c.prediction = test::prediction("velocity");
    const auto process = make_process(c, false);
    SamplerConfig config{.spacing = "10", .cfg_scale = 3};
    std::vector<double> all, some, none;
    const auto everywhere = sample(*process, config, false, all);
    CHECK(all.size() == model_times(*process, config).size());
    config.cfg_interval = {0.3, 0.7};
    const auto within = sample(*process, config, false, some);
    CHECK((!some.empty() && some.size() < all.size()));
    for (const double share : some) CHECK((share >= 0.3 && share <= 0.7));
    std::vector<double> inside;
    std::copy_if(all.begin(), all.end(), std::back_inserter(inside), [](double s) { return s >= 0.3 && s <= 0.7; });
    CHECK(some == inside);
    config.cfg_interval = {0.9999, 1};
    CHECK(sample(*process, config, false, none) != within);
    CHECK(within != everywhere);
  }
  // Shares of the data rise on the way of both processes.
  CHECK(make_process({}, true)->data_share(999) < 0.01);
  CHECK(make_process({}, true)->data_share(0) > 0.98);
}

TEST_CASE("a guide takes the place of the model without labels") {
  Config c;
  c.process = test::process("flow"), c.prediction = test::prediction("velocity");
  const auto process = make_process(c, false);
  const auto constant = [](float velocity, int64_t* calls) {
    return ModelFn([=](const float*, const double*, const Condition* c, int64_t n, float* out) {
      ++*calls;
      CHECK((n == kSamples && c == nullptr));  // labels are not needed
      std::fill_n(out, n * kShape.elements(), velocity);
    });
  };
  int64_t of_model = 0, of_guide = 0;
  const ModelFn model = constant(1.0f, &of_model), guide = constant(0.25f, &of_guide);
  SamplerConfig config{.sampler = test::sampler("euler"), .spacing = "4", .cfg_scale = 3};
  const auto moved = [&] {
    const std::vector<float> start = normals(kSamples * kShape.elements(), 2);
    std::vector<float> z = start;
    sample_loop(*process, config, kShape, model, {.n = kSamples, .z = z.data(), .guide = &guide}, philox_noise);
    for (size_t i = 1; i < z.size(); ++i) CHECK(z[i] - start[i] == Approx(z[0] - start[0]).margin(1e-5));
    return double(z[0]) - start[0];
  };
  CHECK(moved() == Approx(0.25 + 3 * (1 - 0.25)));
  CHECK((of_model == 4 && of_guide == 4));
  config.cfg_interval = {0.5, 1};  // two of the four steps
  CHECK(moved() == Approx(0.5 * 1 + 0.5 * 2.5));
  CHECK((of_model == 8 && of_guide == 6));
  config.cfg_scale = 1;
  CHECK(moved() == Approx(1));
  CHECK(of_guide == 6);
}

TEST_CASE("guidance needs classes") {
  const auto process = make_process({.num_steps = 100}, true);
  float z[6] = {};
  const Condition condition;
  const ModelFn model = [](const float*, const double*, const Condition*, int64_t, float*) { FAIL("called"); };
  for (const SampleRequest& request :
       {SampleRequest{.n = 1, .z = z}, SampleRequest{.n = 1, .z = z, .conditions = &condition},
        SampleRequest{.n = 1, .z = z, .null_class = 10}}) {
    CHECK_THROWS_WITH(sample_loop(*process, {.spacing = "5", .cfg_scale = 4}, kShape, model, request, philox_noise),
                      Catch::Contains("guidance without classes"));
  }
}
