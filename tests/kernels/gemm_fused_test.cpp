// Products with bf16 operands and results, normalised operands, epilogues and row sums.
#include <tuple>

#include "ditrain/base/dtype.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "kernel_test_utils.hpp"
#include "packing_group.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

/// A row-major array of f32 or bf16, its rows `padding` elements apart, with a guard zone on both sides; `values` reads
/// it as f32.
class Array {
 public:
  Array(int64_t rows, int64_t cols, DType type, uint64_t salt, int64_t padding = 0, bool filled = true)
      : rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        type_(type),
        bytes_(size_t((rows * stride_ + 2 * kZone) * int64_t(dtype_bytes(type))), 0xa5) {
    if (!filled) return;
    const std::vector<float> x = random_values(rows * cols, salt);
    for (int64_t i = 0; i < rows * cols; ++i) set(i, x[size_t(i)]);
  }
  void* data() { return bytes_.data() + size_t(kZone) * dtype_bytes(type_); }
  float* f32() { return static_cast<float*>(data()); }
  DType type() const { return type_; }
  int64_t cols() const { return cols_; }
  int64_t stride() const { return stride_; }
  std::vector<float> values() const {
    std::vector<float> x;
    for (int64_t i = 0; i < rows_ * cols_; ++i) x.push_back(get(i));
    return x;
  }
  /// Guard zones at both ends, and what lies between the rows.
  bool zones_untouched() const {
    std::vector<unsigned char> outside = bytes_;
    for (int64_t i = 0; i < rows_ * cols_; ++i) std::memset(&outside[offset(i)], 0xa5, dtype_bytes(type_));
    return std::all_of(outside.begin(), outside.end(), [](unsigned char c) { return c == 0xa5; });
  }

 private:
  static constexpr int64_t kZone = 65;  // odd: the data is not aligned to vectors
  size_t offset(int64_t i) const { return size_t(kZone + i / cols_ * stride_ + i % cols_) * dtype_bytes(type_); }
  void set(int64_t i, float v) {
    const BFloat16 half = to_bf16(v);
    type_ == DType::kF32 ? std::memcpy(&bytes_[offset(i)], &v, 4) : std::memcpy(&bytes_[offset(i)], &half, 2);
  }
  float get(int64_t i) const {
    float v;
    BFloat16 half;
    if (type_ == DType::kBF16) return std::memcpy(&half, &bytes_[offset(i)], 2), to_f32(half);
    std::memcpy(&v, &bytes_[offset(i)], 4);
    return v;
  }
  int64_t rows_, cols_, stride_;
  DType type_;
  std::vector<unsigned char> bytes_;
};

enum class Norm { kNone, kA, kB };

struct Problem {
  int64_t m, n, k;
  bool trans_a, trans_b;
  DType a, b, c, arithmetic;
  EpilogueKind epilogue = EpilogueKind::kNone;
  Norm norm = Norm::kNone;
  bool accumulate = false, row_sums = false;
  int64_t rows_per_sample = 7;
  int64_t padding = 0;  // between rows of a and b; more between those of c, in, out, gate
};

std::string text(const Problem& p, const std::string& isa) {
  return isa + " " + std::to_string(p.m) + " x " + std::to_string(p.n) + " x " + std::to_string(p.k) + " trans " +
         std::to_string(p.trans_a) + std::to_string(p.trans_b) + " " + dtype_name(p.a) + dtype_name(p.b) +
         dtype_name(p.c) + " " + dtype_name(p.arithmetic) + " epilogue " + std::to_string(int(p.epilogue)) + " norm " +
         std::to_string(int(p.norm)) + " padding " + std::to_string(p.padding);
}

struct Data {
  Problem p;
  Array a, b, bias, c, in, out, gate, sums;
  std::vector<float> mean, rstd, shift, scale;
  GemmArgs args;

