#include "../../src/kernels/ref_bodies.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain::kernels;

namespace {

constexpr float kEps = 1e-6f;

void check(const ElementwiseKernels& table, int64_t rows, int64_t cols, bool modulated) {
  INFO(table.name << " rows " << rows << " cols " << cols << " modulated " << modulated);
  const int64_t n = rows * cols;
  std::vector<float> x = random_values(n, 91, 2);
  for (float& v : x) v += 3;  // a mean, so that it matters where the variance is taken
  const std::vector<float> shift = random_values(cols, 92), scale = random_values(cols, 93), dy = random_values(n, 94);
  const float *scale_or_null = modulated ? scale.data() : nullptr, *shift_or_null = modulated ? shift.data() : nullptr;
  Guarded y(n), mean(rows), rstd(rows), dx(random_values(n, 95)), dshift(cols), dscale(cols);
  std::vector<float> want_y(x), want_mean(static_cast<size_t>(rows)), want_rstd(want_mean),
      want_dx = dx.values(), want_dshift(shift), want_dscale(shift);
  table.f32.layer_norm_modulate_forward(x.data(), shift_or_null, scale_or_null, y.data(), mean.data(), rstd.data(),
                                        rows, cols, kEps);
  ref::layer_norm_modulate_forward(x.data(), shift_or_null, scale_or_null, want_y.data(), want_mean.data(),
                                   want_rstd.data(), rows, cols, kEps);
  Guarded applied(n), mean_alone(rows), rstd_alone(rows);
  table.layer_norm_statistics(x.data(), mean_alone.data(), rstd_alone.data(), rows, cols, kEps);
  table.f32.layer_norm_apply(x.data(), mean.data(), rstd.data(), shift_or_null, scale_or_null, applied.data(), rows,
                             cols);
  CHECK((same_bits(mean_alone.values(), mean.values()) && same_bits(rstd_alone.values(), rstd.values())));
  CHECK(same_bits(applied.values(), y.values()));
  const double largest = *std::max_element(want_rstd.begin(), want_rstd.end());
  const double mean_error = tolerance(cols / 4, 5);
  CHECK(difference(mean.values(), want_mean, mean_error) == "");
  CHECK(difference(rstd.values(), want_rstd,
                   tolerance(cols, largest) + mean_error * mean_error * largest * largest * largest) == "");
  CHECK(difference(y.values(), want_y, 2 * (mean_error * largest + tolerance(cols, 3))) == "");

  const std::vector<float> factor = modulated ? scale : std::vector<float>(size_t(cols), 0.0f);
  // Backward from the same statistics, so that only its own errors count.
  table.f32.layer_norm_modulate_backward(x.data(), want_mean.data(), want_rstd.data(), factor.data(), dy.data(),
                                         dx.data(), dshift.data(), dscale.data(), rows, cols);
  ref::layer_norm_modulate_backward(x.data(), want_mean.data(), want_rstd.data(), factor.data(), dy.data(),
                                    want_dx.data(), want_dshift.data(), want_dscale.data(), rows, cols);
  CHECK(difference(dx.values(), want_dx, tolerance(cols, 2 + 8 * std::min(largest, 10.0))) == "");
  CHECK(difference(dshift.values(), want_dshift, tolerance(rows)) == "");
  CHECK(difference(dscale.values(), want_dscale, tolerance(rows, 3)) == "");
  CHECK((y.zones_untouched() && mean.zones_untouched() && rstd.zones_untouched() && dx.zones_untouched() &&
         dshift.zones_untouched() && dscale.zones_untouched()));
}

}  // namespace

TEST_CASE("layer norm equals the reference, forward and backward") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (int64_t cols : {2, 3, 4, 7, 15, 16, 17, 48, 63, 65, 128, 384, 1152}) {
      for (int64_t rows : {1, 5, 40}) {
        check(*table, rows, cols, true);
        check(*table, rows, cols, false);
      }
    }
    check(*table, 1030, 20, true);
  }
}

