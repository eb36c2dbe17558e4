// Products on the matrix unit of Armv9 (SME), for any length of its vectors. With vectors of S words the unit adds the
// outer product of two of them to S x S sums in one instruction; it holds four such tiles, used here as one of twice
// the rows and columns. It works in streaming mode, which takes tens to hundreds of cycles to enter and leave: hence
// many tiles per call.
#pragma once
#include <cstdint>

namespace ditrain::kernels::sme {

/// sums(i, j) = sum_k a(i, k) b(k, j) for k < kc, one chain from zero in increasing k.
/// Layout:   with W = 2 S:  a(i, k) = a[(i / W) * a_step + k * W + i % W]  and b(k, j) likewise; the sums are tiles of
///           W x W one behind the other, those of the first W rows first.
/// Memory:   panels and `sums` are whole tiles; of the last ones only halves (S rows or columns) may be used and
///           written.
struct Tiles {
  const float* a;
  int64_t a_step, rows;
  const float* b;
  int64_t b_step, cols;
  int64_t kc;
  float* sums;
};

/// f32: a fused multiply-add each (FMOPA). A NaN is the default one.
void multiply_f32(const Tiles& x);
/// A word of a and b is a pair of bf16, the earlier step in its lower half; kc counts words (BFMOPA). Both products of
/// a pair and their sum are rounded to odd before they are added; subnormals count as 0: not the bits of x86.
void multiply_bf16_pairs(const Tiles& x);

/// Loops behind the peaks: `iterations` times four independent outer products; the flop done.
double burst_f32(int64_t iterations);
double burst_bf16_pairs(int64_t iterations);

}  // namespace ditrain::kernels::sme