  explicit Data(const Problem& problem)
      : p(problem),
        a(p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.a, 1, p.padding),
        b(p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.b, 2, p.padding),
        bias(1, p.n, DType::kF32, 3),
        c(p.m, p.n * halves(p), p.c, 4, 2 * p.padding, p.accumulate),
        in(p.m, p.n * halves(p), p.epilogue == EpilogueKind::kGateResidual ? DType::kF32 : p.c, 5, 3 * p.padding),
        out(p.m, p.n, p.epilogue == EpilogueKind::kGateResidual ? DType::kF32 : p.c, 6, 4 * p.padding),
        gate(p.m / p.rows_per_sample + 2, p.n, DType::kF32, 7, 5 * p.padding),
        sums(1, p.m, DType::kF32, 8) {
    args = {.m = p.m,
            .n = p.n,
            .k = p.k,
            .a = a.data(),
            .lda = a.stride(),
            .trans_a = p.trans_a ? Trans::kYes : Trans::kNo,
            .b = b.data(),
            .ldb = b.stride(),
            .trans_b = p.trans_b ? Trans::kYes : Trans::kNo,
            .c = c.data(),
            .ldc = c.stride(),
            .accumulate = p.accumulate,
            .bias = bias.f32(),
            .a_type = p.a,
            .b_type = p.b,
            .c_type = p.c,
            .arithmetic = p.arithmetic};
    args.epilogue = {p.epilogue, in.data(),     out.data(),        in.stride(), out.stride(),
                     gate.f32(), gate.stride(), p.rows_per_sample, 3,           p.n};
    if (p.row_sums) args.a_row_sums = sums.f32();
    if (p.norm == Norm::kA) args.normalise_a = normalise(p.trans_a ? p.k : p.m, a.cols());
    if (p.norm == Norm::kB) args.normalise_b = normalise(p.trans_b ? p.n : p.k, b.cols());
  }
  Normalise normalise(int64_t rows, int64_t cols) {
    const int64_t samples = rows / p.rows_per_sample + 2;
    mean = random_values(rows, 10, 0.2f), rstd = random_values(rows, 11);
    shift = random_values(samples * cols, 12, 0.1f), scale = random_values(samples * cols, 13, 0.5f);
    return {mean.data(), rstd.data(), shift.data(), scale.data(), cols, p.rows_per_sample, 4};
  }
  /// The gradient of SwiGLU is twice as wide as the product.
  static int64_t halves(const Problem& p) { return p.epilogue == EpilogueKind::kSwigluBackward ? 2 : 1; }
  bool zones_untouched() const { return c.zones_untouched() && out.zones_untouched() && sums.zones_untouched(); }

  /// What a product writes.
  struct Written {
    Array c, out, sums;
  };
  Written written() const { return {c, out, sums}; }
  void restore(const Written& x) { c = x.c, out = x.out, sums = x.sums; }  // in their places
};

bool same_results(const Data::Written& x, const Data::Written& y) {
  return same_bits(x.c.values(), y.c.values()) && same_bits(x.out.values(), y.out.values()) &&
         same_bits(x.sums.values(), y.sums.values());
}

// A sum off by f32 rounding may fall on the other side of a bf16 rounding: one step of 2^-8 of the value more, and of
// what is multiplied with it afterwards (factors up to 1.2).
std::string compare(const std::vector<float>& got, const std::vector<float>& want, const Problem& p) {
  const bool rounds = p.c == DType::kBF16;
  std::vector<float> g = got, w = want;
  double largest = 1;
  for (float x : w) largest = std::max(largest, std::abs(double(x)));
  return difference(g, w, 4 * tolerance(p.k, 1.7) + (rounds ? 1.2 * largest / 256 : 1e-6));
}

void run(const ProductKernels& table, const GemmArgs& args) {
  const Scratch scratch(table.scratch_bytes(args, {}));
  table.gemm(args, scratch.get(), {});
  CHECK(scratch.zone_untouched());
}

void check(const Problem& p) {
  Data slow(p);
  ref::gemm(slow.args);
  for (const ProductKernels* table : usable_products(p.arithmetic)) {
    INFO(text(p, table->name));
    Data fast(p);
    run(*table, fast.args);
    CHECK(compare(fast.c.values(), slow.c.values(), p) == "");
    if (p.epilogue != EpilogueKind::kNone) CHECK(compare(fast.out.values(), slow.out.values(), p) == "");
    if (p.row_sums) CHECK(difference(fast.sums.values(), slow.sums.values(), tolerance(p.k, 1.7)) == "");
    CHECK(fast.zones_untouched());
  }
}

