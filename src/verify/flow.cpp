// Process flow as in SiT and in diffusers' schedulers, prediction v and the min-SNR weights of process ddpm.
// Not ours, and compared with nothing: the paths gvp and vp, the predictions noise and score with their weights (pred,
// stub), the stochastic sampler (sde), times of density "mode", the loss weights of Stable Diffusion 3 (weight), and
// the schedules scaled_linear and zero. SiT's networks have variance channels, which it throws away: so does this file,
// and no other place.
#include <algorithm>
#include <cmath>

#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

namespace df = diffusion;

constexpr double kTight = 2e-6;
// bf16 in the L2 norm: twice what four instruction sets gave, 0.0037, 0.0005, 0.0008 and 0.0032.
constexpr double kBf16Prediction = 0.008, kBf16Loss = 0.001, kBf16Norm = 0.0016, kBf16Way = 0.007;
constexpr int64_t kLargestBatch = 4096, kLargestList = 100000;

std::vector<double> times(Verification& v, const std::string& name, int64_t n) {
  const std::vector<double> t = v.f64(name, {n});
  for (const double time : t)
    if (!(time >= 0 && time <= 1)) v.refuse(name + " is no time", std::to_string(time), "0 to 1");
  return t;
}

df::Config flow_config(double shift = 1) {
  return {.process = df::named<df::ProcessKind>("flow"), .time_shift = shift};
}

struct Batch {
  explicit Batch(Verification& v) : config(read_dit_config(v)) {
    B = v.shape("x1", 4)[0];
    if (B > kLargestBatch) v.refuse("batch too large", std::to_string(B), "at most 4096");
    image = image_shape(config, B);
    shape = {.channels = config.in_channels, .pixels = config.pixels()};
    data = v.f32("x1", image), noise = v.f32("x0", image);
    t = times(v, "t", B), t_in = times(v, "t_in", B);
    y = v.i64("y", {B}, 0, config.num_classes);
  }
  std::vector<float> noised(const df::Process& process, const std::vector<double>& at) const {
    std::vector<float> x(data.size());
    df::q_sample(process, data.data(), noise.data(), at.data(), x.data(), shape.elements(), 0, B);
    return x;
  }

  nn::ModelConfig config;
  int64_t B = 0;
  Shape image;
  df::Shape shape;
  std::vector<float> data, noise;
  std::vector<double> t, t_in;
  std::vector<int64_t> y;
};

/// What training regresses on, told by its gradient at an output of zero: 2 (out - target) / elements.
std::vector<double> targets(const df::Process& process, const df::Shape& shape, int64_t B, const float* data,
                            const float* noise, const double* t) {
  std::vector<float> zero(size_t(B * shape.elements())), dout(zero);
  std::vector<df::LossTerms> terms(static_cast<size_t>(B));
  df::training_loss(process, shape, {data, zero.data(), noise, t, zero.data()}, double(shape.elements()) / -2,
                    dout.data(), terms.data(), 0, B);
  return to_f64(dout);
}

/// Coefficients of data and noise in x_t and in its velocity: those of ones and zeros.
void verify_coefficients(Verification& v, const Batch& b, const df::Process& process) {
  const df::Shape one{.channels = 1, .pixels = 1};
  const std::vector<float> ones(size_t(b.B), 1), zeros(size_t(b.B), 0);
  const auto check = [&](const char* level, const char* slope, const std::vector<float>& data,
                         const std::vector<float>& noise) {
    std::vector<float> x(ones.size());
    df::q_sample(process, data.data(), noise.data(), b.t.data(), x.data(), 1, 0, b.B);
    v.check_both(level, {b.B}, to_f64(x), kTight);
    v.check_both(slope, {b.B}, targets(process, one, b.B, data.data(), noise.data(), b.t.data()), kTight);
  };
  check("linear.alpha", "linear.d_alpha", ones, zeros);
  check("linear.sigma", "linear.d_sigma", zeros, ones);
}

void verify_path(Verification& v, const Batch& b) {
  const auto process = df::make_process(flow_config(), false);
  v.check_both("linear.xt", b.image, to_f64(b.noised(*process, b.t)), kTight);
  v.check_both("t_in.xt", b.image, to_f64(b.noised(*process, b.t_in)), kTight);
  v.check_both("linear.ut", b.image, targets(*process, b.shape, b.B, b.data.data(), b.noise.data(), b.t.data()),
               kTight);
  verify_coefficients(v, b, *process);
}

/// The first C of O channels of each sample, or back again with zeros behind them.
std::vector<float> with_channels(const std::vector<float>& from, int64_t B, int64_t from_stride, int64_t to_stride) {
  std::vector<float> to(size_t(B * to_stride), 0.0f);
  for (int64_t i = 0; i < B; ++i)
    std::copy_n(from.begin() + i * from_stride, std::min(from_stride, to_stride), to.begin() + i * to_stride);
  return to;
}

