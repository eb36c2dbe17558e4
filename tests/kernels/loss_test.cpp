#include "ditrain/kernels/loss.hpp"

#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kLengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 4096};

// f64 arithmetic in another order: some roundings, then the one to f32 of a gradient, which may go the other way.
constexpr double kSumError = 1e-13, kGradientError = 0x1.01p-24;

struct Arrays {
  explicit Arrays(int64_t n)
      : out(random_values(n, 401)), x_t(random_values(n, 402)), x0(random_values(n, 403)), v(random_values(n, 404)) {}
  NormalKl kl() const { return some_normal_kl(out.data(), x_t.data(), x0.data(), v.data()); }
  std::vector<float> out, x_t, x0, v;
};

struct Result {
  double sum;
  std::vector<float> dout, dv;
};
Result run(decltype(&kernels::normal_kl) f, const NormalKl& kl, int64_t n, double weight = 0.1) {
  Guarded dout(n), dv(n);
  const double sum = f(kl, weight, dout.data(), 2 * weight, dv.data(), n);
  CHECK((dout.zones_untouched() && dv.zones_untouched()));
  return {sum, dout.values(), dv.values()};
}

int64_t count_wrong(const std::vector<float>& got, const std::vector<float>& want, double floor) {
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i)
    wrong += !(std::abs(double(got[i]) - want[i]) <= 2 * kGradientError * std::abs(double(want[i])) + floor);
  return wrong;
}

}  // namespace

TEST_CASE("sum of squared errors and its gradient equal the reference") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const int64_t n : kLengths) {
      INFO(table->name << " n " << n);
      const std::vector<float> out = random_values(n, 411, 3), target = random_values(n + 1, 412, 3);
      Guarded got(n);
      std::vector<float> want(out.size());
      const double sum = table->square_error(out.data(), target.data() + 1, 0.25, got.data(), n);
      CHECK(sum == Approx(ref::square_error(out.data(), target.data() + 1, 0.25, want.data(), n)).epsilon(kSumError));
      CHECK(same_bits(got.values(), want));  // a difference, exact in f64, and one product
      CHECK(got.zones_untouched());
      CHECK(table->square_error(out.data(), target.data() + 1, 0.25, nullptr, n) == sum);
    }
  }
}

TEST_CASE("divergence of normals and its gradients equal the reference") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const int64_t n : kLengths) {
      for (const bool learned : {true, false}) {
        INFO(table->name << " n " << n << " learned " << learned);
        const Arrays a(n);
        NormalKl kl = a.kl();
        if (!learned) kl.v = nullptr;
        const Result got = run(table->normal_kl, kl, n), want = run(ref::normal_kl, kl, n);
        CHECK(got.sum == Approx(want.sum).epsilon(kSumError));
        // Terms of the size of 1 may cancel in a gradient.
        CHECK(count_wrong(got.dout, want.dout, 1e-13) == 0);
        CHECK(count_wrong(got.dv, want.dv, 1e-13) == 0);
        CHECK(table->normal_kl(kl, 1, nullptr, 1, nullptr, n) == got.sum);
      }
    }
  }
}

TEST_CASE("divergence of normals: the gradients are slopes of the sum") {
  const int64_t n = 9;
  Arrays a(n);
  const Result at = run(ref::normal_kl, a.kl(), n, 1);
  for (size_t i = 0; i < size_t(n); ++i) {
    const auto slope = [&](float& x) {
      const float old = x, step = 0x1p-10f;
      double side[2];
      for (const int s : {0, 1}) {
        x = s == 0 ? old - step : old + step;
        side[s] = ref::normal_kl(a.kl(), 0, nullptr, 0, nullptr, n);
      }
      const double rise = (side[1] - side[0]) / (double(old + step) - double(old - step));
      x = old;
      return rise;
    };
    CHECK(slope(a.out[i]) == Approx(a.kl().by_out * at.dout[i]).epsilon(1e-4).margin(1e-4));
    CHECK(slope(a.v[i]) == Approx(a.kl().by_v * at.dv[i] / 2).epsilon(1e-4).margin(1e-4));
  }
}

TEST_CASE("the exponential in f64: error, ends and NaN") {
  // Where d^2 is nothing, the sum of one element is (g - 1 + e^-g) / 2.
  const float out = 1e-20f, zero = 0;
  NormalKl kl{.out = &out,
              .x_t = &zero,
              .x0 = &zero,
              .v = nullptr,
              .by_out = 1,
              .by_x_t = 1,
              .by_x0 = 1,
              .by_v = 0,
              .at_v_0 = 0,
              .inverse_true_variance = 1};
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const auto e = [&](double x) {
      kl.at_v_0 = -x;
      return 2 * table->normal_kl(kl, 0, nullptr, 0, nullptr, 1) + 1 + x;
    };
    double worst = 0;
    for (double x = 5; x < 709.7; x += 0.137) worst = std::max(worst, std::abs(e(x) / std::exp(x) - 1));
    CHECK(worst < 4 * 0x1p-53);
    for (double x = -40; x < 5; x += 0.0137)  // beside g and 1, which round the sum
      CHECK(std::abs(e(x) - std::exp(x)) <= 8 * 0x1p-53 * (std::exp(x) + std::abs(x) + 1));
    for (const double x : {-700.0, -745.0, -745.2, -746.5, -800.0, -1e300}) {
      kl.at_v_0 = -x;
      CHECK(table->normal_kl(kl, 0, nullptr, 0, nullptr, 1) ==
            Approx(ref::normal_kl(kl, 0, nullptr, 0, nullptr, 1)).epsilon(1e-12));
    }
    for (const double x : {709.79, 711.0, 1e300}) CHECK(e(x) == std::numeric_limits<double>::infinity());
    CHECK(std::isnan(e(kNan)));
  }
}
