#include "model.hpp"

#include <algorithm>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/nn/patch_embed.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/verify/formula.hpp"

namespace ditrain::verify {

namespace {

// Fixtures are files that travel with a source tree: what they ask for is small, or they are broken or hostile.
constexpr size_t kMostBytes = size_t{8} << 30;

void expect_small(size_t bytes, const char* what) {
  if (bytes > kMostBytes)
    refuse("fixture", std::string("the settings ask for too large a model: ") + what,
           std::to_string(bytes >> 20) + " MiB", "at most " + std::to_string(kMostBytes >> 20) + " MiB");
}

void fill_table(nn::Model& model, const autograd::Parameter& pos_embed) {
  const nn::ModelConfig& c = model.config();
  const auto table = nn::sincos_position_table(c.hidden_size, c.grid_height(), c.grid_width());
  std::copy(table.begin(), table.end(), Pin<float>(pos_embed.value).get());
}

}  // namespace

nn::ModelConfig read_dit_config(Verification& v, const std::string& otherwise, std::optional<bool> learn_sigma) {
  nn::ModelConfig c;
  c.name = v.metadata("model", otherwise);
  nn::apply_name(c);
  const auto setting = [&](const std::string& name, int64_t low, int64_t high, int64_t of_name) {
    return c.name == "custom" || v.has("cfg." + name) ? v.setting("cfg." + name, low, high) : of_name;
  };
  c.input_height = c.input_width = setting("input_size", 1, 1024, c.input_height);
  c.patch_size = setting("patch_size", 1, 64, c.patch_size);
  c.in_channels = setting("in_channels", 1, 64, c.in_channels);
  c.hidden_size = setting("hidden_size", 1, 8192, c.hidden_size);
  c.depth = setting("depth", 1, 64, c.depth);
  c.num_heads = setting("num_heads", 1, 8192, c.num_heads);
  c.num_classes = setting("num_classes", 1, 100000, c.num_classes);
  c.learn_sigma = learn_sigma ? *learn_sigma : setting("learn_sigma", 0, 1, c.learn_sigma ? 1 : 0) == 1;
  nn::validate(c);
  return c;
}

nn::Model lay_out(const nn::ModelConfig& config) {
  nn::Model model(config);
  expect_small(model.parameters().bytes(autograd::ParameterStore::For::kTraining, DType::kF32, optim::state_arrays()),
               "parameters");
  return model;
}

void fill_model(nn::Model& model, autograd::ParameterStore::For purpose, const std::string& suffix, ops::Context& ctx,
                DType products) {
  model.parameters().allocate(purpose, products, {.states = optim::state_arrays()});
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    if (p->name == "pos_embed") {
      fill_table(model, *p);
      continue;
    }
    const Pin<float> value(p->value);
    ctx.for_range(p->size(), 1024, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      fill_by_formula(p->name, suffix, p->shape, begin, end, value + begin);
    });
  }
  if (products == DType::kBF16) ops::to_bf16(ctx, model.parameters().values, model.parameters().values_bf16);
}

void load_model(nn::Model& model, autograd::ParameterStore::For purpose, Verification& v) {
  // Every tensor is read before the arenas are allocated: the file bounds their size.
  std::vector<std::vector<float>> values;
  for (const autograd::Parameter* p : model.parameters().state_dict()) values.push_back(v.f32(p->name, p->shape));
  model.parameters().allocate(purpose, DType::kF32, {.states = optim::state_arrays()});
  size_t i = 0;
  for (const autograd::Parameter* p : model.parameters().state_dict())
    std::copy(values[i].begin(), values[i].end(), Pin<float>(p->value).get()), ++i;
}

Shape image_shape(const nn::ModelConfig& c, int64_t batch) {
  return {batch, c.in_channels, c.input_height, c.input_width};
}

Shape output_shape(const nn::ModelConfig& c, int64_t batch) {
  return {batch, c.out_channels(), c.input_height, c.input_width};
}

std::unique_ptr<nn::ModelPass> make_pass(nn::Model& model, int64_t batch, autograd::Mode mode,
                                         const nn::PassOptions& options) {
  auto pass = std::make_unique<nn::ModelPass>(model, batch, mode, options);
  expect_small(pass->tape().kept_bytes() + pass->tape().temporary_bytes(), "activations");
  pass->allocate();
  return pass;
}

std::vector<float> run_forward(nn::ModelPass& pass, const ModelBatch& batch, ops::Context& ctx) {
  std::copy(batch.x.begin(), batch.x.end(), Pin<float>(pass.image()).get());
  pass.t() = batch.t;
  pass.conditions() = conditions_of(batch.y);
  pass.forward(ctx);
  return to_vector(pass.out());
}

