#include "ditrain/kernels/attention.hpp"

#include "../../src/kernels/ref_bodies.hpp"
#include "kernel_test_utils.hpp"
#include "support/compare.hpp"

using namespace ditrain;
using namespace ditrain::kernels;
using ditrain::test::relative_l2;

namespace {

/// A head inside a qkv projection [T, 3, H, D] with H = heads, and its gradients in arrays of the same shape.
struct Data {
  int64_t tokens, dim, heads, head_index;
  Guarded qkv, dqkv, out, dout, lse;
  AttentionHead head;

  Data(int64_t t, int64_t d, int64_t h, int64_t index, float magnitude)
      : tokens(t),
        dim(d),
        heads(h),
        head_index(index),
        qkv(random_values(t * 3 * h * d, 11, magnitude)),
        dqkv(t * 3 * h * d),
        out(t * h * d),
        dout(random_values(t * h * d, 12)),
        lse(t) {
    head = {t,
            d,
            slice(qkv, 0),
            slice(qkv, 1),
            slice(qkv, 2),
            3 * h * d,
            h * d,
            1 / std::sqrt(static_cast<float>(d)),
            DType::kF32};
  }
  float* slice(Guarded& x, int64_t which) const { return x.data() + (which * heads + head_index) * dim; }
  float* out_slice(Guarded& x) const { return x.data() + head_index * dim; }

  void run(const AttentionKernels& table) {
    const Scratch scratch(table.scratch_bytes(tokens, dim));
    table.forward(head, out_slice(out), lse.data(), scratch.get());
    CHECK(scratch.zone_untouched());
    const Scratch again(table.scratch_bytes(tokens, dim));
    table.backward(head, out_slice(out), out_slice(dout), lse.data(), slice(dqkv, 0), slice(dqkv, 1), slice(dqkv, 2),
                   again.get());
    CHECK(again.zone_untouched());
  }
  void run_reference() {
    ref::attention_forward(head, out_slice(out), lse.data());
    ref::attention_backward(head, out_slice(out), out_slice(dout), lse.data(), slice(dqkv, 0), slice(dqkv, 1),
                            slice(dqkv, 2));
  }
};

/// largest: bound of |q|, |k|, |v|. Errors of scores (sums of d terms) enter p as relative errors; gradients are sums
/// over tokens of p (dp - delta) times q or k, and sum_s p = 1.
void check(const AttentionKernels& table, int64_t t, int64_t d, int64_t heads, float largest) {
  INFO(table.name << " tokens " << t << " dim " << d << " heads " << heads << " magnitude " << largest);
  Data fast(t, d, heads, heads - 1, largest), slow(t, d, heads, heads - 1, largest);
  fast.run(table);
  slow.run_reference();
  const double score = std::sqrt(static_cast<double>(d)) * largest * largest;
  const double p_error =
      tolerance(d, largest * largest) / std::sqrt(static_cast<double>(d)) + std::ldexp(score + 4, -23);
  const double spread = 2 * static_cast<double>(d) * largest;  // of dp - delta
  CHECK(difference(fast.lse.values(), slow.lse.values(), p_error + tolerance(4, score)) == "");
  CHECK(difference(fast.out.values(), slow.out.values(), 4 * p_error * largest) == "");
  CHECK(difference(fast.dqkv.values(), slow.dqkv.values(),
                   4 * p_error * (1 + spread * largest / std::sqrt(static_cast<double>(d))) + tolerance(t)) == "");
  CHECK(fast.out.zones_untouched());
  CHECK(fast.dqkv.zones_untouched());
  CHECK(fast.lse.zones_untouched());
}

}  // namespace

TEST_CASE("attention equals the reference, forward and backward") {
  for (const AttentionKernels* table : usable_attention(DType::kF32)) {
    const int64_t r = table->tile_rows, c = table->tile_cols;
    for (int64_t t : {int64_t{1}, int64_t{2}, r, r + 1, c - 1, c, c + 1, 2 * c + r + 3}) {
      for (int64_t d : {int64_t{1}, int64_t{3}, r + 1, int64_t{64}, int64_t{72}}) check(*table, t, d, 1, 1);
    }
    check(*table, 300, 16, 3, 1);  // two tiles of keys
    check(*table, 571, 24, 2, 1);  // three
    check(*table, 20, 512, 1, 0.5f);
    check(*table, 256, 64, 2, 1);
  }
}

namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

