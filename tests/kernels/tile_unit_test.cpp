// Products of bf16 on the tile unit of x86: the order of their sums, on the unit and on its model.
#include "ditrain/base/dtype.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

std::vector<const ProductKernels*> tile_tables() {
  std::vector<const ProductKernels*> tables;
  for (const ProductKernels* table : usable_products(DType::kBF16))
    if (table->sums_in_blocks) tables.push_back(table);
  return tables;
}

std::vector<BFloat16> random_halves(int64_t n, uint64_t salt) {
  std::vector<BFloat16> x;
  for (float v : random_values(n, salt)) x.push_back(to_bf16(v));
  return x;
}

/// c[m,n] += a[m,k] b[n,k]^T + bias, all of bf16 but c and the bias.
struct Product {
  int64_t m, n, k;
  std::vector<BFloat16> a = random_halves(m * k, 1), b = random_halves(n * k, 2);
  std::vector<float> bias = random_values(n, 3), c = random_values(m * n, 4);

  GemmArgs args() {
    GemmArgs g{.m = m, .n = n, .k = k, .a = a.data(), .lda = k, .b = b.data(), .ldb = k, .trans_b = Trans::kYes};
    g.c = c.data(), g.ldc = n, g.accumulate = true, g.bias = bias.data();
    g.a_type = g.b_type = g.arithmetic = DType::kBF16;
    return g;
  }
  void run(const ProductKernels& table) {
    const Scratch scratch(table.scratch_bytes(args(), {}));
    table.gemm(args(), scratch.get(), {});
  }
  /// As the manual has it: in blocks of 32 steps a chain over the even steps and one over the odd ones, from zero. The
  /// blocks are added to the old c, one after the other.
  float add_blocks(float sum, int64_t i, int64_t j) const {
    for (int64_t p = 0; p < k; p += 32) {
      float chain[2] = {};
      for (int64_t s = p; s < std::min(p + 32, k); ++s)
        chain[s % 2] = std::fma(to_f32(a[size_t(i * k + s)]), to_f32(b[size_t(j * k + s)]), chain[s % 2]);
      sum += chain[0] + chain[1];
    }
    return sum;
  }
  void run_by_the_manual() {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float& sum = c[size_t(i * n + j)];
        sum = add_blocks(sum, i, j) + bias[size_t(j)];
      }
  }
};

}  // namespace

TEST_CASE("bf16 products on the tile unit sum in the order of Intel's manual") {
  for (const ProductKernels* table : tile_tables())
    for (int64_t m : {1, 16, 17, 33, 70})  // up to 16 rows: the weight is read from where it lies
      for (int64_t n : {1, 16, 31, 32, 50, 65})
        for (int64_t k : {2, 32, 46, 384, 448, int(kSumChunk), int(kSumChunk) + 70}) {
          CAPTURE(table->name, m, n, k);
          Product fast{m, n, k}, slow{m, n, k};
          fast.run(*table);
          slow.run_by_the_manual();
          CHECK(same_bits(fast.c, slow.c));
        }
}

