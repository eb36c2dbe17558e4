// NaN and infinities through every kernel, forward and backward, in every instruction set: they reach what depends on
// them, as in the reference, and nothing else. Arrays begin one element behind a multiple of 64 bytes and have odd
// lengths, so that whole vectors, partial ones and unaligned access all meet them.
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/kernels/softmax.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSpecial[] = {kNan, -kNan, kInfinity, -kInfinity};

constexpr int64_t kRows = 3, kCols = 53, kSize = kRows * kCols;  // three vectors of 16 lanes and a rest

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

/// Empty if the same elements are NaN, +inf and -inf, and the others equal within `relative`.
std::string mismatch(const std::vector<float>& got, const std::vector<float>& want, double relative) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = std::isfinite(want[i]) ? std::abs(got[i] - want[i]) <= relative * (1 + std::abs(want[i]))
                      : std::isnan(want[i])  ? std::isnan(got[i])
                                             : got[i] == want[i];
    if (!same)
      return "at " + std::to_string(i) + ": got " + std::to_string(got[i]) + ", want " + std::to_string(want[i]);
  }
  return "";
}

/// The values with `special` at an element inside a whole vector, at the last one, and at the first of a row.
std::vector<float> with_special(std::vector<float> x, float special) {
  for (const size_t i : {size_t{5}, x.size() - 1, x.size() / 2}) x[i] = special;
  return x;
}

template <class T>
constexpr double kRelative = sizeof(T) == 2 ? 0x1p-7 : 1e-5;
template <class T>
const ActivationKernels<T>& kernels_of(const KernelTable& table) {
  if constexpr (sizeof(T) == 2)
    return table.bf16;
  else
    return table.f32;
}

/// What the kernel sees: rounded if T is bf16.
template <class T>
std::vector<float> seen(const std::vector<float>& x) {
  return Array<T>(x).values();
}

/// f(table, special) for each pair.
template <class F>
void for_specials(const F& f) {
  for (const KernelTable* table : usable_tables())
    for (const float special : kSpecial) {
      CAPTURE(table->name, special);
      f(*table, special);
    }
}

/// x and dy hold the special value in turn; where x does, slope and value are the limits.
template <class Forward, class Backward, class RefForward, class RefBackward>
void check_activation(const Forward& forward, const Backward& backward, RefForward ref_forward,
                      RefBackward ref_backward, float special, double relative) {
  const std::vector<float> x = seen<BFloat16>(random_values(kSize, 1, 3)), dy = seen<BFloat16>(random_values(kSize, 2));
  const std::vector<float> x_special = with_special(x, special), dy_special = with_special(dy, special);
  std::vector<float> want_y(x.size()), want_dx(x.size());
  ref_forward(x.data(), want_y.data(), kSize);
  ref_backward(x.data(), dy.data(), want_dx.data(), kSize);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(x_special[i])) continue;
    want_y[i] = x_special[i] == -kInfinity ? 0.0f : x_special[i];
    want_dx[i] = std::isnan(x_special[i]) ? kNan : x_special[i] > 0 ? dy[i] : 0.0f;
  }
  CHECK(mismatch(forward(x_special), want_y, relative) == "");
  CHECK(mismatch(backward(x_special, dy), want_dx, relative) == "");
  ref_backward(x.data(), dy_special.data(), want_dx.data(), kSize);
  CHECK(mismatch(backward(x, dy_special), want_dx, relative) == "");
}

template <class T>
void check_gelu(const KernelTable& table, float special) {
  check_activation(
      [&](const std::vector<float>& x) {
        Array<T> in(x), out(kSize);
        kernels_of<T>(table).gelu_forward(in.data(), out.data(), kSize);
        CHECK(out.zones_untouched());
        return out.values();
      },
      [&](const std::vector<float>& x, const std::vector<float>& dy) {
        Array<T> in(x), gradient(dy), out(kSize);
        kernels_of<T>(table).gelu_backward(in.data(), gradient.data(), out.data(), kSize);
        CHECK(out.zones_untouched());
        return out.values();
      },
      ref::gelu_forward, ref::gelu_backward, special, kRelative<T>);
}