const DType kTypes[] = {DType::kF32, DType::kBF16};
/// The types of operands and of the arithmetic that go together: f32 arithmetic takes no bf16.
const std::pair<DType, DType> kTypesAndArithmetics[] = {
    {DType::kF32, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16}};

}  // namespace

TEST_CASE("gemm takes operands in every layout, f32 in both arithmetics and bf16 in its own") {
  for (DType a : kTypes)
    for (DType b : kTypes)
      for (DType arithmetic : kTypes) {
        if (arithmetic == DType::kF32 && (a != DType::kF32 || b != DType::kF32)) continue;
        for (int trans = 0; trans < 4; ++trans)
          for (auto [m, n, k] : {std::tuple{1, 1, 1}, {3, 33, 2}, {16, 40, 66}, {17, 50, 65}, {29, 70, 131}})
            check({m, n, k, (trans & 1) != 0, (trans & 2) != 0, a, b, DType::kF32, arithmetic});
      }
}

TEST_CASE("gemm writes bf16 results, over blocks and sum chunks") {
  for (auto [m, n, k] : {std::tuple{15, 35, 20},
                         {180, 70, int(kSumChunk) + 9},
                         {1020, 34, int(kSumChunk) + 1},
                         {45, 70, 2 * int(kSumChunk) + 9}})
    check({m, n, k, false, true, DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16});
}

TEST_CASE("gemm accumulates onto f32 and adds the sums of rows of a") {
  for (auto [type, arithmetic] : kTypesAndArithmetics)
    for (auto [m, n, k] : {std::tuple{15, 35, 20}, {40, 70, int(kSumChunk) + 9}, {200, 34, 70}})
      check({m, n, k, true, false, type, type, DType::kF32, arithmetic, EpilogueKind::kNone, Norm::kNone, true, true});
}

TEST_CASE("gemm normalises an f32 operand while packing") {
  for (auto [type, arithmetic] : kTypesAndArithmetics)
    for (Norm norm : {Norm::kA, Norm::kB})
      for (int trans = 0; trans < 4; ++trans)
        check({33, 47, 90, (trans & 1) != 0, (trans & 2) != 0, norm == Norm::kA ? DType::kF32 : type,
               norm == Norm::kB ? DType::kF32 : type, DType::kF32, arithmetic, EpilogueKind::kNone, norm});
}

TEST_CASE("gemm applies its epilogues") {
  for (EpilogueKind kind : {EpilogueKind::kGelu, EpilogueKind::kGeluBackward, EpilogueKind::kSwiglu,
                            EpilogueKind::kSwigluBackward, EpilogueKind::kGateResidual})
    for (DType type : kTypes)
      for (auto [m, n, k] : {std::tuple{5, 20, 9}, {31, 67, 40}, {180, 40, int(kSumChunk) + 8}})
        check({m, n, k, false, true, type, type, type, type, kind});
}

TEST_CASE("gemm takes rows that lie apart") {
  // 3: rows of an even number of bf16 elements begin in the middle of pairs.
  for (DType type : kTypes)
    for (int64_t padding : {1, 3, 64})
      for (int trans = 0; trans < 4; ++trans)
        for (auto [m, n, k] : {std::tuple{5, 35, 20}, {16, 40, 66}, {33, 70, 131}, {20, 34, int(kSumChunk) + 8}})
          check({.m = m,
                 .n = n,
                 .k = k,
                 .trans_a = (trans & 1) != 0,
                 .trans_b = (trans & 2) != 0,
                 .a = type,
                 .b = type,
                 .c = type,
                 .arithmetic = type,
                 .padding = padding});
  for (DType type : kTypes)
    for (EpilogueKind kind : {EpilogueKind::kGelu, EpilogueKind::kGeluBackward, EpilogueKind::kGateResidual})
      for (auto [m, n, k] : {std::tuple{5, 20, 10}, {31, 67, 40}})
        check({.m = m,
               .n = n,
               .k = k,
               .trans_a = false,
               .trans_b = true,
               .a = type,
               .b = type,
               .c = type,
               .arithmetic = type,
               .epilogue = kind,
               .padding = 3});
  // The weight alone bf16, as of the conditioning: a product of few rows that reads it where it lies.
  for (int64_t padding : {1, 2, 3})
    for (bool trans_b : {false, true})
      check({.m = 7,
             .n = 50,
             .k = 66,
             .trans_a = false,
             .trans_b = trans_b,
             .a = DType::kF32,
             .b = DType::kBF16,
             .c = DType::kF32,
             .arithmetic = DType::kBF16,
             .padding = padding});
}

