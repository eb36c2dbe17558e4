// Sampling with classifier-free guidance through a small trained model, whose weights stand in the file. The reference
// carries both halves of the batch along, the second with its own latents, which the model never sees; the halves are
// compared apart.
#include <algorithm>

#include "ditrain/nn/patch_embed.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

/// A run: its sampler, and the tolerances of both halves of the batch by the moment.
struct RunKind {
  const char* name;
  const char* sampler;
  double eta;
  bool clip, ddim_spacing;  ///< ddim_spacing: steps chosen by "ddimN" instead of "N"
  double first[4], second[4];
};
constexpr const char* kMoments[] = {"step0", "step4", "step8", "final"};
constexpr RunKind kRuns[] = {
    {"ddpm", "ddpm", 0, false, false, {4e-5, 3e-5, 9e-6, 9e-6}, {5e-5, 4e-6, 5e-6, 5e-6}},
    {"ddim0", "ddim", 0, false, false, {3e-5, 6e-5, 8e-5, 8e-5}, {3e-5, 6e-5, 1e-4, 1e-4}},
    {"ddim5", "ddim", 0.5, false, false, {3e-5, 3e-5, 4e-5, 4e-5}, {3e-5, 6e-6, 6e-6, 6e-6}},
    {"ddim0s", "ddim", 0, false, true, {3e-5, 3e-5, 5e-5, 5e-5}, {3e-5, 5e-5, 1e-4, 1e-4}},
    {"ddpm_clip", "ddpm", 0, true, false, {3e-5, 3e-5, 1e-5, 4e-5}, {4e-5, 3e-5, 2e-5, 2e-4}},
    {"ddim5_clip", "ddim", 0.5, true, false, {3e-5, 3e-5, 4e-5, 4e-5}, {3e-5, 2e-5, 2e-4, 2e-4}}};
// For other moments (another choice of steps): the largest of the table.
constexpr double kAnyFirst = 8e-5, kAnySecond = 2e-4;

/// Everything that the runs share.
struct Sampling {
  explicit Sampling(Verification& v) : v(v), config(read_dit_config(v)), model(lay_out(config)) {
    n = v.setting("cfg.n", 1, 2048), steps = v.setting("cfg.steps", 1, kTrainedSteps);
    const Shape latents = image_shape(config, 2 * n);
    z = v.f32("z", latents), y = v.i64("y", {2 * n}, 0, config.num_classes);
    noise = v.f32("noise", {steps, latents[0], latents[1], latents[2], latents[3]});
    cfg_scale = read_cfg_scale(v);
    load_model(model, autograd::ParameterStore::For::kInference, v);
    pass = make_pass(model, 2 * n, autograd::Mode::kInference);
    network = model_of(*pass, config, config.out_channels(), v.ctx());
  }
  void check_inputs() const;
  void verify_guided_output() const;
  void verify_run(const RunKind& run) const;

  Verification& v;
  nn::ModelConfig config;
  nn::Model model;
  std::unique_ptr<nn::ModelPass> pass;
  diffusion::ModelFn network;
  int64_t n = 0, steps = 0;
  std::vector<float> z, noise;
  std::vector<int64_t> y;
  double cfg_scale = 0;
};

/// The initial noise repeats its first half, the second half of the labels is the null class.
void Sampling::check_inputs() const {
  std::vector<float> z_twice(z);
  std::copy_n(z.begin(), z.size() / 2, z_twice.begin() + int64_t(z.size()) / 2);
  std::vector<int64_t> labels(y);
  std::fill(labels.begin() + n, labels.end(), config.num_classes);
  v.check("z", image_shape(config, 2 * n), to_f64(z_twice), 0, Per::unit());
  v.check_exact("y", {2 * n}, labels);
  const auto table = nn::sincos_position_table(config.hidden_size, config.grid_height(), config.grid_width());
  v.check("pos_embed", {1, config.tokens(), config.hidden_size}, to_f64(table), kTableTolerance, Per::unit());
}

void Sampling::verify_guided_output() const {
  const std::vector<double> t(size_t(2 * n), kTrainedSteps - 1);
  const Shape shape = output_shape(config, 2 * n);
  std::vector<float> out(size_t(num_elements(shape)));
  network(z.data(), t.data(), conditions_of(y).data(), 2 * n, out.data());
  diffusion::guided_output(out.data(), n, config.in_channels, shape[1], config.pixels(), cfg_scale, kGuidedChannels);
  for (const char* name : {"guided.out", "guided.out.f64"}) v.check_halves(name, shape, to_f64(out), 2e-5, 2e-5);
}

void Sampling::verify_run(const RunKind& run) const {
  const diffusion::Shape each{.channels = config.in_channels, .pixels = config.pixels()};
  const auto noise_of = [&](int64_t step, int64_t row, float* out) {
    std::copy_n(noise.begin() + (step * 2 * n + row) * each.elements(), each.elements(), out);
  };
  const std::vector<Condition> conditions = conditions_of(y);
  const std::vector<double> latents = trajectory(
      *diffusion::make_process({}, config.learn_sigma),
      {.sampler = diffusion::named<diffusion::Sampler>(run.sampler),
       .spacing = (run.ddim_spacing ? "ddim" : "") + std::to_string(steps),
       .eta = run.eta,
       .clip_denoised = run.clip,
       .cfg_scale = cfg_scale,
       .cfg_channels = kGuidedChannels},
      each, network,
      {.n = n, .conditions = conditions.data(), .null_class = config.num_classes, .keep_unconditional_half = true}, z,
      noise_of);
  const std::string stem = std::string(run.name) + ".";
  const auto check = [&](const std::string& moment, int64_t step, const char* ending) {
    if (step < 0 || step >= steps) v.refuse("no such step", stem + moment, "step0 to step" + std::to_string(steps - 1));
    const auto at = size_t(std::find(std::begin(kMoments), std::end(kMoments), moment) - std::begin(kMoments));
    const auto from = latents.begin() + step * int64_t(z.size());
    v.check_halves(stem + moment + ending, image_shape(config, 2 * n), {from, from + int64_t(z.size())},
                   at < 4 ? run.first[at] : kAnyFirst, at < 4 ? run.second[at] : kAnySecond);
  };
  for (const Match& m : v.matches(stem + "step#"))
    check("step" + m.words[0], m.words[0].find('.') == std::string::npos ? int64_t(m.number(0)) : -1, "");
  for (const char* ending : {"", ".f64"}) check("final", steps - 1, ending);
}

}  // namespace

void verify_sample_traj(Verification& v) {
  const Sampling sampling(v);
  sampling.check_inputs();
  sampling.verify_guided_output();
  for (const RunKind& run : kRuns) sampling.verify_run(run);
}

}  // namespace ditrain::verify
