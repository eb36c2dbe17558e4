// NaN and infinities through products and attention, in every instruction set: they reach what depends on them, as in
// the reference, and nothing else (operators on arrays: operators_test.cpp). Arrays begin one element behind a multiple
// of 64 bytes and have odd lengths, so that whole vectors, partial ones and unaligned access all meet them.
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSpecial[] = {kNan, -kNan, kInfinity, -kInfinity};

/// n elements of T between guard zones, one element off alignment.
template <class T>
class Array {
 public:
  explicit Array(int64_t n) : all_(static_cast<size_t>(n + 2 * kZone)), n_(n) {
    std::memset(all_.data(), 0xa5, all_.size() * sizeof(T));
  }
  explicit Array(const std::vector<float>& x) : Array(static_cast<int64_t>(x.size())) {
    for (size_t i = 0; i < x.size(); ++i) {
      if constexpr (sizeof(T) == 2)
        data()[i] = to_bf16(x[i]);
      else
        data()[i] = x[i];
    }
  }
  T* data() { return all_.data() + kZone; }
  std::vector<float> values() {
    std::vector<float> x;
    for (int64_t i = 0; i < n_; ++i) {
      if constexpr (sizeof(T) == 2)
        x.push_back(to_f32(data()[i]));
      else
        x.push_back(data()[i]);
    }
    return x;
  }
  bool zones_untouched() {
    const auto* bytes = reinterpret_cast<const unsigned char*>(all_.data());
    const size_t zone = kZone * sizeof(T), end = all_.size() * sizeof(T);
    for (size_t i = 0; i < zone; ++i)
      if (bytes[i] != 0xa5 || bytes[end - 1 - i] != 0xa5) return false;
    return true;
  }

 private:
  static constexpr int64_t kZone = 33;
  std::vector<T> all_;
  int64_t n_;
};

template <class T>
constexpr double kRelative = sizeof(T) == 2 ? 0x1p-7 : 1e-5;
/// What the kernel sees: rounded if T is bf16.
template <class T>
std::vector<float> seen(const std::vector<float>& x) {
  return Array<T>(x).values();
}

/// f(table, special) for each pair.
template <class Table, class F>
void for_specials(const std::vector<const Table*>& tables, const F& f) {
  for (const Table* table : tables)
    for (const float special : kSpecial) {
      CAPTURE(table->name, special);
      f(*table, special);
    }
}

template <class T>
constexpr DType kTypeOf = sizeof(T) == 2 ? DType::kBF16 : DType::kF32;

/// q, k, v, dout and, for backward alone, out and lse hold the special value in turn, in one token.
template <class T>
void check_attention(const AttentionKernels& table, float special) {
  constexpr int64_t kTokens = 37, kDim = 19, kStride = 3 * kDim, kAt = 20 * kStride + 4;
  constexpr double kError = sizeof(T) == 2 ? 0x1p-6 : 1e-4;  // bf16: probabilities and result are rounded
  for (int where = 0; where < 6; ++where) {
    CAPTURE(kTypeOf<T> == DType::kBF16, where);
    std::vector<float> qkv = random_values(kTokens * kStride, 31), dout = random_values(kTokens * kDim, 32);
    if (where < 3) qkv[size_t(kAt + where * kDim)] = special;
    if (where == 3) dout[20 * kDim + 4] = special;
    qkv = seen<T>(qkv), dout = seen<T>(dout);
    AttentionHead plain{.tokens = kTokens, .head_dim = kDim, .qkv_stride = kStride, .out_stride = kDim, .scale = 0.25f};
    AttentionHead head = plain;
    plain.q = qkv.data(), plain.k = qkv.data() + kDim, plain.v = qkv.data() + 2 * kDim;
    Array<T> aqkv(qkv), adout(dout), out(kTokens * kDim), dqkv(kTokens * kStride);
    head.q = aqkv.data(), head.k = aqkv.data() + kDim, head.v = aqkv.data() + 2 * kDim, head.type = kTypeOf<T>;
    std::vector<float> want_out(dout), want_lse(kTokens), want(qkv);
    ref::attention_forward(plain, want_out.data(), want_lse.data());
    std::vector<float> kept_out = want_out, kept_lse = want_lse;
    if (where == 4) kept_out[20 * kDim + 4] = special;
    if (where == 5) kept_lse[20] = special;
    Array<T> ref_out(kept_out);
    Array<float> lse(kTokens), ref_lse(kept_lse);
    ref::attention_backward(plain, ref_out.values().data(), dout.data(), kept_lse.data(), want.data(),
                            want.data() + kDim, want.data() + 2 * kDim);
    const Scratch scratch(table.scratch_bytes(kTokens, kDim));
    table.forward(head, out.data(), lse.data(), scratch.get());
    CHECK(mismatch(out.values(), want_out, kError) == "");
    CHECK(mismatch(lse.values(), want_lse, 1e-4) == "");
    table.backward(head, ref_out.data(), adout.data(), ref_lse.data(), dqkv.data(), dqkv.data() + kDim,
                   dqkv.data() + 2 * kDim, scratch.get());
    CHECK(mismatch(dqkv.values(), want, kError) == "");
    CHECK((out.zones_untouched() && lse.zones_untouched() && dqkv.zones_untouched() && scratch.zone_untouched()));
  }
}

