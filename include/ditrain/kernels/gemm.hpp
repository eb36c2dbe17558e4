// Dense matrix products on raw pointers, one thread's share. `ops` cuts a product over the team; the sum of every
// element has an order that depends on k alone, so any split gives bit-identical results.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

enum class Trans { kNo, kYes };

/// LayerNorm + adaLN modulation of an operand whose array rows are tokens, applied while the operand is packed:
///   x'[r,j] = (x[r,j] - mean[r]) rstd[r] (1 + scale[s,j]) + shift[s,j],  s = (first_row + r) / rows_per_sample
struct Normalise {
  const float *mean = nullptr, *rstd = nullptr;    ///< of array row 0; null: the operand is taken as it is
  const float *shift = nullptr, *scale = nullptr;  ///< of sample 0 and array column 0
  int64_t cond_stride = 0;                         ///< from one sample's shift to the next one's
  int64_t rows_per_sample = 1, first_row = 0;
};

/// Images [S, C, H, W] (f32) as an operand's array, gathered while it is packed: array row r is patch first_row + r of
/// gh x gw = (H / P) x (W / P) per image, row by row; its columns (c, i, j) are those of a convolution weight [n, C, P,
/// P] from first_column on.
struct Patches {
  int64_t size = 0;  ///< P; 0: the operand is an array as it is
  int64_t channels = 0, height = 0, width = 0;
  int64_t first_row = 0, first_column = 0;
};

/// Images [S, H, W, C] (f32 or bf16, channels last) as the array of operand a, gathered while it is packed, so that a
/// product with weights [kernel_h, kernel_w, C, N] is a convolution: array row r is output pixel first_row + r of out_h
/// x out_w per image, row by row; column (i, j, c) is channel c of input pixel (y stride_h - pad_top + i, x stride_w -
/// pad_left + j), zero outside of the image. The padding below and to the right follows from out_h and out_w. Whole
/// lines of padding may be left out of a sum, so that infinite weights there may give NaN or not.
struct Window {
  int64_t channels = 0;           ///< C; 0: the operand is an array as it is
  int64_t height = 0, width = 0;  ///< H, W: of an image as it is stored
  int64_t pixel_stride = 0;       ///< elements from pixel to pixel, at least C
  bool doubled = false;           ///< the convolution sees every pixel as 2 x 2 equal ones
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_top = 0, pad_left = 0;
  int64_t out_h = 0, out_w = 0;
  int64_t first_row = 0;
};

/// Operand b [k, n] as the panels that products read, packed once (pack_b) for many products; b, ldb, trans_b and
/// b_type are not used then. The panels belong to the instruction set and the arithmetic that packed them.
struct PackedB {
  const float* panels = nullptr;  ///< of all of b; null: every product packs b
  int64_t columns = 0;            ///< n of all of b
  int64_t first_column = 0;       ///< of this product: a multiple of kPackedColumns
};
inline constexpr int64_t kPackedColumns = 32;  ///< products with packed b are cut between so many columns

/// What group normalisation wants to know of c, summed up while its rows are still in the caches. For each unit of
/// `rows` rows and each column: the first value f, the sum of c - f and the sum of (c - f)^2, each one chain over the
/// rows in their order. Differences to a value of the column lose nothing where the mean is far from zero.
struct Moments {
  float* sums = nullptr;  ///< [units, 3, stride]; null: not wanted
  int64_t rows = 0;       ///< of a unit; products are cut between units
  int64_t stride = 0;     ///< columns of the whole product
  int64_t first_row = 0;
};

/// What is done with a finished element t = (accumulate ? c : 0) + sums + bias; c is rounded to its type first.
/// Of SwiGLU, u are the columns before silu and v, `half` elements behind them, those that it multiplies.
enum class EpilogueKind {
  kNone,            ///< c = t
  kGelu,            ///< c = t;  out = gelu(c)                                   in: none; out of c's type
  kGeluBackward,    ///< c = t gelu'(in);  out = gelu(in), if out is not null     in, out of c's type
  kSwiglu,          ///< c = t;  out = silu(in) c                                in is u, c is v; out of c's type
  kSwigluBackward,  ///< c = t v silu'(u), c of half = t silu(u), out = silu(u) v if not null: in is u, v; c's type
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
  const float* gate = nullptr;            ///< of sample 0 and column 0
  int64_t cond_stride = 0;                ///< from one sample's gate to the next one's
  int64_t rows_per_sample = 1, first_row = 0;
  int64_t half = 0;  ///< SwiGLU backward: elements from u to v and from c to the gradient by v; at least n
};

