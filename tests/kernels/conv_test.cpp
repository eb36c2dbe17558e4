// Convolutions as products of windows (kernels::Window): every instruction set against plain loops in f64, cuts,
// packing groups, epilogues, moments, and the attention over parts of the queries that goes with them.
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "kernel_test_utils.hpp"
#include "packing_group.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

struct Problem {
  int64_t images, height, width, channels, outputs;
  int64_t kernel_h = 3, kernel_w = 3, stride_h = 1, stride_w = 1;
  int64_t top = 1, left = 1, bottom = 1, right = 1;
  bool doubled = false;
  int64_t gap = 0;  // between pixels
  int64_t out_h() const { return ((doubled ? 2 * height : height) + top + bottom - kernel_h) / stride_h + 1; }
  int64_t out_w() const { return ((doubled ? 2 * width : width) + left + right - kernel_w) / stride_w + 1; }
  int64_t rows() const { return images * out_h() * out_w(); }
  int64_t steps() const { return kernel_h * kernel_w * channels; }
};

// Odd sizes, few channels, kernels larger than the image, strides, one-sided padding, doubling, gaps between pixels,
// more than one chunk of the sum (17 x 9 x 9 = 1,377 and 9 x 130 = 1,170 steps). Some have channels of whole vectors,
// one with a chunk that ends within a tap. The last ones have lines that register tiles fill, so that they are read as
// lines: blocks of several lines and images, one of part of a line, strides as long as the kernel and shorter. Lines of
// multiples of 16 pixels with multiples of 32 channels are read so by the tile unit.
const std::vector<Problem> kProblems = {
    {2, 5, 7, 3, 5},
    {1, 1, 1, 16, 33},
    {1, 4, 9, 32, 40},
    {2, 9, 6, 17, 31, 9, 9, 1, 1, 4, 4, 4, 4},
    {1, 6, 5, 130, 20},
    {1, 8, 10, 16, 16, 3, 3, 2, 2, 0, 0, 1, 1},
    {2, 11, 13, 3, 32, 3, 3, 2, 2, 0, 0, 0, 0},
    {1, 7, 7, 24, 8, 1, 7, 1, 1, 0, 3, 0, 3},
    {1, 7, 7, 24, 8, 7, 1, 1, 1, 3, 0, 3, 0},
    {2, 3, 5, 12, 7, 3, 3, 1, 1, 1, 1, 1, 1, true},
    {1, 3, 3, 33, 9, 5, 2, 3, 1, 2, 5, 0, 1, true, 3},
    {1, 9, 9, 8, 20, 1, 1, 2, 2, 0, 0, 0, 0, false, 8},
    {1, 3, 5, 64, 20, 3, 3, 1, 1, 1, 1, 1, 1, true},
    {1, 6, 5, 160, 20},
    {2, 9, 7, 32, 9, 3, 5, 2, 1, 0, 2, 2, 1, false, 5},
    {3, 9, 8, 32, 40},
    {2, 7, 20, 130, 9},
    {1, 3, 120, 6, 40},
    {2, 8, 15, 10, 12, 3, 5, 2, 1, 0, 2, 2, 1, false, 6},
    {2, 9, 17, 8, 20, 1, 1, 2, 2, 0, 0, 0, 0},
    {2, 5, 29, 6, 33, 3, 3, 2, 2, 0, 0, 1, 1, false, 2},
    {2, 5, 9, 12, 7, 3, 3, 1, 1, 1, 1, 1, 1, true},
    {2, 9, 16, 160, 40},
    {1, 3, 96, 32, 20},
    {2, 5, 8, 64, 33, 3, 3, 1, 1, 1, 1, 1, 1, true},
    {1, 9, 33, 32, 20, 3, 3, 2, 2, 0, 0, 0, 0},
    {1, 5, 48, 64, 20, 1, 7, 1, 1, 0, 3, 0, 3},
    {2, 5, 16, 32, 9, 3, 5, 2, 1, 0, 2, 2, 2, false, 32},
};

std::string text(const Problem& p, const ProductKernels& table) {
  return std::string(table.name) + " " + std::to_string(p.images) + " x " + std::to_string(p.height) + " x " +
         std::to_string(p.width) + " x " + std::to_string(p.channels) + " -> " + std::to_string(p.outputs) +
         ", kernel " + std::to_string(p.kernel_h) + " x " + std::to_string(p.kernel_w) + ", doubled " +
         std::to_string(p.doubled);
}