constexpr Trans kTrans[] = {Trans::kNo, Trans::kYes};

/// The special values and NaN whose upper or lower half alone would not be one.
template <class F>
void for_product_specials(DType arithmetic, const F& f) {
  const std::vector<const ProductKernels*> tables = usable_products(arithmetic);
  for_specials(tables, f);
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    float special;
    std::memcpy(&special, &bits, 4);
    for (const ProductKernels* table : tables) {
      CAPTURE(table->name, bits);
      f(*table, special);
    }
  }
}

/// a and b hold the special value in turn, in the middle and at the end; sums of rows of a where a is transposed.
template <class A, class B, class C>
void check_product(const ProductKernels& table, const GemmArgs& shape, DType arithmetic, float special) {
  CAPTURE(shape.m, shape.n, shape.k, int(shape.trans_a), int(shape.trans_b), sizeof(A), sizeof(B), sizeof(C));
  CAPTURE(arithmetic == DType::kBF16, shape.accumulate);
  for (int where = 0; where < 4; ++where) {
    CAPTURE(where);
    std::vector<float> a = random_values(shape.m * shape.k, 51), b = random_values(shape.k * shape.n, 52);
    std::vector<float>& x = where < 2 ? a : b;
    x[where % 2 == 0 ? x.size() / 2 : x.size() - 1] = special;
    Array<A> aa(a);
    Array<B> ab(b);
    const std::vector<float> start = random_values(shape.m * shape.n, 53), start_sums = random_values(shape.m, 54);
    Array<C> c(start), want(start);
    Array<float> sums(start_sums), want_sums(start_sums);
    GemmArgs args = shape;
    args.a = aa.data(), args.lda = shape.trans_a == Trans::kYes ? shape.m : shape.k, args.a_type = kTypeOf<A>;
    args.b = ab.data(), args.ldb = shape.trans_b == Trans::kYes ? shape.k : shape.n, args.b_type = kTypeOf<B>;
    args.c = c.data(), args.ldc = shape.n, args.c_type = kTypeOf<C>, args.arithmetic = arithmetic;
    if (shape.trans_a == Trans::kYes) args.a_row_sums = sums.data();
    const Scratch scratch(table.scratch_bytes(args, {}));
    table.gemm(args, scratch.get(), {});
    args.c = want.data();
    if (args.a_row_sums != nullptr) args.a_row_sums = want_sums.data();
    ref::gemm(args);
    CHECK(mismatch(c.values(), want.values(), kRelative<C>) == "");
    CHECK(mismatch(sums.values(), want_sums.values(), 1e-5) == "");
    CHECK((c.zones_untouched() && sums.zones_untouched() && scratch.zone_untouched()));
  }
}

