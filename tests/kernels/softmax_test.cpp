#include "ditrain/kernels/softmax.hpp"

#include "../../src/kernels/ref_bodies.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kWidths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257, 1152};

std::vector<float> forward(const ElementwiseKernels& table, const std::vector<float>& x, int64_t cols) {
  Guarded y(static_cast<int64_t>(x.size()));
  table.softmax_forward(x.data(), y.data(), y.size() / cols, cols);
  CHECK(y.zones_untouched());
  return y.values();
}

/// Elements beyond what a forward pass may err by: x - max and its exponential, each rounded, a sum of cols positive
/// terms in chains of cols / 16 (four lanes, four chains) and the division.
int64_t count_wrong(const std::vector<float>& x, const std::vector<float>& y, int64_t cols) {
  std::vector<float> want(x.size());
  const int64_t rows = static_cast<int64_t>(x.size()) / cols;
  ref::softmax_forward(x.data(), want.data(), rows, cols);
  int64_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto row = x.begin() + static_cast<int64_t>(i) / cols * cols;
    const double below = double(*std::max_element(row, row + cols)) - x[i];
    const double steps = std::min(below, 104.0) + double(cols) / 16 + 10;
    wrong += !(std::abs(double(y[i]) - want[i]) <= std::ldexp(steps * want[i], -24) + 1e-44);
  }
  return wrong;
}

}  // namespace

TEST_CASE("softmax equals the reference for any width and range") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const int64_t cols : kWidths) {
      for (const float magnitude : {1.0f, 30.0f, 3000.0f}) {
        INFO(table->name << " cols " << cols << " magnitude " << magnitude);
        std::vector<float> x = random_values(3 * cols, 301, magnitude);
        for (int64_t j = 0; j < cols; ++j) x[static_cast<size_t>(j)] -= 1e4f;  // a row far below 0
        CHECK(count_wrong(x, forward(*table, x, cols), cols) == 0);
      }
    }
    table->softmax_forward(nullptr, nullptr, 0, 5);
    table->softmax_forward(nullptr, nullptr, 5, 0);
  }
}

TEST_CASE("softmax gradient equals the reference, whose slope is that of finite differences") {
  const int64_t n = 7;
  std::vector<double> x(n), y(n), dy(n), dx(n), shifted(n);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(3.0 * double(i)), dy[i] = std::cos(5.0 * double(i));
  ref::softmax_forward_body(x.data(), y.data(), 1, n);
  ref::softmax_backward_body(y.data(), dy.data(), dx.data(), 1, n);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto value = [&](double h) {
      std::vector<double> moved = x;
      moved[i] += h;
      ref::softmax_forward_body(moved.data(), shifted.data(), 1, n);
      double sum = 0;
      for (size_t j = 0; j < x.size(); ++j) sum += shifted[j] * dy[j];
      return sum;
    };
    CHECK(dx[i] == Approx((value(1e-5) - value(-1e-5)) / 2e-5).margin(1e-9));
  }
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const int64_t cols : kWidths) {
      INFO(table->name << " cols " << cols);
      const std::vector<float> p = forward(*table, random_values(2 * cols, 311, 3), cols);
      const std::vector<float> g = random_values(2 * cols, 312);
      std::vector<float> want(p.size());
      Guarded got(2 * cols);
      ref::softmax_backward(p.data(), g.data(), want.data(), 2, cols);
      table->softmax_backward(p.data(), g.data(), got.data(), 2, cols);
      CHECK(difference(got.values(), want, tolerance(4)) == "");  // the sum is a mean: its terms add up to 1
      CHECK(got.zones_untouched());
    }
  }
}

TEST_CASE("softmax of rows with infinities and NaN") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (const int64_t cols : {1, 3, 16, 21, 70}) {
      for (const int64_t at : {int64_t{0}, cols / 2, cols - 1}) {
        INFO(table->name << " cols " << cols << " at " << at);
        // Rows: finite, with NaN, with +infinity, with -infinity, all -infinity, finite.
        std::vector<float> x = random_values(6 * cols, 321);
        const auto row = [&](int64_t r) { return x.begin() + r * cols; };
        row(1)[at] = kNan, row(2)[at] = kInfinity, row(3)[at] = -kInfinity;
        std::fill(row(4), row(5), -kInfinity);
        const std::vector<float> y = forward(*table, x, cols);
        for (int64_t i = 0; i < 6 * cols; ++i) {
          const int64_t r = i / cols;
          const bool none = r == 1 || r == 2 || r == 4 || (r == 3 && cols == 1);
          CHECK(std::isnan(y[static_cast<size_t>(i)]) == none);
        }
        if (cols > 1) CHECK(y[static_cast<size_t>(3 * cols + at)] == 0);
        CHECK(count_wrong({row(0), row(1)}, {y.begin(), y.begin() + cols}, cols) == 0);
        CHECK(count_wrong({row(5), x.end()}, {y.end() - cols, y.end()}, cols) == 0);
        std::vector<float> p(static_cast<size_t>(cols), 0.5f), g(p), dx(p);
        g[static_cast<size_t>(at)] = kNan;
        table->softmax_backward(p.data(), g.data(), dx.data(), 1, cols);
        for (const float d : dx) CHECK(std::isnan(d));
      }
    }
  }
}

TEST_CASE("softmax in place and at unaligned addresses gives the same bits, row by row too") {
  const int64_t rows = 5, cols = 77;
  const std::vector<float> x = random_values(rows * cols, 331, 5), dy = random_values(rows * cols, 332);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const std::vector<float> y = forward(*table, x, cols);
    std::vector<float> dx(y.size());
    table->softmax_backward(y.data(), dy.data(), dx.data(), rows, cols);
    for (const int64_t shift : {1, 3}) {
      std::vector<float> place(x.size() + 3), gradient(place), over_y;
      std::copy(x.begin(), x.end(), place.begin() + shift);
      std::copy(dy.begin(), dy.end(), gradient.begin() + shift);
      for (int64_t r = 0; r < rows; ++r) {
        float* p = place.data() + shift + r * cols;
        table->softmax_forward(p, p, 1, cols);
      }
      CHECK(same_bits({place.begin() + shift, place.end() - 3 + shift}, y));
      float* g = gradient.data() + shift;
      over_y = y;
      table->softmax_backward(place.data() + shift, g, g, rows, cols);
      CHECK(same_bits({gradient.begin() + shift, gradient.end() - 3 + shift}, dx));
      table->softmax_backward(over_y.data(), dy.data(), over_y.data(), rows, cols);
      CHECK(same_bits(over_y, dx));
    }
  }
}