/// Rows of a head that is too long for the whole reference, in f64: out and lse of token t, then dq of t, dk and dv of
/// t from the out and lse of all tokens that were found.
struct LongRow {
  LongRow(Data& x, int64_t t) : out(size_t(x.dim)), dq(out), dk(out), dv(out) {
    const int64_t T = x.tokens, D = x.dim, stride = x.head.qkv_stride, out_stride = x.head.out_stride;
    const float *q = x.slice(x.qkv, 0), *k = x.slice(x.qkv, 1), *v = x.slice(x.qkv, 2);
    const float *y = x.out_slice(x.out), *dy = x.out_slice(x.dout), *found_lse = x.lse.data();
    const auto p = [&](int64_t i, int64_t j) {
      return std::exp(x.head.scale * dot(q + i * stride, k + j * stride, D) - double(found_lse[i]));
    };
    const auto ds = [&](int64_t i, int64_t j) {
      const double delta = dot(dy + i * out_stride, y + i * out_stride, D);
      return p(i, j) * (dot(dy + i * out_stride, v + j * stride, D) - delta) * x.head.scale;
    };
    double total = 0;
    for (int64_t s = 0; s < T; ++s) total += p(t, s);
    lse = float(double(found_lse[t]) + std::log(total));
    std::vector<double> sum(size_t(4 * D));
    for (int64_t s = 0; s < T; ++s) {
      const double share = p(t, s) / total, slope = ds(t, s), seen = p(s, t), seen_slope = ds(s, t);
      largest_p = std::max({largest_p, share, seen}), seen_total += seen;
      for (int64_t d = 0; d < D; ++d) {
        sum[size_t(d)] += share * v[s * stride + d];
        sum[size_t(D + d)] += slope * k[s * stride + d];
        sum[size_t(2 * D + d)] += seen_slope * q[s * stride + d];
        sum[size_t(3 * D + d)] += seen * dy[s * out_stride + d];
      }
    }
    for (size_t d = 0; d < out.size(); ++d) {
      out[d] = float(sum[d]), dq[d] = float(sum[size_t(D) + d]);
      dk[d] = float(sum[size_t(2 * D) + d]), dv[d] = float(sum[size_t(3 * D) + d]);
    }
  }
  float lse = 0;
  std::vector<float> out, dq, dk, dv;
  double largest_p = 0, seen_total = 0;  // of the token's row and column; sum of the column
};

}  // namespace

TEST_CASE("attention over 4,096 tokens") {
  const int64_t tokens = only_kernels() == nullptr ? 4096 : 640;
  for (const AttentionKernels* table : usable_attention(DType::kF32)) {
    for (const int64_t dim : {64, 72}) {
      INFO(table->name << " dim " << dim);
      Data x(tokens, dim, 1, 0, 1);
      x.run(*table);
      CHECK((x.out.zones_untouched() && x.dqkv.zones_untouched() && x.lse.zones_untouched()));
      const auto row = [&](Guarded& array, int64_t which, int64_t t) {
        const float* p = x.slice(array, which) + t * x.head.qkv_stride;
        return std::vector<float>(p, p + dim);
      };
      for (const int64_t t : {int64_t{0}, int64_t{281}, tokens - 1}) {
        INFO("token " << t);
        const LongRow want(x, t);
        const float* out = x.out_slice(x.out) + t * x.head.out_stride;
        // As in check(), with |q|, |k|, |v| of at most 1.
        const double root = std::sqrt(double(dim)), p_error = tolerance(dim) / root + std::ldexp(root + 4, -23);
        const double limit = 4 * p_error * (1 + 2 * root) * std::max(1.0, want.seen_total) +
                             tolerance(tokens, 2 * root * want.largest_p);
        CHECK(std::abs(x.lse.data()[t] - want.lse) < p_error + tolerance(4, root));
        CHECK(difference({out, out + dim}, want.out, 4 * p_error) == "");
        CHECK(difference(row(x.dqkv, 0, t), want.dq, limit) == "");
        CHECK(difference(row(x.dqkv, 1, t), want.dk, limit) == "");
        CHECK(difference(row(x.dqkv, 2, t), want.dv, limit) == "");
      }
    }
  }
}

namespace {

std::vector<BFloat16> rounded(const std::vector<float>& x) {
  std::vector<BFloat16> y;
  for (float v : x) y.push_back(to_bf16(v));
  return y;
}
std::vector<float> widened(const std::vector<BFloat16>& x) {
  std::vector<float> y;
  for (BFloat16 v : x) y.push_back(to_f32(v));
  return y;
}

/// bf16 numbers between two zones; all start as the same NaN.
struct GuardedHalves {
  static constexpr int64_t kZone = 128;
  static constexpr BFloat16 kMark{0x7fcd};
  std::vector<BFloat16> all;