template <class T>
void check_gate(const KernelTable& table, const std::vector<float>& x, const std::vector<float>& gate,
                const std::vector<float>& h) {
  const std::vector<float> h_seen = seen<T>(h);
  Array<float> ax(x), agate(gate), y(kSize), dgate(kCols);
  Array<T> ah(h), dh(kSize);
  std::vector<float> want(kSize), want_dh(kSize), want_dgate(kCols);
  kernels_of<T>(table).gate_residual_forward(ax.data(), agate.data(), ah.data(), y.data(), kRows, kCols);
  ref::gate_residual_forward(x.data(), gate.data(), h_seen.data(), want.data(), kRows, kCols);
  CHECK(mismatch(y.values(), want, 1e-5) == "");
  kernels_of<T>(table).gate_residual_backward(ax.data(), agate.data(), ah.data(), dh.data(), dgate.data(), kRows,
                                              kCols);
  ref::gate_residual_backward(x.data(), gate.data(), h_seen.data(), want_dh.data(), want_dgate.data(), kRows, kCols);
  CHECK(mismatch(dh.values(), want_dh, kRelative<T>) == "");
  CHECK(mismatch(dgate.values(), want_dgate, 1e-5) == "");
  CHECK((y.zones_untouched() && dh.zones_untouched() && dgate.zones_untouched()));
}

/// Forward from x, shift, scale; backward with the reference's statistics.
template <class T>
void check_layer_norm(const KernelTable& table, const std::vector<float>& x, const std::vector<float>& shift,
                      const std::vector<float>& scale, const std::vector<float>& dy) {
  Array<float> ax(x), ashift(shift), ascale(scale), mean(kRows), rstd(kRows), alone_mean(kRows), alone_rstd(kRows);
  Array<T> y(kSize), applied(kSize);
  std::vector<float> want(kSize), want_mean(kRows), want_rstd(kRows);
  ref::layer_norm_modulate_forward(x.data(), shift.data(), scale.data(), want.data(), want_mean.data(),
                                   want_rstd.data(), kRows, kCols, 1e-6f);
  kernels_of<T>(table).layer_norm_modulate_forward(ax.data(), ashift.data(), ascale.data(), y.data(), mean.data(),
                                                   rstd.data(), kRows, kCols, 1e-6f);
  table.layer_norm_statistics(ax.data(), alone_mean.data(), alone_rstd.data(), kRows, kCols, 1e-6f);
  kernels_of<T>(table).layer_norm_apply(ax.data(), mean.data(), rstd.data(), ashift.data(), ascale.data(),
                                        applied.data(), kRows, kCols);
  CHECK(mismatch(y.values(), want, kRelative<T>) == "");
  CHECK(mismatch(applied.values(), want, kRelative<T>) == "");
  CHECK((mismatch(mean.values(), want_mean, 1e-5) == "" && mismatch(rstd.values(), want_rstd, 1e-4) == ""));
  CHECK((mismatch(alone_mean.values(), want_mean, 1e-5) == "" && mismatch(alone_rstd.values(), want_rstd, 1e-4) == ""));

  const std::vector<float> dy_seen = seen<T>(dy);
  Array<T> ady(dy);
  Array<float> dx(random_values(kSize, 9)), dshift(kCols), dscale(kCols), amean(want_mean), arstd(want_rstd);
  std::vector<float> want_dx = dx.values(), want_dshift(kCols), want_dscale(kCols);
  kernels_of<T>(table).layer_norm_modulate_backward(ax.data(), amean.data(), arstd.data(), ascale.data(), ady.data(),
                                                    dx.data(), dshift.data(), dscale.data(), kRows, kCols);
  ref::layer_norm_modulate_backward(x.data(), want_mean.data(), want_rstd.data(), scale.data(), dy_seen.data(),
                                    want_dx.data(), want_dshift.data(), want_dscale.data(), kRows, kCols);
  CHECK(mismatch(dx.values(), want_dx, 1e-5) == "");
  CHECK(mismatch(dshift.values(), want_dshift, 1e-5) == "");
  CHECK(mismatch(dscale.values(), want_dscale, 1e-5) == "");
  CHECK((y.zones_untouched() && applied.zones_untouched() && mean.zones_untouched() && rstd.zones_untouched() &&
         dx.zones_untouched() && dshift.zones_untouched() && dscale.zones_untouched()));
}

