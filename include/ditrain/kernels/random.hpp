// Fills arrays with the random numbers of ditrain/base/random.hpp, a vector of blocks at a time. An element depends on
// (key, index) alone, however a caller splits a range; first + n is at most 2^64. RandomKey is the reference.
#pragma once
#include <cstdint>

#include "ditrain/base/random.hpp"

namespace ditrain::kernels {

/// out[j] = key.uniform(first + j) for j < n, the same bits
void fill_uniform(const RandomKey& key, uint64_t first, float* out, int64_t n);
/// out[j] = key.normal(first + j) for j < n, to within 5 ulp.
/// Math:     Box-Muller in f32, on the words of a block: u = (word 0 + 1) 2^-32, v = word 1 2^-32;
///           sqrt(-2 ln u) cos(2 pi v), sqrt(-2 ln u) sin(2 pi v); the next two from words 2 and 3
/// Numerics: error below 4.5 ulp everywhere; |x| <= sqrt(64 ln 2) = 6.66. The last bits differ between instruction sets
///           (with or without fused multiply-add); within one they are always the same
void fill_normal(const RandomKey& key, uint64_t first, float* out, int64_t n);

}  // namespace ditrain::kernels
