// Training runs of a small model from formula weights, all inputs given: losses and gradient norms of every step, and
// parameters and EMA at the end, which are compared by their movement from the start: the EMA moves by 1e-5 only, and
// plain values would agree even if nothing had been learned.
#include <algorithm>
#include <cmath>

#include "ditrain/optim/optimizer.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

struct Inputs {
  int64_t steps = 0, batch = 0, image = 0;  // image: values of one
  std::vector<float> x, noise;
  std::vector<int64_t> t, y;  // labels after dropping

  LossInputs step(int64_t k) const {
    const auto part = [k](const auto& all, int64_t n) {
      return std::remove_cvref_t<decltype(all)>(all.begin() + k * n, all.begin() + (k + 1) * n);
    };
    return {part(x, batch * image), part(noise, batch * image), part(t, batch), part(y, batch)};
  }
};

Inputs read_inputs(Verification& v, const nn::ModelConfig& c) {
  Inputs in;
  in.steps = v.setting("cfg.steps", 1, 10000), in.batch = v.setting("cfg.batch", 1, 4096);
  const Shape images{in.steps, in.batch, c.in_channels, c.input_height, c.input_width}, each{in.steps, in.batch};
  in.image = c.in_channels * c.pixels();
  in.x = v.f32("x", images), in.noise = v.f32("noise", images);
  in.t = v.i64("t", each, 0, kTrainedSteps - 1);
  in.y = v.i64("y", each, 0, c.num_classes);
  const std::vector<int64_t> drop = v.i64("drop", each, 0, 1);
  for (size_t i = 0; i < drop.size(); ++i)
    if (drop[i] == 1) in.y[i] = c.num_classes;
  v.check_exact("y_dropped", each, in.y);
  return in;
}

/// As the runs were described; B's settings differ from A's by orders, and so do the tolerances.
struct RunKind {
  const char* name;
  double mse, final_rms, ema_rms;  ///< tolerances
};
constexpr RunKind kRuns[] = {{"A", 2e-5, 4e-4, 3e-2}, {"B", 3e-5, 1e-3, 3e-1}};
constexpr double kLoss = 8e-6, kVb = 3e-5, kNorm = 3e-5, kFinalLargest = 5e-2;  // for both

struct Hyper {
  optim::Config adamw;
  double ema_decay;
};

Hyper read_hyper(Verification& v, const std::string& run) {
  const std::vector<double> h = v.f64(run + ".hyper", {6});
  const auto share = [](double x) { return x >= 0 && x < 1; };
  if (!(share(h[0]) && share(h[1]) && share(h[2]) && h[3] > 0 && share(h[4]) && share(h[5])))
    v.refuse(run + ".hyper is out of range", "");
  return {{.lr = h[0], .beta1 = h[1], .beta2 = h[2], .eps = h[3], .weight_decay = h[4]}, h[5]};
}

/// Losses and norms before each update.
struct Curves {
  std::vector<double> loss, mse, vb, norm;
};

Curves train(nn::Model& model, nn::ModelPass& pass, const Inputs& in, const Hyper& hyper, ops::Context& ctx) {
  Curves curves;
  copy(model.parameters().values, model.parameters().ema);
  for (int64_t k = 0; k < in.steps; ++k) {
    const LossResults r = run_loss(model, pass, in.step(k), ctx);
    curves.loss.push_back(r.mean_loss);
    curves.mse.insert(curves.mse.end(), r.mse.begin(), r.mse.end());
    curves.vb.insert(curves.vb.end(), r.vb.begin(), r.vb.end());
    curves.norm.push_back(optim::gradient_norm(ctx, model.parameters()));
    optim::adamw_ema_step(ctx, hyper.adamw, {.step = k, .lr = hyper.adamw.lr, .ema_decay = hyper.ema_decay},
                          model.parameters());
  }
  return curves;
}

void check_curves(Verification& v, const RunKind& run, const Inputs& in, const Curves& curves, bool learn_sigma) {
  const std::string name = run.name;
  const Shape steps{in.steps}, samples{in.steps, in.batch};
  v.check_both(name + ".loss", steps, curves.loss, kLoss, Per::entry());
  v.check_both(name + ".mse", samples, curves.mse, run.mse, Per::entry());
  if (learn_sigma) v.check_both(name + ".vb", samples, curves.vb, kVb, Per::entry());
  v.check_both(name + ".gnorm", steps, curves.norm, kNorm, Per::entry());
}

/// One parameter's movement here and in the file.
struct Movement {
  std::string name;
  std::vector<double> got, want;
  double largest_start = 0;
};

/// Squares of errors and movements over all parameters. Movements are our own: a scale that reaches over all tensors
/// must not grow with a wrong value in one of them.
struct Totals {
  double error = 0, movement = 0, largest = 0, count = 0;
  void add(const Movement& m) {
    for (size_t i = 0; i < m.want.size(); ++i) {
      error += (m.got[i] - m.want[i]) * (m.got[i] - m.want[i]), movement += m.got[i] * m.got[i];
      largest = std::max(largest, std::abs(m.got[i]));
    }
    count += double(m.want.size());
  }
};

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> d;
  for (size_t i = 0; i < a.size(); ++i) d.push_back(a[i] - b[i]);
  return d;
}

/// Entries [begin, end) of a movement.
Movement part(const Movement& m, int64_t begin, int64_t end) {
  const auto cut = [&](const std::vector<double>& v) {
    return std::vector<double>(v.begin() + begin, v.begin() + end);
  };
  return {m.name, cut(m.got), cut(m.want), m.largest_start};
}