template <class T>
void check_column_sums(const KernelTable& table, const std::vector<float>& dy, const std::vector<float>& db) {
  const std::vector<float> dy_seen = seen<T>(dy);
  Array<T> ady(dy);
  Array<float> adb(db);
  std::vector<float> want(db);
  kernels_of<T>(table).column_sums(ady.data(), kCols, adb.data(), kRows, kCols);
  ref::column_sums(dy_seen.data(), kCols, want.data(), kRows, kCols);
  CHECK(mismatch(adb.values(), want, 1e-6) == "");
  CHECK(adb.zones_untouched());
}

void check_softmax_backward(const KernelTable& table, const std::vector<float>& y, const std::vector<float>& dy) {
  Array<float> ay(y), ady(dy), dx(kSize);
  std::vector<float> want(kSize);
  table.softmax_backward(ay.data(), ady.data(), dx.data(), kRows, kCols);
  ref::softmax_backward(y.data(), dy.data(), want.data(), kRows, kCols);
  CHECK(mismatch(dx.values(), want, 1e-5) == "");
  CHECK(dx.zones_untouched());
}

std::string mismatch(double got, double want) { return mismatch({float(got)}, {float(want)}, 1e-6); }

void check_square_error(const KernelTable& table, const std::vector<float>& out, const std::vector<float>& target) {
  Array<float> aout(out), atarget(target), dout(kSize);
  std::vector<float> want(kSize);
  const double sum = table.square_error(aout.data(), atarget.data(), 0.25, dout.data(), kSize);
  CHECK(mismatch(sum, ref::square_error(out.data(), target.data(), 0.25, want.data(), kSize)) == "");
  CHECK(mismatch(dout.values(), want, 1e-6) == "");
  CHECK(dout.zones_untouched());
}

/// in: out, x_t, x0, v.
void check_normal_kl(const KernelTable& table, const std::vector<std::vector<float>>& in) {
  Array<float> out(in[0]), x_t(in[1]), x0(in[2]), v(in[3]), dout(kSize), dv(kSize);
  const NormalKl kl = some_normal_kl(out.data(), x_t.data(), x0.data(), v.data());
  std::vector<float> want_dout(kSize), want_dv(kSize);
  const double sum = table.normal_kl(kl, 0.1, dout.data(), 0.2, dv.data(), kSize);
  CHECK(mismatch(sum, ref::normal_kl(kl, 0.1, want_dout.data(), 0.2, want_dv.data(), kSize)) == "");
  CHECK(mismatch(dout.values(), want_dout, 1e-6) == "");
  CHECK(mismatch(dv.values(), want_dv, 1e-6) == "");
  CHECK((dout.zones_untouched() && dv.zones_untouched()));
}

template <class T>
constexpr DType kTypeOf = sizeof(T) == 2 ? DType::kBF16 : DType::kF32;

/// q, k, v, dout and, for backward alone, out and lse hold the special value in turn, in one token.
template <class T>
void check_attention(const KernelTable& table, float special) {
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
    const Scratch scratch(table.attention_scratch_bytes(kTokens, kDim));
    table.attention_forward(head, out.data(), lse.data(), scratch.get());
    CHECK(mismatch(out.values(), want_out, kError) == "");
    CHECK(mismatch(lse.values(), want_lse, 1e-4) == "");
    table.attention_backward(head, ref_out.data(), adout.data(), ref_lse.data(), dqkv.data(), dqkv.data() + kDim,
                             dqkv.data() + 2 * kDim, scratch.get());
    CHECK(mismatch(dqkv.values(), want, kError) == "");
    CHECK((out.zones_untouched() && lse.zones_untouched() && dqkv.zones_untouched() && scratch.zone_untouched()));
  }
}

constexpr Trans kTrans[] = {Trans::kNo, Trans::kYes};

