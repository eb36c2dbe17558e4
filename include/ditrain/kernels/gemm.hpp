// Dense matrix products (GEMM) on raw pointers; one thread's share. Module `ops` splits a product over the team. The
// order of every element's sum depends on k alone, so any split gives bit-identical results.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

enum class Trans { kNo, kYes };

/// LayerNorm + adaLN modulation of an operand whose rows are tokens, applied while the operand is packed:
///   x'[r,j] = (x[r,j] - mean[r]) rstd[r] (1 + scale[s,j]) + shift[s,j],  s = (first_row + r) / rows_per_sample
struct Normalise {
  const float *mean = nullptr, *rstd = nullptr;    ///< at array row 0; null: no normalisation
  const float *shift = nullptr, *scale = nullptr;  ///< at sample 0 and array column 0
  int64_t cond_stride = 0;                         ///< from one sample's shift to the next one's
  int64_t rows_per_sample = 1, first_row = 0;
};

/// Images [S, C, H, W] (f32) as an operand, gathered into patches while it is packed. An image has (H / P) x (W / P)
/// patches, numbered row by row; array row r is patch first_row + r. Columns (c, i, j) are those of a convolution
/// weight [n, C, P, P], from first_column on.
struct Patches {
  int64_t size = 0;  ///< P; 0: no patches, the operand is an array
  int64_t channels = 0, height = 0, width = 0;
  int64_t first_row = 0, first_column = 0;
};

/// Images [S, H, W, C] (f32 or bf16, channels last) as operand a, gathered while it is packed, so that the product with
/// weights [kernel_h, kernel_w, C, N] is a convolution (implicit GEMM). Array row r is output pixel first_row + r; an
/// image has out_h x out_w of them, row by row. Column (i, j, c) of output pixel (y, x) is channel c of input pixel (y
/// stride_h - pad_top + i, x stride_w - pad_left + j), zero outside the image. out_h and out_w imply the padding below
/// and to the right. Whole lines of padding may be skipped, so infinite weights there need not give NaN,
/// and a sum that has underflowed to -0 need not become 0; both may depend on how n is split.
struct Window {
  int64_t channels = 0;           ///< C; 0: no window, the operand is an array
  int64_t height = 0, width = 0;  ///< H, W of a stored image
  int64_t pixel_stride = 0;       ///< elements from pixel to pixel, at least C
  bool doubled = false;           ///< upsample first: the convolution sees every pixel as 2 x 2 equal ones
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  int64_t out_h = 0, out_w = 0;
  int64_t first_row = 0;
};

/// Operand b [k, n] packed once into panels (pack_b) for many products; b, ldb, trans_b and b_type are not used then.
/// Panels are valid only for the instruction set and the arithmetic that packed them.
struct PackedB {
  const float* panels = nullptr;  ///< panels of the whole b; null: every product packs b
  int64_t columns = 0;            ///< n of the whole b
  int64_t first_column = 0;       ///< where this product begins: a multiple of kPackedColumns
};
inline constexpr int64_t kPackedColumns = 32;  ///< products with packed b are split at multiples of this

/// Statistics of c for GroupNorm, summed while its rows are still in the caches. For each unit of `rows` rows and each
/// column: the first value f, the sum of c - f and the sum of (c - f)^2, each one chain in row order. Subtracting a
/// value of the column avoids cancellation where the mean is far from zero.
struct Moments {
  float* sums = nullptr;  ///< [units, 3, stride]; null: not wanted
  int64_t rows = 0;       ///< rows per unit; products are split between units
  int64_t stride = 0;     ///< columns of the whole product
  int64_t first_row = 0;
};

