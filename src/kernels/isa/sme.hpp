// Products on the matrix unit of Armv9 (SME), for any length of its vectors. A unit with vectors of S words adds the
// outer product of two vectors to a tile of S x S sums in one instruction; there are four such tiles, used as one of
// 2 S x 2 S. It works in streaming mode, which costs tens to hundreds of cycles to enter: hence many tiles a call.
#pragma once
#include <cstdint>

namespace ditrain::kernels::sme {

/// A column of register tiles: `rows` rows of a times one panel of b over kc steps, each sum one chain from zero in
/// increasing k.
///   sums[r * 2S + j] = sum_k a(r, k) b[k * 2S + j],   j < cols <= 2S
/// The rows of a lie in panels of 2S rows: a(r, k) = a[(r / 2S) * panel_step + k * 2S + r % 2S]. Sums of the whole last
/// panel are written (a and `sums` reach to its end), except that no more than S rows or columns are where rows or cols
/// need no more.
struct Column {
  const float* a;
  int64_t panel_step, rows;
  const float* b;
  int64_t kc, cols;
  float* sums;
};

/// f32: a fused multiply-add each (FMOPA). NaN results are the default NaN.
void multiply_f32(const Column& x);
/// A word of a and b is a pair of bf16, the earlier step in its lower half; kc counts words (BFMOPA). Per word both
/// products and their sum are rounded to odd, then added to the chain, subnormals count as 0: not the bits of x86.
void multiply_bf16_pairs(const Column& x);

}  // namespace ditrain::kernels::sme
