// Process flow as in SiT and in diffusers' schedulers, prediction v and the min-SNR weights of process ddpm.
// Not ours, and compared with nothing: the paths gvp and vp, the predictions noise and score with their weights (pred,
// stub), the stochastic sampler (sde), times of density "mode", the loss weights of Stable Diffusion 3 (weight), and
// the schedules scaled_linear and zero. SiT's networks have variance channels, which it throws away: so does this file,
// and no other place.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

namespace df = diffusion;

constexpr double kTight = 2e-6;
constexpr int64_t kLargestBatch = 4096, kLargestList = 100000, kGuidedChannels = 3;

std::vector<double> times(Verification& v, const std::string& name, int64_t n) {
  const std::vector<double> t = v.f64(name, {n});
  for (const double time : t)
    if (!(time >= 0 && time <= 1))
      throw InputError(
          {.where = "flow", .what = name + " is no time", .got = std::to_string(time), .expected = "0 to 1"});
  return t;
}

df::Config flow_config(double shift = 1) {
  return {.process = df::named<df::ProcessKind>("flow"), .time_shift = shift};
}

struct Batch {
  explicit Batch(Verification& v) : config(read_dit_config(v)) {
    B = v.shape("x1", 4, 65536)[0];
    if (B > kLargestBatch) throw InputError({.where = "flow", .what = "batch too large", .got = std::to_string(B)});
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

  nn::DitConfig config;
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

struct Network {
  Network(Verification& v, const Batch& b) : batch(b), model(lay_out(b.config)) {
    fill_model(model, autograd::ParameterStore::For::kTraining, v.suffix(), v.ctx());
    start(b.B, autograd::Mode::kTraining);
  }
  /// From now on for batches of that size.
  void start(int64_t samples, autograd::Mode mode) { pass = make_pass(model, samples, mode); }
  std::vector<float> run(const std::vector<float>& x, const std::vector<double>& t, const std::vector<int64_t>& y,
                         ops::Context& ctx) {
    return with_channels(run_forward(*pass, {x, t, y}, ctx), int64_t(t.size()), stride(), batch.shape.elements());
  }
  int64_t stride() const { return batch.config.out_channels() * batch.shape.pixels; }

  const Batch& batch;
  nn::Dit model;
  std::unique_ptr<nn::DitPass> pass;
};

void verify_training(Verification& v, Network& network) {
  const Batch& b = network.batch;
  const auto process = df::make_process(flow_config(), false);
  const std::vector<float> x_t = b.noised(*process, b.t), out = network.run(x_t, b.t, b.y, v.ctx());
  std::vector<float> dout(out.size());
  std::vector<df::LossTerms> terms(size_t(b.B));
  df::training_loss(*process, b.shape, {b.data.data(), x_t.data(), b.noise.data(), b.t.data(), out.data()},
                    1.0 / double(b.B), dout.data(), terms.data(), 0, b.B);
  run_backward(network.model, *network.pass, with_channels(dout, b.B, b.shape.elements(), network.stride()), v.ctx());
  std::vector<double> loss, norms;
  for (const df::LossTerms& term : terms) loss.push_back(term.loss);
  for (const autograd::Parameter* p : network.model.parameters().state_dict()) {
    if (!p->trainable) continue;
    double squares = 0;
    for (const double g : to_f64(p->grad)) squares += g * g;
    norms.push_back(std::sqrt(squares));
  }
  v.check_both("train.pred", b.image, to_f64(out), 3e-6);
  v.check_both("train.loss", {b.B}, loss, kTight, Per::entry());
  v.check_both("train.grad_norm", {int64_t(norms.size())}, norms, kTight);
}

/// Points of the way from z, the start among them: [points, samples, ...]; the second half of them is unconditional.
std::vector<double> trajectory(Verification& v, Network& network, const char* sampler, int64_t points,
                               const std::vector<float>& z, const std::vector<int64_t>& y, double cfg_scale) {
  const Batch& b = network.batch;
  const df::SamplerConfig config{.sampler = df::named<df::Sampler>(sampler),
                                 .spacing = std::to_string(points - 1),
                                 .cfg_scale = cfg_scale,
                                 .cfg_channels = kGuidedChannels};
  const auto model = [&](const float* x, const double* t, const int64_t* labels, int64_t n, float* out) {
    const std::vector<float> result =
        network.run({x, x + n * b.shape.elements()}, {t, t + n}, {labels, labels + n}, v.ctx());
    std::copy(result.begin(), result.end(), out);
  };
  std::vector<float> x(z);
  std::vector<double> all(z.begin(), z.end());
  df::sample_loop(*df::make_process(flow_config(), false), config, b.shape, model,
                  {.n = int64_t(y.size()) / 2,
                   .z = x.data(),
                   .labels = y.data(),
                   .null_class = b.config.num_classes,
                   .keep_unconditional_half = true},
                  {}, [&](int64_t, int64_t, const float* now) { all.insert(all.end(), now, now + x.size()); });
  return all;
}

/// Halves of the batch apart: the second never reaches the model.
void check_halves(Verification& v, const std::string& name, const Shape& shape, const std::vector<double>& got) {
  constexpr double kTolerance = 3e-6;
  const std::vector<double> want = v.f64(name, shape);
  const size_t batch = want.size() / size_t(shape[0]), half = batch / 2;
  for (const size_t second : {0, 1}) {
    std::vector<double> mine, theirs;
    for (size_t from = second * half; from < want.size(); from += batch) {
      mine.insert(mine.end(), got.begin() + int64_t(from), got.begin() + int64_t(from + half));
      theirs.insert(theirs.end(), want.begin() + int64_t(from), want.begin() + int64_t(from + half));
    }
    v.add(name, second == 0 ? "first half" : "second half", compare(mine, theirs, kTolerance, piece_scales(theirs, 1)));
  }
}

void verify_sampling(Verification& v, Network& network) {
  const Batch& b = network.batch;
  const int64_t samples = v.shape("z", 4, kLargestBatch)[0];
  if (samples % 2 != 0)
    throw InputError({.where = "flow", .what = "z has no two halves", .got = std::to_string(samples) + " samples"});
  const Shape image = image_shape(b.config, samples);
  const std::vector<float> z = v.f32("z", image);
  const std::vector<int64_t> y = v.i64("ode.y", {samples}, 0, b.config.num_classes);
  const double cfg_scale = v.f64("cfg_scale", {1}).front();
  if (!(cfg_scale >= 0 && cfg_scale <= 1e6 && cfg_scale != 1))
    throw InputError({.where = "flow", .what = "cfg_scale is no guidance", .got = std::to_string(cfg_scale)});
  network.start(samples, autograd::Mode::kInference);
  for (const auto& [name, sampler] : {std::pair{"ode.euler", "euler"}, std::pair{"ode.heun2", "heun"}}) {
    const Shape shape = v.shape(name, 5, kLargestBatch), all{shape[0], samples, image[1], image[2], image[3]};
    if (shape[0] < 2) throw InputError({.where = "flow", .what = std::string(name) + " has no steps"});
    const std::vector<double> got = trajectory(v, network, sampler, shape[0], z, y, cfg_scale);
    check_halves(v, name, all, got);
    check_halves(v, std::string(name) + ".f64", all, got);
  }
}

/// density.logit_normal.<mean>_<deviation>
void verify_densities(Verification& v) {
  const Shape n = v.shape("density.z", 1, kLargestList);
  const std::vector<double> z = v.f64("density.z", n);
  const std::string prefix = "density.logit_normal.";
  for (const std::string& name : v.names()) {
    if (!name.starts_with(prefix)) continue;
    double mean = 0, deviation = 0;
    const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
    const auto first = std::from_chars(begin, end, mean);
    const bool two = first.ptr != end && *first.ptr == '_';
    if (!two || std::from_chars(first.ptr + 1, end, deviation).ptr != end)
      throw InputError({.where = "flow", .what = "no mean and deviation in the name", .got = name});
    std::vector<double> t;
    for (const double normal : z) t.push_back(df::logit_normal_time(normal, mean, deviation));
    v.check(name, n, t, kTight);
  }
}

double shifted_sigma(double sigma, double shift) { return 1 - df::shift_time(1 - sigma, shift); }

/// diffusers' sampling sigmas: a line from 1 to the smallest training sigma, shifted, and 0. Its training sigmas are
/// shifted already where the shift is a constant.
std::vector<double> scheduler_sigmas(int64_t steps, double shift, bool dynamic) {
  const double smallest = dynamic ? 1.0 / kTrainedSteps : shifted_sigma(1.0 / kTrainedSteps, shift);
  std::vector<double> sigmas;
  for (int64_t i = 0; i < steps; ++i)
    sigmas.push_back(shifted_sigma(1 + (smallest - 1) * double(i) / double(std::max<int64_t>(steps - 1, 1)), shift));
  sigmas.push_back(0);
  return sigmas;
}

/// shift.<s>.sigmas and .timesteps, shift.mu.sigmas with mu = 0.9, shift.train.<s>.
void verify_shifts(Verification& v) {
  constexpr double kMu = 0.9;
  const std::string prefix = "shift.", training = "shift.train.";
  const auto number = [](const std::string& name, size_t begin, size_t end) {
    double value = 0;
    const auto parsed = std::from_chars(name.data() + begin, name.data() + end, value);
    if (parsed.ptr != name.data() + end || !(value > 0 && value < 1e6))
      throw InputError({.where = "flow", .what = "no shift in the name", .got = name});
    return value;
  };
  for (const std::string& name : v.names()) {
    if (!name.starts_with(prefix)) continue;
    const Shape n = v.shape(name, 1, kLargestList);
    if (name.starts_with(training)) {
      std::vector<double> sigmas;
      for (int64_t i = 0; i < n[0]; ++i)
        sigmas.push_back(shifted_sigma(double(n[0] - i) / double(n[0]), number(name, training.size(), name.size())));
      v.check(name, n, sigmas, kTight);
      continue;
    }
    const size_t dot = name.rfind('.');
    const bool dynamic = name.starts_with("shift.mu."), scaled = name.ends_with(".timesteps");
    const double shift = dynamic ? std::exp(kMu) : number(name, prefix.size(), std::max(dot, prefix.size()));
    std::vector<double> sigmas = scheduler_sigmas(scaled ? n[0] : n[0] - 1, shift, dynamic);
    if (scaled) sigmas.pop_back();
    for (double& sigma : sigmas) sigma *= scaled ? double(kTrainedSteps) : 1.0;
    v.check(name, n, sigmas, kTight);
  }
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
  Network network(v, batch);
  verify_training(v, network);
  verify_sampling(v, network);
  verify_densities(v);
  verify_shifts(v);
  for (const auto& [name, schedule] : {std::pair{"linear", "linear"}, std::pair{"squaredcos", "squaredcos_cap_v2"}}) {
    verify_weights(v, name, schedule);
    verify_v(v, name, schedule);
  }
}

}  // namespace ditrain::verify