TEST_CASE("gemm of no steps is what is added to the sums, through the epilogue") {
  for (DType type : kTypes)
    for (bool transposed : {false, true})
      for (EpilogueKind kind :
           {EpilogueKind::kNone, EpilogueKind::kGelu, EpilogueKind::kGeluBackward, EpilogueKind::kGateResidual})
        for (auto [m, n] : {std::tuple{1, 1}, {7, 33}, {40, 70}})
          check({m, n, 0, transposed, transposed, type, type, type, type, kind});
  for (DType type : kTypes)
    check({9, 21, 0, true, false, type, type, DType::kF32, type, EpilogueKind::kNone, Norm::kNone, true, true});
}

TEST_CASE("gelu backward may leave out gelu itself") {
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    const Problem p{20,          40,          30,          false,       true,
                    DType::kF32, DType::kF32, DType::kF32, DType::kF32, EpilogueKind::kGeluBackward};
    Data with(p), without(p);
    without.args.epilogue.out = nullptr;
    run(*table, with.args);
    run(*table, without.args);
    CHECK(same_bits(with.c.values(), without.c.values()));
    CHECK(same_bits(without.out.values(), Data(p).out.values()));
  }
}

TEST_CASE("gelu backward makes gelu again to the same bits") {
  for (DType type : kTypes)
    for (const ProductKernels* table : usable_products(type)) {
      Problem p{70, 75, 200, false, true, type, type, type, type, EpilogueKind::kGelu};
      INFO(text(p, table->name));
      Data forward(p);
      run(*table, forward.args);
      p.epilogue = EpilogueKind::kGeluBackward;
      Data backward(p);
      backward.args.epilogue.in = forward.c.data(), backward.args.epilogue.in_stride = forward.c.stride();
      run(*table, backward.args);
      CHECK(same_bits(backward.out.values(), forward.out.values()));
      CHECK_FALSE(same_bits(backward.out.values(), Data(p).out.values()));
      // Other columns are at edges of tiles.
      GemmArgs part = block_of(backward.args, 0, p.m, 9, p.n - 9);
      run(*table, part);
      CHECK(same_bits(backward.out.values(), forward.out.values()));
    }
}

TEST_CASE("bf16 gemm gives the same bits when a packing group packs b together") {
  // f32 sums of three chunks are kept aside: for members of more rows than are kept at a time, for some that have fewer
  // or none, over several blocks of rows and columns.
  const GemmBlocking before = gemm_blocking();
  for (const EpilogueKind kind : {EpilogueKind::kNone, EpilogueKind::kGelu, EpilogueKind::kGateResidual}) {
    Data x({1171, 69, 2 * kSumChunk + 77, false, true, DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16, kind});
    const Data::Written start = x.written();
    for (const ProductKernels* table : usable_products(x.p.arithmetic)) {
      INFO(text(x.p, table->name));
      x.restore(start);
      set_gemm_blocking(before);
      run(*table, x.args);
      const Data::Written alone = x.written();
      set_gemm_blocking({40, 32});
      for (const std::vector<int64_t>& rows : {std::vector<int64_t>{1100, 71}, {71, 0, 1100}, {400, 400, 371}}) {
        x.restore(start);
        run_as_packing_group(*table, x.args, rows);
        CHECK(same_results(x.written(), alone));
        CHECK(x.zones_untouched());
      }
    }
  }
  set_gemm_blocking(before);
}