/// c of a product with operands that are f32, and its row sums, against the reference.
void check_against_reference(const ProductKernels& table, GemmArgs args) {
  const std::vector<float> start = random_values(args.m * args.n, 53), start_sums = random_values(args.m, 54);
  Array<float> c(start), want(start), sums(start_sums), want_sums(start_sums);
  args.ldc = args.n;
  const bool with_sums = args.trans_a == Trans::kYes;
  const auto with_results = [&](Array<float>& to, Array<float>& to_sums) {
    args.c = to.data(), args.a_row_sums = with_sums ? to_sums.data() : nullptr;
    return args;
  };
  const Scratch scratch(table.scratch_bytes(with_results(c, sums), {}));
  table.gemm(with_results(c, sums), scratch.get(), {});
  ref::gemm(with_results(want, want_sums));
  // A normalised value may fall on the other side of a bf16 rounding.
  const double error = args.arithmetic == DType::kBF16 ? 0x1p-6 : 1e-5;
  CHECK(mismatch(c.values(), want.values(), error) == "");
  CHECK(mismatch(sums.values(), want_sums.values(), error) == "");
  CHECK((c.zones_untouched() && sums.zones_untouched() && scratch.zone_untouched()));
}

/// x, mean, rstd, shift and scale of a normalised operand hold the special value in turn, in the middle and at the end.
void check_normalised_product(const ProductKernels& table, GemmArgs args, bool as_a, float special) {
  constexpr int64_t kRowsPerSample = 10, kFirstRow = 3;
  const bool steps_are_rows = as_a ? args.trans_a == Trans::kYes : args.trans_b == Trans::kNo;
  const int64_t outer = as_a ? args.m : args.n;
  const int64_t rows = steps_are_rows ? args.k : outer, cols = steps_are_rows ? outer : args.k;
  const int64_t samples = (kFirstRow + rows - 1) / kRowsPerSample + 1;
  CAPTURE(args.m, args.n, args.k, as_a, steps_are_rows, args.arithmetic == DType::kBF16);
  for (int where = 0; where < 10; ++where) {
    CAPTURE(where);
    std::vector<std::vector<float>> in = {random_values(rows * cols, 71), random_values(rows, 72, 0.2f),
                                          random_values(rows, 73), random_values(samples * cols, 74, 0.1f),
                                          random_values(samples * cols, 75, 0.5f)};
    std::vector<float>& x = in[size_t(where / 2)];
    x[where % 2 == 0 ? x.size() / 2 : x.size() - 1] = special;
    Array<float> array(in[0]), mean(in[1]), rstd(in[2]), shift(in[3]), scale(in[4]),
        other(random_values((as_a ? args.n : args.m) * args.k, 76));
    (as_a ? args.a : args.b) = array.data(), (as_a ? args.lda : args.ldb) = cols;
    (as_a ? args.b : args.a) = other.data();
    if (as_a)
      args.ldb = args.trans_b == Trans::kYes ? args.k : args.n;
    else
      args.lda = args.trans_a == Trans::kYes ? args.m : args.k;
    (as_a ? args.normalise_a : args.normalise_b) = {mean.data(), rstd.data(),    shift.data(), scale.data(),
                                                    cols,        kRowsPerSample, kFirstRow};
    check_against_reference(table, args);
  }
}

/// An epilogue on c of type T; `where` the special value is: a, in, gate.
template <class T, class Beside>
void check_epilogue(const ProductKernels& table, EpilogueKind kind, int where, float special) {
  constexpr int64_t kM = 17, kN = 37, kK = 5;
  CAPTURE(kTypeOf<T> == DType::kBF16, int(kind), where);
  std::vector<float> a = random_values(kM * kK, 41), in = random_values(kM * kN, 43), gate = random_values(kN, 44);
  (where == 0 ? a[7 * kK + 1] : where == 1 ? in[7 * kN + 33] : gate[9]) = special;
  Array<T> aa(a), ab(random_values(kK * kN, 42)), c(kM * kN), want_c(kM * kN);
  Array<Beside> ain(in), out(kM * kN), want_out(kM * kN);
  Array<float> agate(gate);
  GemmArgs args{.m = kM, .n = kN, .k = kK, .a = aa.data(), .lda = kK, .b = ab.data(), .ldb = kN, .c = c.data()};
  args.ldc = kN, args.a_type = args.b_type = args.c_type = args.arithmetic = kTypeOf<T>;
  args.epilogue = {kind, ain.data(), out.data(), kN, kN, agate.data(), kN, kM, 0};
  const Scratch scratch(table.scratch_bytes(args, {}));
  table.gemm(args, scratch.get(), {});
  args.c = want_c.data(), args.epilogue.out = want_out.data();
  ref::gemm(args);
  CHECK(mismatch(c.values(), want_c.values(), kRelative<T>) == "");
  CHECK(mismatch(out.values(), want_out.values(), kRelative<T>) == "");
  CHECK((c.zones_untouched() && out.zones_untouched() && scratch.zone_untouched()));
}
/// What an epilogue reads and writes is of c's type, and f32 beside a gate.
template <class T>
void check_epilogue(const ProductKernels& table, EpilogueKind kind, int where, float special) {
  if (kind == EpilogueKind::kGateResidual)
    check_epilogue<T, float>(table, kind, where, special);
  else
    check_epilogue<T, T>(table, kind, where, special);
}

}  // namespace

