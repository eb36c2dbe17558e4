#include "ditrain/kernels/gemm.hpp"

#include <algorithm>

#include "kernel_test_utils.hpp"
#include "packing_group.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

struct Problem {
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate, bias;
  int64_t pad;  // added to every row stride
};

std::string text(const Problem& p, const ProductKernels& table) {
  return std::string(table.name) + " m " + std::to_string(p.m) + " n " + std::to_string(p.n) + " k " +
         std::to_string(p.k) + " trans " + std::to_string(p.trans_a) + std::to_string(p.trans_b) + " accumulate " +
         std::to_string(p.accumulate) + " bias " + std::to_string(p.bias) + " pad " + std::to_string(p.pad);
}

/// Operands of a problem: a, b, bias and the old c; the gaps of padded rows stay NaN.
struct Data {
  Guarded a, b, bias, c;
  GemmArgs args;

  explicit Data(const Problem& p)
      : a((p.trans_a ? p.k : p.m) * ((p.trans_a ? p.m : p.k) + p.pad)),
        b((p.trans_b ? p.n : p.k) * ((p.trans_b ? p.k : p.n) + p.pad)),
        bias(random_values(p.n, 3)),
        c(p.m * (p.n + p.pad)) {
    args = {p.m,
            p.n,
            p.k,
            a.data(),
            (p.trans_a ? p.m : p.k) + p.pad,
            p.trans_a ? Trans::kYes : Trans::kNo,
            b.data(),
            (p.trans_b ? p.k : p.n) + p.pad,
            p.trans_b ? Trans::kYes : Trans::kNo,
            c.data(),
            p.n + p.pad,
            p.accumulate,
            p.bias ? bias.data() : nullptr};
    fill(a, args.lda, p.pad, 1);
    fill(b, args.ldb, p.pad, 2);
    if (p.accumulate) fill(c, args.ldc, p.pad, 4);
  }
  static void fill(Guarded& x, int64_t stride, int64_t pad, uint64_t salt) {
    const std::vector<float> values = random_values(x.size(), salt);
    for (int64_t i = 0; i < x.size(); ++i) {
      if (i % stride < stride - pad) x.data()[i] = values[static_cast<size_t>(i)];
    }
  }
  bool gaps_untouched() const {
    for (int64_t i = 0; i < c.size(); ++i) {
      if (i % args.ldc >= args.n && !c.untouched(i)) return false;
    }
    return c.zones_untouched();
  }
};

void check(const Problem& p, const ProductKernels& table) {
  INFO(text(p, table));
  Data fast(p), slow(p);
  const Scratch scratch(table.scratch_bytes(fast.args, {}));
  table.gemm(fast.args, scratch.get(), {});
  ref::gemm(slow.args);
  CHECK(difference(fast.c.values(), slow.c.values(), tolerance(p.k)) == "");
  CHECK(fast.gaps_untouched());
  CHECK(scratch.zone_untouched());
}

}  // namespace

TEST_CASE("gemm equals the reference for odd, tiny and tile +-1 shapes") {
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    const int64_t r = table->tile_rows, c = table->tile_cols;
    for (int64_t m : {int64_t{1}, int64_t{2}, r - 1, r, r + 1, 2 * r + 3, c / 2 + 1, c, c + 1}) {
      for (int64_t n : {int64_t{1}, c / 2 - 1, c / 2, c / 2 + 1, c - 1, c, c + 1, 3 * c + 5}) {
        for (int64_t k : {1, 7, 33}) {
          for (int bits = 0; bits < 16; ++bits) {
            check({m, n, k, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, bits % 3}, *table);
          }
        }
      }
    }
  }
}

TEST_CASE("gemm equals the reference across blocks of rows, columns and sum chunks") {
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    for (int bits = 0; bits < 4; ++bits) {
      const bool ta = (bits & 1) != 0, tb = (bits & 2) != 0;
      check({5, 40, kSumChunk - 1, ta, tb, false, true, 0}, *table);
      check({5, 40, kSumChunk, ta, tb, true, true, 1}, *table);
      check({5, 40, kSumChunk + 1, ta, tb, false, true, 0}, *table);
      check({5, 40, 2 * kSumChunk + 1, ta, tb, true, false, 3}, *table);
      check({13, 41, 2 * kSumChunk + 3, ta, tb, true, true, 3}, *table);
      check({5, 40, 1024, ta, tb, true, true, 0}, *table);  // rows of b that fall into one set of the L1 cache
      check({30, 40, 2 * kSumChunk + 1, ta, tb, true, true, 0}, *table);
      check({169, 70, 30, ta, tb, false, true, 0}, *table);
      check({350, 1153, 9, ta, tb, true, true, 0}, *table);
      check({97, 1200, 600, ta, tb, false, false, 0}, *table);
    }
  }
}

