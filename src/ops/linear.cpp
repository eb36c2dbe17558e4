#include "ditrain/ops/linear.hpp"

#include <deque>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/gemm.hpp"

namespace ditrain::ops {
namespace {

using kernels::EpilogueKind;
using kernels::GemmArgs;
using kernels::Trans;

void expect_dtype(const char* op, const char* name, const Tensor& t, DType expected) {
  if (t.dtype() != expected)
    throw ShapeError({.where = op,
                      .what = std::string("type of ") + name,
                      .got = dtype_name(t.dtype()),
                      .expected = dtype_name(expected)});
}

void expect_f32_or_bf16(const char* op, const Tensor& t) {
  if (t.dtype() != DType::kF32 && t.dtype() != DType::kBF16)
    throw ShapeError(
        {.where = op, .what = "type of an operand", .got = dtype_name(t.dtype()), .expected = "f32 or bf16"});
}

struct Sizes {
  int64_t m, n, k;
};
// x has `parts` K columns.
Sizes sizes(const char* op, const LinearInput& input, const Tensor& w, const Tensor& y, int64_t parts = 1) {
  const Tensor& x = input.x;
  for (const Tensor* t : {&x, &w, &y}) expect_f32_or_bf16(op, *t);
  const int64_t n = w.dim(0), k = n ? w.size() / n : 0;
  const int64_t m = k ? x.size() / (k * parts) : 0;
  if (x.size() != m * k * parts || (input.patch == 0 && x.shape().back() != k * parts) || y.size() != m * n ||
      y.shape().back() != n)
    throw ShapeError({.where = op,
                      .what = "shapes do not fit the weight " + to_string(w.shape()),
                      .got = to_string(x.shape()) + " and " + to_string(y.shape())});
  return {m, n, k};
}

DType arithmetic_of(const Tensor& a, const Tensor& b) {
  return a.dtype() == DType::kBF16 || b.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32;
}
void expect_product_type(const char* op, const Tensor& a, const Tensor& b, const Tensor& y) {
  if (arithmetic_of(a, b) == DType::kF32) expect_dtype(op, "the product of f32 tensors", y, DType::kF32);
}

// Start of the conditioning chunk of sample 0.
const float* chunk_start(const Pin<float>& cond, const Chunk& chunk, int64_t width) {
  return cond.get() + chunk.index * width;
}

void expect_tokens(const char* op, const char* name, const Tensor& t) {
  if (t.shape().size() != 3)
    throw ShapeError({.where = op, .what = name, .got = to_string(t.shape()), .expected = "[B, T, C]"});
}

const NormTerms& checked_terms(const char* op, const LinearInput& input) {
  const NormTerms& terms = *input.norm;
  expect_dtype(op, "a normalised input", input.x, DType::kF32);
  expect_tokens(op, "a normalised input", input.x);
  const int64_t B = input.x.dim(0), T = input.x.dim(1), C = input.x.dim(2);
  for (const Tensor* t : {&terms.mean, &terms.rstd}) expect_shape(op, "statistics", *t, {B, T});
  for (const Chunk* c : {&terms.shift, &terms.scale}) expect_chunk(op, *c, B, C);
  expect_shape(op, "scale", terms.scale.cond, terms.shift.cond.shape());
  for (const Tensor* t : {&terms.mean, &terms.rstd, &terms.shift.cond, &terms.scale.cond})
    expect_dtype(op, "what a normalised input needs", *t, DType::kF32);
  return terms;
}

// The terms of a normalised input, held in place.
struct PinnedNorm {
  PinnedNorm(const char* op, const LinearInput& input)
      : terms(checked_terms(op, input)),
        mean(terms.mean),
        rstd(terms.rstd),
        shift(terms.shift.cond),
        scale(terms.scale.cond) {
    const int64_t T = input.x.dim(1), C = input.x.dim(2);
    args = {mean, rstd, chunk_start(shift, terms.shift, C), chunk_start(scale, terms.scale, C), terms.shift.cond.dim(1),
            T,    0};
  }
  const NormTerms& terms;
  Pin<float> mean, rstd, shift, scale;
  kernels::Normalise args;
};

kernels::Patches checked_patches(const char* op, const LinearInput& input, int64_t k) {
  if (input.patch == 0) return {};
  expect_dtype(op, "images", input.x, DType::kF32);
  const Shape& s = input.x.shape();
  const int64_t P = input.patch;
  if (s.size() != 4 || P < 1 || s[2] % P != 0 || s[3] % P != 0 || s[1] * P * P != k)
    throw ShapeError({.where = op,
                      .what = "images for patches of " + std::to_string(P) + " x " + std::to_string(P) + " and " +
                              std::to_string(k) + " inputs",
                      .got = to_string(s),
                      .expected = "[B, C, H, W]"});
  return {.size = P, .channels = s[1], .height = s[2], .width = s[3]};
}

// The operands of an epilogue, held in place.
class PinnedOutput {
 public:
  PinnedOutput(const char* op, const LinearOutput& output, const Tensor& y) {
    using Kind = LinearOutput::Kind;
    if (output.kind == Kind::kPlain) return;
    const int64_t n = y.shape().back();
    args.kind = EpilogueKind(output.kind);
    args.in_stride = args.out_stride = n;
    if (output.kind == Kind::kSwiglu || output.kind == Kind::kSwigluBackward) {
      hold_halves(op, output, y);
      return;
    }
    const bool gated = output.kind == Kind::kGateResidual;
    const DType type = gated ? DType::kF32 : y.dtype();
    if (output.kind != Kind::kGelu) args.in = hold(op, "what an epilogue reads", output.in, y, type);
    if (output.kind != Kind::kGeluBackward || output.out.defined())
      args.out = hold(op, "what an epilogue writes", output.out, y, type);
    if (!gated) return;
    expect_tokens(op, "the result before a gate", y);
    expect_chunk(op, output.gate, y.dim(0), n);
    expect_dtype(op, "a gate", output.gate.cond, DType::kF32);
    args.gate = chunk_start(gate_.emplace(output.gate.cond), output.gate, n);
    args.cond_stride = output.gate.cond.dim(1), args.rows_per_sample = y.dim(1);
  }
  kernels::Epilogue args;