TEST_CASE("every epilogue gives a row the same bits in a whole tile of the unit and at its edge") {
  constexpr int64_t kM = 65, kN = 64, kK = 96, kSample = 24;  // samples end inside tiles
  using enum EpilogueKind;
  for (const ProductKernels* table : tile_tables())
    for (const EpilogueKind kind :
         {kNone, kGelu, kGeluBackward, kSwiglu, kSwigluBackward, kGateResidual, kResidual, kRelu, kSilu})
      for (const bool with_bias : {false, true}) {
        CAPTURE(table->name, int(kind), with_bias);
        const std::vector<BFloat16> a = random_halves(kM * kK, 1), b = random_halves(kN * kK, 2);
        const std::vector<BFloat16> in = random_halves(kM * 2 * kN, 3);
        const std::vector<float> in_f32 = random_values(kM * kN, 4), bias = random_values(kN, 5),
                                 gate = random_values((kM / kSample + 1) * kN, 6);
        // Rows cut at each of `cuts`; c and what the epilogue writes, as bytes.
        const auto results = [&](const std::vector<int64_t>& cuts) {
          std::vector<BFloat16> c(size_t(kM * 2 * kN));
          std::vector<float> out(size_t(kM * kN));
          GemmArgs g{.m = kM, .n = kN, .k = kK, .a = a.data(), .lda = kK, .b = b.data(), .ldb = kK};
          g.trans_b = Trans::kYes, g.c = c.data(), g.ldc = 2 * kN, g.bias = with_bias ? bias.data() : nullptr;
          g.a_type = g.b_type = g.c_type = g.arithmetic = DType::kBF16;
          g.epilogue = {.kind = kind, .in_stride = 2 * kN, .out_stride = kN, .half = kN};
          if (kind != kNone && kind != kRelu && kind != kSilu && kind != kGelu) g.epilogue.in = in.data();
          if (kind == kGateResidual) {
            g.epilogue.in = in_f32.data(), g.epilogue.in_stride = kN, g.epilogue.gate = gate.data();
            g.epilogue.cond_stride = kN, g.epilogue.rows_per_sample = kSample;
          }
          if (kind != kNone && kind != kRelu && kind != kSilu && kind != kResidual) g.epilogue.out = out.data();
          for (size_t i = 0; i + 1 < cuts.size(); ++i) {
            const GemmArgs part = block_of(g, cuts[i], cuts[i + 1] - cuts[i], 0, kN);
            const Scratch scratch(table->scratch_bytes(part, {}));
            table->gemm(part, scratch.get(), {});
          }
          std::vector<float> all = out;
          for (const BFloat16 x : c) all.push_back(to_f32(x));
          return all;
        };
        const std::vector<float> whole = results({0, kM});
        CHECK(same_bits(whole, results({0, 32, 48, kM})));
        CHECK(same_bits(whole, results({0, 17, 33, 49, kM})));
      }
}

namespace {

/// An array that begins `shift` elements behind the beginning of a cache line.
template <class T>
class Array {
 public:
  Array(const std::vector<T>& values, int64_t shift)
      : values_(values.size() + 2 * kLine), size_(int64_t(values.size())) {
    begin_ = int64_t(kLine - reinterpret_cast<uintptr_t>(values_.data()) / sizeof(T) % kLine) + shift;
    std::copy(values.begin(), values.end(), data());
  }
  T* data() { return values_.data() + begin_; }
  std::vector<T> values() const { return {values_.begin() + begin_, values_.begin() + begin_ + size_}; }

 private:
  static constexpr size_t kLine = 64 / sizeof(T);
  std::vector<T> values_;
  int64_t size_, begin_;
};

/// c and out of a product whose rows are cut at `cuts`; every array begins `shift` numbers behind a line.
std::vector<float> products_at(const ProductKernels& table, EpilogueKind kind, int64_t k, int64_t shift,
                               const std::vector<int64_t>& cuts) {
  constexpr int64_t kN = 96, kSample = 48;
  const int64_t m = cuts.back();
  Array<BFloat16> a(random_halves(m * k, 1), shift), b(random_halves(kN * k, 2), shift);
  Array<BFloat16> in(random_halves(m * kN, 3), shift), c(random_halves(m * kN, 4), shift), out = c;
  Array<float> in_f32(random_values(m * kN, 5), shift), out_f32(random_values(m * kN, 6), shift);
  const std::vector<float> gate = random_values((m / kSample + 1) * kN, 7), bias = random_values(kN, 8);
  GemmArgs g{.m = m, .n = kN, .k = k, .a = a.data(), .lda = k, .b = b.data(), .ldb = k, .trans_b = Trans::kYes};
  g.c = c.data(), g.ldc = kN, g.bias = bias.data();
  g.a_type = g.b_type = g.c_type = g.arithmetic = DType::kBF16;
  g.epilogue = {.kind = kind, .in_stride = kN, .out_stride = kN};
  if (kind == EpilogueKind::kGeluBackward) g.epilogue.in = in.data();
  if (kind == EpilogueKind::kGelu || kind == EpilogueKind::kGeluBackward) g.epilogue.out = out.data();
  if (kind == EpilogueKind::kGateResidual) {
    g.epilogue.in = in_f32.data(), g.epilogue.out = out_f32.data(), g.epilogue.gate = gate.data();
    g.epilogue.cond_stride = kN, g.epilogue.rows_per_sample = kSample;
  }
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const GemmArgs part = block_of(g, cuts[i], cuts[i + 1] - cuts[i], 0, kN);
    const Scratch scratch(table.scratch_bytes(part, {}));
    table.gemm(part, scratch.get(), {});
  }
  std::vector<float> all = out_f32.values();
  for (const BFloat16 x : c.values()) all.push_back(to_f32(x));
  for (const BFloat16 x : out.values()) all.push_back(to_f32(x));
  return all;
}

}  // namespace