/// The movements in `arena` that the fixture calls `prefix` + name. Key biases, the middle thirds of attn.qkv.bias,
/// apart: their gradient is rounding noise, which AdamW divides by its own size.
struct Movements {
  Movements(Verification& v, nn::Model& model, const Tensor& arena, const std::string& prefix, nn::Model& start) {
    autograd::ParameterStore& store = model.parameters();
    for (const autograd::Parameter* p : store.state_dict()) {
      if (!p->trainable) continue;
      const std::vector<double> from = to_f64(start.parameters().find(p->name).value);
      Movement m{.name = prefix + p->name,
                 .got = differences(to_f64(store.view(arena, *p)), from),
                 .want = differences(v.f64(prefix + p->name, p->shape), from)};
      for (const double x : from) m.largest_start = std::max(m.largest_start, std::abs(x));
      if (!p->name.ends_with("attn.qkv.bias")) {
        comparable.push_back(std::move(m));
        continue;
      }
      const int64_t C = p->size() / 3;
      comparable.push_back(part(m, 0, C));
      key_biases.push_back(part(m, C, 2 * C));
      comparable.push_back(part(m, 2 * C, 3 * C));
    }
    for (const Movement& m : comparable) totals.add(m);
  }
  std::vector<Movement> comparable, key_biases;
  Totals totals;
};

void check_rms(Verification& v, const std::string& tensor, const Totals& totals, double tolerance) {
  const double error = std::sqrt(totals.error / totals.count), rms = std::sqrt(totals.movement / totals.count);
  v.add(tensor, "RMS error of all movements",
        compare(std::vector<double>{error}, std::vector<double>{0.0}, tolerance, std::vector<double>{rms}));
}

void check_final(Verification& v, const Movements& m, const RunKind& run, const Hyper& hyper, int64_t steps) {
  for (const Movement& one : m.comparable)
    v.add(one.name, "movement", compare(one.got, one.want, kFinalLargest, std::vector<double>{m.totals.largest}));
  check_rms(v, std::string(run.name) + ".final.final_layer.linear.weight", m.totals, run.final_rms);
  // Key biases wander by up to lr per step.
  for (const Movement& one : m.key_biases)
    v.add(one.name, "movement of key biases",
          compare(one.got, one.want, 1, std::vector<double>{hyper.adamw.lr * double(steps)}));
}

/// An EMA in float32 is rounded in every step: either side may be off by half a unit in the last place of each of
/// two products and a sum, 3 x 2^-24 of the value. Single entries have no tolerance of the reference but this bound;
/// the one on the RMS over all is the reference's.
void check_ema(Verification& v, const Movements& m, const RunKind& run, const Hyper& hyper, int64_t steps) {
  const double n = double(steps);
  const auto rounding = [&](const Movement& one) {
    return 2 * n * 3 * 0x1p-24 * (one.largest_start + n * hyper.adamw.lr);
  };
  for (const Movement& one : m.comparable)
    v.add(one.name, "movement", compare(one.got, one.want, 1, std::vector<double>{rounding(one)}));
  check_rms(v, std::string(run.name) + ".ema.final_layer.linear.weight", m.totals, run.ema_rms);
  // If a key bias wanders off by lr per step, its EMA follows by (1 - decay) of the way.
  const double wander = (1 - hyper.ema_decay) * hyper.adamw.lr * n * (n + 1) / 2;
  for (const Movement& one : m.key_biases)
    v.add(one.name, "movement of key biases",
          compare(one.got, one.want, 1, std::vector<double>{rounding(one) + wander}));
}

/// The frozen table: not moved by the optimiser; the reference's EMA averages it as well, with float32 rounding.
void check_table(Verification& v, const std::string& run, nn::Model& model) {
  const autograd::Parameter& table = model.parameters().find("pos_embed");
  v.check(run + ".final.pos_embed", table.shape, to_f64(table.value), kTableTolerance, Per::unit());
  v.check(run + ".ema.pos_embed", table.shape, to_f64(table.value), 2e-5, Per::unit());
}

void verify_run(Verification& v, const RunKind& run, const nn::ModelConfig& config, const Inputs& in) {
  const Hyper hyper = read_hyper(v, run.name);
  nn::Model start = lay_out(config), model = lay_out(config);
  fill_model(start, autograd::ParameterStore::For::kInference, v.suffix(), v.ctx());
  fill_model(model, autograd::ParameterStore::For::kTraining, v.suffix(), v.ctx());
  const auto pass = make_pass(model, in.batch, autograd::Mode::kTraining);
  check_curves(v, run, in, train(model, *pass, in, hyper, v.ctx()), config.learn_sigma);
  const std::string name = run.name;
  check_final(v, Movements(v, model, model.parameters().values, name + ".final.", start), run, hyper, in.steps);
  check_ema(v, Movements(v, model, model.parameters().ema, name + ".ema.", start), run, hyper, in.steps);
  check_table(v, name, model);
}

/// 0 at the key third of a qkv bias, 1 elsewhere.
void check_mask(Verification& v, int64_t hidden_size) {
  std::vector<int64_t> mask(size_t(3 * hidden_size), 1);
  std::fill_n(mask.begin() + hidden_size, hidden_size, 0);
  v.check_exact("mask.qkv_bias", {3 * hidden_size}, mask);
}

}  // namespace

void verify_train_traj(Verification& v) {
  const nn::ModelConfig config = read_dit_config(v);
  check_mask(v, config.hidden_size);
  const Inputs inputs = read_inputs(v, config);
  for (const RunKind& run : kRuns) verify_run(v, run, config, inputs);
}

}  // namespace ditrain::verify