 private:
  // y, and what backward reads, are u | v; what is written is half as wide.
  void hold_halves(const char* op, const LinearOutput& output, const Tensor& y) {
    if (y.shape().back() % 2 != 0)
      throw ShapeError({.where = op, .what = "two halves", .got = to_string(y.shape()), .expected = "even columns"});
    args.half = args.out_stride = y.shape().back() / 2;
    const bool backward = output.kind == LinearOutput::Kind::kSwigluBackward;
    if (backward) args.in = hold(op, "what an epilogue reads", output.in, y, y.dtype());
    if (backward && !output.out.defined()) return;
    Shape narrow = y.shape();
    narrow.back() = args.half;
    expect_shape(op, "what an epilogue writes", output.out, narrow);
    expect_dtype(op, "what an epilogue writes", output.out, y.dtype());
    args.out = pins_.emplace_back(output.out);
  }
  void* hold(const char* op, const char* name, const Tensor& t, const Tensor& y, DType type) {
    expect_shape(op, name, t, y.shape());
    expect_dtype(op, name, t, type);
    return pins_.emplace_back(t);
  }
  std::deque<Pin<void>> pins_;
  std::optional<Pin<float>> gate_;
};
// A product of which only the second half of the columns has an epilogue: u first, then v, which meets u.
void gemm_of_halves(Context& ctx, const GemmArgs& args) {
  const int64_t half = args.epilogue.half;
  GemmArgs whole = normalised_before(ctx, args);
  whole.epilogue = {};
  gemm(ctx, kernels::block_of(whole, 0, args.m, 0, half));
  GemmArgs second = kernels::block_of(whole, 0, args.m, half, half);
  second.epilogue = args.epilogue;
  second.epilogue.in = args.c, second.epilogue.in_stride = args.ldc;
  gemm(ctx, second);
}
static_assert(int(LinearOutput::Kind::kGateResidual) == int(EpilogueKind::kGateResidual) &&
              int(LinearOutput::Kind::kGelu) == int(EpilogueKind::kGelu));

GemmArgs forward_args(const Sizes& s, const Tensor& x, const void* px, const Tensor& w, const void* pw, const float* b,
                      const Tensor& y, void* py) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .a = px,
          .lda = s.k,
          .b = pw,
          .ldb = s.k,
          .trans_b = Trans::kYes,
          .c = py,
          .ldc = s.n,
          .bias = b,
          .a_type = x.dtype(),
          .b_type = w.dtype(),
          .c_type = y.dtype(),
          .arithmetic = arithmetic_of(x, w)};
}

