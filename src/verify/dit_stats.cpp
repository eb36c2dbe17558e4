// A model at full size, DiT-S/2 or what the metadata's "model" says, weights and inputs by formula: loss terms, output,
// and of every gradient its norm, its mean and some entries.
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

constexpr double kTight = 2e-6;

/// Inputs stand in the file and follow from the formula as well.
std::vector<float> read_input(Verification& v, const std::string& name, const Shape& shape) {
  const std::vector<float> values = v.f32(name, shape);
  std::string key = v.title();  // "dit_s2_stats": keys begin with "dit_s2."
  key.resize(key.rfind('_'));
  const auto formula = formula_input(key + "." + name + v.suffix(), 1.7, num_elements(shape));
  v.check(name, shape, to_f64(formula), 0, Per::unit());
  return values;
}

void check_losses(Verification& v, const LossResults& r) {
  const int64_t B = int64_t(r.mse.size());
  v.check_both("mse", {B}, r.mse, kTight);
  v.check_both("vb", {B}, r.vb, kTight);
  v.check_both("loss_per_sample", {B}, r.loss, kTight);
  v.check_both("loss", {1}, {r.mean_loss}, kTight);
}

void check_output(Verification& v, const Shape& shape, const std::vector<float>& out) {
  const double against_f64 = 6e-5, against_f64s = 9e-6;
  v.check_both("out", shape, to_f64(out), against_f64);
  v.check("out.f64s", shape, to_f64(out), against_f64);  // our sinusoid is an f64 one, see dit_tiny.cpp
  const std::vector<double> want = v.f64("out.f64s", shape);
  v.add("out", "against out.f64s", compare(v.f64("out", shape), want, against_f64s, piece_scales(want, 1)));
}

struct GradientStatistics {
  std::vector<double> norm, mean, rms, sample;
  std::vector<int64_t> index;
};

GradientStatistics gradient_statistics(nn::Dit& model, const std::string& suffix, int64_t samples, ops::Context& ctx) {
  GradientStatistics s;
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    if (!p->trainable) continue;
    const Pin<float> grad(p->grad);
    const FormulaSequence numbers("idx." + p->name + suffix);
    double sum = 0;
    for (int64_t i = 0; i < p->size(); ++i) sum += grad[i];
    s.norm.push_back(std::sqrt(ops::sum_squares(ctx, p->grad)));
    s.mean.push_back(sum / double(p->size()));
    s.rms.push_back(s.norm.back() / std::sqrt(double(p->size())));
    for (int64_t j = 0; j < samples; ++j) {
      s.index.push_back(int64_t(numbers.hash(uint64_t(j)) % uint64_t(p->size())));
      s.sample.push_back(grad[s.index.back()]);
    }
  }
  return s;
}

void check_with_scales(Verification& v, const std::string& name, const Shape& shape, const std::vector<double>& got,
                       double tolerance, const std::vector<double>& scales) {
  for (const std::string& variant : {name, name + ".f64"})
    v.add(variant, "relative to the rms", compare(got, v.f64(variant, shape), tolerance, scales));
}

/// Errors are relative to the root mean square of each gradient: single entries are small by chance. Entries among the
/// key biases, 0 in exact arithmetic, stay far below the tolerance that way.
void check_gradients(Verification& v, nn::Dit& model) {
  int64_t rows = 0;
  for (const autograd::Parameter* p : model.parameters().state_dict()) rows += p->trainable ? 1 : 0;
  const Shape shape = v.shape("grad_index", 2, 65536);
  const auto s = gradient_statistics(model, v.suffix(), shape[1], v.ctx());
  const Shape per_parameter{rows}, sampled{rows, shape[1]};
  v.check_exact("grad_index", sampled, s.index);
  v.check_both("grad_norm", per_parameter, s.norm, 2e-5, Per::entry());
  check_with_scales(v, "grad_mean", per_parameter, s.mean, 6e-6, s.rms);
  check_with_scales(v, "grad_sample", sampled, s.sample, 6e-4, s.rms);
}

}  // namespace

void verify_dit_stats(Verification& v) {
  const nn::DitConfig config = read_dit_config(v, v.title() == "dit_s2_stats" ? "DiT-S/2" : "custom");
  const int64_t B = v.setting("cfg.batch", 1, 256);
  const LossInputs batch{.x0 = read_input(v, "x_start", image_shape(config, B)),
                         .noise = read_input(v, "noise", image_shape(config, B)),
                         .t = v.i64("t", {B}, 0, kTrainedSteps - 1),
                         .y = v.i64("y", {B}, 0, config.num_classes)};
  nn::Dit model = lay_out(config);
  fill_model(model, autograd::ParameterStore::For::kTraining, v.suffix(), v.ctx());
  const auto pass = make_pass(model, B, autograd::Mode::kTraining);
  const LossResults results = run_loss(model, *pass, batch, v.ctx());
  check_losses(v, results);
  check_output(v, output_shape(config, B), results.out);
  check_gradients(v, model);
}

}  // namespace ditrain::verify