/// What happens to a finished element t = (accumulate ? c : 0) + sum + bias; c is rounded to its type first. SwiGLU
/// computes silu(u) v from two halves of columns: u, and v `half` elements behind it.
enum class EpilogueKind {
  kNone,            ///< c = t
  kGelu,            ///< c = t;  out = gelu(c)                                   in: none; out of c's type
  kGeluBackward,    ///< c = t gelu'(in);  out = gelu(in), if out is not null     in, out of c's type
  kSwiglu,          ///< c = t;  out = silu(in) c                                in is u, c is v; out of c's type
  kSwigluBackward,  ///< c = t v silu'(u), c[half] = t silu(u), out = silu(u) v if not null; in is u, v; c's type
  kGateResidual,    ///< c = t;  out = in + gate c                               in, out f32
  kResidual,        ///< c = t + in                                              in of c's type; out: none
  kRelu,            ///< c = max(t, 0)                                           in, out: none
  kSilu             ///< c = silu(t)                                             in, out: none
};
struct Epilogue {
  EpilogueKind kind = EpilogueKind::kNone;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t in_stride = 0, out_stride = 0;  ///< elements from row to row
  const float* gate = nullptr;            ///< at sample 0 and column 0
  int64_t cond_stride = 0;                ///< from one sample's gate to the next one's
  int64_t rows_per_sample = 1, first_row = 0;
  int64_t half = 0;  ///< SwiGLU backward: elements from u to v and from c to the gradient by v; at least n
};

/// c[m,n] = epilogue((accumulate ? c : 0) + op(a)[m,k] op(b)[k,n] + bias[n])
/// Shapes:   a is [m,k] with row stride lda, or [k,m] if trans_a; b is [k,n] with ldb, or [n,k] if trans_b; c [m,n],
///           ldc
/// Types:    `arithmetic` kF32: operands and c are f32; kBF16: f32 or bf16 each, operands rounded to bf16 (then bf16
///           multiply-adds where the CPU has them, f32 arithmetic on the rounded values elsewhere); sums f32
struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  Trans trans_a = Trans::kNo;
  const void* b = nullptr;
  int64_t ldb = 0;
  Trans trans_b = Trans::kNo;
  void* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;      ///< c must be f32
  const float* bias = nullptr;  ///< added once to every row; null: none
  DType a_type = DType::kF32, b_type = DType::kF32, c_type = DType::kF32;
  DType arithmetic = DType::kF32;
  Normalise normalise_a = {}, normalise_b = {};  ///< of f32 operands
  Patches patches_a = {}, patches_b = {};        ///< excludes a normalisation; lda, ldb are not used then
  PackedB packed_b = {};
  Window window_a = {};  ///< excludes trans_a, normalise_a and patches_a; lda is not used then
  Epilogue epilogue = {};
  Moments moments = {};         ///< of c after the epilogue
  float* a_row_sums = nullptr;  ///< [m] += sum over k of op(a) as multiplied (needs n > 0); null: not wanted
};

/// Every f32 sum runs over k in chunks of this length. A chunk is one chain of fused multiply-adds from zero (baseline
/// x86: multiply, then add). The old c, if accumulated, comes first, then the chunk sums in increasing order, the bias
/// last. bf16 arithmetic takes the steps of a chunk in pairs. amx_bf16 has no chunks but blocks of 32 steps: the even
/// steps of a block form one chain from zero and the odd ones another, their sum is added to that of the blocks before
/// (the first block's to the old c or to zero); the bias comes last. Its a_row_sums add
/// sums of 384 steps, each folded from 16 chains that take every 16th pair of steps.
inline constexpr int64_t kSumChunk = 1152;

/// Up to this k the memory traffic of c limits a product: tiles then run along rows of c, and operands are read in
/// place where possible.
inline constexpr int64_t kFewSteps = 64;

/// How one thread's part of a product may be cut into pieces, each a call of its own, without packing anything twice:
/// at multiples of `rows` or of `columns` of c.
struct GemmPieces {
  int64_t rows, columns;  ///< at least one of them is all of the part
  bool keep_b;            ///< calls for rows of the same columns may share the panels of b: PackingGroup::keeps_b
};

