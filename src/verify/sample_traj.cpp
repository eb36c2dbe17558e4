// Sampling with classifier-free guidance through a small trained model, whose weights stand in the file. The reference
// carries both halves of the batch along, the second with its own latents, which the model never sees; the halves are
// compared apart.
#include <algorithm>
#include <charconv>
#include <map>

#include "ditrain/base/error.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kGuidedChannels = 3;  // what the reference guides

struct Tolerances {
  double first, second;  ///< halves of the batch
};
constexpr Tolerances kGuided{2e-5, 2e-5};
// For latents that the table below does not name (another choice of steps): its largest.
constexpr Tolerances kAnyLatents{8e-5, 2e-4};

const std::map<std::string, Tolerances> kLatents = {
    {"ddpm.step0", {4e-5, 5e-5}},       {"ddpm.step4", {3e-5, 4e-6}},       {"ddpm.step8", {9e-6, 5e-6}},
    {"ddpm.final", {9e-6, 5e-6}},       {"ddim0.step0", {3e-5, 3e-5}},      {"ddim0.step4", {6e-5, 6e-5}},
    {"ddim0.step8", {8e-5, 1e-4}},      {"ddim0.final", {8e-5, 1e-4}},      {"ddim5.step0", {3e-5, 3e-5}},
    {"ddim5.step4", {3e-5, 6e-6}},      {"ddim5.step8", {4e-5, 6e-6}},      {"ddim5.final", {4e-5, 6e-6}},
    {"ddim0s.step0", {3e-5, 3e-5}},     {"ddim0s.step4", {3e-5, 5e-5}},     {"ddim0s.step8", {5e-5, 1e-4}},
    {"ddim0s.final", {5e-5, 1e-4}},     {"ddpm_clip.step0", {3e-5, 4e-5}},  {"ddpm_clip.step4", {3e-5, 3e-5}},
    {"ddpm_clip.step8", {1e-5, 2e-5}},  {"ddpm_clip.final", {4e-5, 2e-4}},  {"ddim5_clip.step0", {3e-5, 3e-5}},
    {"ddim5_clip.step4", {3e-5, 2e-5}}, {"ddim5_clip.step8", {4e-5, 2e-4}}, {"ddim5_clip.final", {4e-5, 2e-4}}};

struct RunKind {
  const char* name;
  const char* sampler;
  double eta;
  bool clip, ddim_spacing;  ///< ddim_spacing: steps chosen by "ddimN" instead of "N"
};
constexpr RunKind kRuns[] = {{"ddpm", "ddpm", 0, false, false},     {"ddim0", "ddim", 0, false, false},
                             {"ddim5", "ddim", 0.5, false, false},  {"ddim0s", "ddim", 0, false, true},
                             {"ddpm_clip", "ddpm", 0, true, false}, {"ddim5_clip", "ddim", 0.5, true, false}};

/// Everything that the runs share.
struct Sampling {
  Sampling(Verification& v, const nn::DitConfig& c) : config(c), model(lay_out(c)) {
    n = v.setting("cfg.n", 1, 2048), steps = v.setting("cfg.steps", 1, kTrainedSteps);
    shape = {.channels = c.in_channels, .pixels = c.pixels()};
    const Shape latents = image_shape(c, 2 * n);
    z = v.f32("z", latents), y = v.i64("y", {2 * n}, 0, c.num_classes);
    noise = v.f32("noise", {steps, latents[0], latents[1], latents[2], latents[3]});
    cfg_scale = v.f64("cfg_scale", {1}).front();
    if (!(cfg_scale >= 0 && cfg_scale <= 1e6 && cfg_scale != 1))
      throw InputError({.where = "sample_traj", .what = "cfg_scale is no guidance", .got = std::to_string(cfg_scale)});
    load_model(model, autograd::ParameterStore::For::kInference, v);
    pass = make_pass(model, 2 * n, autograd::Mode::kInference);
  }

  std::vector<float> run_model(const float* x, const double* t, const int64_t* labels, ops::Context& ctx) {
    const int64_t rows = 2 * n;
    return run_forward(*pass, {{x, x + rows * shape.elements()}, {t, t + rows}, {labels, labels + rows}}, ctx);
  }

  nn::DitConfig config;
  nn::Dit model;
  std::unique_ptr<nn::DitPass> pass;
  int64_t n = 0, steps = 0;
  diffusion::Shape shape;
  std::vector<float> z, noise;
  std::vector<int64_t> y;
  double cfg_scale = 0;
};