void verify_training(Verification& v, const Batch& b, nn::Model& model, DType precision) {
  const auto process = df::make_process(flow_config(), false);
  const auto pass = make_pass(model, b.B, autograd::Mode::kTraining, {.precision = precision});
  const std::vector<float> x_t = b.noised(*process, b.t);
  std::vector<float> out(x_t.size()), dout(x_t.size());
  model_of(*pass, b.config, b.config.in_channels, v.ctx())(x_t.data(), b.t.data(), conditions_of(b.y).data(), b.B,
                                                           out.data());
  std::vector<df::LossTerms> terms(size_t(b.B));
  df::training_loss(*process, b.shape, {b.data.data(), x_t.data(), b.noise.data(), b.t.data(), out.data()},
                    1.0 / double(b.B), dout.data(), terms.data(), 0, b.B);
  const int64_t stride = b.config.out_channels() * b.shape.pixels;
  run_backward(model, *pass, with_channels(dout, b.B, b.shape.elements(), stride), v.ctx());
  std::vector<double> loss, norms;
  for (const df::LossTerms& term : terms) loss.push_back(term.loss);
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    if (!p->trainable) continue;
    double squares = 0;
    for (const double g : to_f64(p->grad)) squares += g * g;
    norms.push_back(std::sqrt(squares));
  }
  if (precision == DType::kBF16) {
    v.check_bf16("train.pred", b.image, to_f64(out), kBf16Prediction);
    v.check_bf16("train.loss", {b.B}, loss, kBf16Loss);
    v.check_bf16("train.grad_norm", {int64_t(norms.size())}, norms, kBf16Norm);
    return;
  }
  v.check_both("train.pred", b.image, to_f64(out), 3e-6);
  v.check_both("train.loss", {b.B}, loss, kTight, Per::entry());
  v.check_both("train.grad_norm", {int64_t(norms.size())}, norms, kTight);
}

/// Points of the way from z, the start among them: [points, samples, ...]; the second half of the samples is
/// unconditional and never reaches the model.
void verify_sampling(Verification& v, const Batch& b, nn::Model& model, DType precision) {
  const int64_t samples = v.shape("z", 4, kLargestBatch)[0];
  if (samples % 2 != 0) v.refuse("z has no two halves", std::to_string(samples) + " samples");
  const Shape image = image_shape(b.config, samples);
  const std::vector<float> z = v.f32("z", image);
  const std::vector<Condition> y = conditions_of(v.i64("ode.y", {samples}, 0, b.config.num_classes));
  const double cfg_scale = read_cfg_scale(v);
  const auto pass = make_pass(model, samples, autograd::Mode::kInference, {.precision = precision});
  for (const auto& [name, sampler] : {std::pair{"ode.euler", "euler"}, std::pair{"ode.heun2", "heun"}}) {
    const Shape shape = v.shape(name, 5, kLargestBatch), all{shape[0], samples, image[1], image[2], image[3]};
    if (shape[0] < 2) v.refuse(std::string(name) + " has no steps", to_string(shape));
    std::vector<double> got = to_f64(z);
    const std::vector<double> steps = trajectory(
        *df::make_process(flow_config(), false),
        {.sampler = df::named<df::Sampler>(sampler),
         .spacing = std::to_string(shape[0] - 1),
         .cfg_scale = cfg_scale,
         .cfg_channels = kGuidedChannels},
        b.shape, model_of(*pass, b.config, b.config.in_channels, v.ctx()),
        {.n = samples / 2, .conditions = y.data(), .null_class = b.config.num_classes, .keep_unconditional_half = true},
        z);
    got.insert(got.end(), steps.begin(), steps.end());
    if (precision == DType::kBF16)
      v.check_bf16(name, all, got, kBf16Way);
    else
      for (const char* end : {"", ".f64"}) v.check_halves(name + std::string(end), all, got, 3e-6, 3e-6, shape[0]);
  }
}

/// density.logit_normal.<mean>_<deviation>
void verify_densities(Verification& v) {
  const Shape n = v.shape("density.z", 1, kLargestList);
  const std::vector<double> z = v.f64("density.z", n);
  for (const Match& m : v.matches("density.logit_normal.#_#")) {
    std::vector<double> t;
    for (const double normal : z) t.push_back(df::logit_normal_time(normal, m.number(0), m.number(1)));
    v.check(m.name, n, t, kTight);
  }
}