TEST_CASE("gemm with an empty dimension") {
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    check({3, 5, 0, false, false, false, true, 0}, *table);  // bias only
    check({3, 5, 0, false, true, true, true, 2}, *table);    // c + bias
    check({3, 5, 0, true, false, false, false, 0}, *table);  // zeros
    check({0, 5, 4, false, false, false, true, 0}, *table);
    check({3, 0, 4, false, true, false, true, 0}, *table);
  }
}

TEST_CASE("gemm gives the same bits however rows and columns are cut") {
  const bool weight_is_transposed = GENERATE(true, false);
  const Problem whole{187, 205, kSumChunk + 70, false, weight_is_transposed, true, true, 1};
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    INFO(table->name);
    Data one(whole), many(whole);
    const Scratch scratch(table->scratch_bytes(one.args, {}));
    table->gemm(one.args, scratch.get(), {});
    const GemmArgs& g = many.args;
    for (int64_t i = 0, rows = 1; i < g.m; i += rows, rows = rows * 2 + 1) {
      for (int64_t j = 0, cols = 3; j < g.n; j += cols, cols = cols * 2 - 1) {
        const GemmArgs part = block_of(g, i, std::min(rows, g.m - i), j, std::min(cols, g.n - j));
        const Scratch small(table->scratch_bytes(part, {}));
        table->gemm(part, small.get(), {});
      }
    }
    CHECK(same_bits(one.c.values(), many.c.values()));
  }
}

TEST_CASE("gemm sums in the declared order") {
  // Chains of kSumChunk from zero; the old c first, then the chunk sums, the bias last.
  const bool trans_b = GENERATE(false, true);
  const Problem p{GENERATE(5, 16, 17), 37, 2 * kSumChunk + 77, true, trans_b, true, true, 0};
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    INFO(text(p, *table));
    const bool fused = table->fused_multiply_add;
    Data fast(p), slow(p);
    const Scratch scratch(table->scratch_bytes(fast.args, {}));
    table->gemm(fast.args, scratch.get(), {});
    const GemmArgs& g = slow.args;
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        float c = slow.c.data()[i * g.ldc + j];
        for (int64_t p0 = 0; p0 < g.k; p0 += kSumChunk) {
          float chain = 0;
          for (int64_t k = p0; k < std::min(p0 + kSumChunk, g.k); ++k) {
            const float a = slow.a.data()[k * g.lda + i], b = slow.b.data()[trans_b ? j * g.ldb + k : k * g.ldb + j];
            if (fused)
              chain = std::fma(a, b, chain);
            else
              chain = static_cast<float>(a * b) + chain;
          }
          c += chain;
        }
        slow.c.data()[i * g.ldc + j] = c + g.bias[j];
      }
    }
    CHECK(same_bits(fast.c.values(), slow.c.values()));
  }
}

TEST_CASE("gemm gives the same bits when a packing group packs b together") {
  // Two chunks of k, several blocks of columns and of rows; one member has no rows.
  const GemmBlocking before = gemm_blocking();
  set_gemm_blocking({40, 96});
  const Problem whole{187, 205, kSumChunk + 70, false, true, true, true, 1};
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    INFO(table->name);
    Data one(whole);
    const Scratch alone(table->scratch_bytes(one.args, {}));
    table->gemm(one.args, alone.get(), {});
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{100, 87}, {60, 0, 127}, {14, 59, 14, 100}}) {
      Data again(whole);
      run_as_packing_group(*table, again.args, rows);
      CHECK(same_bits(again.c.values(), one.c.values()));
      CHECK(again.gaps_untouched());
    }
  }
  set_gemm_blocking(before);
}

TEST_CASE("a NaN in an operand of gemm reaches its row or column and nothing else") {
  const Problem p{20, 50, 40, false, false, false, false, 0};
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    INFO(table->name);
    Data x(p);
    x.a.data()[13 * x.args.lda + 5] = std::numeric_limits<float>::quiet_NaN();
    const Scratch scratch(table->scratch_bytes(x.args, {}));
    table->gemm(x.args, scratch.get(), {});
    const std::vector<float> c = x.c.values();
    int64_t wrong = 0;
    for (int64_t i = 0; i < p.m * p.n; ++i) wrong += std::isnan(c[static_cast<size_t>(i)]) != (i / p.n == 13);
    CHECK(wrong == 0);
  }
}

TEST_CASE("the public gemm runs the chosen kernels") {
  const Problem p{30, 33, 20, false, true, false, true, 0};
  Data direct(p), forwarded(p);
  const Scratch scratch(gemm_scratch_bytes(direct.args));
  process_kernels().kernels.f32_products->gemm(direct.args, scratch.get(), {});
  gemm(forwarded.args, scratch.get());
  CHECK(same_bits(direct.c.values(), forwarded.c.values()));
}