// b [n], held in place; null without a bias.
class PinnedBias {
 public:
  PinnedBias(const char* op, const char* name, const Tensor& b, int64_t n) {
    if (!b.defined()) return;
    expect_shape(op, name, b, {n});
    expect_dtype(op, name, b, DType::kF32);
    pin_.emplace(b);
  }
  float* get() const { return pin_ ? pin_->get() : nullptr; }

 private:
  std::optional<Pin<float>> pin_;
};

}  // namespace

LinearOutput then_gelu(const Tensor& gelu) { return {LinearOutput::Kind::kGelu, {}, gelu, {}}; }
LinearOutput times_gelu_slope(const Tensor& x, const Tensor& gelu) {
  return {LinearOutput::Kind::kGeluBackward, x, gelu, {}};
}
LinearOutput then_swiglu(const Tensor& swiglu) { return {LinearOutput::Kind::kSwiglu, {}, swiglu, {}}; }
LinearOutput times_swiglu_slope(const Tensor& u_v, const Tensor& swiglu) {
  return {LinearOutput::Kind::kSwigluBackward, u_v, swiglu, {}};
}
LinearOutput then_gate_residual(const Tensor& x, const Chunk& gate, const Tensor& out) {
  return {LinearOutput::Kind::kGateResidual, x, out, gate};
}

void linear_forward(Context& ctx, const LinearInput& x, const Tensor& w, const Tensor& b, const Tensor& y,
                    const LinearOutput& output) {
  constexpr const char* kOp = "linear_forward";
  const Sizes s = sizes(kOp, x, w, y);
  expect_product_type(kOp, x.x, w, y);
  const Pin<void> px(x.x), pw(w), py(y);
  const PinnedBias pb(kOp, "b", b, s.n);
  const PinnedOutput out(kOp, output, y);
  GemmArgs args = forward_args(s, x.x, px, w, pw, pb.get(), y, py);
  args.epilogue = out.args;
  args.patches_a = checked_patches(kOp, x, s.k);
  std::optional<PinnedNorm> norm;
  if (x.norm) args.normalise_a = norm.emplace(kOp, x).args;
  output.kind == LinearOutput::Kind::kSwiglu ? gemm_of_halves(ctx, args) : gemm(ctx, args);
}

void linear_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate,
                          const LinearOutput& output) {
  constexpr const char* kOp = "linear_backward_data";
  const int64_t parts = output.kind == LinearOutput::Kind::kSwigluBackward ? 2 : 1;
  const Sizes s = sizes(kOp, dx, w, dy, parts);
  if (accumulate) expect_dtype(kOp, "a gradient that is added to", dx, DType::kF32);
  expect_product_type(kOp, dy, w, dx);
  const Pin<void> pdy(dy), pw(w), pdx(dx);
  const PinnedOutput out(kOp, output, dx);
  gemm(ctx, {.m = s.m,
             .n = s.k,
             .k = s.n,
             .a = pdy,
             .lda = s.n,
             .b = pw,
             .ldb = s.k,
             .c = pdx,
             .ldc = s.k * parts,
             .accumulate = accumulate,
             .a_type = dy.dtype(),
             .b_type = w.dtype(),
             .c_type = dx.dtype(),
             .arithmetic = arithmetic_of(dy, w),
             .epilogue = out.args});
}

void linear_backward_weight(Context& ctx, const LinearInput& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                            bool accumulate, DType arithmetic) {
  constexpr const char* kOp = "linear_backward_weight";
  const Sizes s = sizes(kOp, x, dw, dy);
  expect_dtype(kOp, "dw", dw, DType::kF32);
  const Pin<void> px(x.x), pdy(dy);
  const Pin<float> pdw(dw);
  const PinnedBias pdb(kOp, "db", db, s.n);
  GemmArgs args{.m = s.n,
                .n = s.k,
                .k = s.m,
                .a = pdy,
                .lda = s.n,
                .trans_a = Trans::kYes,
                .b = px,
                .ldb = s.k,
                .c = pdw,
                .ldc = s.k,
                .accumulate = accumulate,
                .a_type = dy.dtype(),
                .b_type = x.x.dtype(),
                .arithmetic = arithmetic == DType::kBF16 ? arithmetic : arithmetic_of(x.x, dy),
                .a_row_sums = pdb.get()};
  args.patches_b = checked_patches(kOp, x, s.k);
  if (!x.norm) return gemm(ctx, args);
  const PinnedNorm norm(kOp, x);
  args.normalise_b = norm.args;
  gemm(ctx, args);
}

}  // namespace ditrain::ops