TEST_CASE("NaN and infinity: attention") {
  for_specials(usable_attention(DType::kF32),
               [](const AttentionKernels& table, float special) { check_attention<float>(table, special); });
  for_specials(usable_attention(DType::kBF16),
               [](const AttentionKernels& table, float special) { check_attention<BFloat16>(table, special); });
}

TEST_CASE("NaN and infinity: products") {
  for (const int64_t k : {37, 66})
    for (const Trans trans_a : kTrans)
      for (const Trans trans_b : kTrans) {
        const GemmArgs shape{.m = 33, .n = 37, .k = k, .trans_a = trans_a, .trans_b = trans_b};
        for_product_specials(DType::kF32, [&](const ProductKernels& table, float special) {
          check_product<float, float, float>(table, shape, DType::kF32, special);
        });
        for_product_specials(DType::kBF16, [&](const ProductKernels& table, float special) {
          check_product<float, float, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, BFloat16>(table, shape, DType::kBF16, special);
        });
      }
}

TEST_CASE("NaN and infinity: products of few rows") {
  for (const int64_t m : {1, 5, 16})
    for (const int64_t k : {37, 66})
      for (const Trans trans_b : kTrans) {
        const GemmArgs shape{.m = m, .n = 53, .k = k, .trans_b = trans_b};
        for_product_specials(DType::kF32, [&](const ProductKernels& table, float special) {
          check_product<float, float, float>(table, shape, DType::kF32, special);
        });
        for_product_specials(DType::kBF16, [&](const ProductKernels& table, float special) {
          check_product<float, BFloat16, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
        });
      }
}

TEST_CASE("NaN and infinity: updates of few steps") {
  for (const int64_t k : {1, 16, 64})
    for (const bool accumulate : {false, true}) {
      const GemmArgs shape{.m = 19, .n = 101, .k = k, .trans_a = Trans::kYes, .accumulate = accumulate};
      for_product_specials(DType::kF32, [&](const ProductKernels& table, float special) {
        check_product<float, float, float>(table, shape, DType::kF32, special);
      });
      for_product_specials(DType::kBF16, [&](const ProductKernels& table, float special) {
        check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
      });
    }
}

TEST_CASE("NaN and infinity: products with a normalised operand") {
  for (const DType arithmetic : {DType::kF32, DType::kBF16})
    for_specials(usable_products(arithmetic), [=](const ProductKernels& table, float special) {
      for (const int64_t m : {5, 19})  // few rows, which are packed in a way of their own, and more
        for (const bool as_a : {true, false})
          for (const Trans trans : kTrans) {
            GemmArgs shape{.m = m, .n = 37, .k = 23};
            (as_a ? shape.trans_a : shape.trans_b) = trans, shape.arithmetic = arithmetic;
            check_normalised_product(table, shape, as_a, special);
          }
    });
}