/// shift.<s>.sigmas and .timesteps, shift.mu.sigmas and .timesteps with mu = 0.9, shift.train.<s>.
void verify_shifts(Verification& v) {
  constexpr double kMu = 0.9;
  const auto check_all = [&](const std::string& pattern, const auto& sigmas_of, double unit = 1) {
    for (const Match& m : v.matches(pattern)) {
      const Shape n = v.shape(m.name, 1, kLargestList);
      const double shift = m.words.empty() ? std::exp(kMu) : m.number(0);
      if (!(shift > 0 && shift < 1e6)) v.refuse("no shift in the name", m.name, pattern);
      std::vector<double> sigmas = sigmas_of(n[0], shift, m.words.empty());
      sigmas.resize(size_t(n[0]));
      for (double& sigma : sigmas) sigma *= unit;
      v.check(m.name, n, sigmas, kTight);
    }
  };
  for (const std::string which : {"#", "mu"}) {
    check_all("shift." + which + ".sigmas",
              [](int64_t n, double shift, bool dynamic) { return scheduler_sigmas(n - 1, shift, dynamic); });
    check_all("shift." + which + ".timesteps", scheduler_sigmas, double(kTrainedSteps));
  }
  check_all("shift.train.#", [](int64_t n, double shift, bool) {
    std::vector<double> sigmas;
    for (int64_t i = 0; i < n; ++i) sigmas.push_back(shifted_sigma(double(n - i) / double(n), shift));
    return sigmas;
  });
}

/// The weight of the mse that process ddpm trains with at step t, told by a sample whose square error is 1.
double loss_weight(const df::Process& process, int64_t t) {
  const float data = 0, noise = 0, out = 1;
  const double time = double(t);
  df::LossTerms terms;
  df::training_loss(process, {.channels = 1, .pixels = 1}, {&data, &data, &noise, &time, &out}, 1, nullptr, &terms, 0,
                    1);
  return terms.loss;
}

void verify_weights(Verification& v, const std::string& name, const std::string& schedule) {
  // The file's tables are float32 products of 1000 factors. The largest SNR is that of t = 0, where 1 - abar is 4e-5 or
  // 1e-4 with an error of half an ulp of abar, 3e-8.
  constexpr double kTable = 2e-5, kSnr = 1e-3;
  const Shape n = v.shape("snr." + name + ".abar", 1, kLargestList);
  const auto weights = [&](const char* prediction) {
    const auto process = df::make_process({.prediction = df::named<df::Prediction>(prediction),
                                           .num_steps = n[0],
                                           .schedule = df::named<df::BetaSchedule>(schedule),
                                           .loss_weight = df::named<df::LossWeight>("min_snr")},
                                          false);
    std::vector<double> all;
    for (int64_t t = 0; t < n[0]; ++t) all.push_back(loss_weight(*process, t));
    return all;
  };
  const df::Schedule s = df::make_schedule(*df::named<df::BetaSchedule>(schedule), n[0]);
  std::vector<double> snr;
  for (const double root : s.sqrt_recipm1_alphas_cumprod) snr.push_back(1 / (root * root));
  v.check("snr." + name + ".abar", n, s.alphas_cumprod, kTight);
  v.check("snr." + name + ".snr", n, snr, kSnr);
  v.check("snr." + name + ".eps5", n, weights("epsilon"), kTable);
  v.check("snr." + name + ".v5", n, weights("v"), kTable);
}

/// v at snr.t: rows of data and noise.
void verify_v(Verification& v, const std::string& name, const std::string& schedule) {
  const Shape rows = v.shape("v.x", 2, kLargestBatch);
  const int64_t num_steps = v.shape("snr." + name + ".abar", 1, kLargestList)[0];
  const std::vector<int64_t> t = v.i64("snr.t", {rows[0]}, 0, num_steps - 1);
  const std::vector<double> time(t.begin(), t.end());
  const auto process = df::make_process({.prediction = df::named<df::Prediction>("v"),
                                         .num_steps = num_steps,
                                         .schedule = df::named<df::BetaSchedule>(schedule)},
                                        false);
  const std::vector<float> x = v.f32("v.x", rows), noise = v.f32("v.noise", rows);
  v.check("v." + name, rows,
          targets(*process, {.channels = 1, .pixels = rows[1]}, rows[0], x.data(), noise.data(), time.data()),
          1e-5);  // of the roots of float32 tables
}

}  // namespace

void verify_flow(Verification& v) {
  v.leave_out({"gvp.", "vp.", "pred.", "stub", "sde.", "density.u", "density.mode", "weight.", "snr.scaled_linear.",
               "v.scaled_linear", "snr.zero."});
  const Batch batch(v);
  verify_path(v, batch);
  nn::Model model = lay_out(batch.config);
  fill_model(model, autograd::ParameterStore::For::kTraining, v.suffix(), v.ctx(), DType::kBF16);
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    verify_training(v, batch, model, precision);
    verify_sampling(v, batch, model, precision);
  }
  verify_densities(v);
  verify_shifts(v);
  for (const auto& [name, schedule] : kSchedules) {
    verify_weights(v, name, schedule);
    verify_v(v, name, schedule);
  }
}

}  // namespace ditrain::verify