/// The special values and NaN whose upper or lower half alone would not be one.
template <class F>
void for_product_specials(const F& f) {
  for_specials(f);
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    float special;
    std::memcpy(&special, &bits, 4);
    for (const KernelTable* table : usable_tables()) {
      CAPTURE(table->name, bits);
      f(*table, special);
    }
  }
}

/// a and b hold the special value in turn, in the middle and at the end; sums of rows of a where a is transposed.
template <class A, class B, class C>
void check_product(const KernelTable& table, const GemmArgs& shape, DType arithmetic, float special) {
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
    const Scratch scratch(table.gemm_scratch_bytes(args, {}));
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
void check_against_reference(const KernelTable& table, GemmArgs args) {
  const std::vector<float> start = random_values(args.m * args.n, 53), start_sums = random_values(args.m, 54);
  Array<float> c(start), want(start), sums(start_sums), want_sums(start_sums);
  args.ldc = args.n;
  const bool with_sums = args.trans_a == Trans::kYes;
  const auto with_results = [&](Array<float>& to, Array<float>& to_sums) {
    args.c = to.data(), args.a_row_sums = with_sums ? to_sums.data() : nullptr;
    return args;
  };
  const Scratch scratch(table.gemm_scratch_bytes(with_results(c, sums), {}));
  table.gemm(with_results(c, sums), scratch.get(), {});
  ref::gemm(with_results(want, want_sums));
  // A normalised value may fall on the other side of a bf16 rounding.
  const double error = args.arithmetic == DType::kBF16 ? 0x1p-6 : 1e-5;
  CHECK(mismatch(c.values(), want.values(), error) == "");
  CHECK(mismatch(sums.values(), want_sums.values(), error) == "");
  CHECK((c.zones_untouched() && sums.zones_untouched() && scratch.zone_untouched()));
}

/// x, mean, rstd, shift and scale of a normalised operand hold the special value in turn, in the middle and at the end.
void check_normalised_product(const KernelTable& table, GemmArgs args, bool as_a, float special) {
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
void check_epilogue(const KernelTable& table, EpilogueKind kind, int where, float special) {
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
  const Scratch scratch(table.gemm_scratch_bytes(args, {}));
  table.gemm(args, scratch.get(), {});
  args.c = want_c.data(), args.epilogue.out = want_out.data();
  ref::gemm(args);
  // gelu and its slope at infinity are limits, which the formulas of the reference do not give.
  const std::vector<float> a_seen = aa.values(), b_seen = ab.values(), in_seen = ain.values();
  std::vector<float> expected_c = want_c.values(), expected_out = want_out.values();
  for (size_t i = 0; i < expected_c.size(); ++i) {
    const float at = kind == EpilogueKind::kGelu ? expected_c[i] : in_seen[i];
    if (kind == EpilogueKind::kGateResidual || !std::isinf(at)) continue;
    expected_out[i] = at > 0 ? at : 0;
    if (kind == EpilogueKind::kGelu) continue;
    float product = 0;
    for (size_t p = 0; p < kK; ++p) product += a_seen[i / kN * kK + p] * b_seen[p * kN + i % kN];
    expected_c[i] = at > 0 ? product : 0;
  }
  CHECK(mismatch(c.values(), expected_c, kRelative<T>) == "");
  CHECK(mismatch(out.values(), expected_out, kRelative<T>) == "");
  CHECK((c.zones_untouched() && out.zones_untouched() && scratch.zone_untouched()));
}
/// What an epilogue reads and writes is of c's type, and f32 beside a gate.
template <class T>
void check_epilogue(const KernelTable& table, EpilogueKind kind, int where, float special) {
  if (kind == EpilogueKind::kGateResidual)
    check_epilogue<T, float>(table, kind, where, special);
  else
    check_epilogue<T, T>(table, kind, where, special);
}

}  // namespace

TEST_CASE("NaN and infinity: gelu") {
  for_specials([](const KernelTable& table, float special) {
    check_gelu<float>(table, special);
    check_gelu<BFloat16>(table, special);
  });
}

TEST_CASE("NaN and infinity: silu") {
  for_specials([](const KernelTable& table, float special) {
    check_activation(
        [&](const std::vector<float>& x) {
          Array<float> in(x), out(kSize);
          table.silu_forward(in.data(), out.data(), kSize);
          CHECK(out.zones_untouched());
          return out.values();
        },
        [&](const std::vector<float>& x, const std::vector<float>& dy) {
          Array<float> in(x), gradient(dy), out(kSize);
          table.silu_backward(in.data(), gradient.data(), out.data(), kSize);
          CHECK(out.zones_untouched());
          return out.values();
        },
        ref::silu_forward, ref::silu_backward, special, kRelative<float>);
  });
}

TEST_CASE("NaN and infinity: add, scale_add, column_sums") {
  const std::vector<float> x0 = random_values(kSize, 3), y0 = seen<BFloat16>(random_values(kSize, 4));
  for_specials([&](const KernelTable& table, float special) {
    for (int where = 0; where < 2; ++where) {  // x, y
      CAPTURE(where);
      const std::vector<float> x = where == 0 ? with_special(x0, special) : x0,
                               y = where == 1 ? with_special(y0, special) : y0;
      std::vector<float> sum(x), mixed(x);
      for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i], mixed[i] = 0.5f * x[i] + 2 * y[i];
      Array<float> ax(x), ay(y), out(kSize);
      Array<BFloat16> half(y);
      table.f32.add(ax.data(), ay.data(), kSize);
      table.bf16.add(ax.data(), half.data(), kSize);
      Array<float> again(y);
      table.scale_add(0.5f, ax.data(), 2, again.data(), out.data(), kSize);
      CHECK(mismatch(ay.values(), sum, 1e-6) == "");
      CHECK(mismatch(half.values(), sum, kRelative<BFloat16>) == "");
      CHECK(mismatch(out.values(), mixed, 1e-6) == "");
      CHECK((ay.zones_untouched() && half.zones_untouched() && out.zones_untouched()));
    }
    check_column_sums<float>(table, with_special(x0, special), random_values(kCols, 15));
    check_column_sums<float>(table, x0, with_special(random_values(kCols, 15), special));
    check_column_sums<BFloat16>(table, with_special(x0, special), random_values(kCols, 15));
    check_column_sums<BFloat16>(table, x0, with_special(random_values(kCols, 15), special));
  });
}