void run_backward(nn::Model& model, nn::ModelPass& pass, const std::vector<float>& dout, ops::Context& ctx) {
  ops::zero(ctx, model.parameters().grads);
  std::copy(dout.begin(), dout.end(), Pin<float>(pass.dout()).get());
  pass.backward(ctx);
}

void check_output(Verification& v, const Shape& shape, const std::vector<float>& out, double tolerance,
                  double against_f64s) {
  for (const char* name : {"out", "out.f64", "out.f64s"}) v.check(name, shape, to_f64(out), tolerance);
  // Our sinusoid is an f64 one; the reference's own two results with a float32 sinusoid are closer to each other.
  const std::vector<double> want = v.f64("out.f64s", shape);
  v.add("out", "against out.f64s", compare(v.f64("out", shape), want, against_f64s, piece_scales(want, 1)));
}

LossResults run_loss(nn::Model& model, nn::ModelPass& pass, const LossInputs& batch, ops::Context& ctx) {
  const nn::ModelConfig& c = model.config();
  const int64_t B = int64_t(batch.t.size());
  const diffusion::Shape shape{.channels = c.in_channels, .pixels = c.pixels()};
  const auto process = diffusion::make_process({}, c.learn_sigma);  // as in the reference's training: mse_vb
  const std::vector<double> t(batch.t.begin(), batch.t.end());
  std::vector<float> x_t(batch.x0.size()), dout(size_t(num_elements(output_shape(c, B))));
  diffusion::q_sample(*process, batch.x0.data(), batch.noise.data(), t.data(), x_t.data(), shape.elements(), 0, B);
  LossResults r;
  r.out = run_forward(pass, {x_t, t, batch.y}, ctx);
  std::vector<diffusion::LossTerms> terms(t.size());
  diffusion::training_loss(*process, shape, {batch.x0.data(), x_t.data(), batch.noise.data(), t.data(), r.out.data()},
                           1.0 / double(B), dout.data(), terms.data(), 0, B);
  run_backward(model, pass, dout, ctx);
  for (const diffusion::LossTerms& term : terms)
    r.mse.push_back(term.mse), r.vb.push_back(term.vb), r.loss.push_back(term.loss);
  r.mean_loss = std::accumulate(r.loss.begin(), r.loss.end(), 0.0) / double(B);
  return r;
}

diffusion::ModelFn model_of(nn::ModelPass& pass, const nn::ModelConfig& c, int64_t channels, ops::Context& ctx) {
  const int64_t in = c.in_channels * c.pixels(), stride = c.out_channels() * c.pixels(), used = channels * c.pixels();
  return [=, &pass, &ctx](const float* x, const double* t, const Condition* c, int64_t n, float* out) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < n; ++i) labels.push_back(c[i].label);
    const std::vector<float> all = run_forward(pass, {{x, x + n * in}, {t, t + n}, labels}, ctx);
    for (int64_t i = 0; i < n; ++i) std::copy_n(all.begin() + i * stride, used, out + i * used);
  };
}

double read_cfg_scale(Verification& v) {
  const double scale = v.f64("cfg_scale", {1}).front();
  if (!(scale >= 0 && scale <= 1e6 && scale != 1)) v.refuse("cfg_scale is no guidance", std::to_string(scale));
  return scale;
}

std::vector<double> trajectory(const diffusion::Process& process, const diffusion::SamplerConfig& config,
                               const diffusion::Shape& shape, const diffusion::ModelFn& model,
                               diffusion::SampleRequest request, std::vector<float> z,
                               const diffusion::NoiseFn& noise) {
  std::vector<double> all;
  request.z = z.data();
  diffusion::sample_loop(process, config, shape, model, request, noise,
                         [&](int64_t, int64_t, const float* now) { all.insert(all.end(), now, now + z.size()); });
  return all;
}

double shifted_sigma(double sigma, double shift) { return 1 - diffusion::shift_time(1 - sigma, shift); }

std::vector<double> scheduler_sigmas(int64_t steps, double shift, bool dynamic) {
  const double smallest = dynamic ? 1.0 / kTrainedSteps : shifted_sigma(1.0 / kTrainedSteps, shift);
  std::vector<double> sigmas;
  for (int64_t i = 0; i < steps; ++i)
    sigmas.push_back(shifted_sigma(1 + (smallest - 1) * double(i) / double(std::max<int64_t>(steps - 1, 1)), shift));
  sigmas.push_back(0);
  return sigmas;
}

}  // namespace ditrain::verify
