// Convolutions, group normalisation with SiLU, and pooling. Tolerances: see ops.cpp. The fixture also has gradients,
// which ditrain does not have: what runs them is inference alone.
#include "ditrain/ops/conv.hpp"

#include "ditrain/ops/group_norm.hpp"
#include "ditrain/ops/pooling.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kLargest = 4096;                   // of any dimension
constexpr int64_t kMostElements = int64_t{1} << 24;  // of an array, inputs, weights or results
constexpr double kBf16Bound = 0.01;                  // two operands and a result that are rounded to 8 bits

void expect_small(const std::string& name, const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t n : shape)
    if ((elements *= n) > kMostElements)  // kMostElements * kLargest is far from overflowing
      refuse("fixture", "the array of " + name + " is too large", to_string(shape),
             "at most " + std::to_string(kMostElements) + " elements");
}

Shape read_shape(Verification& v, const std::string& name, int64_t dims) {
  const Shape shape = v.i64(name, {dims}, 1, kLargest);
  expect_small(name, shape);
  return shape;
}

/// The input by formula under the key conv.OP.x.
Tensor input(Verification& v, const std::string& op, const Shape& shape) {
  const std::vector<float> x = formula_input("conv." + op + ".x" + v.suffix(), 1.7, num_elements(shape));
  v.check(op + ".x.check", {8}, to_f64({x.begin(), x.begin() + 8}), 0, Per::unit());
  return to_channels_last(from_values(shape, x));
}

Tensor as_bf16(const Tensor& x) {
  const Tensor y(x.shape(), DType::kBF16);
  copy(x, y);
  return y;
}

/// Files that were made smaller have the results of float64 runs alone.
void check_result(Verification& v, const std::string& name, const Tensor& got, double tolerance) {
  if (v.has(name)) return v.check_both(name, got, tolerance);
  v.check(name + ".f64", got.shape(), to_f64(got), tolerance);
}

void verify_convolution(Verification& v, const std::string& op, ops::Conv2d conv, bool has_bias, double tolerance) {
  const Shape xs = read_shape(v, op + ".xshape", 4), ws = read_shape(v, op + ".wshape", 4);
  const Tensor x = input(v, op, xs), w({ws[2], ws[3], ws[1], ws[0]});
  conv.kernel_h = ws[2], conv.kernel_w = ws[3];
  ops::to_conv_layout(v.formula("conv." + op + ".weight", ws), ws[0], w);
  const Tensor bias = has_bias ? from_values({ws[0]}, v.formula("conv." + op + ".bias", {ws[0]})) : Tensor();
  const Shape shape = ops::conv2d_shape(x.shape(), w.shape(), conv);
  expect_small(op + ".y", shape);
  const Tensor y(shape);
  ops::conv2d(v.ctx(), x, w, bias, conv, y);
  check_result(v, op + ".y", to_channels_first(y), tolerance);
  const Tensor half(shape, DType::kBF16);
  ops::conv2d(v.ctx(), as_bf16(x), as_bf16(w), bias, conv, half);
  copy(half, y);
  v.check_bf16(v.has(op + ".y") ? op + ".y" : op + ".y.f64", to_channels_first(y).shape(), to_f64(to_channels_first(y)),
               kBf16Bound);
}

void verify_group_norm(Verification& v) {
  const Shape xs = read_shape(v, "gnsilu.xshape", 4);
  const int64_t C = read_shape(v, "gnsilu.wshape", 1)[0], groups = v.setting("cfg.groups", 1, kLargest);
  const Tensor x = input(v, "gnsilu", xs), moments(ops::moments_shape(x.shape())), y(x.shape());
  const Tensor weight = from_values({C}, v.formula("conv.gnsilu.weight", {C}));
  const Tensor bias = from_values({C}, v.formula("conv.gnsilu.bias", {C}));
  ops::image_moments(v.ctx(), x, moments);
  ops::group_norm(v.ctx(), x, moments, weight, bias, {.groups = groups, .silu = true}, y);
  check_result(v, "gnsilu.y", to_channels_first(y), 2e-6);
}

void verify_pooling(Verification& v, const std::string& op, const ops::Pool& pool, double tolerance) {
  const Shape xs = read_shape(v, op + ".xshape", 4);
  const Tensor x = input(v, op, xs);
  const auto side = [&](int64_t n) { return (n + 2 * pool.pad - pool.size) / pool.stride + 1; };
  const Tensor y({xs[0], side(xs[2]), side(xs[3]), xs[1]});
  ops::pool2d(v.ctx(), {x, 0, xs[1]}, pool, {y, 0, xs[1]});
  check_result(v, op + ".y", to_channels_first(y), tolerance);
}

}  // namespace

void verify_conv(Verification& v) {
  const struct {
    const char* op;
    ops::Conv2d conv;
    bool has_bias;
    double tolerance;
  } rows[] = {{"s2", {.stride_h = 2, .stride_w = 2}, false, 2e-6},
              {"p1", ops::Conv2d::same(3), true, 4e-6},
              {"k5", ops::Conv2d::same(5), false, 5e-6},
              {"k1x7", {.pad_left = 3, .pad_right = 3}, false, 4e-6},
              {"k7x1", {.pad_top = 3, .pad_bottom = 3}, false, 3e-6},
              {"k1", {}, true, 3e-6},
              {"down", {.stride_h = 2, .stride_w = 2, .pad_bottom = 1, .pad_right = 1}, true, 3e-6},
              {"up", ops::Conv2d::same(3, true), true, 3e-6}};
  for (const auto& row : rows) verify_convolution(v, row.op, row.conv, row.has_bias, row.tolerance);
  verify_group_norm(v);
  v.leave_out({"p1.d", "down.d", "up.d", "gnsilu.d"}, "no gradients of convolutions here");
  verify_pooling(v, "avg", {.kind = ops::Pool::Kind::kAverage, .pad = 1}, 1e-6);
  verify_pooling(v, "max", {.stride = 2}, 0);
  v.leave_out({"max.idx"}, "where maxima are is for gradients alone");
}

}  // namespace ditrain::verify