TEST_CASE("NaN and infinity: softmax") {
  std::vector<float> y = random_values(kSize, 16);
  for (float& p : y) p = std::abs(p) / kCols;  // as large as probabilities are
  const std::vector<float> x = random_values(kSize, 17, 3), dy = random_values(kSize, 18);
  for_specials([&](const KernelTable& table, float special) {
    const auto one_row_finite = [&](std::vector<float> values) {
      values[5] = values[kSize - 1] = special;
      return values;
    };
    const std::vector<float> bad = one_row_finite(x);
    std::vector<float> want(kSize);
    Array<float> ax(bad), ay(kSize);
    ref::softmax_forward(bad.data(), want.data(), kRows, kCols);
    table.softmax_forward(ax.data(), ay.data(), kRows, kCols);
    CHECK(mismatch(ay.values(), want, 1e-5) == "");
    CHECK(ay.zones_untouched());
    check_softmax_backward(table, one_row_finite(y), dy);
    check_softmax_backward(table, y, one_row_finite(dy));
  });
}

TEST_CASE("NaN and infinity: losses") {
  std::vector<std::vector<float>> start;  // out, target or x_t, x0, v
  for (uint64_t i = 0; i < 4; ++i) start.push_back(random_values(kSize, 60 + i));
  for_specials([&](const KernelTable& table, float special) {
    for (size_t where = 0; where < 4; ++where) {
      CAPTURE(where);
      std::vector<std::vector<float>> in = start;
      in[where] = with_special(in[where], special);
      if (where < 2) check_square_error(table, in[0], in[1]);
      check_normal_kl(table, in);
    }
  });
}

