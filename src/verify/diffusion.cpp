// Schedules, respacing, q_sample, posteriors, losses and reverse steps of the diffusion.
// Results of float32 are relative to each sample's largest value: small and large timesteps differ by orders.
#include "ditrain/diffusion/diffusion.hpp"

#include <algorithm>

#include "kinds.hpp"

namespace ditrain::verify {

namespace {

using diffusion::Schedule;

constexpr double kTight = 2e-6;
// Tables are f64 on either side: entries differ by the order of products and by the mathematical library. Cancellation
// in 1 / A - 1 and log(1 - A) near 0 makes 1e-12 of rounding, relative.
constexpr double kTableTolerance = 2e-11;

void verify_tables(Verification& v, const std::string& name) {
  const Shape length = v.shape(name + ".betas", 1, 100000);
  const Schedule s = diffusion::make_schedule(*diffusion::named<diffusion::BetaSchedule>(name), length[0]);
  const std::pair<const char*, const std::vector<double>&> tables[] = {
      {"betas", s.betas},
      {"alphas_cumprod", s.alphas_cumprod},
      {"alphas_cumprod_prev", s.alphas_cumprod_prev},
      {"sqrt_alphas_cumprod", s.sqrt_alphas_cumprod},
      {"sqrt_one_minus_alphas_cumprod", s.sqrt_one_minus_alphas_cumprod},
      {"log_one_minus_alphas_cumprod", s.log_one_minus_alphas_cumprod},
      {"sqrt_recip_alphas_cumprod", s.sqrt_recip_alphas_cumprod},
      {"sqrt_recipm1_alphas_cumprod", s.sqrt_recipm1_alphas_cumprod},
      {"posterior_variance", s.posterior_variance},
      {"posterior_log_variance_clipped", s.posterior_log_variance_clipped},
      {"posterior_mean_coef1", s.posterior_mean_coef1},
      {"posterior_mean_coef2", s.posterior_mean_coef2}};
  for (const auto& [table, values] : tables) v.check(name + "." + table, length, values, kTableTolerance, Per::entry());
}

/// respace.<spec>.map and .betas, the spec with _ for commas.
void verify_respacing(Verification& v, const Schedule& base) {
  for (const Match& m : v.matches("respace.*.map")) {
    std::string spec = m.words[0];
    std::replace(spec.begin(), spec.end(), '_', ',');
    const Schedule s = diffusion::respace(base, spec);
    v.check_exact(m.name, {s.num_steps()}, s.timestep_map);
    v.check("respace." + m.words[0] + ".betas", {s.num_steps()}, s.betas, kTableTolerance, Per::entry());
  }
}

struct Batch {
  Batch(Verification& v, int64_t num_steps) : base({.num_steps = num_steps}) {
    N = v.setting("cfg.N", 1, 4096);
    const int64_t C = v.setting("cfg.C", 1, 64), H = v.setting("cfg.H", 1, 1024);
    shape = {.channels = C, .pixels = H * H};
    data = {N, C, H, H}, learned = {N, 2 * C, H, H};
    x0 = v.f32("x_start", data), noise = v.f32("noise", data), stub = v.f32("stub", learned);
    x_t = v.f32("q_sample.x_t", data);
    t = v.i64("t", {N}, 0, num_steps - 1);
    time.assign(t.begin(), t.end());
  }
  /// The frozen model output, without its variance channels if they are not learned.
  std::vector<float> output(bool learn_sigma) const {
    if (learn_sigma) return stub;
    const int64_t n = shape.elements();
    std::vector<float> first;
    for (int64_t i = 0; i < N; ++i) first.insert(first.end(), stub.begin() + 2 * i * n, stub.begin() + (2 * i + 1) * n);
    return first;
  }
  diffusion::Config base;
  int64_t N = 0;
  diffusion::Shape shape;
  Shape data, learned;
  std::vector<float> x0, noise, stub, x_t;
  std::vector<int64_t> t;
  std::vector<double> time;  ///< the same as times of the process
};

void verify_forward_process(Verification& v, const Batch& b) {
  const int64_t n = b.shape.elements();
  std::vector<float> x_t(b.x0.size()), mean(b.x0.size());
  const auto process = diffusion::make_process(b.base, true);
  const Schedule& schedule = diffusion::as_ddpm(*process).schedule();
  diffusion::q_sample(*process, b.x0.data(), b.noise.data(), b.time.data(), x_t.data(), n, 0, b.N);
  diffusion::q_posterior_mean(schedule, b.x0.data(), b.x_t.data(), b.t.data(), mean.data(), n, 0, b.N);
  std::vector<double> log_variance;
  for (const int64_t t : b.t)
    log_variance.insert(log_variance.end(), size_t(n), schedule.posterior_log_variance_clipped[size_t(t)]);
  v.check_both("q_sample.x_t", b.data, to_f64(x_t), kTight);
  v.check_both("q_posterior.mean", b.data, to_f64(mean), kTight);
  v.check_both("q_posterior.log_variance", b.data, log_variance, kTight);
}

struct LossCase {
  const char* name;
  const char* loss;
  bool learn_sigma, has_terms;  ///< has_terms: mse and, if the variance is learned, vb stand in the file
  double vb, total, gradient;   ///< tolerances
};
// The reference's rescale_learned_sigmas multiplies vb by T / 1000 = 1, so rls1 equals ls1.
constexpr LossCase kLossCases[] = {{"ls1", "mse_vb", true, true, 4e-5, 8e-6, 3e-5},
                                   {"rls1", "mse_vb", true, true, 4e-5, 8e-6, 3e-5},
                                   {"ls0", "mse_vb", false, true, 0, kTight, kTight},
                                   {"kl1", "kl", true, false, 0, 4e-5, 2e-4}};

/// Beside the gradient of the mean channels an error in that of the variance channels could hide: it is held against
/// its own largest value in each sample.
void check_variance_channels(Verification& v, const Batch& b, const std::string& name, const std::vector<double>& got,
                             double tolerance) {
  const auto channels = [&](const std::vector<double>& all) {
    const int64_t n = b.shape.elements();
    std::vector<double> part;
    for (int64_t i = 0; i < b.N; ++i)
      part.insert(part.end(), all.begin() + (2 * i + 1) * n, all.begin() + (2 * i + 2) * n);
    return part;
  };
  const std::vector<double> want = channels(v.f64(name, b.learned));
  v.add(name, "variance channels", compare(channels(got), want, tolerance, piece_scales(want, b.N)));
}

void verify_loss(Verification& v, const Batch& b, const LossCase& c) {
  const std::vector<float> out = b.output(c.learn_sigma);
  std::vector<float> dout(out.size());
  std::vector<diffusion::LossTerms> terms(size_t(b.N));
  diffusion::Config config = b.base;
  config.loss = diffusion::named<diffusion::Objective>(c.loss);
  diffusion::training_loss(*diffusion::make_process(config, c.learn_sigma), b.shape,
                           {b.x0.data(), b.x_t.data(), b.noise.data(), b.time.data(), out.data()}, 1.0 / double(b.N),
                           dout.data(), terms.data(), 0, b.N);
  std::vector<double> mse, vb, loss;
  for (const auto& term : terms) mse.push_back(term.mse), vb.push_back(term.vb), loss.push_back(term.loss);
  const std::string name = c.name;
  v.check_both(name + ".loss", {b.N}, loss, c.total, Per::entry());
  v.check_both(name + ".dstub", c.learn_sigma ? b.learned : b.data, to_f64(dout), c.gradient, Per::row(b.N));
  if (c.learn_sigma && c.has_terms) check_variance_channels(v, b, name + ".dstub.f64", to_f64(dout), c.gradient);
  if (c.has_terms) v.check_both(name + ".mse", {b.N}, mse, kTight, Per::entry());
  if (c.has_terms && c.learn_sigma) v.check_both(name + ".vb", {b.N}, vb, c.vb, Per::entry());
}

struct ReverseCase {
  const char* name;
  const char* prediction;
  diffusion::Variance variance;
  bool learn_sigma, clip;
  double variance_tolerance, pred_x0_tolerance;
};
using enum diffusion::Variance;
constexpr ReverseCase kReverseCases[] = {{"ls1_clip", "epsilon", kAuto, true, true, 9e-6, 3e-5},
                                         {"ls1_noclip", "epsilon", kAuto, true, false, 9e-6, 3e-6},
                                         {"large_noclip", "epsilon", kFixedLarge, false, false, kTight, 3e-6},
                                         {"small_clip", "epsilon", kFixedSmall, false, true, kTight, 3e-5},
                                         {"xstart_noclip", "x0", kAuto, true, false, 9e-6, kTight}};

void verify_reverse_process(Verification& v, const Batch& b, const ReverseCase& c) {
  const std::vector<float> out = b.output(c.learn_sigma);
  diffusion::Config config = b.base;
  config.prediction = diffusion::named<diffusion::Prediction>(c.prediction), config.variance = c.variance;
  const auto process = diffusion::make_process(config, c.learn_sigma);
  const diffusion::Ddpm& ddpm = diffusion::as_ddpm(*process);
  std::vector<float> mean(b.x0.size()), variance(mean), log_variance(mean), pred_x0(mean);
  diffusion::p_mean_variance(ddpm.schedule(), ddpm.rules(), b.shape, c.clip, b.x_t.data(), b.t.data(), out.data(),
                             {mean.data(), variance.data(), log_variance.data(), pred_x0.data()}, 0, b.N);
  const std::string name = std::string("pmv.") + c.name;
  const Per sample = Per::row(b.N);
  v.check_both(name + ".mean", b.data, to_f64(mean), kTight, sample);
  v.check_both(name + ".variance", b.data, to_f64(variance), c.variance_tolerance, sample);
  v.check_both(name + ".log_variance", b.data, to_f64(log_variance), kTight, sample);
  v.check_both(name + ".pred_xstart", b.data, to_f64(pred_x0), c.pred_x0_tolerance, sample);
}

}  // namespace

void verify_diffusion(Verification& v) {
  verify_tables(v, "linear");
  verify_tables(v, "squaredcos_cap_v2");
  const int64_t num_steps = v.shape("linear.betas", 1, 100000)[0];
  verify_respacing(v, diffusion::make_schedule(*diffusion::named<diffusion::BetaSchedule>("linear"), num_steps));
  const Batch batch(v, num_steps);
  verify_forward_process(v, batch);
  for (const LossCase& c : kLossCases) verify_loss(v, batch, c);
  for (const ReverseCase& c : kReverseCases) verify_reverse_process(v, batch, c);
}

}  // namespace ditrain::verify