/// The initial noise repeats its first half, the second half of the labels is the null class.
void check_inputs(Verification& v, const Sampling& s) {
  std::vector<float> z(s.z);
  std::copy_n(s.z.begin(), z.size() / 2, z.begin() + int64_t(z.size()) / 2);
  std::vector<int64_t> y(s.y);
  std::fill(y.begin() + s.n, y.end(), s.config.num_classes);
  v.check("z", image_shape(s.config, 2 * s.n), to_f64(z), 0, Per::unit());
  v.check_exact("y", {2 * s.n}, y);
  const nn::DitConfig& c = s.config;
  const auto table = nn::sincos_position_table(c.hidden_size, c.grid_height(), c.grid_width());
  v.check("pos_embed", {1, c.tokens(), c.hidden_size}, to_f64(table), kTableTolerance, Per::unit());
}

void check_halves(Verification& v, const std::string& name, const Shape& shape, const std::vector<double>& got,
                  const Tolerances& tolerance) {
  const std::vector<double> want = v.f64(name, shape);
  const size_t half = want.size() / 2;
  const auto check = [&](const char* which, size_t from, double relative) {
    const auto expected = std::span(want).subspan(from, half);
    v.add(name, which, compare(std::span(got).subspan(from, half), expected, relative, piece_scales(expected, 1)));
  };
  check("first half", 0, tolerance.first);
  check("second half", half, tolerance.second);
}

void verify_guided_output(Verification& v, Sampling& s) {
  const std::vector<double> t(size_t(2 * s.n), kTrainedSteps - 1);
  const int64_t channels = s.config.out_channels();
  std::vector<float> out = s.run_model(s.z.data(), t.data(), s.y.data(), v.ctx());
  diffusion::guided_output(out.data(), s.n, s.shape.channels, channels, s.shape.pixels, s.cfg_scale, kGuidedChannels);
  const Shape shape = output_shape(s.config, 2 * s.n);
  check_halves(v, "guided.out", shape, to_f64(out), kGuided);
  check_halves(v, "guided.out.f64", shape, to_f64(out), kGuided);
}

/// Latents after each step.
std::vector<std::vector<double>> sample(Sampling& s, const RunKind& run, ops::Context& ctx) {
  const std::string spacing = (run.ddim_spacing ? "ddim" : "") + std::to_string(s.steps);
  const diffusion::SamplerConfig config{.sampler = diffusion::named<diffusion::Sampler>(run.sampler),
                                        .spacing = spacing,
                                        .eta = run.eta,
                                        .clip_denoised = run.clip,
                                        .cfg_scale = s.cfg_scale,
                                        .cfg_channels = kGuidedChannels};
  const auto process = diffusion::make_process({}, s.config.learn_sigma);
  std::vector<float> x(s.z);
  std::vector<std::vector<double>> latents;
  const auto model = [&](const float* in, const double* t, const int64_t* labels, int64_t, float* out) {
    const std::vector<float> result = s.run_model(in, t, labels, ctx);
    std::copy(result.begin(), result.end(), out);
  };
  const auto noise_of = [&](int64_t step, int64_t row, float* out) {
    std::copy_n(s.noise.begin() + (step * 2 * s.n + row) * s.shape.elements(), s.shape.elements(), out);
  };
  const auto keep = [&](int64_t, int64_t, const float* now) { latents.emplace_back(now, now + x.size()); };
  diffusion::sample_loop(*process, config, s.shape, model,
                         {.n = s.n,
                          .z = x.data(),
                          .labels = s.y.data(),
                          .null_class = s.config.num_classes,
                          .keep_unconditional_half = true},
                         noise_of, keep);
  return latents;
}

/// The k of "step<k>", steps - 1 for "final". Errors: InputError for anything else
int64_t step_of(const std::string& moment, int64_t steps) {
  if (moment == "final") return steps - 1;
  int64_t k = -1;
  const char *begin = moment.data() + 4, *end = moment.data() + moment.size();
  const bool number = moment.starts_with("step") && std::from_chars(begin, end, k).ptr == end;
  if (!number || k < 0 || k >= steps)
    throw InputError({.where = "sample_traj", .what = "no such step", .got = moment, .expected = "step<k> or final"});
  return k;
}

void verify_run(Verification& v, Sampling& s, const RunKind& run) {
  const auto latents = sample(s, run, v.ctx());
  const Shape shape = image_shape(s.config, 2 * s.n);
  const std::string prefix = std::string(run.name) + ".", ending = ".f64";
  const auto check = [&](const std::string& name, const std::string& stem) {
    const auto row = kLatents.find(stem);
    const auto& got = latents[size_t(step_of(stem.substr(prefix.size()), s.steps))];
    check_halves(v, name, shape, got, row == kLatents.end() ? kAnyLatents : row->second);
  };
  for (const std::string& name : v.names())
    if (name.starts_with(prefix) && !name.ends_with(ending)) check(name, name);
  check(prefix + "final" + ending, prefix + "final");
}

}  // namespace

void verify_sample_traj(Verification& v) {
  Sampling sampling(v, read_dit_config(v));
  check_inputs(v, sampling);
  verify_guided_output(v, sampling);
  for (const RunKind& run : kRuns) verify_run(v, sampling, run);
}

}  // namespace ditrain::verify