TEST_CASE("NaN and infinity: sum_squares, find_non_finite, conversions") {
  for_specials([](const KernelTable& table, float special) {
    const std::vector<float> x = with_special(random_values(kSize, 5), special);
    Array<float> ax(x), back(kSize);
    Array<BFloat16> half(kSize);
    const double squares = table.sum_squares(ax.data(), kSize);
    CHECK((std::isnan(special) ? std::isnan(squares) : squares == double(kInfinity)));
    CHECK(table.f32.find_non_finite(ax.data(), kSize) == 5);
    table.to_bf16(ax.data(), half.data(), kSize);
    CHECK(table.bf16.find_non_finite(half.data(), kSize) == 5);
    table.to_f32(half.data(), back.data(), kSize);
    CHECK(mismatch(back.values(), x, 0x1p-8) == "");
    CHECK((half.zones_untouched() && back.zones_untouched()));
    float exact = special, exponential = 0;
    table.exp(&exact, &exponential, 1);
    CHECK(mismatch({exponential}, {special == -kInfinity ? 0.0f : special}, 0) == "");
  });
}

TEST_CASE("NaN and infinity: gate and residual") {
  const std::vector<float> x = random_values(kSize, 6), gate = random_values(kCols, 7), h = random_values(kSize, 8);
  for_specials([&](const KernelTable& table, float special) {
    const std::vector<float> bad = with_special(x, special), bad_gate = with_special(gate, special);
    check_gate<float>(table, bad, gate, h);
    check_gate<float>(table, x, bad_gate, h);
    check_gate<float>(table, x, gate, with_special(h, special));
    check_gate<BFloat16>(table, bad, gate, h);
    check_gate<BFloat16>(table, x, bad_gate, h);
    check_gate<BFloat16>(table, x, gate, with_special(h, special));
  });
}

TEST_CASE("NaN and infinity: layer norm") {
  const std::vector<float> x = random_values(kSize, 11), shift = random_values(kCols, 12),
                           scale = random_values(kCols, 13), dy = random_values(kSize, 14);
  for_specials([&](const KernelTable& table, float special) {
    std::vector<float> bad = x, bad_dy = dy;  // one row stays finite
    bad[5] = bad[kSize - 1] = special;
    bad_dy[5] = bad_dy[kSize - 1] = special;
    check_layer_norm<float>(table, bad, shift, scale, dy);
    check_layer_norm<float>(table, x, with_special(shift, special), scale, dy);
    check_layer_norm<float>(table, x, shift, with_special(scale, special), dy);
    check_layer_norm<float>(table, x, shift, scale, bad_dy);
    check_layer_norm<BFloat16>(table, bad, shift, scale, dy);
    check_layer_norm<BFloat16>(table, x, shift, scale, bad_dy);
  });
}

TEST_CASE("NaN and infinity: AdamW and the average") {
  AdamWStep step;
  step.bias1 = 0.1, step.bias2 = 0.001, step.weight_decay = 0.1;
  for_specials([&](const KernelTable& table, float special) {
    for (int where = 0; where < 5; ++where) {  // g, p, m, v, ema
      CAPTURE(where);
      std::vector<std::vector<float>> start;
      for (uint64_t i = 0; i < 5; ++i) start.push_back(random_values(kSize, 20 + i));
      for (float& v : start[3]) v = std::abs(v);
      start[size_t(where)] = with_special(start[size_t(where)], special);
      std::vector<std::vector<float>> want = start;
      Array<float> g(start[0]), p(start[1]), m(start[2]), v(start[3]), ema(start[4]);
      Array<BFloat16> copy(kSize);
      table.adamw_ema(step, g.data(), p.data(), m.data(), v.data(), ema.data(), copy.data(), kSize);
      ref::adamw_ema(step, want[0].data(), want[1].data(), want[2].data(), want[3].data(), want[4].data(), kSize);
      // Kernel and reference form the averages in different ways: infinity minus infinity in one is infinity in the
      // other.
      const auto same = [](const std::vector<float>& got, const std::vector<float>& reference, double relative) {
        for (size_t i = 0; i < got.size(); ++i) {
          CHECK(std::isfinite(got[i]) == std::isfinite(reference[i]));
          if (std::isfinite(got[i])) CHECK(got[i] == Approx(reference[i]).epsilon(relative).margin(relative));
        }
      };
      same(p.values(), want[1], 1e-5);
      same(m.values(), want[2], 1e-5);
      same(v.values(), want[3], 1e-5);
      same(ema.values(), want[4], 1e-5);
      same(copy.values(), want[1], kRelative<BFloat16>);
      CHECK((p.zones_untouched() && m.zones_untouched() && v.zones_untouched() && ema.zones_untouched() &&
             copy.zones_untouched()));
    }
  });
}

