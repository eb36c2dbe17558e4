// The public functions: each forwards to the table of the chosen instruction set.
#include "ditrain/base/error.hpp"
#include "kernel_table.hpp"

namespace ditrain::kernels {

namespace {
const KernelTable& table() { return *process_isa().table; }
}  // namespace

void gemm(const GemmArgs& args, void* scratch, const Gang& gang) {
  DITRAIN_DCHECK(!args.accumulate || args.c_type == DType::kF32, "gemm accumulates onto f32 only");
  DITRAIN_DCHECK(args.n > 0 || args.a_row_sums == nullptr, "gemm without columns takes no row sums");
  table().gemm(args, scratch, gang);
}
size_t gemm_scratch_bytes(const GemmArgs& args, const Gang& gang) { return table().gemm_scratch_bytes(args, gang); }
size_t gemm_shared_bytes(const GemmArgs& args, const Gang& gang) { return table().gemm_shared_bytes(args, gang); }

namespace {

// p + n elements of the type; null stays null.
const void* advance(const void* p, DType type, int64_t n) {
  return p == nullptr ? nullptr : static_cast<const std::byte*>(p) + n * static_cast<int64_t>(dtype_bytes(type));
}
void* advance(void* p, DType type, int64_t n) {
  return const_cast<void*>(advance(const_cast<const void*>(p), type, n));
}
const float* advance(const float* p, int64_t n) { return p == nullptr ? nullptr : p + n; }

void skip_rows(Normalise& x, int64_t rows) {
  x.mean = advance(x.mean, rows), x.rstd = advance(x.rstd, rows), x.first_row += rows;
}
void skip_columns(Normalise& x, int64_t cols) { x.shift = advance(x.shift, cols), x.scale = advance(x.scale, cols); }

/// An operand from array row `rows` or column `cols` on.
void skip(const void*& p, DType type, int64_t stride, Normalise& norm, Patches& patches, int64_t rows, int64_t cols) {
  patches.first_row += rows, patches.first_column += cols;
  if (patches.size == 0) p = advance(p, type, rows * stride + cols);
  skip_rows(norm, rows);
  skip_columns(norm, cols);
}

}  // namespace

GemmArgs block_of(const GemmArgs& whole, int64_t i, int64_t m, int64_t j, int64_t n) {
  GemmArgs g = whole;
  g.m = m, g.n = n;
  const bool a_rows = whole.trans_a == Trans::kNo, b_rows = whole.trans_b == Trans::kYes;  // array rows are cut
  skip(g.a, g.a_type, g.lda, g.normalise_a, g.patches_a, a_rows ? i : 0, a_rows ? 0 : i);
  skip(g.b, g.b_type, g.ldb, g.normalise_b, g.patches_b, b_rows ? j : 0, b_rows ? 0 : j);
  g.c = advance(g.c, g.c_type, i * g.ldc + j);
  g.bias = advance(g.bias, j);
  g.a_row_sums = j == 0 && g.a_row_sums != nullptr ? g.a_row_sums + i : nullptr;
  Epilogue& e = g.epilogue;
  const DType type = e.kind == EpilogueKind::kGateResidual ? DType::kF32 : g.c_type;
  e.in = advance(e.in, type, i * e.in_stride + j);
  e.out = advance(e.out, type, i * e.out_stride + j);
  e.gate = advance(e.gate, j), e.first_row += i;
  return g;
}

void attention_forward(const AttentionHead& head, void* out, float* lse, void* scratch) {
  table().attention_forward(head, out, lse, scratch);
}
void attention_backward(const AttentionHead& head, const void* out, const void* dout, const float* lse, void* dq,
                        void* dk, void* dv, void* scratch) {
  table().attention_backward(head, out, dout, lse, dq, dk, dv, scratch);
}
size_t attention_scratch_bytes(int64_t tokens, int64_t head_dim) {
  return table().attention_scratch_bytes(tokens, head_dim);
}

// One definition for each type of activation.
#define DITRAIN_ACTIVATION(T, field)                                                                                  \
  void gelu_forward(const T* x, T* y, int64_t n) { table().field.gelu_forward(x, y, n); }                             \
  void gelu_backward(const T* x, const T* dy, T* dx, int64_t n) { table().field.gelu_backward(x, dy, dx, n); }        \
  int64_t find_non_finite(const T* x, int64_t n) { return table().field.find_non_finite(x, n); }                      \
  void add(const float* x, T* y, int64_t n) { table().field.add(x, y, n); }                                           \
  void column_sums(const T* dy, int64_t stride, float* db, int64_t rows, int64_t cols) {                              \
    table().field.column_sums(dy, stride, db, rows, cols);                                                            \
  }                                                                                                                   \
  void layer_norm_apply(const float* x, const float* mean, const float* rstd, const float* shift, const float* scale, \
                        T* y, int64_t rows, int64_t cols) {                                                           \
    table().field.layer_norm_apply(x, mean, rstd, shift, scale, y, rows, cols);                                       \
  }                                                                                                                   \
  void gate_residual_forward(const float* x, const float* gate, const T* h, float* y, int64_t rows, int64_t cols) {   \
    table().field.gate_residual_forward(x, gate, h, y, rows, cols);                                                   \
  }                                                                                                                   \
  void gate_residual_backward(const float* dy, const float* gate, const T* h, T* dh, float* dgate, int64_t rows,      \
                              int64_t cols) {                                                                         \
    table().field.gate_residual_backward(dy, gate, h, dh, dgate, rows, cols);                                         \
  }                                                                                                                   \
  void layer_norm_modulate_forward(const float* x, const float* shift, const float* scale, T* y, float* mean,         \
                                   float* rstd, int64_t rows, int64_t cols, float eps) {                              \
    table().field.layer_norm_modulate_forward(x, shift, scale, y, mean, rstd, rows, cols, eps);                       \
  }                                                                                                                   \
  void layer_norm_modulate_backward(const float* x, const float* mean, const float* rstd, const float* scale,         \
                                    const T* dy, float* dx, float* dshift, float* dscale, int64_t rows,               \
                                    int64_t cols) {                                                                   \
    table().field.layer_norm_modulate_backward(x, mean, rstd, scale, dy, dx, dshift, dscale, rows, cols);             \
  }
DITRAIN_ACTIVATION(float, f32)
DITRAIN_ACTIVATION(BFloat16, bf16)
#undef DITRAIN_ACTIVATION

void convert(const float* x, BFloat16* y, int64_t n) { table().to_bf16(x, y, n); }
void convert(const BFloat16* x, float* y, int64_t n) { table().to_f32(x, y, n); }
void silu_forward(const float* x, float* y, int64_t n) { table().silu_forward(x, y, n); }
void silu_backward(const float* x, const float* dy, float* dx, int64_t n) { table().silu_backward(x, dy, dx, n); }
double sum_squares(const float* x, int64_t n) { return table().sum_squares(x, n); }
void layer_norm_statistics(const float* x, float* mean, float* rstd, int64_t rows, int64_t cols, float eps) {
  table().layer_norm_statistics(x, mean, rstd, rows, cols, eps);
}
void adamw_ema(const AdamWStep& step, const float* g, float* p, float* m, float* v, float* ema, BFloat16* copy,
               int64_t n) {
  table().adamw_ema(step, g, p, m, v, ema, copy, n);
}
void scale_add(float a, const float* x, float b, const float* noise, float* out, int64_t n) {
  table().scale_add(a, x, b, noise, out, n);
}

void softmax_forward(const float* x, float* y, int64_t rows, int64_t cols) {
  table().softmax_forward(x, y, rows, cols);
}
void softmax_backward(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols) {
  table().softmax_backward(y, dy, dx, rows, cols);
}
double square_error(const float* out, const float* target, double weight, float* dout, int64_t n) {
  return table().square_error(out, target, weight, dout, n);
}
double normal_kl(const NormalKl& kl, double out_weight, float* dout, double v_weight, float* dv, int64_t n) {
  return table().normal_kl(kl, out_weight, dout, v_weight, dv, n);
}

void fill_uniform(const RandomKey& key, uint64_t first, float* out, int64_t n) {
  table().random_uniform(key.sequence(), first, out, n);
}
void fill_normal(const RandomKey& key, uint64_t first, float* out, int64_t n) {
  table().random_normal(key.sequence(), first, out, n);
}

}  // namespace ditrain::kernels