  explicit GuardedHalves(int64_t n) : all(size_t(n + 2 * kZone), kMark) {}
  explicit GuardedHalves(const std::vector<BFloat16>& x) : GuardedHalves(int64_t(x.size())) {
    std::copy(x.begin(), x.end(), data());
  }
  BFloat16* data() { return all.data() + kZone; }
  std::vector<BFloat16> values() const { return {all.begin() + kZone, all.end() - kZone}; }
  /// What was written of what `may` does not allow, number by number.
  template <class May>
  int64_t touched(const May& may) const {
    int64_t count = 0;
    for (int64_t i = 0; i < int64_t(all.size()); ++i) {
      const bool inside = i >= kZone && i < int64_t(all.size()) - kZone;
      count += !(inside && may(i - kZone)) && all[size_t(i)].bits != kMark.bits;
    }
    return count;
  }
};

/// Of the last head, against what `exact` has found for the values of qkv and dout.
void check_bf16(const AttentionKernels& table, Data& exact, std::vector<BFloat16>& qkv, std::vector<BFloat16>& dout) {
  INFO(table.name);
  const int64_t t = exact.tokens, d = exact.dim, heads = exact.heads;
  GuardedHalves out(t * heads * d), dqkv(int64_t(qkv.size()));
  Guarded lse(t);
  const auto at = [&](auto& x, int64_t which) { return x.data() + (which * heads + heads - 1) * d; };
  AttentionHead head = exact.head;
  head.q = at(qkv, 0), head.k = at(qkv, 1), head.v = at(qkv, 2), head.type = DType::kBF16;
  const Scratch scratch(table.scratch_bytes(t, d));
  table.forward(head, at(out, 0), lse.data(), scratch.get());
  // The reference's own output goes into both backward passes, so that only backward is compared.
  std::vector<BFloat16> ref_out = rounded(exact.out.values());
  table.backward(head, at(ref_out, 0), at(dout, 0), exact.lse.data(), at(dqkv, 0), at(dqkv, 1), at(dqkv, 2),
                 scratch.get());
  CHECK(scratch.zone_untouched());
  CHECK(lse.zones_untouched());
  const auto in_head = [=](int64_t i) { return i / d % heads == heads - 1; };
  CHECK(out.touched(in_head) == 0);
  CHECK(dqkv.touched(in_head) == 0);
  std::vector<float> got_out = widened(out.values()), got = widened(dqkv.values()), want_out = exact.out.values(),
                     want = exact.dqkv.values();
  for (size_t i = 0; i < want.size(); ++i)
    if (int64_t(i) / d % heads != heads - 1) got[i] = want[i] = 0;
  for (size_t i = 0; i < want_out.size(); ++i)
    if (int64_t(i) / d % heads != heads - 1) got_out[i] = want_out[i] = 0;
  CHECK(difference(lse.values(), exact.lse.values(), std::ldexp(1.0, -16) * double(d)) == "");
  CHECK(relative_l2(got_out, want_out) < 0.006);  // three roundings of 2^-9, as random as they are
  CHECK(relative_l2(got, want) < 0.006);
}

/// bf16 tensors against the reference on the same rounded values; p, ds and the result are rounded once each.
/// `magnitude`: bound of |q| and |k|; v and dout are at most 1.
void check_bf16(int64_t t, int64_t d, int64_t heads, float magnitude = 1) {
  INFO("bf16 tokens " << t << " dim " << d << " heads " << heads << " magnitude " << magnitude);
  Data exact(t, d, heads, heads - 1, 1);
  std::vector<float> values = exact.qkv.values();
  for (size_t i = 0; i < values.size(); ++i)
    if (int64_t(i) / (heads * d) % 3 < 2) values[i] *= magnitude;
  std::vector<BFloat16> qkv = rounded(values), dout = rounded(exact.dout.values());
  exact.qkv = Guarded(widened(qkv)), exact.dout = Guarded(widened(dout));
  exact.head.q = exact.slice(exact.qkv, 0), exact.head.k = exact.slice(exact.qkv, 1);
  exact.head.v = exact.slice(exact.qkv, 2);
  exact.run_reference();
  for (const AttentionKernels* table : usable_attention(DType::kBF16)) check_bf16(*table, exact, qkv, dout);
}

}  // namespace