TEST_CASE("NaN and infinity: products with patches of images") {
  constexpr int64_t kImages = 2, kChannels = 3, kHeight = 8, kWidth = 4, kPatch = 2;
  constexpr int64_t kTokens = kImages * kHeight / kPatch * kWidth / kPatch, kValues = kChannels * kPatch * kPatch;
  for (const DType arithmetic : {DType::kF32, DType::kBF16})
    for_specials(usable_products(arithmetic), [=](const ProductKernels& table, float special) {
      for (const bool as_a : {true, false})
        for (const Trans trans : kTrans)
          for (int where = 0; where < 2; ++where) {
            CAPTURE(as_a, int(trans), arithmetic == DType::kBF16, where);
            std::vector<float> x = random_values(kTokens * kValues, 81);
            x[where == 0 ? x.size() / 2 : x.size() - 1] = special;
            const bool steps_are_tokens = as_a == (trans == Trans::kYes);
            const int64_t outer = steps_are_tokens ? kValues : kTokens, k = steps_are_tokens ? kTokens : kValues;
            constexpr int64_t kOthers = 37;
            Array<float> pixels(x), other(random_values(kOthers * k, 82));
            GemmArgs args{.m = as_a ? outer : kOthers, .n = as_a ? kOthers : outer, .k = k};
            (as_a ? args.a : args.b) = pixels.data(), (as_a ? args.b : args.a) = other.data();
            (as_a ? args.ldb : args.lda) = as_a ? kOthers : k;
            (as_a ? args.trans_a : args.trans_b) = trans, args.arithmetic = arithmetic;
            (as_a ? args.patches_a : args.patches_b) = {kPatch, kChannels, kHeight, kWidth};
            check_against_reference(table, args);
          }
    });
}

TEST_CASE("NaN and infinity: what is added to a product") {
  for_specials(usable_products(DType::kF32), [](const ProductKernels& table, float special) {
    for (const int64_t m : {5, 33})      // few rows, and more
      for (const int64_t k : {37, 131})  // few steps, and more
        for (const Trans trans_a : kTrans)
          for (int where = 0; where < 3; ++where) {  // old c, bias, row sums
            if (where == 2 && trans_a == Trans::kNo) continue;
            CAPTURE(m, k, int(trans_a), where);
            constexpr int64_t kN = 37;
            Array<float> a(random_values(m * k, 91)), b(random_values(k * kN, 92)), bias(random_values(kN, 93));
            std::vector<float> start = random_values(m * kN, 94), start_sums = random_values(m, 95);
            (where == 0 ? start[size_t(m * kN - 1)] : where == 1 ? bias.data()[9] : start_sums[3]) = special;
            Array<float> c(start), want(start), sums(start_sums), want_sums(start_sums);
            GemmArgs args{.m = m, .n = kN, .k = k, .a = a.data(), .lda = trans_a == Trans::kYes ? m : k};
            args.trans_a = trans_a, args.b = b.data(), args.ldb = args.ldc = kN;
            args.accumulate = true, args.bias = bias.data(), args.c = c.data();
            if (trans_a == Trans::kYes) args.a_row_sums = sums.data();
            const Scratch scratch(table.scratch_bytes(args, {}));
            table.gemm(args, scratch.get(), {});
            args.c = want.data();
            if (trans_a == Trans::kYes) args.a_row_sums = want_sums.data();
            ref::gemm(args);
            CHECK(mismatch(c.values(), want.values(), 1e-4) == "");
            CHECK(mismatch(sums.values(), want_sums.values(), 1e-4) == "");
          }
  });
}

TEST_CASE("NaN and infinity: epilogues of gemm") {
  const auto check = [](auto type, const ProductKernels& table, float special) {
    for (const EpilogueKind kind : {EpilogueKind::kGelu, EpilogueKind::kGeluBackward, EpilogueKind::kGateResidual}) {
      for (int where = 0; where < 3; ++where) {  // a, in, gate
        if ((where == 1 && kind == EpilogueKind::kGelu) || (where == 2 && kind != EpilogueKind::kGateResidual))
          continue;
        check_epilogue<decltype(type)>(table, kind, where, special);
      }
    }
  };
  for_specials(usable_products(DType::kF32),
               [=](const ProductKernels& table, float special) { check(float{}, table, special); });
  for_specials(usable_products(DType::kBF16),
               [=](const ProductKernels& table, float special) { check(BFloat16{}, table, special); });
}