/// A group of threads that compute different rows of the same columns of a product at the same time, each in its own
/// call, and share the packing of b: each packs a part of every block into memory that all of them read.
struct PackingGroup {
  int member = 0, members = 1;           ///< members 1: the thread packs alone
  int64_t most_rows = 0, most_cols = 0;  ///< largest m and n over the group's calls (a member without rows has m = 0)
  void* shared = nullptr;                ///< gemm_shared_bytes, 64-byte aligned; reserved until all members return
  void (*barrier)(const void* context) = nullptr;  ///< returns when all members have called it
  const void* context = nullptr;
  // A thread that packs alone may make several calls for rows of the same columns, with the same scratch and most_rows:
  bool keeps_b = false;  ///< the call leaves the panels of b in the scratch
  bool has_b = false;    ///< the call before has left them
};

/// Computes the product, or this member's part of the group's.
/// Memory: no allocation; `scratch` has gemm_scratch_bytes(args, packers), 64-byte aligned. c aliases nothing; c is f32
///         if it is accumulated
/// Speed:  operands are read in place where packing would take longer than it saves: b for at most as many rows as a
///         vector has lanes (16 with AVX-512); a and b for k up to kFewSteps with transposed a and plain b in f32 (a
///         rank-B update); a, and the lines of pixels under a window, for few columns, on amx_bf16 for any. A packing
///         group always packs b
void gemm(const GemmArgs& args, void* scratch, const PackingGroup& packers = {});
size_t gemm_scratch_bytes(const GemmArgs& args, const PackingGroup& packers = {});
size_t gemm_shared_bytes(const GemmArgs& args, const PackingGroup& packers);

/// Pieces of a part that one thread computes alone; most_rows: as in PackingGroup. Bits do not depend on them.
GemmPieces gemm_pieces(const GemmArgs& part, int64_t most_rows);

/// Whether it takes less time to normalise a in a pass before the product than on the way: on a tile unit, where b is
/// larger than two of its blocks, which stay in the L2 cache. a would be packed and normalised once for each of them,
/// and a plain one is read in place (qkv of XL/2 on two cores of an Emerald Rapids: 5.0 ms; 3.5 and some 0.3 apart).
/// Does not look at a and its norm.
bool is_better_normalised_before(const GemmArgs& whole);

/// Bytes of b [k, n] in panels.
size_t packed_b_bytes(int64_t k, int64_t n, DType arithmetic);
/// Packs operand b of a product into panels (packed_b_bytes, 64-byte aligned). Reads k, n, b, ldb, b_type, trans_b and
/// arithmetic of `args`.
void pack_b(const GemmArgs& args, float* panels);
/// Unpacks b [k, n] to f32, row by row; with bf16 arithmetic the values are rounded. For tests and references.
void unpack_b(const PackedB& b, int64_t k, DType arithmetic, float* values);

/// The part of a product that computes rows [i, i + m) and columns [j, j + n) of c. Only the part that starts at column
/// 0 computes a_row_sums.
GemmArgs block_of(const GemmArgs& whole, int64_t i, int64_t m, int64_t j, int64_t n);

/// Cache blocks: rows of a (a block stays in the L2 cache) and columns of b (L3 cache); a unit also derives from `rows`
/// how many columns of b stay there instead. They change speed, never a bit.
struct GemmBlocking {
  int64_t rows = 0, cols = 0;
  bool operator==(const GemmBlocking&) const = default;
};
GemmBlocking gemm_blocking();
/// Errors: InputError if a size is below 1 or above 1 << 20.
void check_gemm_blocking(const GemmBlocking& blocking);
/// Sets the blocks for all later products; no product may run meanwhile. Errors: as check_gemm_blocking
void set_gemm_blocking(const GemmBlocking& blocking);
/// Derives blocks from a core's shares of the caches in bytes (0: unknown): two fifths of L2 for a block of a, a third
/// of L3 for a block of b. At most 1,536 columns, because beyond that the block of c leaves the L3 cache.
GemmBlocking derived_gemm_blocking(size_t l2_bytes_per_core, size_t l3_bytes_per_core);
bool multiplies_on_unit(DType arithmetic);  ///< whether a matrix unit (AMX, SME) computes these products
int64_t gemm_tile_rows();  ///< rows of a register tile; blocks of a are whole tiles (except bf16 on a tile unit)

namespace ref {
void gemm(const GemmArgs& args);  ///< plain loops, f64 accumulation
}
}  // namespace ditrain::kernels