TEST_CASE("attention of bf16 tensors stays within its roundings") {
  for (int64_t t : {1, 15, 16, 17, 64, 255, 256, 300})
    for (int64_t d : {8, 16, 32, 40, 64, 72, 80, 128}) check_bf16(t, d, t % 2 + 1);
  for (int64_t t : {2, 33, 571})
    for (int64_t d : {17, 72}) check_bf16(t, d, t % 2 + 1);
  check_bf16(20, 512, 2);
}

TEST_CASE("attention of bf16 tensors with scores far apart stays within its roundings") {
  check_bf16(40, 64, 1, 6);
  check_bf16(300, 8, 1, 6);
}

TEST_CASE("bits of bf16 attention do not depend on strides, neighbours, old scratch or the next head") {
  constexpr int64_t kTokens = 300, kDim = 40, kHeads = 3, kEach = kTokens * kDim;
  for (const AttentionKernels* table : usable_attention(DType::kBF16)) {
    INFO(table->name);
    Data x(kTokens, kDim, kHeads, 1, 1);
    GuardedHalves qkv(rounded(x.qkv.values())), dout(rounded(x.dout.values())), alone(3 * kEach), dout_alone(kEach);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t which = 0; which < 3; ++which)
        std::copy_n(qkv.data() + ((t * 3 + which) * kHeads + 1) * kDim, kDim, alone.data() + which * kEach + t * kDim);
      std::copy_n(dout.data() + (t * kHeads + 1) * kDim, kDim, dout_alone.data() + t * kDim);
    }
    struct Result {
      std::vector<BFloat16> out, dq, dk, dv;
      std::vector<float> lse;
      bool operator==(const Result& x) const {
        const auto same = [](const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
          return std::memcmp(a.data(), b.data(), a.size() * sizeof(BFloat16)) == 0;
        };
        return same(out, x.out) && same(dq, x.dq) && same(dk, x.dk) && same(dv, x.dv) && same_bits(lse, x.lse);
      }
    };
    const Scratch scratch(table->scratch_bytes(kTokens, kDim));
    const auto run = [&](const AttentionHead& head, const BFloat16* dy) {
      GuardedHalves out(kTokens * head.out_stride), dq(kTokens * head.qkv_stride), dk(dq), dv(dq);
      Guarded lse(kTokens);
      table->forward(head, out.data(), lse.data(), scratch.get());
      table->backward(head, out.data(), dy, lse.data(), dq.data(), dk.data(), dv.data(), scratch.get());
      const auto rows = [&](GuardedHalves& from, int64_t stride) {
        std::vector<BFloat16> to;
        for (int64_t t = 0; t < kTokens; ++t)
          to.insert(to.end(), from.data() + t * stride, from.data() + t * stride + kDim);
        return to;
      };
      return Result{rows(out, head.out_stride), rows(dq, head.qkv_stride), rows(dk, head.qkv_stride),
                    rows(dv, head.qkv_stride), lse.values()};
    };
    AttentionHead head = x.head;
    head.q = qkv.data() + kDim, head.k = qkv.data() + (kHeads + 1) * kDim,
    head.v = qkv.data() + (2 * kHeads + 1) * kDim;
    head.type = DType::kBF16;
    const Result first = run(head, dout.data() + kDim);
    CHECK(run(head, dout.data() + kDim) == first);
    head.next = kDim;
    CHECK(run(head, dout.data() + kDim) == first);
    head.q = alone.data(), head.k = alone.data() + kEach, head.v = alone.data() + 2 * kEach, head.next = 0;
    head.qkv_stride = head.out_stride = kDim;
    CHECK(run(head, dout_alone.data()) == first);
  }
}