TEST_CASE("products on the tile unit have the same bits where arrays begin with a cache line and where they do not") {
  // On lines a is read in place, and lines of c that only the backward pass reads leave past the caches.
  using enum EpilogueKind;
  for (const ProductKernels* table : tile_tables())
    for (const EpilogueKind kind : {kNone, kGelu, kGeluBackward, kGateResidual})
      for (const int64_t k : {384, int(kSumChunk), int(kSumChunk) + 96}) {
        CAPTURE(table->name, int(kind), k);
        const auto packed = products_at(*table, kind, k, 1, {0, 240});
        CHECK(same_bits(products_at(*table, kind, k, 0, {0, 240}), packed));
        CHECK(same_bits(products_at(*table, kind, k, 0, {0, 96, 112, 240}), packed));
      }
}

TEST_CASE(
    "gradients of weights on the tile unit have the same bits for c on lines, more rows than are packed, pieces") {
  constexpr int64_t kM = 1100, kN = 96, kK = 70;
  for (const ProductKernels* table : tile_tables()) {
    CAPTURE(table->name);
    const auto gradient = [&](int64_t shift, const std::vector<int64_t>& cuts) {
      Array<BFloat16> a(random_halves(kM * kK, 1), shift), b(random_halves(kN * kK, 2), shift);
      Array<float> c(random_values(kM * kN, 3), shift);
      GemmArgs g{.m = kM, .n = kN, .k = kK, .a = a.data(), .lda = kM, .trans_a = Trans::kYes};
      g.b = b.data(), g.ldb = kN, g.c = c.data(), g.ldc = kN;
      g.a_type = g.b_type = g.arithmetic = DType::kBF16;
      const PackingGroup pieces{.most_rows = kM, .keeps_b = cuts.size() > 2};
      const Scratch scratch(table->scratch_bytes(g, pieces));
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        PackingGroup piece = pieces;
        piece.has_b = i > 0;
        table->gemm(block_of(g, cuts[i], cuts[i + 1] - cuts[i], 0, kN), scratch.get(), piece);
      }
      return c.values();
    };
    const std::vector<float> plain = gradient(1, {0, kM});
    CHECK(same_bits(gradient(0, {0, kM}), plain));
    CHECK(same_bits(gradient(0, {0, 256, 512, kM}), plain));
  }
}

TEST_CASE("a bf16 that is subnormal counts as zero on the tile unit, and so does a sum") {
  for (const ProductKernels* table : tile_tables()) {
    CAPTURE(table->name);
    Product p{20, 20, 32};
    std::fill(p.c.begin(), p.c.end(), 0.0f), std::fill(p.bias.begin(), p.bias.end(), 0.0f);
    std::fill(p.a.begin(), p.a.end(), to_bf16(0x1p-127f)), std::fill(p.b.begin(), p.b.end(), to_bf16(0x1p100f));
    p.run(*table);
    CHECK(p.c == std::vector<float>(p.c.size(), 0.0f));
    std::fill(p.a.begin(), p.a.end(), to_bf16(0x1p-100f)), std::fill(p.b.begin(), p.b.end(), to_bf16(0x1p-40f));
    p.run(*table);
    CHECK(p.c == std::vector<float>(p.c.size(), 0.0f));
    std::fill(p.b.begin(), p.b.end(), to_bf16(0x1p-26f));
    p.run(*table);
    CHECK(p.c == std::vector<float>(p.c.size(), 32 * 0x1p-126f));
  }
}
