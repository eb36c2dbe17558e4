// AdamW and EMA, through the optimiser's one fused pass.
#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr double kTolerance = 2e-6;
constexpr int64_t kLargest = 65536;

/// A store with a single parameter of n values.
struct OneParameter {
  explicit OneParameter(int64_t n) {
    store.add("p", {n});
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
  }
  static void set(const Tensor& arena, const float* values, int64_t n) {
    const Pin<float> p(arena);
    std::copy_n(values, n, p.get());
  }
  void append(const Tensor& arena, std::vector<double>& all) {
    const std::vector<double> values = to_f64(store.view(arena, store.find("p")));
    all.insert(all.end(), values.begin(), values.end());
  }
  autograd::ParameterStore store;
};

void verify_adamw(Verification& v, const std::string& op) {
  const Shape shape = v.shape(op + ".g", 2, kLargest);
  const int64_t steps = shape[0], n = shape[1];
  const std::vector<double> hyper = v.f64(op + ".hyper", {5});
  const optim::Config config{
      .lr = hyper[0], .beta1 = hyper[1], .beta2 = hyper[2], .eps = hyper[3], .weight_decay = hyper[4]};
  const std::vector<float> p0 = v.f32(op + ".p0", {n}), g = v.f32(op + ".g", shape);
  OneParameter one(n);
  one.set(one.store.values, p0.data(), n);
  std::vector<double> p, exp_avg, exp_avg_sq;
  for (int64_t k = 0; k < steps; ++k) {
    one.set(one.store.grads, &g[size_t(k * n)], n);
    optim::adamw_ema_step(v.ctx(), config, {.step = k, .lr = config.lr}, one.store);
    one.append(one.store.values, p);
    one.append(one.store.state("exp_avg").data, exp_avg);
    one.append(one.store.state("exp_avg_sq").data, exp_avg_sq);
  }
  v.check_both(op + ".p", shape, p, kTolerance);
  v.check_both(op + ".m", shape, exp_avg, kTolerance);
  v.check_both(op + ".v", shape, exp_avg_sq, kTolerance);
}

/// ema.d<digits>: the decay is 0.<digits>. With gradient, learning rate and weight decay 0 the pass leaves the
/// parameters as they were put there and only averages them.
void verify_ema(Verification& v, const std::string& name) {
  const std::string digits = name.substr(std::string("ema.d").size());
  const bool is_number =
      !digits.empty() && digits.size() < 16 && digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number) throw InputError({.where = "ops", .what = "no decay in the name", .got = name, .expected = "ema.d9"});
  const double decay = std::stod("0." + digits);
  const Shape shape = v.shape("ema.p", 2, kLargest);
  const int64_t n = shape[1];
  const std::vector<float> e0 = v.f32("ema.e0", {n}), p = v.f32("ema.p", shape);
  OneParameter one(n);
  one.set(one.store.ema, e0.data(), n);
  std::vector<double> ema;
  for (int64_t k = 0; k < shape[0]; ++k) {
    one.set(one.store.values, &p[size_t(k * n)], n);
    optim::adamw_ema_step(v.ctx(), {}, {.step = k, .lr = 0, .ema_decay = decay}, one.store);
    one.append(one.store.ema, ema);
  }
  v.check_both(name, shape, ema, kTolerance);
}

}  // namespace

void verify_optimizer_ops(Verification& v) {
  verify_adamw(v, "adamw_plain");
  verify_adamw(v, "adamw_decay");
  int64_t found = 0;
  for (const std::string& name : v.names()) {
    if (!name.starts_with("ema.d") || name.ends_with(".f64")) continue;
    verify_ema(v, name);
    ++found;
  }
  if (found == 0) throw InputError({.where = "ops", .what = "no tensor ema.d<digits of the decay>"});
}

}  // namespace ditrain::verify