TEST_CASE("a key whose scores are all -infinity has no part in bf16 attention") {
  constexpr int64_t kDim = 19, kStride = 3 * kDim, kKey = 20;
  for (const int64_t tokens : {37, 38}) {  // that fill no tile
    std::vector<BFloat16> qkv = rounded(random_values(tokens * kStride, 31)),
                          dout = rounded(random_values(tokens * kDim, 32));
    for (int64_t t = 0; t < tokens; ++t) qkv[size_t(t * kStride + 4)] = to_bf16(-0.5f);
    qkv[size_t(kKey * kStride + kDim + 4)] = to_bf16(std::numeric_limits<float>::infinity());
    const AttentionHead head{.tokens = tokens,
                             .head_dim = kDim,
                             .q = qkv.data(),
                             .k = qkv.data() + kDim,
                             .v = qkv.data() + 2 * kDim,
                             .qkv_stride = kStride,
                             .out_stride = kDim,
                             .scale = 0.25f,
                             .type = DType::kBF16};
    for (const AttentionKernels* table : usable_attention(DType::kBF16)) {
      INFO(table->name);
      std::vector<BFloat16> out(dout.size()), dqkv(qkv.size());
      std::vector<float> lse(tokens);
      const Scratch scratch(table->scratch_bytes(tokens, kDim));
      table->forward(head, out.data(), lse.data(), scratch.get());
      for (const float x : widened(out)) REQUIRE(std::isfinite(x));
      table->backward(head, out.data(), dout.data(), lse.data(), dqkv.data(), dqkv.data() + kDim,
                      dqkv.data() + 2 * kDim, scratch.get());
      const std::vector<float> gradients = widened(dqkv);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t d = kDim; d < kStride; ++d) {
          const float x = gradients[size_t(t * kStride + d)];
          REQUIRE((t == kKey ? x == 0 : std::isfinite(x)));
        }
    }
  }
}

TEST_CASE("keys whose scores are all -infinity have no part, even where they come first and fill tiles") {
  constexpr int64_t kTokens = 600, kDim = 16, kStride = 3 * kDim, kFirst = 300;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    std::vector<BFloat16> qkv = rounded(random_values(kTokens * kStride, 33));
    for (int64_t t = 0; t < kTokens; ++t) qkv[size_t(t * kStride + 4)] = to_bf16(0.5f);
    for (int64_t t = 0; t < kFirst; ++t)
      qkv[size_t(t * kStride + kDim + 4)] = to_bf16(-std::numeric_limits<float>::infinity());
    const std::vector<float> wide = widened(qkv);
    const auto head_from = [&](int64_t key) {  // its queries are those of the keys
      const auto at = [&](int64_t token, int64_t part) -> const void* {
        const int64_t n = token * kStride + part * kDim;
        return type == DType::kF32 ? static_cast<const void*>(wide.data() + n) : qkv.data() + n;
      };
      return AttentionHead{.tokens = kTokens - key,
                           .head_dim = kDim,
                           .q = at(key, 0),
                           .k = at(key, 1),
                           .v = at(key, 2),
                           .qkv_stride = kStride,
                           .out_stride = kDim,
                           .scale = 0.25f,
                           .type = type};
    };
    for (const AttentionKernels* table : usable_attention(type)) {
      INFO(table->name << " " << dtype_name(type));
      const auto lse_of = [&](int64_t key) {
        const AttentionHead head = head_from(key);
        std::vector<float> out(size_t(head.tokens * kDim)), lse(size_t(head.tokens));
        const Scratch scratch(table->forward_scratch_bytes(head.tokens, kDim));
        table->forward(head, out.data(), lse.data(), scratch.get());  // bf16 takes half of out
        return std::vector<float>(lse.end() - (kTokens - kFirst), lse.end());
      };
      const std::vector<float> all = lse_of(0), finite = lse_of(kFirst);
      for (size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == Approx(finite[i]).epsilon(1e-3));
    }
  }
}

TEST_CASE("attention of bf16 tensors over 4,096 tokens stays within its roundings") {
  // Terms (p or its gradient) and the result are rounded by at most 2^-9 of their own each, at random: relative to what
  // they add up to, the error does not grow with the number of tokens. The limit is three such roundings, as above.
  const int64_t tokens = only_kernels() == nullptr ? 4096 : 640, dim = 72;
  for (const AttentionKernels* table : usable_attention(DType::kBF16)) {
    INFO(table->name);
    Data x(tokens, dim, 1, 0, 1);
    std::vector<BFloat16> qkv = rounded(x.qkv.values()), dout = rounded(x.dout.values());
    std::vector<BFloat16> out(dout.size()), dqkv(qkv.size());
    AttentionHead head = x.head;
    head.q = qkv.data(), head.k = qkv.data() + dim, head.v = qkv.data() + 2 * dim, head.type = DType::kBF16;
    const Scratch scratch(table->scratch_bytes(tokens, dim));
    table->forward(head, out.data(), x.lse.data(), scratch.get());
    table->backward(head, out.data(), dout.data(), x.lse.data(), dqkv.data(), dqkv.data() + dim, dqkv.data() + 2 * dim,
                    scratch.get());
    CHECK(scratch.zone_untouched());
    x.qkv = Guarded(widened(qkv)), x.dout = Guarded(widened(dout)), x.out = Guarded(widened(out));
    const std::vector<float> gradients = widened(dqkv);
    for (const int64_t t : {int64_t{0}, int64_t{281}, tokens - 1}) {
      INFO("token " << t);
      const LongRow want(x, t);
      const std::vector<float> found = x.out.values();
      const auto row = [&](const std::vector<float>& of, int64_t first) {
        return std::vector<float>(of.begin() + first, of.begin() + first + dim);
      };
      CHECK(std::abs(x.lse.data()[t] - want.lse) < 0x1p-16);  // of a logarithm around 8: 16 units of the last place
      CHECK(relative_l2(row(found, t * dim), want.out) < 0.006);
      CHECK(relative_l2(row(gradients, t * 3 * dim), want.dq) < 0.006);
      CHECK(relative_l2(row(gradients, t * 3 * dim + dim), want.dk) < 0.006);
      CHECK(relative_l2(row(gradients, t * 3 * dim + 2 * dim), want.dv) < 0.006);
    }
  }
}

