#include "ditrain/kernels/elementwise.hpp"

#include "../../src/kernels/ref_bodies.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Unary = void (*)(const float*, float*, int64_t);
using UnaryGradient = void (*)(const float*, const float*, float*, int64_t);

struct Activation {
  const char* name;
  Unary (*forward)(const ElementwiseKernels&);
  UnaryGradient (*backward)(const ElementwiseKernels&);
  Unary ref_forward;
  UnaryGradient ref_backward;
  double (*value)(double);
  double (*slope)(double);
  double (*exponent)(double);  // z of the kernels: y = x / (1 + e^-z)
};
const Activation kActivations[] = {
    {"gelu", [](const ElementwiseKernels& t) { return t.f32.gelu_forward; },
     [](const ElementwiseKernels& t) { return t.f32.gelu_backward; }, ref::gelu_forward, ref::gelu_backward, ref::gelu,
     ref::gelu_slope, [](double x) { return 2 * ref::gelu_argument(x); }},
    {"gelu_erf", [](const ElementwiseKernels& t) { return t.f32.gelu_erf_forward; },
     [](const ElementwiseKernels& t) { return t.f32.gelu_erf_backward; }, ref::gelu_erf_forward, ref::gelu_erf_backward,
     ref::gelu_erf, ref::gelu_erf_slope, [](double x) { return x > 0 ? x * x + 4 : -(x * x + 4); }},
    {"silu", [](const ElementwiseKernels& t) { return t.silu_forward; },
     [](const ElementwiseKernels& t) { return t.silu_backward; }, ref::silu_forward, ref::silu_backward, ref::silu,
     ref::silu_slope, [](double x) { return x; }}};

const std::vector<int64_t> kLengths = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257};

std::vector<float> run(Unary f, const std::vector<float>& x) {
  Guarded y(static_cast<int64_t>(x.size()));
  f(x.data(), y.data(), y.size());
  CHECK(y.zones_untouched());
  return y.values();
}

std::vector<float> run(UnaryGradient f, const std::vector<float>& x, const std::vector<float>& dy) {
  Guarded dx(static_cast<int64_t>(x.size()));
  f(x.data(), dy.data(), dx.data(), dx.size());
  CHECK(dx.zones_untouched());
  return dx.values();
}

/// From -100 to 100, denser near 0.
std::vector<float> wide_range() {
  std::vector<float> x;
  for (double magnitude = 1e-6; magnitude < 100; magnitude *= 1.0007) {
    x.push_back(static_cast<float>(magnitude));
    x.push_back(static_cast<float>(-magnitude));
  }
  x.push_back(0);
  return x;
}

}  // namespace

TEST_CASE("exp is within 1.1 ulp, saturates and keeps NaN") {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x42b17217u; bits += 9973) {  // 0 .. 88.72
    float value;
    std::memcpy(&value, &bits, 4);
    x.push_back(value);
    if (value < 87.3f) x.push_back(-value);
  }
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const std::vector<float> y = run(table->exp, x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      int exponent;
      std::frexp(want, &exponent);
      worst = std::max(worst, std::ldexp(std::abs(y[i] - want), 24 - exponent));
    }
    CHECK(worst < 1.1);
    const std::vector<float> edge =
        run(table->exp, {88.73f, 1e30f, kInfinity, -104.0f, -1e30f, -kInfinity, kNan, -95.0f});
    CHECK(edge[0] == kInfinity);
    CHECK(edge[1] == kInfinity);
    CHECK(edge[2] == kInfinity);
    CHECK(edge[3] == 0);
    CHECK(edge[4] == 0);
    CHECK(edge[5] == 0);
    CHECK(std::isnan(edge[6]));
    CHECK(edge[7] == Approx(std::exp(-95.0)).epsilon(1e-4));  // a subnormal
  }
}