TEST_CASE("fused gemm gives the same bits however it is cut") {
  for (DType type : kTypes) {
    for (const ProductKernels* table : usable_products(type)) {
      const Problem p{
          187, 205, kSumChunk + 70, false, true, DType::kF32, type, type, type, EpilogueKind::kGateResidual, Norm::kA};
      INFO(text(p, table->name));
      Data one(p), many(p);
      run(*table, one.args);
      for (int64_t i = 0, rows = 1; i < p.m; i += rows, rows = rows * 2 + 1)
        for (int64_t j = 0, cols = 3; j < p.n; j += cols, cols = cols * 2 - 1)
          run(*table, block_of(many.args, i, std::min(rows, p.m - i), j, std::min(cols, p.n - j)));
      CHECK(same_bits(one.c.values(), many.c.values()));
      CHECK(same_bits(one.out.values(), many.out.values()));
    }
  }
}

TEST_CASE("gemm gives the same bits for any cache blocks") {
  // The layouts of forward (normalised input, gate; more rows than are kept aside at a time), of the data gradient and
  // of the weight gradient; sums of more than a chunk.
  const GemmBlocking before = gemm_blocking();
  for (DType type : kTypes) {
    const int64_t k = kSumChunk + 71;
    for (const Problem& p :
         {Problem{1031, 37, k, false, true, DType::kF32, type, type, type, EpilogueKind::kGateResidual, Norm::kA},
          Problem{187, 203, k, false, false, type, type, type, type},
          Problem{187, 203, k, true, false, type, DType::kF32, DType::kF32, type, EpilogueKind::kNone, Norm::kB, true,
                  true}}) {
      Data x(p);
      const Data::Written start = x.written();
      for (const ProductKernels* table : usable_products(p.arithmetic)) {
        x.restore(start);
        run(*table, x.args);
        const Data::Written usual = x.written();
        for (const GemmBlocking& blocking : {GemmBlocking{1, 1}, {17, 33}, {29, 64}, {8, 1024}, {1 << 20, 1 << 20}}) {
          INFO(text(p, table->name) << " blocks " << blocking.rows << " x " << blocking.cols);
          x.restore(start);
          set_gemm_blocking(blocking);
          run(*table, x.args);
          set_gemm_blocking(before);
          CHECK(same_results(x.written(), usual));
          CHECK(x.zones_untouched());
        }
      }
    }
  }
}

TEST_CASE("a row of a product has the same bits alone and among 4,096") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType type = kTypes[kind % 2];
    const Problem all{4096, 40, kSumChunk + 6, false, kind < 2, type, type, DType::kF32, type};
    Data data(all);
    for (const ProductKernels* table : usable_products(type)) {
      INFO(text(all, table->name));
      run(*table, data.args);
      const std::vector<float> many = data.c.values();
      for (const int64_t i : {0, 13, 4095}) {
        float* row = data.c.f32() + i * data.c.stride();
        std::fill_n(row, all.n, 77.0f);  // to be written anew
        run(*table, block_of(data.args, i, 1, 0, all.n));
        CHECK(std::memcmp(row, &many[size_t(i * all.n)], size_t(all.n) * sizeof(float)) == 0);
      }
    }
  }
}