TEST_CASE("layer norm of a constant row is the shift, and a large mean costs no digits of the variance") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    const int64_t cols = 37;
    const std::vector<float> constant(cols, 2.5f), shift = random_values(cols, 96), scale = random_values(cols, 97);
    std::vector<float> y(cols);
    float mean = 0, rstd = 0;
    table->f32.layer_norm_modulate_forward(constant.data(), shift.data(), scale.data(), y.data(), &mean, &rstd, 1, cols,
                                           kEps);
    CHECK(mean == 2.5f);
    CHECK(rstd == Approx(1000).epsilon(1e-6));
    CHECK(same_bits(y, shift));
    std::vector<float> far(64);
    for (size_t i = 0; i < far.size(); ++i) far[i] = 4096.0f + static_cast<float>(i % 2);  // variance 1/4 at 4096.5
    std::vector<float> z(64);
    table->f32.layer_norm_modulate_forward(far.data(), nullptr, nullptr, z.data(), &mean, &rstd, 1, 64, kEps);
    CHECK(rstd == Approx(2).epsilon(1e-5));
  }
}

namespace {

std::vector<double> doubles(int64_t n, uint64_t salt) {
  const std::vector<float> x = random_values(n, salt);
  return {x.begin(), x.end()};
}

/// Numbers of `gradient` against central differences of `loss`, which reads `at`.
template <class Loss>
void check_differences(std::vector<double>& at, const std::vector<double>& gradient, const Loss& loss) {
  for (size_t i = 0; i < at.size(); ++i) {
    const double kept = at[i], step = 1e-5;
    at[i] = kept + step;
    const double above = loss();
    at[i] = kept - step;
    const double below = loss();
    at[i] = kept;
    CHECK(gradient[i] == Approx((above - below) / (2 * step)).margin(1e-8));
  }
}

}  // namespace

TEST_CASE("reference layer norm and gate: gradients equal finite differences in f64") {
  const int64_t rows = 3, cols = 6;
  std::vector<double> x = doubles(18, 111), shift = doubles(6, 112), scale = doubles(6, 113), gate = doubles(6, 114);
  const std::vector<double> weight = doubles(18, 115);
  std::vector<double> h = doubles(18, 116);
  std::vector<double> norm(18), y(18), mean(3), rstd(3);
  const auto loss = [&] {  // sum of weight (gate residual of the normalised x)
    ref::layer_norm_modulate_forward_body(x.data(), shift.data(), scale.data(), norm.data(), mean.data(), rstd.data(),
                                          rows, cols, 1e-3);
    ref::gate_residual_forward_body(norm.data(), gate.data(), h.data(), y.data(), rows, cols);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += weight[i] * y[i];
    return sum;
  };
  loss();
  std::vector<double> dx(18), dshift(6), dscale(6), dh(18), dgate(6);
  ref::layer_norm_modulate_backward_body(x.data(), mean.data(), rstd.data(), scale.data(), weight.data(), dx.data(),
                                         dshift.data(), dscale.data(), rows, cols);
  ref::gate_residual_backward_body(weight.data(), gate.data(), h.data(), dh.data(), dgate.data(), rows, cols);
  check_differences(x, dx, loss);
  check_differences(shift, dshift, loss);
  check_differences(scale, dscale, loss);
  check_differences(gate, dgate, loss);
  check_differences(h, dh, loss);
}

TEST_CASE("reference RMSNorm with modulation: gradients equal finite differences in f64") {
  constexpr int64_t kRows = 3, kCols = 6;
  constexpr double kFdEps = 1e-3;
  std::vector<double> x = doubles(18, 121), shift = doubles(6, 122), scale = doubles(6, 123), rstd(3);
  const std::vector<double> weight = doubles(18, 124);
  const auto loss = [&] {
    double sum = 0, mean = 0;
    for (size_t r = 0; r < kRows; ++r) {
      ref::row_statistics(false, x.data() + r * kCols, kCols, kFdEps, mean, rstd[r]);
      for (size_t j = 0; j < kCols; ++j)
        sum += weight[r * kCols + j] * (x[r * kCols + j] * rstd[r] * (1 + scale[j]) + shift[j]);
    }
    return sum;
  };
  loss();
  std::vector<double> dx(18), dshift(6), dscale(6);
  ref::layer_norm_modulate_backward_body<double>(x.data(), nullptr, rstd.data(), scale.data(), weight.data(), dx.data(),
                                                 dshift.data(), dscale.data(), kRows, kCols);
  check_differences(x, dx, loss);
  check_differences(shift, dshift, loss);
  check_differences(scale, dscale, loss);
}