/// Values of a type as the kernels read them; `f32` are the same in f64's place.
struct Values {
  Values(int64_t n, DType type, uint64_t salt) : type(type), f32(random_values(n, salt)) {
    for (float& x : f32)
      if (type == DType::kBF16) half.push_back(to_bf16(x)), x = to_f32(half.back());
  }
  const void* data() const { return type == DType::kBF16 ? static_cast<const void*>(half.data()) : f32.data(); }
  DType type;
  std::vector<float> f32;
  std::vector<BFloat16> half;
};

struct Data {
  Problem p;
  Values x, w, residual;
  std::vector<float> bias;
  Guarded y, panels{1};
  std::vector<float> moments;
  GemmArgs args;

  Data(const Problem& problem, DType x_type, DType w_type, EpilogueKind kind = EpilogueKind::kNone)
      : p(problem),
        x(p.images * p.height * p.width * (p.channels + p.gap), x_type, 1),
        w(p.steps() * p.outputs, w_type, 2),
        residual(p.rows() * p.outputs, DType::kF32, 3),
        bias(random_values(p.outputs, 4)),
        y(p.rows() * p.outputs) {
    args = {.m = p.rows(),
            .n = p.outputs,
            .k = p.steps(),
            .a = x.data(),
            .b = w.data(),
            .ldb = p.outputs,
            .c = y.data(),
            .ldc = p.outputs,
            .bias = bias.data(),
            .a_type = x_type,
            .b_type = w_type,
            .arithmetic = x_type == DType::kBF16 || w_type == DType::kBF16 ? DType::kBF16 : DType::kF32};
    args.window_a = {p.channels, p.height, p.width, p.channels + p.gap, p.doubled, p.kernel_h, p.kernel_w, p.stride_h,
                     p.stride_w, p.top,    p.left,  p.out_h(),          p.out_w()};
    args.epilogue.kind = kind;
    if (kind == EpilogueKind::kResidual) args.epilogue.in = residual.data(), args.epilogue.in_stride = p.outputs;
  }
  void pack_weights(const ProductKernels& table) {
    const int64_t words = (p.steps() + table.steps_per_word - 1) / table.steps_per_word, width = table.tile_cols;
    panels = Guarded((p.outputs + width - 1) / width * width * words);
    table.pack_b(args, panels.data());
    args.packed_b = {.panels = panels.data(), .columns = p.outputs};
    args.b = nullptr;
  }
  void ask_for_moments(int64_t unit) {
    moments.assign(size_t((p.rows() + unit - 1) / unit * 3 * p.outputs), std::numeric_limits<float>::quiet_NaN());
    args.moments = {.sums = moments.data(), .rows = unit, .stride = p.outputs};
  }
  std::vector<float> run(const ProductKernels& table) {
    const Scratch scratch(table.scratch_bytes(args, {}));
    table.gemm(args, scratch.get(), {});
    CHECK(scratch.zone_untouched());
    CHECK(y.zones_untouched());
    return y.values();
  }
};

double finished(double t, EpilogueKind kind, double residual) {
  if (kind == EpilogueKind::kResidual) return t + residual;
  if (kind == EpilogueKind::kRelu) return std::max(t, 0.0);
  return kind == EpilogueKind::kSilu ? t / (1 + std::exp(-t)) : t;
}

/// A convolution as textbooks write it.
std::vector<float> plain_convolution(const Data& d) {
  const Problem& p = d.p;
  const int64_t scale = p.doubled ? 2 : 1;
  std::vector<float> y;
  for (int64_t b = 0; b < p.images; ++b)
    for (int64_t oy = 0; oy < p.out_h(); ++oy)
      for (int64_t ox = 0; ox < p.out_w(); ++ox)
        for (int64_t n = 0; n < p.outputs; ++n) {
          double sum = double(d.bias[size_t(n)]);
          for (int64_t i = 0; i < p.kernel_h; ++i)
            for (int64_t j = 0; j < p.kernel_w; ++j) {
              const int64_t iy = oy * p.stride_h - p.top + i, ix = ox * p.stride_w - p.left + j;
              if (iy < 0 || ix < 0 || iy >= scale * p.height || ix >= scale * p.width) continue;
              const int64_t pixel = (b * p.height + iy / scale) * p.width + ix / scale;
              for (int64_t c = 0; c < p.channels; ++c) {
                double x = double(d.x.f32[size_t(pixel * (p.channels + p.gap) + c)]);
                double w = double(d.w.f32[size_t(((i * p.kernel_w + j) * p.channels + c) * p.outputs + n)]);
                if (d.args.arithmetic == DType::kBF16)
                  x = double(to_f32(to_bf16(float(x)))), w = double(to_f32(to_bf16(float(w))));
                sum += x * w;
              }
            }
          y.push_back(float(finished(sum, d.args.epilogue.kind, double(d.residual.f32[y.size()]))));
        }
  return y;
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

}  // namespace

