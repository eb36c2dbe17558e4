// The public functions: each forwards to the kernels that this process has chosen.
#include <algorithm>

#include "ditrain/base/error.hpp"
#include "instruction_sets.hpp"

namespace ditrain::kernels {
namespace {

void check_types(const GemmArgs& g) {
  for (const DType type : {g.a_type, g.b_type, g.c_type})
    DITRAIN_CHECK(g.arithmetic != DType::kF32 || type == DType::kF32, "products in f32 take f32 arrays alone");
  DITRAIN_CHECK((g.normalise_a.mean == nullptr || g.a_type == DType::kF32) &&
                    (g.normalise_b.mean == nullptr || g.b_type == DType::kF32),
                "f32 arrays alone are normalised");
}

}  // namespace

void gemm(const GemmArgs& args, void* scratch, const PackingGroup& packers) {
  DITRAIN_DCHECK(!args.accumulate || args.c_type == DType::kF32, "gemm accumulates onto f32 only");
  check_types(args);
  DITRAIN_DCHECK(args.n > 0 || args.a_row_sums == nullptr, "gemm without columns takes no row sums");
  DITRAIN_DCHECK(args.window_a.channels == 0 || (args.trans_a == Trans::kNo && args.normalise_a.mean == nullptr &&
                                                 args.patches_a.size == 0 && args.a_row_sums == nullptr),
                 "windows are rows as they are");
  DITRAIN_DCHECK(args.packed_b.panels == nullptr || (args.packed_b.first_column % kPackedColumns == 0 &&
                                                     args.normalise_b.mean == nullptr && args.patches_b.size == 0),
                 "packed columns are cut between panels, and are what they are");
  process_kernels().kernels.products(args.arithmetic).gemm(args, scratch, packers);
}
size_t gemm_scratch_bytes(const GemmArgs& args, const PackingGroup& packers) {
  return process_kernels().kernels.products(args.arithmetic).scratch_bytes(args, packers);
}
GemmPieces gemm_pieces(const GemmArgs& part, int64_t most_rows) {
  return process_kernels().kernels.products(part.arithmetic).pieces(part, most_rows);
}
bool is_better_normalised_before(const GemmArgs& whole) {
  return process_kernels().kernels.products(whole.arithmetic).is_better_normalised_before(whole);
}
size_t gemm_shared_bytes(const GemmArgs& args, const PackingGroup& packers) {
  return process_kernels().kernels.products(args.arithmetic).shared_bytes(args, packers);
}

size_t packed_b_bytes(int64_t k, int64_t n, DType arithmetic) {
  const ProductKernels& p = process_kernels().kernels.products(arithmetic);
  const int64_t words = (k + p.steps_per_word - 1) / p.steps_per_word;
  return size_t((n + p.tile_cols - 1) / p.tile_cols * p.tile_cols * words) * sizeof(float);
}
void pack_b(const GemmArgs& args, float* panels) {
  check_types(args);
  process_kernels().kernels.products(args.arithmetic).pack_b(args, panels);
}
void unpack_b(const PackedB& b, int64_t k, DType arithmetic, float* values) {
  const ProductKernels& p = process_kernels().kernels.products(arithmetic);
  const int64_t width = p.tile_cols, steps = p.steps_per_word, all = (b.columns + width - 1) / width * width;
  for (int64_t step = 0; step < k; ++step) {
    const int64_t chunk = step / kSumChunk * kSumChunk, length = (std::min(k - chunk, kSumChunk) + steps - 1) / steps;
    const float* panels = b.panels + chunk / steps * all;
    for (int64_t j = 0; j < b.columns; ++j) {
      const float* word = panels + (j / width * length + (step - chunk) / steps) * width + j % width;
      if (steps == 1)
        values[step * b.columns + j] = *word;
      else
        values[step * b.columns + j] = to_f32(reinterpret_cast<const BFloat16*>(word)[(step - chunk) % steps]);
    }
  }
}

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
  if (g.window_a.channels > 0)
    g.window_a.first_row += i;
  else
    skip(g.a, g.a_type, g.lda, g.normalise_a, g.patches_a, a_rows ? i : 0, a_rows ? 0 : i);
  if (g.packed_b.panels != nullptr)
    g.packed_b.first_column += j;
  else
    skip(g.b, g.b_type, g.ldb, g.normalise_b, g.patches_b, b_rows ? j : 0, b_rows ? 0 : j);
  g.c = advance(g.c, g.c_type, i * g.ldc + j);
  g.bias = advance(g.bias, j);
  g.a_row_sums = j == 0 && g.a_row_sums != nullptr ? g.a_row_sums + i : nullptr;
  Epilogue& e = g.epilogue;
  const DType type = e.kind == EpilogueKind::kGateResidual ? DType::kF32 : g.c_type;
  e.in = advance(e.in, type, i * e.in_stride + j);
  e.out = advance(e.out, type, i * e.out_stride + j);
  e.gate = advance(e.gate, j), e.first_row += i;
  if (g.moments.sums != nullptr) g.moments.sums += j, g.moments.first_row += i;
  return g;
}

namespace {
const AttentionKernels& attention(DType type) { return process_kernels().kernels.attention(type); }
const ElementwiseKernels& elementwise() { return *process_kernels().kernels.elementwise; }
}  // namespace

void attention_forward(const AttentionHead& head, void* out, float* lse, void* scratch) {
  attention(head.type).forward(head, out, lse, scratch);
}
void attention_backward(const AttentionHead& head, const void* out, const void* dout, const float* lse, void* dq,
                        void* dk, void* dv, void* scratch) {
  attention(head.type).backward(head, out, dout, lse, dq, dk, dv, scratch);
}
size_t attention_scratch_bytes(int64_t tokens, int64_t head_dim, DType type) {
  return attention(type).scratch_bytes(tokens, head_dim);
}
size_t attention_forward_scratch_bytes(int64_t tokens, int64_t head_dim, DType type) {
  return attention(type).forward_scratch_bytes(tokens, head_dim);
}

void fill_uniform(const RandomKey& key, uint64_t first, float* out, int64_t n) {
  elementwise().random_uniform(key.sequence(), first, out, n);
}
void fill_normal(const RandomKey& key, uint64_t first, float* out, int64_t n) {
  elementwise().random_normal(key.sequence(), first, out, n);
}

// The operators of operators.inc: once, and for activations once per type T.
using namespace roles;

#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) \
  result name parameters { return elementwise().name arguments; }
#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments) \
  result name parameters { return elementwise().f32.name arguments; }
#define T float
#include "ditrain/kernels/operators.inc"
#undef T

#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments) \
  result name parameters { return elementwise().bf16.name arguments; }
#define T BFloat16
#include "ditrain/kernels/operators.inc"
#undef T

}  // namespace ditrain::kernels