/// c[m,n] = epilogue((accumulate ? c : 0) + op(a)[m,k] op(b)[k,n] + bias[n])
/// Shapes:   a is [m,k] with row stride lda, or [k,m] if trans_a; b is [k,n] with ldb, or [n,k] if trans_b; c [m,n],
///           ldc
/// Types:    operands and c f32 or bf16 each; sums f32. `arithmetic` kBF16 rounds both operands to bf16 on the way into
///           the product (one bf16 multiply-add where the CPU has it, f32 arithmetic on the rounded values elsewhere).
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
  Normalise normalise_a = {}, normalise_b = {};
  Patches patches_a = {}, patches_b = {};  ///< not with a normalisation; lda, ldb are not used then
  PackedB packed_b = {};
  Window window_a = {};  ///< without a transposition, a normalisation or patches of a; lda is not used
  Epilogue epilogue = {};
  Moments moments = {};         ///< of c as it is in the end
  float* a_row_sums = nullptr;  ///< [m] += sum over k of op(a) as the product takes it (n > 0); null: not wanted
};

/// Every f32 sum runs over k in chunks of this length: each chunk is one chain of fused multiply-adds from zero
/// (multiply, then add on baseline x86, which has no fused one); the old c, if accumulated, comes first, then the chunk
/// sums in increasing order, the bias last. bf16 arithmetic takes the steps of a chunk in pairs. amx_bf16 has no
/// chunks: blocks of 32 steps, the even and the odd ones of a block each one chain from zero, are added to each other
/// and then, one block after the other, to the old c or to zero; the bias comes last.
inline constexpr int64_t kSumChunk = 1152;

/// Up to this many steps of k the traffic of c decides: tiles go along rows of c, and operands are read where they lie
/// if that is possible.
inline constexpr int64_t kFewSteps = 64;

/// Threads that compute different rows of the same columns of a product at the same time, each in a call of its own,
/// and pack b once between them: each a part of every block of it, into memory that all of them read.
struct PackingGroup {
  int member = 0, members = 1;           ///< 1: on its own
  int64_t most_rows = 0, most_cols = 0;  ///< largest m and n of all calls that meet (one without rows has m = 0)
  void* shared = nullptr;                ///< gemm_shared_bytes, 64-byte aligned; theirs alone until all have returned
  void (*meet)(const void* context) = nullptr;  ///< returns when all have called it
  const void* context = nullptr;
};

/// Memory: no allocation; `scratch` holds gemm_scratch_bytes(args, packers), 64-byte aligned. c aliases nothing; c is
///         f32 if it is accumulated
/// Speed:  as few rows as a vector has lanes (16 with AVX-512) read b where it lies; up to kFewSteps steps of a that is
///         transposed and plain b in f32 (a rank-B update) pack nothing; a packing group always packs b. With few
///         columns a, and the lines of pixels under a window, are read as they lie: to pack them would take longer than
///         it saves
void gemm(const GemmArgs& args, void* scratch, const PackingGroup& packers = {});
size_t gemm_scratch_bytes(const GemmArgs& args, const PackingGroup& packers = {});
size_t gemm_shared_bytes(const GemmArgs& args, const PackingGroup& packers);

/// Bytes of b [k, n] as panels.
size_t packed_b_bytes(int64_t k, int64_t n, DType arithmetic);
/// Packs operand b of a product (k, n, b with its stride, type and transposition, arithmetic) into packed_b_bytes,
/// 64-byte aligned.
void pack_b(const GemmArgs& args, float* panels);
/// The values of packed b [k, n], row by row; those of bf16 arithmetic are rounded. For references.
void unpack_b(const PackedB& b, int64_t k, DType arithmetic, float* values);

/// The part of a product that computes rows [i, i + m) and columns [j, j + n) of c. a_row_sums stay with the part that
/// starts at column 0.
GemmArgs block_of(const GemmArgs& whole, int64_t i, int64_t m, int64_t j, int64_t n);

/// Cache blocks: rows of a (kept in the L2 cache), columns of b (kept in the L3 cache). They change speed, never a bit.
struct GemmBlocking {
  int64_t rows = 0, cols = 0;
  bool operator==(const GemmBlocking&) const = default;
};
GemmBlocking gemm_blocking();
/// Errors: InputError if a size is below 1 or above 1 << 20.
void check_gemm_blocking(const GemmBlocking& blocking);
/// Not while a product runs. Errors: as check_gemm_blocking
void set_gemm_blocking(const GemmBlocking& blocking);
/// From a core's shares of the caches in bytes (0: unknown): two fifths of L2 for a block of a, a third of L3 for one
/// of b, at most 1,536 columns: beyond, the block of c leaves the L3 cache.
GemmBlocking derived_gemm_blocking(size_t l2_bytes_per_core, size_t l3_bytes_per_core);
int64_t gemm_tile_rows();  ///< rows of a register tile: blocks of a are whole ones, bf16 on a tile unit excepted

namespace ref {
void gemm(const GemmArgs& args);  ///< plain loops, f64 accumulation
}
}  // namespace ditrain::kernels