TEST_CASE("conv: every instruction set equals plain loops, for odd shapes in both types") {
  for (const DType x_type : kTypes)
    for (const DType w_type : kTypes) {
      const bool bf16 = x_type == DType::kBF16 || w_type == DType::kBF16;
      for (const ProductKernels* table : usable_products(bf16 ? DType::kBF16 : DType::kF32))
        for (const Problem& p : kProblems) {
          INFO(text(p, *table) << ", " << dtype_name(x_type) << " by " << dtype_name(w_type));
          Data d(p, x_type, w_type);
          CHECK(difference(d.run(*table), plain_convolution(d), tolerance(p.steps() + 1)) == "");
        }
    }
}

constexpr EpilogueKind kEpilogues[] = {EpilogueKind::kResidual, EpilogueKind::kRelu, EpilogueKind::kSilu};

TEST_CASE("conv: the reference equals plain loops, its moments those of the kernels") {
  for (const DType type : kTypes)
    for (const EpilogueKind kind : kEpilogues)
      for (const Problem& p : kProblems) {
        Data d(p, type, type, kind);
        ref::gemm(d.args);
        CHECK(difference(d.y.values(), plain_convolution(d), 1e-6) == "");
      }
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    Data own(kProblems[0], DType::kF32, DType::kF32), slow(kProblems[0], DType::kF32, DType::kF32);
    own.ask_for_moments(16), slow.ask_for_moments(16);
    own.run(*table);
    ref::gemm(slow.args);
    for (size_t i = 0; i < own.moments.size(); ++i)
      REQUIRE(std::abs(own.moments[i] - slow.moments[i]) <= 1e-5f * (1 + std::abs(slow.moments[i])));
  }
}

TEST_CASE("conv: residual, ReLU and SiLU are done to finished sums") {
  for (const DType type : kTypes)
    for (const EpilogueKind kind : kEpilogues)
      for (const ProductKernels* table : usable_products(type))
        for (const size_t i : {size_t{0}, size_t{3}, size_t{4}, size_t{18}}) {
          INFO(text(kProblems[i], *table) << " epilogue " << int(kind) << ", " << dtype_name(type));
          Data d(kProblems[i], type, type, kind);
          CHECK(difference(d.run(*table), plain_convolution(d), tolerance(kProblems[i].steps() + 1)) == "");
        }
}

TEST_CASE("conv: packed weights give the bits of those that every product packs, however columns are cut") {
  const Problem wide{1, 5, 14, 18, 530};  // more columns than are computed from rows in place
  for (const DType type : kTypes)
    for (const ProductKernels* table : usable_products(type)) {
      std::vector<Problem> problems(std::begin(kProblems), std::end(kProblems));
      problems.push_back(wide);
      for (const Problem& p : problems) {
        INFO(text(p, *table) << ", " << dtype_name(type));
        Data plain(p, type, type), packed(p, type, type), parts(p, type, type);
        packed.pack_weights(*table), parts.pack_weights(*table);
        CHECK(packed.panels.zones_untouched());
        const std::vector<float> want = plain.run(*table);
        CHECK(same_bits(packed.run(*table), want));
        for (int64_t j = 0; j < p.outputs; j += kPackedColumns) {
          const GemmArgs part = block_of(parts.args, 0, p.rows(), j, std::min(kPackedColumns, p.outputs - j));
          const Scratch scratch(table->scratch_bytes(part, {}));
          table->gemm(part, scratch.get(), {});
        }
        CHECK(same_bits(parts.y.values(), want));
      }
    }
}

TEST_CASE("conv: weights come out of their panels as they were, rounded where products are bf16") {
  constexpr int64_t kSteps = kSumChunk + 7, kColumns = 45;
  for (const DType type : kTypes)
    for (const DType arithmetic : kTypes)
      for (const Trans trans : {Trans::kNo, Trans::kYes}) {
        if (type == DType::kBF16 && arithmetic == DType::kF32) continue;
        const Values w(kSteps * kColumns, type, 6);
        const GemmArgs args{.n = kColumns,
                            .k = kSteps,
                            .b = w.data(),
                            .ldb = trans == Trans::kYes ? kSteps : kColumns,
                            .trans_b = trans,
                            .b_type = type,
                            .arithmetic = arithmetic};
        Guarded panels(int64_t(packed_b_bytes(kSteps, kColumns, arithmetic) / sizeof(float)));
        pack_b(args, panels.data());
        CHECK(panels.zones_untouched());
        std::vector<float> got(w.f32.size()), want;
        unpack_b({.panels = panels.data(), .columns = kColumns}, kSteps, arithmetic, got.data());
        for (int64_t k = 0; k < kSteps; ++k)
          for (int64_t j = 0; j < kColumns; ++j) {
            const float v = w.f32[size_t(trans == Trans::kYes ? j * kSteps + k : k * kColumns + j)];
            want.push_back(arithmetic == DType::kBF16 ? to_f32(to_bf16(v)) : v);
          }
        CHECK(same_bits(got, want));
      }
}

