// Whole models, with weights by formula, and positional tables.
// Our timestep sinusoid is computed in f64, the reference's in float32: results are therefore closest to the float64
// run (.f64), and the tolerances are those for it.
#include <cmath>

#include "ditrain/nn/patch_embed.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

constexpr double kTight = 2e-6;
constexpr auto kTraining = autograd::ParameterStore::For::kTraining;
constexpr auto kInference = autograd::ParameterStore::For::kInference;

ModelBatch read_batch(Verification& v, const nn::ModelConfig& c) {
  const int64_t B = v.shape("x", 4)[0];
  if (B > 4096) v.refuse("batch too large", std::to_string(B), "at most 4096");
  const std::vector<int64_t> t = v.i64("t", {B}, 0, kTrainedSteps - 1), drop = v.i64("force_drop_ids", {B}, 0, 1);
  ModelBatch batch{.x = v.f32("x", image_shape(c, B)), .t = {t.begin(), t.end()}, .y = {}};
  batch.y = v.i64("y", {B}, 0, c.num_classes);
  for (size_t i = 0; i < drop.size(); ++i)
    if (drop[i] == 1) batch.y[i] = c.num_classes;
  v.check_exact("y_dropped", {B}, batch.y);
  return batch;
}

/// Inputs stand in the file and follow from the formula as well.
std::vector<float> read_input(Verification& v, const std::string& name, const Shape& shape) {
  std::vector<float> values = v.f32(name, shape);
  const auto formula = formula_input(v.stem() + "." + name + v.suffix(), 1.7, num_elements(shape));
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

/// Of every gradient its norm, its mean and some entries. Errors are relative to the root mean square of each gradient:
/// single entries are small by chance. Entries among the key biases, 0 in exact arithmetic, stay far below the
/// tolerance that way.
void check_gradients(Verification& v, nn::Model& model) {
  std::vector<double> norm, mean, rms, sample;
  std::vector<int64_t> index;
  const int64_t samples = v.shape("grad_index", 2)[1];
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    if (!p->trainable) continue;
    const Pin<float> grad(p->grad);
    const FormulaSequence numbers("idx." + p->name + v.suffix());
    double sum = 0;
    for (int64_t i = 0; i < p->size(); ++i) sum += grad[i];
    norm.push_back(std::sqrt(ops::sum_squares(v.ctx(), p->grad)));
    mean.push_back(sum / double(p->size()));
    rms.push_back(norm.back() / std::sqrt(double(p->size())));
    for (int64_t j = 0; j < samples; ++j) {
      index.push_back(int64_t(numbers.hash(uint64_t(j)) % uint64_t(p->size())));
      sample.push_back(grad[index.back()]);
    }
  }
  const Shape per_parameter{int64_t(norm.size())}, sampled{int64_t(norm.size()), samples};
  v.check_exact("grad_index", sampled, index);
  v.check_both("grad_norm", per_parameter, norm, 2e-5, Per::entry());
  v.check_both_with("grad_mean", per_parameter, mean, 6e-6, rms, "the rms");
  v.check_both_with("grad_sample", sampled, sample, 6e-4, rms, "the rms");
}

}  // namespace

/// A small model: output, gradient by the input and by every parameter. The parameters stand in the file under the
/// names of the public state dict; they are the formula's numbers, which is checked too.
void verify_dit_tiny(Verification& v) {
  nn::ModelConfig config = read_dit_config(v);
  const ModelBatch batch = read_batch(v, config);
  const int64_t B = int64_t(batch.t.size());
  const std::vector<float> dout = v.f32("dout", output_shape(config, B));
  nn::Model model = lay_out(config), by_formula = lay_out(config);
  load_model(model, kTraining, v);
  fill_model(by_formula, kInference, v.suffix(), v.ctx());
  for (const autograd::Parameter* p : by_formula.parameters().state_dict())
    v.check(p->name, p->shape, to_f64(p->value), p->name == "pos_embed" ? kTableTolerance : 0, Per::unit());
  const auto pass = make_pass(model, B, autograd::Mode::kTraining, {.want_input_gradient = true});
  check_output(v, output_shape(config, B), run_forward(*pass, batch, v.ctx()), 5e-5, 5e-6);
  run_backward(model, *pass, dout, v.ctx());
  v.check_both("grad_x", pass->dimage(), 4e-5);
  // Rows of the label table that no label selects are zero, and key biases (middle third of attn.qkv.bias) are noise of
  // either side: both within the tolerance, which is relative to the largest entry of the tensor.
  for (const autograd::Parameter* p : model.parameters().state_dict())
    if (p->trainable) v.check("grad." + p->name, p->shape, to_f64(p->grad), 2e-4);
  if (!config.learn_sigma && !v.has("ls0.out")) return;
  // The same network without variance channels, whose last layer the formula fills anew.
  config.learn_sigma = false;
  nn::Model without_sigma = lay_out(config);
  fill_model(without_sigma, kInference, v.suffix(), v.ctx());
  const auto forward = make_pass(without_sigma, B, autograd::Mode::kInference);
  v.check_both("ls0.out", output_shape(config, B), to_f64(run_forward(*forward, batch, v.ctx())), 4e-5);
}

/// A model at full size, DiT-S/2 or what the metadata's "model" says: loss terms, output, and statistics of gradients.
void verify_dit_stats(Verification& v) {
  const nn::ModelConfig config = read_dit_config(v, v.title() == "dit_s2_stats" ? "DiT-S/2" : "custom");
  const int64_t B = v.setting("cfg.batch", 1, 256);
  const LossInputs batch{.x0 = read_input(v, "x_start", image_shape(config, B)),
                         .noise = read_input(v, "noise", image_shape(config, B)),
                         .t = v.i64("t", {B}, 0, kTrainedSteps - 1),
                         .y = v.i64("y", {B}, 0, config.num_classes)};
  nn::Model model = lay_out(config);
  fill_model(model, kTraining, v.suffix(), v.ctx());
  const auto pass = make_pass(model, B, autograd::Mode::kTraining);
  const LossResults results = run_loss(model, *pass, batch, v.ctx());
  check_losses(v, results);
  check_output(v, output_shape(config, B), results.out, 6e-5, 9e-6);
  check_gradients(v, model);
}

/// pos.<width>_<grid>, and .f64 where the file has it.
void verify_pos_embed(Verification& v) {
  for (const Match& m : v.matches("pos.#_#")) {
    const auto width = int64_t(m.number(0)), grid = int64_t(m.number(1));
    if (width < 4 || width > 65536 || width % 4 != 0 || grid < 1 || grid > 1024)
      v.refuse("no sizes in the name", m.name, "pos.384_16");
    const Shape shape{grid * grid, width};
    v.f64(m.name, shape);  // the file's shape bounds what is allocated next
    const auto table = to_f64(nn::sincos_position_table(width, grid, grid));
    v.check(m.name, shape, table, kTableTolerance, Per::unit());
    if (v.has(m.name + ".f64")) v.check(m.name + ".f64", shape, table, kTableTolerance, Per::unit());
  }
}

}  // namespace ditrain::verify