namespace {

struct Images {
  int64_t number, channels, height, width, patch;
  int64_t rows() const { return number * (height / patch) * (width / patch); }
  int64_t cols() const { return channels * patch * patch; }
  int64_t size() const { return number * channels * height * width; }
  Patches patches() const { return {patch, channels, height, width}; }
  /// The array that they stand for.
  std::vector<float> gathered(const std::vector<float>& pixels) const {
    std::vector<float> x;
    for (int64_t s = 0; s < number; ++s)
      for (int64_t gy = 0; gy < height; gy += patch)
        for (int64_t gx = 0; gx < width; gx += patch)
          for (int64_t c = 0; c < channels; ++c)
            for (int64_t y = gy; y < gy + patch; ++y)
              for (int64_t column = gx; column < gx + patch; ++column)
                x.push_back(pixels[size_t(((s * channels + c) * height + y) * width + column)]);
    return x;
  }
};

/// A product with patches as a or b, and the same one with the array.
struct PatchProduct {
  PatchProduct(const Images& images, bool as_a, bool transposed, DType arithmetic)
      : pixels(random_values(images.size(), 1)), array(images.gathered(pixels)) {
    const int64_t rows = images.rows(), cols = images.cols(), others = 37;
    const int64_t outer = transposed ? cols : rows, inner = transposed ? rows : cols;  // rows of op(patches); its steps
    other = random_values(inner * others, 2);
    // What has the steps as its rows or columns, whichever is not transposed.
    of_array =
        as_a
            ? GemmArgs{.m = outer,
                       .n = others,
                       .k = inner,
                       .a = array.data(),
                       .lda = cols,
                       .b = other.data(),
                       .ldb = others}
            : GemmArgs{
                  .m = others, .n = outer, .k = inner, .a = other.data(), .lda = inner, .b = array.data(), .ldb = cols};
    (as_a ? of_array.trans_a : of_array.trans_b) = transposed == as_a ? Trans::kYes : Trans::kNo;
    of_array.arithmetic = arithmetic;
    of_patches = of_array;
    (as_a ? of_patches.a : of_patches.b) = pixels.data();
    (as_a ? of_patches.patches_a : of_patches.patches_b) = images.patches();
    (as_a ? of_patches.lda : of_patches.ldb) = 0;
    for (GemmArgs* g : {&of_array, &of_patches}) g->ldc = g->n;
  }
  std::vector<float> pixels, array, other;
  GemmArgs of_array, of_patches;
};

}  // namespace

TEST_CASE("gemm gathers patches of images while packing: the bits of the product with them as an array") {
  for (const Images& images : {Images{1, 1, 1, 1, 1}, Images{2, 3, 4, 8, 2}, Images{3, 13, 12, 8, 4},
                               Images{2, 4, 16, 16, 8}, Images{5, 4, 32, 16, 2}})
    for (const bool as_a : {true, false})
      for (const bool transposed : {true, false})
        for (const DType arithmetic : kTypes) {
          CAPTURE(images.rows(), images.cols(), as_a, transposed, dtype_name(arithmetic));
          PatchProduct p(images, as_a, transposed, arithmetic);
          const auto size = size_t(p.of_array.m * p.of_array.n);
          std::vector<float> slow(size), want(size), got(size), cut(size);
          p.of_patches.c = slow.data();
          ref::gemm(p.of_patches);
          for (const ProductKernels* table : usable_products(arithmetic)) {
            INFO(table->name);
            p.of_array.c = want.data();
            run(*table, p.of_array);
            p.of_patches.c = got.data();
            run(*table, p.of_patches);
            CHECK(same_bits(got, want));
            CHECK(difference(got, slow, 4 * tolerance(p.of_array.k, 1.7)) == "");
            p.of_patches.c = cut.data();
            const int64_t m = p.of_patches.m, n = p.of_patches.n;
            for (int64_t i = 0; i < m; i += 5)
              for (int64_t j = 0; j < n; j += 19)
                run(*table, block_of(p.of_patches, i, std::min<int64_t>(5, m - i), j, std::min<int64_t>(19, n - j)));
            CHECK(same_bits(cut, want));
          }
        }
}

TEST_CASE("cache blocks follow the caches and stay within bounds") {
  const size_t step = size_t(kSumChunk) * 4;
  CHECK(derived_gemm_blocking(step * 168 * 5 / 2, 3 * step * 1000).rows == 168);
  CHECK(derived_gemm_blocking(step * 168 * 5 / 2, 3 * step * 1000).cols == 1000);
  CHECK(derived_gemm_blocking(1, 1).rows == 28);
  CHECK(derived_gemm_blocking(1, 1).cols == 256);
  CHECK_THROWS_WITH(set_gemm_blocking({0, 32}), Catch::Contains("out of range"));
}