TEST_CASE("powers of two are within their relative error, saturate and keep NaN") {
  std::vector<float> x;
  for (float t = -125; t < 128; t += 0.00917f) x.push_back(t);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const std::vector<float> y = run(table->exp2, x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::abs(y[i] / std::exp2(static_cast<double>(x[i])) - 1));
    CHECK(worst < std::exp2(-22.4));
    const std::vector<float> edge =
        run(table->exp2, {128.5f, 1e30f, kInfinity, -126.0f, -151.0f, -1e30f, -kInfinity, kNan, 0.0f});
    for (const size_t i : {0, 1, 2}) CHECK(edge[i] == kInfinity);
    CHECK((edge[3] == 0 || edge[3] == Approx(std::exp2(-126.0)).epsilon(1e-6)));  // below -125 it may be 0
    for (const size_t i : {4, 5, 6}) CHECK(edge[i] == 0);
    CHECK(std::isnan(edge[7]));
    CHECK(edge[8] == Approx(1).epsilon(std::exp2(-22.4)));
  }
}

TEST_CASE("gelu and silu are within the stated error of f64") {
  const std::vector<float> x = wide_range(), dy = random_values(static_cast<int64_t>(x.size()), 31);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const Activation& f : kActivations) {
      INFO(table->name << " " << f.name);
      const std::vector<float> y = run(f.forward(*table), x), dx = run(f.backward(*table), x, dy);
      double worst = 0, worst_slope = 0;  // shares of the error that the header states
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = f.value(x[i]), z = f.exponent(x[i]);
        const double limit = (4 + 3 * std::abs(z)) * 0x1p-24 * std::abs(want) + (z < -87 ? 6e-37 : 0);
        if (want != 0) worst = std::max(worst, std::abs(y[i] - want) / limit);
        worst_slope = std::max(worst_slope, std::abs(dx[i] - dy[i] * f.slope(x[i])) / (0x1p-21 * std::abs(dy[i])));
      }
      CHECK(worst < 1);
      CHECK(worst_slope < 1);
      for (int64_t n : kLengths) {
        const std::vector<float> a = random_values(n, 32, 4), b = random_values(n, 33);
        std::vector<float> want(a.size());
        f.ref_forward(a.data(), want.data(), n);
        CHECK(difference(run(f.forward(*table), a), want, tolerance(8, 4)) == "");
        f.ref_backward(a.data(), b.data(), want.data(), n);
        CHECK(difference(run(f.backward(*table), a, b), want, tolerance(8, 4)) == "");
      }
    }
  }
}

TEST_CASE("gelu and silu saturate and keep NaN") {
  const std::vector<float> high = {60, 200, 1e5f, 1e13f, 3e38f, kInfinity}, ones(6, 1.0f);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const Activation& f : kActivations) {
      INFO(table->name << " " << f.name);
      std::vector<float> low = high;
      for (float& x : low) x = -2 * x;
      CHECK(same_bits(run(f.forward(*table), high), high));
      const double zero = std::string_view(f.name) == "gelu_erf" ? 1e-35 : 0;
      for (const float y : run(f.forward(*table), low)) CHECK(std::abs(y) <= zero);
      CHECK(difference(run(f.backward(*table), high, ones), ones, 0) == "");
      for (const float dx : run(f.backward(*table), low, ones)) CHECK(std::abs(dx) <= zero);
      const std::vector<float> mixed = {1, kNan, -1, kInfinity, -kInfinity};
      const std::vector<float> y = run(f.forward(*table), mixed), dx = run(f.backward(*table), mixed, ones);
      for (size_t i = 0; i < mixed.size(); ++i) {
        CHECK(std::isnan(y[i]) == (i == 1));
        CHECK(std::isnan(dx[i]) == (i == 1));
      }
    }
  }
}

TEST_CASE("reference gelu is the tanh form") {
  for (double x = -4; x <= 4; x += 0.13) {
    const double tanh_form = 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    CHECK(ref::gelu(x) == Approx(tanh_form).margin(1e-14));
  }
}

TEST_CASE("reference activations: slopes equal finite differences in f64") {
  for (const Activation& f : kActivations) {
    for (double x = -6; x <= 6; x += 0.37) {
      const double h = 1e-5;
      INFO(f.name << " at " << x);
      CHECK(f.slope(x) == Approx((f.value(x + h) - f.value(x - h)) / (2 * h)).margin(1e-9));
    }
  }
}

