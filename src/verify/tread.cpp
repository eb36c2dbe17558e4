// Token routing: a small model whose tokens pass by blocks, forward and backward, with stored choices of tokens.
#include <cmath>
#include <set>

#include "ditrain/ops/elementwise.hpp"
#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

// Relative to the largest value of a tensor, and to each norm. The float32 run is at 1e-6 of the float64 run.
constexpr double kOut = 4e-6, kInputGradient = 2e-5, kGradient = 1e-5, kNorm = 4e-6;
// bf16 in the L2 norm: twice what four instruction sets gave, 0.0056, 0.0087 and 0.0031.
constexpr double kBf16Out = 0.012, kBf16InputGradient = 0.018, kBf16Norm = 0.006;

/// The routes of a case, and the tokens that stay on each.
struct Routing {
  nn::Routes routes = {};
  std::vector<std::vector<int64_t>> remaining_tokens = {};
};

Routing read_routing(Verification& v, const std::string& name, const nn::ModelConfig& config, int64_t batch) {
  Routing r;
  const int64_t routes = v.shape(name + ".routes", 2)[0], tokens = config.tokens();
  const std::vector<int64_t> rows = v.i64(name + ".routes", {routes, 3}, 0, 1000);
  for (size_t i = 0; i < size_t(routes); ++i)
    r.routes.push_back({.ratio = double(rows[3 * i]) / 1000, .from = rows[3 * i + 1], .to = rows[3 * i + 2]});
  nn::validate(r.routes, config);
  for (size_t i = 0; i < size_t(routes); ++i) {
    const std::string keep = name + ".keep" + std::to_string(i);
    const int64_t each = r.routes[i].remaining_tokens(tokens);
    r.remaining_tokens.push_back(v.i64(keep, {batch, each}, 0, tokens - 1));
    for (int64_t b = 0; b < batch; ++b) {
      const auto first = r.remaining_tokens.back().begin() + b * each;
      if (int64_t(std::set<int64_t>(first, first + each).size()) < each)
        v.refuse(keep + " names a token twice", "in sample " + std::to_string(b));
    }
  }
  return r;
}

void check_case(Verification& v, const std::string& name, nn::Model& model, const ModelBatch& batch,
                const std::vector<float>& dout, const Routing& routing, DType precision) {
  const auto B = int64_t(batch.t.size());
  const auto pass = make_pass(model, B, autograd::Mode::kTraining,
                              {.want_input_gradient = true, .precision = precision, .routes = routing.routes});
  for (size_t i = 0; i < routing.remaining_tokens.size(); ++i) pass->remaining_tokens(i) = routing.remaining_tokens[i];
  const std::vector<double> out = to_f64(run_forward(*pass, batch, v.ctx()));
  run_backward(model, *pass, dout, v.ctx());
  std::vector<double> norms;
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    if (!p->trainable) continue;
    norms.push_back(std::sqrt(ops::sum_squares(v.ctx(), p->grad)));
    const std::string grad = name + ".grad." + p->name;
    if (precision == DType::kF32 && v.has(grad)) v.check_both(grad, p->grad, kGradient);
  }
  const Shape shape = output_shape(model.config(), B), number{int64_t(norms.size())};
  if (precision == DType::kBF16) {
    v.check_bf16(name + ".out", shape, out, kBf16Out);
    v.check_bf16(name + ".dx", pass->dimage().shape(), to_f64(pass->dimage()), kBf16InputGradient);
    v.check_bf16(name + ".grad_norm", number, norms, kBf16Norm);
    return;
  }
  v.check_both(name + ".out", shape, out, kOut);
  v.check_both(name + ".dx", pass->dimage(), kInputGradient);
  v.check_both(name + ".grad_norm", number, norms, kNorm, Per::entry());
}

}  // namespace

/// Case `none` has no routes. Every gradient stands in the file for one case, its norm for all.
void verify_tread(Verification& v) {
  const nn::ModelConfig config = read_dit_config(v, "custom", /*learn_sigma=*/false);
  const int64_t B = v.shape("x", 4, 1024)[0];
  const std::vector<float> t = v.f32("t", {B}), dout = v.f32("dout", output_shape(config, B));
  const ModelBatch batch{
      .x = v.f32("x", image_shape(config, B)), .t = {t.begin(), t.end()}, .y = v.i64("y", {B}, 0, config.num_classes)};
  nn::Model model = lay_out(config);
  fill_model(model, autograd::ParameterStore::For::kTraining, v.suffix(), v.ctx(), DType::kBF16);
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    check_case(v, "none", model, batch, dout, {}, precision);
    for (const Match& m : v.matches("*.routes"))
      check_case(v, m.words[0], model, batch, dout, read_routing(v, m.words[0], config, B), precision);
  }
}

}  // namespace ditrain::verify