TEST_CASE("conv: a result in bf16 is the f32 one, rounded once, and so is what is added to it") {
  struct Case {
    Problem p;
    EpilogueKind kind;
  };
  constexpr DType kType = DType::kBF16;
  const Problem lines{1, 34, 32, 160, 40};  // more rows than are summed at a time, more steps than a chunk has
  for (const Case& c : {Case{kProblems[2], EpilogueKind::kSilu},
                        {kProblems[3], EpilogueKind::kResidual},
                        {lines, EpilogueKind::kSilu},
                        {lines, EpilogueKind::kResidual}})
    for (const ProductKernels* table : usable_products(kType)) {
      INFO(text(c.p, *table));
      const EpilogueKind kind = c.kind;
      Data d(c.p, kType, kType, kind);
      std::vector<BFloat16> residual;
      for (float& x : d.residual.f32) residual.push_back(to_bf16(x)), x = to_f32(residual.back());
      std::vector<float> want = d.run(*table);
      if (kind == EpilogueKind::kResidual) d.args.epilogue.in = residual.data();
      std::vector<BFloat16> y(want.size());
      d.args.c = y.data(), d.args.c_type = DType::kBF16;
      const Scratch scratch(table->scratch_bytes(d.args, {}));
      table->gemm(d.args, scratch.get(), {});
      std::vector<float> got;
      for (const BFloat16 v : y) got.push_back(to_f32(v));
      for (float& v : want) v = to_f32(to_bf16(v));
      CHECK(same_bits(got, want));
    }
}

TEST_CASE("conv: the same bits however rows and columns are cut, and in a packing group, and so are the moments") {
  constexpr int64_t kUnit = 32;
  const GemmBlocking before = gemm_blocking();
  set_gemm_blocking({40, 96});
  for (const DType type : kTypes)
    for (const ProductKernels* table : usable_products(type))
      for (const Problem& p : {Problem{2, 19, 16, 130, 70}, {2, 19, 16, 160, 70}, {1, 2, 304, 160, 70}}) {  // 608 rows
        INFO(text(p, *table));
        Data group(p, type, type, EpilogueKind::kResidual), parts(p, type, type, EpilogueKind::kResidual);
        Data one(p, type, type, EpilogueKind::kResidual);
        one.ask_for_moments(kUnit), group.ask_for_moments(kUnit), parts.ask_for_moments(kUnit);
        one.run(*table);
        for (int64_t i = 0, rows = kUnit; i < p.rows(); i += rows, rows *= 2)
          for (int64_t j = 0, cols = 3; j < p.outputs; j += cols, cols = cols * 2 - 1) {
            const GemmArgs part =
                block_of(parts.args, i, std::min(rows, p.rows() - i), j, std::min(cols, p.outputs - j));
            const Scratch scratch(table->scratch_bytes(part, {}));
            table->gemm(part, scratch.get(), {});
          }
        CHECK(same_bits(parts.y.values(), one.y.values()));
        CHECK(same_bits(parts.moments, one.moments));
        run_as_packing_group(*table, group.args, {224, 0, 384});
        CHECK(same_bits(group.y.values(), one.y.values()));
        CHECK(same_bits(group.moments, one.moments));
      }
  set_gemm_blocking(before);
}

