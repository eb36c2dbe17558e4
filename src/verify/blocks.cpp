// One DiT block alone, forward and backward: as it is, and in each of its variants. The fixture's block without shifts
// is one that this program does not have: it is named as left out, and nothing of it is compared.
#include <algorithm>

#include "ditrain/nn/block.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

/// Tolerances are those that the fixture's description suggests, relative to the largest entry of a tensor.
struct Variant {
  const char* name;
  nn::QkNorm qk_norm;
  nn::Norm norm;
  nn::Mlp mlp;
  nn::Position position;
  double out, dx, dc, gradients;
};
constexpr auto kNone = nn::QkNorm::kNone, kQkRms = nn::QkNorm::kRms;
constexpr auto kLayer = nn::Norm::kLayer, kRms = nn::Norm::kRms;
constexpr auto kGelu = nn::Mlp::kGelu, kSwiglu = nn::Mlp::kSwiglu;
constexpr auto kSincos = nn::Position::kSincos, kRope = nn::Position::kRope;
constexpr Variant kVariants[] = {{"base", kNone, kLayer, kGelu, kSincos, 5e-6, 6e-6, 5e-6, 7e-6},
                                 {"qknorm_ln", nn::QkNorm::kLayer, kLayer, kGelu, kSincos, 3e-6, 4e-6, 3e-6, 6e-6},
                                 {"qknorm_rms", kQkRms, kLayer, kGelu, kSincos, 3e-6, 3e-6, 4e-6, 6e-6},
                                 {"rmsnorm", kNone, kRms, kGelu, kSincos, 3e-6, 4e-6, 4e-6, 8e-6},
                                 {"swiglu", kNone, kLayer, kSwiglu, kSincos, 4e-6, 8e-6, 5e-6, 6e-6},
                                 {"rope", kNone, kLayer, kGelu, kRope, 4e-6, 5e-6, 6e-6, 4e-6},
                                 {"all", kQkRms, kRms, kSwiglu, kRope, 3e-6, 4e-6, 5e-6, 9e-6}};

nn::ModelConfig read_config(Verification& v) {
  nn::ModelConfig c;
  c.name = "custom", c.depth = 1, c.patch_size = 1;
  c.hidden_size = v.setting("cfg.c", 4, 4096), c.num_heads = v.setting("cfg.heads", 1, 4096);
  c.input_height = c.input_width = v.setting("cfg.grid", 1, 64);
  nn::validate(c);
  return c;
}

/// A block with formula weights, and a tape of its own.
class Block {
 public:
  Block(const nn::ModelConfig& c, int64_t batch, const std::string& suffix)
      : weights_(nn::declare_block(nn::Declarations(store_, alone_), c)) {
    store_.allocate(autograd::ParameterStore::For::kTraining);
    for (const autograd::Parameter* p : store_.state_dict())
      fill_by_formula("block." + p->name, suffix, p->shape, 0, p->size(), Pin<float>(p->value));
    const Shape BC{batch, c.hidden_size}, BTC{batch, c.tokens(), c.hidden_size};
    stream_.batch = batch, stream_.tokens = c.tokens();
    stream_.cond_BC = tape_.temporary("cond", BC), stream_.dcond_BC = tape_.temporary("dcond", BC);
    stream_.dx_BTC = tape_.temporary("dx", BTC);
    out_ = tape_.temporary("out", BTC);
    const auto& modulation = tape_.record<nn::AdalnModulation>("block", weights_.adaLN, stream_).out();
    first_half_ = &tape_.record<nn::AttentionHalf>(c, 0, weights_, stream_, modulation);
    tape_.record<nn::MlpHalf>(c, 0, weights_.mlp, stream_, *first_half_).set_output(out_);
    tape_.allocate();
  }

  /// out [B, T, C] of tokens x and of conditioning c [B, C] before its SiLU.
  Tensor forward(ops::Context& ctx, const Tensor& x, const Tensor& c) {
    copy(x, first_half_->x_BTC->tensor);
    ops::silu_forward(ctx, c, stream_.cond_BC->tensor);
    tape_.forward(ctx);
    return out_->tensor;
  }
  struct InputGradients {
    Tensor dx, dc;
  };
  /// After forward; those of the parameters are in their places.
  InputGradients backward(ops::Context& ctx, const Tensor& c, const Tensor& dout) {
    copy(dout, stream_.dx_BTC->tensor);
    ops::zero(ctx, stream_.dcond_BC->tensor);
    tape_.backward(ctx, autograd::Gradients::kOverwrite);
    const Tensor dc(c.shape());
    ops::silu_backward(ctx, c, stream_.dcond_BC->tensor, dc);
    return {stream_.dx_BTC->tensor, dc};
  }
  std::vector<autograd::Parameter*> parameters() { return store_.state_dict(); }

 private:
  const nn::TensorParallel alone_{};
  autograd::ParameterStore store_;
  nn::BlockWeights weights_;
  autograd::Tape tape_{autograd::Mode::kTraining};
  nn::TokenStream stream_;
  nn::AttentionHalf* first_half_ = nullptr;
  autograd::ActivationRef out_;
};

/// Shifts of keys move all scores of a query alike, so their gradient is 0 in exact arithmetic: its error is held
/// against the gradient of the scales. (Key biases of `base` are a third of a tensor, whose largest entry is their
/// scale.)
void check_gradient(Verification& v, const std::string& variant, const autograd::Parameter& p, double tolerance) {
  const std::string grad = variant + ".grad.", shift = "attn.k_norm.bias", scale = "attn.k_norm.weight";
  if (p.name != shift) return v.check_both(grad + p.name, p.grad, tolerance);
  v.check_both_with(grad + shift, p.shape, to_f64(p.grad), tolerance, piece_scales(v.f64(grad + scale, p.shape), 1),
                    scale);
}

void verify_variant(Verification& v, const Variant& variant, nn::ModelConfig config, int64_t batch) {
  config.qk_norm = variant.qk_norm, config.norm = variant.norm;
  config.mlp = variant.mlp, config.position = variant.position;
  const Shape tokens{batch, config.tokens(), config.hidden_size}, cond{batch, config.hidden_size};
  const Tensor x = v.tensor("x", tokens), c = v.tensor("c", cond), dout = v.tensor("dout", tokens);
  Block block(config, batch, v.suffix());
  const std::string name = variant.name;
  v.check_both(name + ".out", block.forward(v.ctx(), x, c), variant.out);
  const Block::InputGradients gradients = block.backward(v.ctx(), c, dout);
  v.check_both(name + ".dx", gradients.dx, variant.dx);
  v.check_both(name + ".dc", gradients.dc, variant.dc);
  for (const autograd::Parameter* p : block.parameters()) check_gradient(v, name, *p, variant.gradients);
}

}  // namespace

void verify_blocks(Verification& v) {
  const nn::ModelConfig config = read_config(v);
  const int64_t batch = v.setting("cfg.batch", 1, 64);
  for (const Variant& variant : kVariants) verify_variant(v, variant, config, batch);
  v.leave_out({"rope.cos", "rope.sin"}, "the table of the rotation, which is not an array here");
  v.leave_out({"cfg.hidden"}, "the width of the SwiGLU, which follows from the others");
  v.leave_out({"wo_shift."}, "no block without shifts");
}

}  // namespace ditrain::verify