TEST_CASE("NaN and infinity: attention") {
  for_specials([](const KernelTable& table, float special) {
    check_attention<float>(table, special);
    check_attention<BFloat16>(table, special);
  });
}

TEST_CASE("NaN and infinity: products") {
  for_product_specials([](const KernelTable& table, float special) {
    for (const int64_t k : {37, 66})
      for (const Trans trans_a : kTrans)
        for (const Trans trans_b : kTrans) {
          const GemmArgs shape{.m = 33, .n = 37, .k = k, .trans_a = trans_a, .trans_b = trans_b};
          check_product<float, float, float>(table, shape, DType::kF32, special);
          check_product<float, float, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, BFloat16>(table, shape, DType::kBF16, special);
        }
  });
}

TEST_CASE("NaN and infinity: products of few rows") {
  for_product_specials([](const KernelTable& table, float special) {
    for (const int64_t m : {1, 5, 16})
      for (const int64_t k : {37, 66})
        for (const Trans trans_b : kTrans) {
          const GemmArgs shape{.m = m, .n = 53, .k = k, .trans_b = trans_b};
          check_product<float, float, float>(table, shape, DType::kF32, special);
          check_product<float, BFloat16, float>(table, shape, DType::kBF16, special);
          check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
        }
  });
}

TEST_CASE("NaN and infinity: updates of few steps") {
  for_product_specials([](const KernelTable& table, float special) {
    for (const int64_t k : {1, 16, 64})
      for (const bool accumulate : {false, true}) {
        const GemmArgs shape{.m = 19, .n = 101, .k = k, .trans_a = Trans::kYes, .accumulate = accumulate};
        check_product<float, float, float>(table, shape, DType::kF32, special);
        check_product<BFloat16, BFloat16, float>(table, shape, DType::kBF16, special);
      }
  });
}

TEST_CASE("NaN and infinity: products with a normalised operand") {
  for_specials([](const KernelTable& table, float special) {
    for (const int64_t m : {5, 19})  // few rows, which are packed in a way of their own, and more
      for (const bool as_a : {true, false})
        for (const Trans trans : kTrans)
          for (const DType arithmetic : {DType::kF32, DType::kBF16}) {
            GemmArgs shape{.m = m, .n = 37, .k = 23};
            (as_a ? shape.trans_a : shape.trans_b) = trans, shape.arithmetic = arithmetic;
            check_normalised_product(table, shape, as_a, special);
          }
  });
}

TEST_CASE("NaN and infinity: products with patches of images") {
  constexpr int64_t kImages = 2, kChannels = 3, kHeight = 8, kWidth = 4, kPatch = 2;
  constexpr int64_t kTokens = kImages * kHeight / kPatch * kWidth / kPatch, kValues = kChannels * kPatch * kPatch;
  for_specials([&](const KernelTable& table, float special) {
    for (const bool as_a : {true, false})
      for (const Trans trans : kTrans)
        for (const DType arithmetic : {DType::kF32, DType::kBF16})
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
  for_specials([](const KernelTable& table, float special) {
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
            const Scratch scratch(table.gemm_scratch_bytes(args, {}));
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
  for_specials([](const KernelTable& table, float special) {
    for (const EpilogueKind kind : {EpilogueKind::kGelu, EpilogueKind::kGeluBackward, EpilogueKind::kGateResidual}) {
      for (int where = 0; where < 3; ++where) {  // a, in, gate
        if ((where == 1 && kind == EpilogueKind::kGelu) || (where == 2 && kind != EpilogueKind::kGateResidual))
          continue;
        check_epilogue<float>(table, kind, where, special);
        check_epilogue<BFloat16>(table, kind, where, special);
      }
    }
  });
}
