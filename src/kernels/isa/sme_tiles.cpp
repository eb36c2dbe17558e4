// See sme.hpp. An object of its own, without a fixed length of the vectors: in streaming mode they may have another one
// than outside.
#include "sme.hpp"

#include <arm_sme.h>

namespace ditrain::kernels::sme {
namespace {

struct F32 {
  using Word = svfloat32_t;
  static Word load(const float* p, int64_t vector) __arm_streaming __arm_inout("za") { return svld1_vnum_f32(svptrue_b32(), p, vector); }
  template <int kTile>
  static void add_outer(Word a, Word b) __arm_streaming __arm_inout("za") {
    svmopa_za32_f32_m(kTile, svptrue_b32(), svptrue_b32(), a, b);
  }
};

struct Bf16Pairs {
  using Word = svbfloat16_t;
  static Word load(const float* p, int64_t vector) __arm_streaming __arm_inout("za") {
    return svreinterpret_bf16_f32(svld1_vnum_f32(svptrue_b32(), p, vector));
  }
  template <int kTile>
  static void add_outer(Word a, Word b) __arm_streaming __arm_inout("za") {
    svmopa_za32_bf16_m(kTile, svptrue_b16(), svptrue_b16(), a, b);
  }
};

/// Tile r * 2 + c is row half r, column half c.
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
inline void multiply_column(const Column& x) __arm_streaming __arm_inout("za") {
  const int64_t lanes = static_cast<int64_t>(svcntsw()), tile = 2 * lanes;
  const float* a = x.a;
  float* sums = x.sums;
  for (int64_t left = x.rows; left > 0; left -= tile, a += x.panel_step, sums += tile * tile) {
    if (left > lanes)
      x.cols > lanes ? multiply_tile<Type, 2, 2>(a, x.b, x.kc, sums) : multiply_tile<Type, 2, 1>(a, x.b, x.kc, sums);
    else
      x.cols > lanes ? multiply_tile<Type, 1, 2>(a, x.b, x.kc, sums) : multiply_tile<Type, 1, 1>(a, x.b, x.kc, sums);
  }
}

}  // namespace

__arm_locally_streaming __arm_new("za") void multiply_f32(const Column& x) { multiply_column<F32>(x); }
__arm_locally_streaming __arm_new("za") void multiply_bf16_pairs(const Column& x) { multiply_column<Bf16Pairs>(x); }

}  // namespace ditrain::kernels::sme
