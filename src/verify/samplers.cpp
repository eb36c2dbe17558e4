// Samplers of both processes on a denoiser that is known in closed form: diffusers' DPMSolverMultistepScheduler,
// DDIMScheduler and FlowMatchEulerDiscreteScheduler at their own times.
// Not ours, and compared with nothing: dpm++ that ends at the smallest sigma (dpm_min), with Karras' sigmas
// (dpm_karras) or a bound of lambda (dpm_clip), DDIM that clips the data but keeps the noise (ddim_clip), and UniPC.
#include <algorithm>
#include <cmath>

#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

namespace df = diffusion;

constexpr double kTight = 2e-6;
constexpr int64_t kLargest = 4096;

/// The noise in x = sqrt(a) data + sqrt(1 - a) noise, data a mixture of two normals at -0.8 and 0.8, deviation 0.3.
double exact_noise(double x, double a) {
  const double variance = 0.09 * a + 1 - a, root = 0.8 * std::sqrt(a);
  return std::sqrt(1 - a) * (x - root * std::tanh(root * x / variance)) / variance;
}

struct Start {
  explicit Start(Verification& v) : shape(v.shape("x_T", 4, kLargest)), x(v.f32("x_T", shape)) {
    each = {.channels = shape[1], .pixels = shape[2] * shape[3]};
  }
  Shape shape;
  df::Shape each;
  std::vector<float> x;

  /// [steps, ...] after each step of the sampler.
  std::vector<double> run(const df::Process& process, const char* sampler, const df::Spacing& spacing,
                          const std::function<float(float, double)>& denoiser) const {
    const auto model = [&](const float* in, const double* t, const Condition*, int64_t n, float* out) {
      for (int64_t i = 0; i < n * each.elements(); ++i) out[i] = denoiser(in[i], t[i / each.elements()]);
    };
    return trajectory(process, {.sampler = df::named<df::Sampler>(sampler), .spacing = spacing}, each, model,
                      {.n = shape[0]}, x);
  }
  void check(Verification& v, const std::string& name, int64_t n, const std::vector<double>& got,
             double tolerance) const {
    v.check(name, {n, shape[0], shape[1], shape[2], shape[3]}, got, tolerance);
  }
};

/// Timesteps of a scheduler, noisiest first: n of the points i * length / n, less `back`.
std::vector<int64_t> spaced(int64_t n, int64_t length, int64_t back) {
  std::vector<int64_t> steps;
  for (int64_t i = n; i > 0; --i)
    steps.push_back(int64_t(std::nearbyint(double(i) * double(length) / double(n))) - back);
  return steps;
}
// DPM-Solver: all but the last of n + 1 points from 999 to 0
std::vector<int64_t> linspace_steps(int64_t n) { return spaced(n, kTrainedSteps - 1, 0); }
std::vector<int64_t> trailing_steps(int64_t n) { return spaced(n, kTrainedSteps, 1); }
std::vector<int64_t> leading_steps(int64_t n) {
  std::vector<int64_t> steps = df::space_timesteps(kTrainedSteps, "ddim" + std::to_string(n));
  std::reverse(steps.begin(), steps.end());
  return steps;
}

struct RunKind {
  const char* name;
  const char* sampler;
  std::vector<int64_t> (*steps)(int64_t n);
  bool has_sigmas;
  double linear, squaredcos;  ///< tolerances
};
// With squaredcos the first of the linspace and trailing steps is the last of the schedule, where abar is 2e-9 and
// float32 is worth little.
constexpr RunKind kRuns[] = {{"dpm", "dpm++", linspace_steps, true, 4e-6, 4e-3},
                             {"dpm1", "ddim", linspace_steps, true, 4e-6, 4e-3},
                             {"ddim", "ddim", leading_steps, false, 4e-6, 3e-6},
                             {"ddim_trailing", "ddim", trailing_steps, false, 4e-6, 6e-5}};

/// Each `beginning`.N.x with its number of steps N, and its name without the x.
std::vector<std::pair<std::string, int64_t>> runs_of(Verification& v, const std::string& beginning) {
  std::vector<std::pair<std::string, int64_t>> runs;
  for (const Match& m : v.matches(beginning + ".#.x")) {
    const int64_t n = v.shape(m.name, 5, kLargest)[0];
    if (n > kTrainedSteps) v.refuse(m.name + " has too many steps", std::to_string(n), "at most 1000");
    runs.emplace_back(beginning + "." + std::to_string(n) + ".", n);
  }
  return runs;
}

void verify_schedule(Verification& v, const Start& start, const ScheduleName& schedule) {
  const std::string table = schedule.fixture + ".abar";
  const auto process = df::make_process({.schedule = df::named<df::BetaSchedule>(schedule.config)}, false);
  const df::Schedule& tables = df::as_ddpm(*process).schedule();
  const std::vector<double> abar = v.f64(table, {kTrainedSteps});
  v.check(table, {kTrainedSteps}, tables.alphas_cumprod, kTight);
  const auto denoiser = [&](float x, double t) { return float(exact_noise(x, abar[size_t(t)])); };
  const bool is_linear = schedule.fixture == "linear";
  for (const RunKind& run : kRuns)
    for (const auto& [name, n] : runs_of(v, run.name + ("." + schedule.fixture))) {
      const std::vector<int64_t> steps = run.steps(n);
      v.check_exact(name + "timesteps", {n}, steps);
      std::vector<double> sigmas;
      for (const int64_t t : steps) sigmas.push_back(tables.sqrt_recipm1_alphas_cumprod[size_t(t)]);
      sigmas.push_back(0);
      if (run.has_sigmas)  // of float32 tables: at the last step of squaredcos 1 - beta is 0.001 +- 3e-8
        v.check(name + "sigmas", {n + 1}, sigmas, is_linear ? kTight : 5e-5);
      start.check(v, name + "x", n,
                  start.run(*process, run.sampler, df::Spacing::at({steps.rbegin(), steps.rend()}), denoiser),
                  is_linear ? run.linear : run.squaredcos);
    }
}

/// The velocity data - noise of the mixture on x = (1 - s) data + s noise.
float exact_velocity(float x, double t) {
  const double s = 1 - t, length = std::hypot(1 - s, s), a = (1 - s) * (1 - s) / (length * length);
  const double noise = exact_noise(x / length, a);
  if (s == 1) return float(-noise);  // the mean of the data is 0
  return float((x - s * noise) / (1 - s) - noise);
}

void verify_flow_sampler(Verification& v, const Start& start) {
  constexpr double kShift = 3;
  const auto process = df::make_process({.process = df::named<df::ProcessKind>("flow"), .time_shift = kShift}, false);
  for (const auto& [name, n] : runs_of(v, "flow")) {
    const std::vector<double> sigmas = scheduler_sigmas(n, kShift);
    std::vector<double> times;
    for (const double sigma : sigmas) times.push_back(1 - sigma);
    v.check(name + "sigmas", {n + 1}, sigmas, kTight);
    start.check(v, name + "x", n, start.run(*process, "euler", df::Spacing::at(times), exact_velocity), kTight);
  }
}

}  // namespace

void verify_samplers(Verification& v) {
  v.leave_out({"dpm_min.", "dpm_karras.", "dpm_clip.", "ddim_clip.", "unipc.", "unipc_min."});
  const Start start(v);
  for (const ScheduleName& schedule : kSchedules) verify_schedule(v, start, schedule);
  verify_flow_sampler(v, start);
}

}  // namespace ditrain::verify
