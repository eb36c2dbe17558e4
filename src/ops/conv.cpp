#include "ditrain/ops/conv.hpp"

#include <algorithm>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/gemm.hpp"
#include "ditrain/ops/group_norm.hpp"

namespace ditrain::ops {
namespace {

constexpr const char* kOp = "conv2d";

void expect(bool holds, const char* what, const Shape& got, const std::string& expected) {
  if (!holds) throw ShapeError({.where = kOp, .what = what, .got = to_string(got), .expected = expected});
}

void expect_number_type(const char* name, DType type) {
  if (type == DType::kF32 || type == DType::kBF16) return;
  throw ShapeError(
      {.where = kOp, .what = std::string("type of ") + name, .got = dtype_name(type), .expected = "f32 or bf16"});
}

// Output pixels along one side; 0 or less: none.
int64_t outputs(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride, bool doubled) {
  const int64_t room = (doubled ? 2 * size : size) + before + after - kernel;
  return room < 0 ? 0 : room / stride + 1;
}

bool is_plain(const Conv2d& c) {
  return c.kernel_h == 1 && c.kernel_w == 1 && c.stride_h == 1 && c.stride_w == 1 && !c.doubled && c.pad_top == 0 &&
         c.pad_left == 0 && c.pad_bottom == 0 && c.pad_right == 0;
}

kernels::EpilogueKind epilogue_of(ConvOutput::Kind kind) {
  switch (kind) {
    case ConvOutput::Kind::kRelu:
      return kernels::EpilogueKind::kRelu;
    case ConvOutput::Kind::kSilu:
      return kernels::EpilogueKind::kSilu;
    case ConvOutput::Kind::kResidual:
      return kernels::EpilogueKind::kResidual;
    default:
      return kernels::EpilogueKind::kNone;
  }
}

kernels::Window window_of(const Conv2d& c, const Shape& x, int64_t pixel_stride, const Shape& y) {
  return {.channels = x[3],
          .height = x[1],
          .width = x[2],
          .pixel_stride = pixel_stride,
          .doubled = c.doubled,
          .kernel_h = c.kernel_h,
          .kernel_w = c.kernel_w,
          .stride_h = c.stride_h,
          .stride_w = c.stride_w,
          .pad_top = c.pad_top,
          .pad_left = c.pad_left,
          .out_h = y[1],
          .out_w = y[2]};
}

// Operand b and the arithmetic; `values` are those of w.
void set_weights(kernels::GemmArgs& g, const ConvWeights& w, const void* values) {
  g.k = num_elements(w.shape) / std::max<int64_t>(g.n, 1);
  g.arithmetic = g.a_type == DType::kBF16 || w.type == DType::kBF16 ? DType::kBF16 : DType::kF32;
  if (w.packed) {
    DITRAIN_CHECK(g.arithmetic == w.type, "weights packed for another arithmetic");
    g.packed_b = {.panels = static_cast<const float*>(values), .columns = g.n};
  } else {
    g.b = values, g.ldb = g.n, g.b_type = w.type;
  }
}

void check_output(const Tensor& y, const ConvOutput& output) {
  const bool adds = output.kind == ConvOutput::Kind::kResidual;
  DITRAIN_CHECK(adds == output.residual.defined(), "a residual without its epilogue, or the other way about");
  if (adds) {
    expect_shape(kOp, "residual", output.residual, y.shape());
    if (output.residual.dtype() != y.dtype()) throw_dtype_mismatch(output.residual.dtype(), y.dtype());
  }
  if (!output.moments.defined()) return;
  Shape moments = moments_shape(y.shape());
  if (output.moment_rows > 0) {
    DITRAIN_CHECK(y.dim(0) == 1, "a part of one image");
    moments[1] = (y.dim(1) * y.dim(2) + output.moment_rows - 1) / output.moment_rows;
  }
  expect_shape(kOp, "moments", output.moments, moments);
}

// The product of both forms of conv2d, whose shapes fit. `output`: its residual and moments are those of y's channels.
void convolve(Context& ctx, const ChannelView& x, const ConvWeights& w, const Tensor& bias, const Conv2d& conv,
              const ChannelView& y, const ConvOutput& output) {
  expect_number_type("x", x.images.dtype()), expect_number_type("w", w.type);
  expect_number_type("y", y.images.dtype());
  if (bias.defined()) expect_shape(kOp, "bias", bias, {w.shape[3]});
  const Shape shape = y.shape();
  const int64_t pixels = shape[1] * shape[2], N = shape[3];
  const Pin<void> px(x.images), pw(w.values), py(y.images);
  std::optional<Pin<float>> pbias, pmoments;
  std::optional<Pin<void>> presidual;
  const auto at = [](const Pin<void>& p, const ChannelView& view) {
    return static_cast<std::byte*>(p.get()) + size_t(view.begin) * dtype_bytes(view.images.dtype());
  };
  kernels::GemmArgs g{.m = shape[0] * pixels,
                      .n = N,
                      .a = at(px, x),
                      .lda = x.images.dim(3),
                      .c = at(py, y),
                      .ldc = y.images.dim(3),
                      .bias = bias.defined() ? pbias.emplace(bias).get() : nullptr,
                      .a_type = x.images.dtype(),
                      .c_type = y.images.dtype()};
  set_weights(g, w, pw.get());
  if (g.arithmetic == DType::kF32 && g.c_type != DType::kF32)
    throw ShapeError({.where = kOp, .what = "type of the result of f32 tensors", .got = "bf16", .expected = "f32"});
  g.epilogue.kind = epilogue_of(output.kind);
  if (output.residual.defined()) g.epilogue.in = presidual.emplace(output.residual).get(), g.epilogue.in_stride = N;
  if (!is_plain(conv)) g.window_a = window_of(conv, x.shape(), x.images.dim(3), shape);
  if (output.moments.defined())
    g.moments = {.sums = pmoments.emplace(output.moments).get(),
                 .rows = output.moment_rows > 0 ? output.moment_rows : moment_rows(pixels),
                 .stride = N};
  gemm(ctx, g);
}

}  // namespace

Shape conv2d_shape(const Shape& x, const Shape& w, const Conv2d& c) {
  expect(x.size() == 4, "images", x, "[B, H, W, C]");
  expect(w.size() == 4 && w[0] == c.kernel_h && w[1] == c.kernel_w && w[2] == x[3], "weights", w,
         to_string({c.kernel_h, c.kernel_w, x[3]}) + " and the outputs");
  DITRAIN_CHECK(std::min({c.kernel_h, c.kernel_w, c.stride_h, c.stride_w}) >= 1 &&
                    std::min({c.pad_top, c.pad_left, c.pad_bottom, c.pad_right}) >= 0,
                "an impossible convolution");
  const int64_t rows = outputs(x[1], c.pad_top, c.pad_bottom, c.kernel_h, c.stride_h, c.doubled);
  const int64_t columns = outputs(x[2], c.pad_left, c.pad_right, c.kernel_w, c.stride_w, c.doubled);
  expect(rows > 0 && columns > 0, "images smaller than the kernel", x, "at least " + to_string(w));
  return {x[0], rows, columns, w[3]};
}

void conv2d(Context& ctx, const Tensor& x, const ConvWeights& w, const Tensor& bias, const Conv2d& conv,
            const Tensor& y, const ConvOutput& output) {
  expect_shape(kOp, "y", y, conv2d_shape(x.shape(), w.shape, conv));
  check_output(y, output);
  const int64_t B = y.dim(0), pixels = y.dim(1) * y.dim(2);
  if (output.moments.defined() && B > 1 && pixels % moment_rows(pixels) != 0) {  // a unit would belong to two images
    for (int64_t b = 0; b < B; ++b) {
      ConvOutput of_image = output;
      of_image.moments = output.moments.rows(b, b + 1);
      if (output.residual.defined()) of_image.residual = output.residual.rows(b, b + 1);
      conv2d(ctx, x.rows(b, b + 1), w, bias, conv, y.rows(b, b + 1), of_image);
    }
    return;
  }
  convolve(ctx, {x, 0, x.dim(3)}, w, bias, conv, {y, 0, y.dim(3)}, output);
}

void conv2d(Context& ctx, const ChannelView& x, const ConvWeights& w, const Tensor& bias, const Conv2d& conv,
            const ChannelView& y, ConvOutput::Kind kind) {
  DITRAIN_CHECK(kind != ConvOutput::Kind::kResidual, "views take no residual");
  for (const ChannelView* view : {&x, &y})
    DITRAIN_CHECK(view->images.shape().size() == 4 && view->begin >= 0 && view->count >= 1 &&
                      view->begin + view->count <= view->images.dim(3),
                  "a view of channels that the images do not have");
  const Shape shape = conv2d_shape(x.shape(), w.shape, conv);
  expect(y.shape() == shape, "y", y.shape(), to_string(shape));
  convolve(ctx, x, w, bias, conv, y, {.kind = kind});
}

size_t packed_weights_bytes(const Shape& w, DType type) {
  return kernels::packed_b_bytes(num_elements(w) / std::max<int64_t>(w[3], 1), w[3], type);
}

ConvWeights packed_weights(const Tensor& w) {
  expect(w.shape().size() == 4, "weights", w.shape(), "[kernel_h, kernel_w, C, N]");
  expect_number_type("w", w.dtype());
  ConvWeights packed = w;
  packed.packed = true;
  packed.values = Tensor({int64_t(packed_weights_bytes(w.shape(), w.dtype()) / sizeof(float))});
  const Pin<void> from(w);
  const Pin<float> to(packed.values);
  kernels::GemmArgs g{.n = w.dim(3)};
  set_weights(g, w, from.get());
  kernels::pack_b(g, to.get());
  return packed;
}

void to_conv_layout(const std::vector<float>& from, int64_t N, const Tensor& to) {
  const int64_t taps = to.dim(0) * to.dim(1), C = to.dim(2);
  DITRAIN_CHECK(to.dim(3) == N && int64_t(from.size()) == to.size(), "weights of another shape");
  const Tensor values(to.shape());
  {
    const Pin<float> p(values);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t c = 0; c < C; ++c)
        for (int64_t tap = 0; tap < taps; ++tap) p[(tap * C + c) * N + n] = from[size_t((n * C + c) * taps + tap)];
  }
  copy(values, to);
}

}  // namespace ditrain::ops
