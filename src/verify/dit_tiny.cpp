// A small model: output, gradient by the input and by every parameter. The parameters stand in the file under the names
// of the public state dict; they are the formula's numbers, which is checked too.
// Our timestep sinusoid is computed in f64, the reference's in float32: results are therefore closest to the float64
// run (.f64), and the tolerances are those for it.
#include "ditrain/base/error.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kLargestBatch = 4096;
constexpr auto kTraining = autograd::ParameterStore::For::kTraining;
constexpr auto kInference = autograd::ParameterStore::For::kInference;

ModelBatch read_batch(Verification& v, const nn::DitConfig& c) {
  const int64_t B = v.shape("x", 4, 65536)[0];
  if (B > kLargestBatch) throw InputError({.where = "dit_tiny", .what = "batch too large", .got = std::to_string(B)});
  const std::vector<int64_t> t = v.i64("t", {B}, 0, kTrainedSteps - 1);
  ModelBatch batch{.x = v.f32("x", image_shape(c, B)), .t = {t.begin(), t.end()}, .y = {}};
  const std::vector<int64_t> labels = v.i64("y", {B}, 0, c.num_classes);
  const std::vector<int64_t> drop = v.i64("force_drop_ids", {B}, 0, 1);
  for (size_t i = 0; i < labels.size(); ++i) batch.y.push_back(drop[i] == 1 ? c.num_classes : labels[i]);
  return batch;
}

void check_output(Verification& v, const Shape& shape, const std::vector<float>& out) {
  const double against_f64 = 5e-5, against_f64s = 5e-6;
  v.check_both("out", shape, to_f64(out), against_f64);
  // .f64s has the float32 sinusoid, from which ours is as far as .f64 is.
  v.check("out.f64s", shape, to_f64(out), against_f64);
  // The reference's own two results with that sinusoid are closer to each other.
  const std::vector<double> want = v.f64("out.f64s", shape);
  v.add("out", "against out.f64s", compare(v.f64("out", shape), want, against_f64s, piece_scales(want, 1)));
}

/// Rows of the label table that no label selects are zero, and key biases (middle third of attn.qkv.bias) are noise of
/// either side: both within the tolerance, which is relative to the largest entry of the tensor.
void check_gradients(Verification& v, nn::Dit& model) {
  for (const autograd::Parameter* p : model.parameters().state_dict())
    if (p->trainable) v.check("grad." + p->name, p->shape, to_f64(p->grad), 2e-4);
}

/// The same network without variance channels, whose last layer the formula fills anew.
void verify_without_sigma(Verification& v, nn::DitConfig config, const ModelBatch& batch) {
  config.learn_sigma = false;
  nn::Dit model = lay_out(config);
  fill_model(model, kInference, v.suffix(), v.ctx());
  const int64_t B = int64_t(batch.t.size());
  const auto pass = make_pass(model, B, autograd::Mode::kInference);
  v.check_both("ls0.out", output_shape(config, B), to_f64(run_forward(*pass, batch, v.ctx())), 4e-5);
}

}  // namespace

void verify_dit_tiny(Verification& v) {
  const nn::DitConfig config = read_dit_config(v);
  const ModelBatch batch = read_batch(v, config);
  const int64_t B = int64_t(batch.t.size());
  const std::vector<float> dout = v.f32("dout", output_shape(config, B));
  nn::Dit model = lay_out(config);
  load_model(model, kTraining, v);
  nn::Dit formula_model = lay_out(config);
  fill_model(formula_model, kInference, v.suffix(), v.ctx());
  check_parameters(v, formula_model);
  v.check_exact("y_dropped", {B}, batch.y);
  const auto pass = make_pass(model, B, autograd::Mode::kTraining, /*want_input_gradient=*/true);
  check_output(v, output_shape(config, B), run_forward(*pass, batch, v.ctx()));
  run_backward(model, *pass, dout, v.ctx());
  v.check_both("grad_x", pass->dimage(), 4e-5);
  check_gradients(v, model);
  if (config.learn_sigma || v.has("ls0.out")) verify_without_sigma(v, config, batch);
}

}  // namespace ditrain::verify