TEST_CASE("element-wise kernels: any cut of the range gives the same bits, in place too") {
  const int64_t n = 203;
  const std::vector<float> x = random_values(n, 41, 3), dy = random_values(n, 42);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const Activation& f : kActivations) {
      INFO(table->name << " " << f.name);
      std::vector<float> cut = x, dcut = dy;  // in place: y over x, dx over dy
      for (int64_t i = 0, step = 1; i < n; i += step, step += 5) {
        const int64_t length = std::min(step, n - i);
        f.backward (*table)(x.data() + i, dcut.data() + i, dcut.data() + i, length);
        f.forward (*table)(cut.data() + i, cut.data() + i, length);
      }
      CHECK(same_bits(cut, run(f.forward(*table), x)));
      CHECK(same_bits(dcut, run(f.backward(*table), x, dy)));
    }
  }
}

TEST_CASE("sum_squares accumulates in f64 and gives the same bits in every instruction set") {
  std::vector<float> x = random_values(100003, 61);
  x[7] = 1e18f;  // its square is beyond f32 sums of small terms, not beyond f64
  double want = 0;
  for (float v : x) want += double(v) * double(v);
  double first = -1;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const double got = table->sum_squares(x.data(), static_cast<int64_t>(x.size()));
    CHECK(got == Approx(want).epsilon(1e-12));
    if (first < 0) first = got;
    CHECK(got == first);
    CHECK(table->sum_squares(x.data(), 0) == 0);
    CHECK(table->sum_squares(x.data(), 3) == Approx(double(x[0]) * x[0] + double(x[1]) * x[1] + double(x[2]) * x[2]));
  }
}

TEST_CASE("find_non_finite returns the first index") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    for (int64_t n : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
      std::vector<float> x = random_values(n, 62, 3e38f);
      CHECK(table->f32.find_non_finite(x.data(), n) == -1);
      x.back() = -kInfinity;
      CHECK(table->f32.find_non_finite(x.data(), n) == n - 1);
      x[static_cast<size_t>(n / 2)] = -kNan;
      CHECK(table->f32.find_non_finite(x.data(), n) == n / 2);
    }
    CHECK(table->f32.find_non_finite(nullptr, 0) == -1);
  }
}

TEST_CASE("gated residual equals the reference") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (int64_t cols : {1, 5, 16, 33, 70, 129}) {
      for (int64_t rows : {1, 3, 600}) {
        INFO(table->name << " rows " << rows << " cols " << cols);
        const int64_t n = rows * cols;
        const std::vector<float> x = random_values(n, 71), h = random_values(n, 72), gate = random_values(cols, 73);
        Guarded y(n), dh(n), dgate(cols);
        std::vector<float> want(x), want_gate(gate);
        table->f32.gate_residual_forward(x.data(), gate.data(), h.data(), y.data(), rows, cols);
        ref::gate_residual_forward(x.data(), gate.data(), h.data(), want.data(), rows, cols);
        CHECK(difference(y.values(), want, tolerance(2)) == "");
        table->f32.gate_residual_backward(x.data(), gate.data(), h.data(), dh.data(), dgate.data(), rows, cols);
        ref::gate_residual_backward(x.data(), gate.data(), h.data(), want.data(), want_gate.data(), rows, cols);
        CHECK(same_bits(dh.values(), want));
        CHECK(difference(dgate.values(), want_gate, tolerance(rows)) == "");
        CHECK((y.zones_untouched() && dh.zones_untouched() && dgate.zones_untouched()));
      }
    }
  }
}

TEST_CASE("sums over rows: slices of columns give the same bits as the whole, rows beyond one chunk") {
  const int64_t rows = 1100, cols = 150;
  const std::vector<float> dy = random_values(rows * cols, 81);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    std::vector<float> whole = random_values(cols, 83), sliced = whole, want = whole;
    table->f32.column_sums(dy.data(), cols, whole.data(), rows, cols);
    ref::column_sums(dy.data(), cols, want.data(), rows, cols);
    for (int64_t j = 0, width = 1; j < cols; j += width, width = width * 2 + 1) {
      const int64_t n = std::min(width, cols - j);
      table->f32.column_sums(dy.data() + j, cols, sliced.data() + j, rows, n);
    }
    CHECK(difference(whole, want, tolerance(rows)) == "");
    CHECK(same_bits(whole, sliced));
  }
}
