// Rounding to bf16: the conversion, and the copy of the weights that AdamW writes. (Operators on bf16 are those on f32
// with rounded results: operators_test.cpp.)
#include "ditrain/kernels/elementwise.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

using Halves = std::vector<BFloat16>;

Halves rounded(const std::vector<float>& x) {
  Halves y;
  for (float v : x) y.push_back(to_bf16(v));
  return y;
}
std::vector<float> widened(const Halves& x) {
  std::vector<float> y;
  for (BFloat16 v : x) y.push_back(to_f32(v));
  return y;
}

/// n results between two zones that nothing may touch.
struct Output {
  explicit Output(int64_t n) : all(size_t(n + 2 * kZone), BFloat16{0xbeef}) {}
  BFloat16* data() { return all.data() + kZone; }
  bool equals(const std::vector<float>& f32) const {
    const Halves want = rounded(f32);
    const int64_t n = int64_t(all.size()) - 2 * kZone;
    bool same = int64_t(want.size()) == n;
    for (int64_t i = 0; same && i < n; ++i) same = all[size_t(i + kZone)].bits == want[size_t(i)].bits;
    for (int64_t i = 0; same && i < kZone; ++i)
      same = all[size_t(i)].bits == 0xbeef && all[size_t(n + kZone + i)].bits == 0xbeef;
    return same;
  }
  static constexpr int64_t kZone = 33;
  Halves all;
};

const std::vector<int64_t> kLengths = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 64, 100, 257};

}  // namespace

TEST_CASE("conversion rounds to nearest even and keeps NaN, infinity, signed zero and, as stated, subnormals") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {nan,     infinity, -infinity,   0.0f,        -0.0f, 1e-40f,
                          -1e-42f, 3.4e38f,  1.00390625f, 1.01171875f, 1.0f};
  for (uint32_t bits = 1; bits < 0xffff0000u; bits += 40503001u) {
    float v;
    std::memcpy(&v, &bits, 4);
    if (!std::isnan(v)) x.push_back(v);
  }
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    for (int64_t n : {int64_t{1}, int64_t{5}, int64_t(x.size())}) {
      std::vector<float> some(x.begin(), x.begin() + n);
      Output y(n);
      table->convert_to_bf16(some.data(), y.data(), n);
      for (float& v : some)
        if (table->flushes_to_bf16 && std::fpclassify(v) == FP_SUBNORMAL) v = std::copysign(0.0f, v);
      CHECK(y.equals(some));
      Guarded back(n);
      table->convert_to_f32(y.data(), back.data(), n);
      CHECK(same_bits(back.values(), widened(rounded(some))));
    }
  }
}

TEST_CASE("the first NaN or infinity of bf16 values is found") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    Halves x = rounded(random_values(3000, 1));
    CHECK(table->bf16.find_non_finite(x.data(), 3000) == -1);
    x[2100] = BFloat16{0x7f80}, x[2500] = BFloat16{0x7fc0};
    CHECK(table->bf16.find_non_finite(x.data(), 3000) == 2100);
    CHECK(table->bf16.find_non_finite(x.data(), 2100) == -1);
  }
}

TEST_CASE("AdamW writes the bf16 copy of the new weights") {
  AdamWStep step;
  step.bias1 = 0.1, step.bias2 = 0.001;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (int64_t n : kLengths) {
      for (bool with_ema : {false, true}) {
        std::vector<float> g = random_values(n, 1), p = random_values(n, 2), m = std::vector<float>(size_t(n)),
                           v = std::vector<float>(size_t(n)), ema = p, bare = p, m2 = std::vector<float>(size_t(n)),
                           v2 = std::vector<float>(size_t(n)), ema2 = p;
        Output copy(n);
        table->adamw_ema(step, g.data(), p.data(), m.data(), v.data(), with_ema ? ema.data() : nullptr, copy.data(), n);
        table->adamw_ema(step, g.data(), bare.data(), m2.data(), v2.data(), with_ema ? ema2.data() : nullptr, nullptr,
                         n);
        CHECK(copy.equals(p));
        CHECK((same_bits(p, bare) && same_bits(m, m2) && same_bits(v, v2) && same_bits(ema, ema2)));
      }
    }
  }
}
