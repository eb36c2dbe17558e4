// The matrix unit of Arm by itself; only where module.cmake builds kernels for it.
#if defined(__aarch64__) && defined(__clang__) && __clang_major__ >= 19
#include "../../src/kernels/isa/sme.hpp"

#include "ditrain/platform/cpu.hpp"
#include "kernel_test_utils.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

/// Operands of a grid of tiles, random in all of the panels.
struct Grid {
  int64_t width, rows, cols, kc, tile_rows, tile_cols;
  std::vector<float> a, b;
  Guarded sums;

  Grid(int64_t rows, int64_t cols, int64_t kc)
      : width(2 * platform::cpu_features().sme_bits / 32),
        rows(rows),
        cols(cols),
        kc(kc),
        tile_rows((rows + width - 1) / width),
        tile_cols((cols + width - 1) / width),
        a(random_values(tile_rows * kc * width, 21)),
        b(random_values(tile_cols * kc * width, 22)),
        sums(tile_rows * tile_cols * width * width) {}
  sme::Tiles tiles() { return {a.data(), kc * width, rows, b.data(), kc * width, cols, kc, sums.data()}; }

  float expected(int64_t i, int64_t j) const {
    float chain = 0;
    for (int64_t k = 0; k < kc; ++k)
      chain = std::fma(a[size_t((i / width * kc + k) * width + i % width)],
                       b[size_t((j / width * kc + k) * width + j % width)], chain);
    return chain;
  }
  int64_t wrong() {
    int64_t count = 0;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t tile = i / width * tile_cols + j / width;
        count += sums.data()[tile * width * width + i % width * width + j % width] != expected(i, j);
      }
    return count;
  }
};

}  // namespace

TEST_CASE("sme: every quarter of a tile and every tile of a grid is one chain of fused multiply-adds") {
  if (!platform::cpu_features().sme) SKIP("this CPU lacks sme");
  const int64_t lanes = platform::cpu_features().sme_bits / 32;
  for (int64_t rows : {int64_t{1}, lanes, lanes + 1, 2 * lanes, 4 * lanes + 3})
    for (int64_t cols : {int64_t{2}, lanes, lanes + 1, 2 * lanes, 6 * lanes + 1})
      for (int64_t kc : {0, 1, 37}) {
        CAPTURE(rows, cols, kc);
        Grid x(rows, cols, kc);
        sme::multiply_f32(x.tiles());
        CHECK(x.wrong() == 0);
        CHECK(x.sums.zones_untouched());
      }
}

TEST_CASE("sme: what a caller left in the accumulator is saved where it said") {
  if (!platform::cpu_features().sme) SKIP("this CPU lacks sme");
  // As a compiler does around a call: ZA holds values, TPIDR2_EL0 points to a block that says where they may go.
  const auto row_bytes = static_cast<uint64_t>(platform::cpu_features().sme_bits / 8);
  const std::vector<float> values = random_values(static_cast<int64_t>(row_bytes * row_bytes / 4), 23);
  for (const uint64_t rows : {row_bytes, row_bytes - 3, uint64_t{0}}) {
    CAPTURE(row_bytes, rows);
    Guarded saved(static_cast<int64_t>(rows * row_bytes / 4));
    struct Block {
      void* buffer;
      uint16_t rows;
      uint8_t reserved[6];
    } const block{saved.data(), static_cast<uint16_t>(rows), {}};
    const float* from = values.data();
    asm volatile(R"(
      .arch_extension sme
      smstart za
      mov w12, wzr
    1:
      ldr za[w12, 0], [%[from]]
      add %[from], %[from], %[row_bytes]
      add w12, w12, #1
      cmp w12, %w[row_bytes]
      b.lo 1b
      msr TPIDR2_EL0, %[block]
    )"
                 : [from] "+r"(from)
                 : [row_bytes] "r"(row_bytes), [block] "r"(&block)
                 : "x12", "cc", "memory");
    Grid x(1, 1, 5);
    sme::multiply_f32(x.tiles());
    uint64_t waiting = 1;
    asm volatile(".arch_extension sme\n mrs %0, TPIDR2_EL0" : "=r"(waiting)::"memory");
    CHECK(waiting == 0);
    CHECK(x.wrong() == 0);
    CHECK(same_bits(saved.values(), {values.begin(), values.begin() + saved.size()}));
    CHECK(saved.zones_untouched());
  }
}
#endif