// Few columns are computed from rows in place, many from packed ones.
TEST_CASE("conv: the same bits from packed pixels and from pixels in place, and of a product as well") {
  const Problem windows{2, 9, 14, 18, 530}, product{1, 15, 14, 300, 530, 1, 1, 1, 1, 0, 0, 0, 0};
  for (const DType type : kTypes)
    for (const ProductKernels* table : usable_products(type))
      for (const Problem& p : {windows, product}) {
        INFO(text(p, *table) << ", " << dtype_name(type));
        Data packed(p, type, type), parts(p, type, type);
        for (Data* d : {&packed, &parts})
          if (p.kernel_h == 1) d->args.window_a = {}, d->args.lda = p.channels;
        packed.run(*table);
        for (int64_t j = 0; j < p.outputs; j += 53) {
          const GemmArgs part = block_of(parts.args, 0, p.rows(), j, 53);
          const Scratch scratch(table->scratch_bytes(part, {}));
          table->gemm(part, scratch.get(), {});
          CHECK(scratch.zone_untouched());
        }
        CHECK(same_bits(parts.y.values(), packed.y.values()));
      }
  const Problem lines{2, 9, 16, 160, 40};  // on the tile unit parts of other than 16 rows are packed
  for (const ProductKernels* table : usable_products(DType::kBF16)) {
    INFO(table->name);
    Data whole(lines, DType::kBF16, DType::kBF16), parts(lines, DType::kBF16, DType::kBF16);
    whole.run(*table);
    for (int64_t i = 0; i < lines.rows(); i += 23) {
      const GemmArgs part = block_of(parts.args, i, std::min<int64_t>(23, lines.rows() - i), 0, lines.outputs);
      const Scratch scratch(table->scratch_bytes(part, {}));
      table->gemm(part, scratch.get(), {});
    }
    CHECK(same_bits(parts.y.values(), whole.y.values()));
  }
}

TEST_CASE("conv: moments are those of the finished columns") {
  for (const ProductKernels* table : usable_products(DType::kF32)) {
    INFO(table->name);
    Data d({1, 9, 11, 20, 37}, DType::kF32, DType::kF32, EpilogueKind::kRelu);
    d.ask_for_moments(32);
    const std::vector<float> y = d.run(*table);
    for (int64_t unit = 0; unit * 32 < d.p.rows(); ++unit)
      for (int64_t j = 0; j < d.p.outputs; ++j) {
        const float* got = d.moments.data() + unit * 3 * d.p.outputs + j;
        double sum = 0, squares = 0;
        const auto at = [&](int64_t i) { return double(y[size_t(i * d.p.outputs + j)]); };
        for (int64_t i = unit * 32; i < std::min(d.p.rows(), (unit + 1) * 32); ++i) {
          sum += at(i) - at(unit * 32);
          squares += (at(i) - at(unit * 32)) * (at(i) - at(unit * 32));
        }
        REQUIRE(got[0] == float(at(unit * 32)));
        REQUIRE(std::abs(double(got[d.p.outputs]) - sum) <= 1e-5 * (1 + std::abs(sum)));
        REQUIRE(std::abs(double(got[2 * d.p.outputs]) - squares) <= 1e-5 * (1 + squares));
      }
  }
}

namespace {

template <class T>
void check_parts_of_queries(int64_t kDim) {
  constexpr int64_t kTokens = 300;
  constexpr DType kType = sizeof(T) == 2 ? DType::kBF16 : DType::kF32;
  std::vector<T> qkv;
  for (const float x : random_values(kTokens * 3 * kDim, 5)) {
    if constexpr (sizeof(T) == 2)
      qkv.push_back(to_bf16(x));
    else
      qkv.push_back(x);
  }
  for (const AttentionKernels* table : usable_attention(kType)) {
    CAPTURE(table->name, kDim, kType == DType::kBF16);
    AttentionHead head{kTokens, kDim, qkv.data(), qkv.data() + kDim, qkv.data() + 2 * kDim, 3 * kDim,
                       kDim,    0.2f, kType};
    std::vector<T> out(size_t(kTokens * kDim)), out2(out.size());
    std::vector<float> lse(kTokens), lse2(lse.size());
    CHECK(table->forward_scratch_bytes(kTokens, kDim) < table->scratch_bytes(kTokens, kDim));
    const Scratch scratch(table->forward_scratch_bytes(kTokens, kDim));
    table->forward(head, out.data(), lse.data(), scratch.get());
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 64}, {64, 256}, {256, 300}}) {
      head.first_query = begin, head.end_query = end;
      table->forward(head, out2.data(), lse2.data(), scratch.get());
    }
    CHECK(scratch.zone_untouched());
    CHECK(std::memcmp(out.data(), out2.data(), out.size() * sizeof(T)) == 0);
    CHECK(same_bits(lse, lse2));
  }
}

}  // namespace

TEST_CASE("attention over parts of the queries gives the bits of one call") {
  for (const int64_t dim : {40, 512}) {  // 512: the head of the autoencoder of Stable Diffusion
    check_parts_of_queries<float>(dim);
    check_parts_of_queries<BFloat16>(dim);
  }
}