TEST_CASE("attention with scores far apart is right, with scores of 1e8 finite") {
  for (const AttentionKernels* table : usable_attention(DType::kF32)) {
    check(*table, 40, 64, 1, 6);
    Data x(300, 8, 1, 0, 1e4f);  // the softmax picks one key
    x.run(*table);
    for (float y : x.out.values()) REQUIRE(std::isfinite(y));
    for (float y : x.dqkv.values()) REQUIRE(std::isfinite(y));
  }
}

TEST_CASE("attention leaves the other heads alone and repeats bit for bit") {
  for (const AttentionKernels* table : usable_attention(DType::kF32)) {
    INFO(table->name);
    Data x(45, 12, 3, 1, 1), y(45, 12, 3, 1, 1);
    y.head.next = 12;  // fetched, and nothing else
    x.run(*table);
    y.run(*table);
    CHECK(same_bits(x.out.values(), y.out.values()));
    CHECK(same_bits(x.dqkv.values(), y.dqkv.values()));
    int64_t touched = 0;
    for (int64_t i = 0; i < x.dqkv.size(); ++i) touched += i / 12 % 3 != 1 && !x.dqkv.untouched(i);
    for (int64_t i = 0; i < x.out.size(); ++i) touched += i / 12 % 3 != 1 && !x.out.untouched(i);
    CHECK(touched == 0);
  }
}

TEST_CASE("a NaN key makes every output of attention NaN, a NaN query only its own") {
  for (const AttentionKernels* table : usable_attention(DType::kF32)) {
    INFO(table->name);
    Data keys(33, 5, 1, 0, 1), query(33, 5, 1, 0, 1);
    keys.slice(keys.qkv, 1)[7 * keys.head.qkv_stride + 2] = std::numeric_limits<float>::quiet_NaN();
    keys.run(*table);
    for (float y : keys.out.values()) REQUIRE(std::isnan(y));
    query.slice(query.qkv, 0)[32 * query.head.qkv_stride] = std::numeric_limits<float>::quiet_NaN();
    query.run(*table);
    const std::vector<float> out = query.out.values();
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(std::isnan(out[i]) == (i / 5 == 32));
  }
}

TEST_CASE("reference attention: gradients equal finite differences in f64") {
  const int64_t t = 5, d = 3, stride = 3 * d;
  std::vector<double> qkv(static_cast<size_t>(t * stride)), dqkv(qkv.size()), out(static_cast<size_t>(t * d)),
      dout(out.size()), lse(static_cast<size_t>(t));
  const std::vector<float> values = random_values(t * stride, 21, 2), weights = random_values(t * d, 22);
  std::copy(values.begin(), values.end(), qkv.begin());
  std::copy(weights.begin(), weights.end(), dout.begin());
  const ref::Head<double> head{t, d, qkv.data(), qkv.data() + d, qkv.data() + 2 * d, stride, d, 0.7};
  const auto loss = [&] {
    ref::attention_forward_body(head, out.data(), lse.data());
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  loss();
  ref::attention_backward_body(head, out.data(), dout.data(), lse.data(), dqkv.data(), dqkv.data() + d,
                               dqkv.data() + 2 * d);
  for (size_t i = 0; i < qkv.size(); ++i) {
    const double kept = qkv[i], h = 1e-5;
    qkv[i] = kept + h;
    const double above = loss();
    qkv[i] = kept - h;
    const double below = loss();
    qkv[i] = kept;
    CHECK(dqkv[i] == Approx((above - below) / (2 * h)).margin(1e-9).epsilon(1e-7));
  }
}
