// See sme.hpp. An object of its own, without a fixed length of the vectors: in streaming mode they may have another one
// than outside.
#include <arm_sme.h>

#include "sme.hpp"

namespace ditrain::kernels::sme {
namespace {

// Every function here says that it shares ZA, also those that do not touch it: around a call of another the compiler
// would have ZA saved.
struct F32 {
  using Word = svfloat32_t;
  static Word of_ones() __arm_streaming __arm_inout("za") { return svdup_f32(1); }
  static Word load(const float* p, int64_t vector) __arm_streaming __arm_inout("za") {
    return svld1_vnum_f32(svptrue_b32(), p, vector);
  }
  template <int kTile>
  static void add_outer(Word a, Word b) __arm_streaming __arm_inout("za") {
    svmopa_za32_f32_m(kTile, svptrue_b32(), svptrue_b32(), a, b);
  }
};

struct Bf16Pairs {
  using Word = svbfloat16_t;
  static Word of_ones() __arm_streaming __arm_inout("za") { return svreinterpret_bf16_u16(svdup_u16(0x3f80)); }
  static Word load(const float* p, int64_t vector) __arm_streaming __arm_inout("za") {
    return svreinterpret_bf16_f32(svld1_vnum_f32(svptrue_b32(), p, vector));
  }
  template <int kTile>
  static void add_outer(Word a, Word b) __arm_streaming __arm_inout("za") {
    svmopa_za32_bf16_m(kTile, svptrue_b16(), svptrue_b16(), a, b);
  }
};

/// One tile of which R x C quarters are needed; accumulator 2 r + c holds quarter (r, c).
template <class Type, int R, int C>
inline void multiply_tile(const float* a, const float* b, int64_t kc, float* sums) __arm_streaming __arm_inout("za") {
  const int64_t lanes = static_cast<int64_t>(svcntsw());
  svzero_za();
  for (int64_t k = 0; k < kc; ++k, a += 2 * lanes, b += 2 * lanes) {
    const typename Type::Word a0 = Type::load(a, 0), b0 = Type::load(b, 0);
    const typename Type::Word a1 = R > 1 ? Type::load(a, 1) : a0, b1 = C > 1 ? Type::load(b, 1) : b0;
    Type::template add_outer<0>(a0, b0);
    if constexpr (C > 1) Type::template add_outer<1>(a0, b1);
    if constexpr (R > 1) Type::template add_outer<2>(a1, b0);
    if constexpr (R > 1 && C > 1) Type::template add_outer<3>(a1, b1);
  }
  for (int64_t r = 0; r < lanes; ++r, sums += 2 * lanes) {
    const auto row = static_cast<uint32_t>(r);
    float* lower = sums + lanes * 2 * lanes;
    svst1_hor_za32(0, row, svptrue_b32(), sums);
    if constexpr (C > 1) svst1_hor_za32(1, row, svptrue_b32(), sums + lanes);
    if constexpr (R > 1) svst1_hor_za32(2, row, svptrue_b32(), lower);
    if constexpr (R > 1 && C > 1) svst1_hor_za32(3, row, svptrue_b32(), lower + lanes);
  }
}

template <class Type>
inline void multiply(const Tiles& x) __arm_streaming __arm_inout("za") {
  const int64_t lanes = static_cast<int64_t>(svcntsw()), width = 2 * lanes;
  const float* a = x.a;
  float* sums = x.sums;
  for (int64_t rows = x.rows; rows > 0; rows -= width, a += x.a_step) {
    const float* b = x.b;
    for (int64_t cols = x.cols; cols > 0; cols -= width, b += x.b_step, sums += width * width) {
      if (rows > lanes && cols > lanes)
        multiply_tile<Type, 2, 2>(a, b, x.kc, sums);
      else if (rows > lanes)
        multiply_tile<Type, 2, 1>(a, b, x.kc, sums);
      else if (cols > lanes)
        multiply_tile<Type, 1, 2>(a, b, x.kc, sums);
      else
        multiply_tile<Type, 1, 1>(a, b, x.kc, sums);
    }
  }
}

/// Flop for one product in each sum of a tile.
template <class Type>
__arm_locally_streaming __arm_new("za") double burst(int64_t iterations) {
  const typename Type::Word a = Type::of_ones(), b = Type::of_ones();
  for (int64_t i = 0; i < iterations; ++i) {
    Type::template add_outer<0>(a, b);
    Type::template add_outer<1>(a, b);
    Type::template add_outer<2>(a, b);
    Type::template add_outer<3>(a, b);
  }
  const auto sums = static_cast<double>(4 * svcntsw() * svcntsw());
  return 2 * sums * static_cast<double>(iterations);
}

}  // namespace

__arm_locally_streaming __arm_new("za") void multiply_f32(const Tiles& x) { multiply<F32>(x); }
__arm_locally_streaming __arm_new("za") void multiply_bf16_pairs(const Tiles& x) { multiply<Bf16Pairs>(x); }

double burst_f32(int64_t iterations) { return burst<F32>(iterations); }
double burst_bf16_pairs(int64_t iterations) { return 2 * burst<Bf16Pairs>(iterations); }

}  // namespace ditrain::kernels::sme
