// Compiled with -ffp-contract=off (module.cmake): where a tool fuses a multiply-add, fma says so.
// Source:   torch's UpSampleKernel.cpp (upsample_bilinear2d on the CPU), torch-fidelity's
//           interpolate_compat_tensorflow.py, Pillow's Resample.c (32 bits per channel), clean-fid's resize.py.
#include "ditrain/eval/fid_preset.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ditrain/base/error.hpp"

namespace ditrain::eval {
namespace {

constexpr int64_t kSize = kFidInputSize;
constexpr int64_t kPlane = kSize * kSize;

// The two neighbours of an output pixel along one axis, and the share of the second.
struct Neighbours {
  int64_t low, high;
  float share;
};

// torch: pixel centres, clamped at the first pixel; the compiler of its binaries fuses this multiply-add.
std::vector<Neighbours> neighbours_torch(int64_t in_size) {
  std::vector<Neighbours> all;
  const float scale = static_cast<float>(in_size) / static_cast<float>(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    const float at = std::max(std::fma(scale, static_cast<float>(i) + 0.5f, -0.5f), 0.0f);
    const auto low = std::min(static_cast<int64_t>(at), in_size - 1);
    const float share = std::clamp(at - static_cast<float>(low), 0.0f, 1.0f);
    all.push_back({low, std::min(low + 1, in_size - 1), share});
  }
  return all;
}

// TensorFlow 1: pixel i of the output is pixel i * in / out of the input.
std::vector<Neighbours> neighbours_tf1(int64_t in_size) {
  std::vector<Neighbours> all;
  const auto scale = static_cast<float>(static_cast<double>(in_size) / static_cast<double>(kSize));
  for (int64_t i = 0; i < kSize; ++i) {
    const float at = static_cast<float>(i) * scale;
    const auto low = std::min(static_cast<int64_t>(at), in_size - 1);
    all.push_back({low, std::min(low + 1, in_size - 1), at - static_cast<float>(low)});
  }
  return all;
}

// The image as planes of f32, each value through `convert`.
template <class Convert>
std::vector<float> planes_of(const images::ImageU8& image, Convert convert) {
  const int64_t n = image.width * image.height;
  float values[256];
  for (int v = 0; v < 256; ++v) values[v] = convert(static_cast<float>(v));
  std::vector<float> planes(static_cast<size_t>(3 * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < 3; ++c)
      planes[static_cast<size_t>(c * n + i)] = values[image.pixels[static_cast<size_t>(3 * i + c)]];
  return planes;
}

// Sums the four products in the order, and with the one rounding of a fused multiply-add each, that torch's binaries
// have.
struct TorchBlend {
  [[gnu::always_inline]] float operator()(const float* p, const Neighbours& y, const Neighbours& x,
                                          int64_t width) const {
    const float h1 = y.share, h0 = 1.0f - h1, w1 = x.share, w0 = 1.0f - w1;
    const float *upper = p + y.low * width, *lower = p + y.high * width;
    float sum = (h0 * w1) * upper[x.high];
    sum = __builtin_fmaf(h0 * w0, upper[x.low], sum);
    sum = __builtin_fmaf(h1 * w0, lower[x.low], sum);
    sum = __builtin_fmaf(h1 * w1, lower[x.high], sum);
    return 2.0f * sum - 1.0f;
  }
};

struct Tf1Blend {
  float operator()(const float* p, const Neighbours& y, const Neighbours& x, int64_t width) const {
    const float *upper = p + y.low * width, *lower = p + y.high * width;
    const float top = upper[x.low] + (upper[x.high] - upper[x.low]) * x.share;
    const float bottom = lower[x.low] + (lower[x.high] - lower[x.low]) * x.share;
    return (top + (bottom - top) * y.share - 128.0f) / 128.0f;
  }
};

template <class Blend>
[[gnu::always_inline]] inline void blend_rows(const std::vector<float>& planes, int64_t width, int64_t height,
                                              const std::vector<Neighbours>& rows,
                                              const std::vector<Neighbours>& columns, const Blend& blend, float* out) {
  for (int64_t c = 0; c < 3; ++c) {
    const float* plane = planes.data() + c * width * height;
    for (const Neighbours& y : rows)
      for (const Neighbours& x : columns) *out++ = blend(plane, y, x, width);
  }
}

using BlendTorch = void(const std::vector<float>&, int64_t, int64_t, const std::vector<Neighbours>&,
                        const std::vector<Neighbours>&, float*);

void blend_torch(const std::vector<float>& planes, int64_t width, int64_t height, const std::vector<Neighbours>& rows,
                 const std::vector<Neighbours>& columns, float* out) {
  blend_rows(planes, width, height, rows, columns, TorchBlend{}, out);
}

#if defined(__x86_64__)
// The fused multiply-add is one instruction here and a call of the C library above; the bits are the same.
[[gnu::target("fma")]] void blend_torch_fma(const std::vector<float>& planes, int64_t width, int64_t height,
                                            const std::vector<Neighbours>& rows, const std::vector<Neighbours>& columns,
                                            float* out) {
  blend_rows(planes, width, height, rows, columns, TorchBlend{}, out);
}
BlendTorch* const fastest_blend_torch = __builtin_cpu_supports("fma") ? blend_torch_fma : blend_torch;
#else
BlendTorch* const fastest_blend_torch = blend_torch;
#endif

std::vector<images::ResizeTaps> bicubic_taps(int64_t in_size) {
  return images::resize_taps(in_size, kSize, images::ResizeFilter::kBicubic);
}

// Planes [3, height, width] to [3, height, 299].
std::vector<float> resize_width(const std::vector<float>& in, int64_t width, int64_t height) {
  const std::vector<images::ResizeTaps> taps = bicubic_taps(width);
  std::vector<float> out(static_cast<size_t>(3 * height * kSize));
  for (int64_t row = 0; row < 3 * height; ++row) {
    for (int64_t x = 0; x < kSize; ++x) {
      const images::ResizeTaps& t = taps[static_cast<size_t>(x)];
      const float* from = in.data() + row * width + t.first;
      double sum = 0.0;
      for (const double w : t.weights) sum += static_cast<double>(*from++) * w;
      out[static_cast<size_t>(row * kSize + x)] = static_cast<float>(sum);
    }
  }
  return out;
}

// Planes [3, height, width] to [3, 299, width].
std::vector<float> resize_height(const std::vector<float>& in, int64_t width, int64_t height) {
  const std::vector<images::ResizeTaps> taps = bicubic_taps(height);
  std::vector<float> out(static_cast<size_t>(3 * kSize * width));
  std::vector<double> sums(static_cast<size_t>(width));
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < kSize; ++y) {
      const images::ResizeTaps& t = taps[static_cast<size_t>(y)];
      std::fill(sums.begin(), sums.end(), 0.0);
      const float* from = in.data() + (c * height + t.first) * width;
      for (const double w : t.weights)
        for (double& sum : sums) sum += static_cast<double>(*from++) * w;
      std::transform(sums.begin(), sums.end(), out.begin() + (c * kSize + y) * width,
                     [](double sum) { return static_cast<float>(sum); });
    }
  }
  return out;
}

// Pillow 13 resizes the height first where it shrinks by more than twice the pixels that the width shrinks by. The
// values between both passes are rounded to f32, so the order is seen in the last bit.
bool height_first(const images::ImageU8& image) {
  return image.height > kSize && image.height - kSize > 2 * (image.width - kSize);
}

void clean_input(const images::ImageU8& image, float* out) {
  std::vector<float> planes = planes_of(image, [](float v) { return v; });
  const bool first = height_first(image);
  if (first) planes = resize_height(planes, image.width, image.height);
  if (image.width != kSize) planes = resize_width(planes, image.width, first ? kSize : image.height);
  if (!first && image.height != kSize) planes = resize_height(planes, kSize, image.height);
  for (int64_t i = 0; i < 3 * kPlane; ++i)
    out[i] = (std::clamp(planes[static_cast<size_t>(i)], 0.0f, 255.0f) - 128.0f) / 128.0f;
}

}  // namespace

const char* description_of(FidPreset preset) {
  switch (preset) {
    case FidPreset::kPytorchFid:
      return "bilinear without antialiasing (torch), 2x-1";
    case FidPreset::kAdm:
      return "bilinear of TensorFlow 1, (x-128)/128";
    case FidPreset::kClean:
      return "antialiased bicubic (Pillow), (x-128)/128";
  }
  return "";
}

void make_fid_input(const images::ImageU8& image, FidPreset preset, float* out) {
  DITRAIN_CHECK(image.channels == 3 && image.width > 0 && image.height > 0, "the network sees RGB images");
  if (preset == FidPreset::kClean) return clean_input(image, out);
  if (preset == FidPreset::kAdm) {
    return blend_rows(planes_of(image, [](float v) { return v; }), image.width, image.height,
                      neighbours_tf1(image.height), neighbours_tf1(image.width), Tf1Blend{}, out);
  }
  make_torch_fid_input(planes_of(image, [](float v) { return v / 255.0f; }), image.height, image.width, out);
}

void make_torch_fid_input(const std::vector<float>& planes, int64_t height, int64_t width, float* out) {
  DITRAIN_CHECK(width > 0 && height > 0 && int64_t(planes.size()) == 3 * height * width, "planes of another size");
  fastest_blend_torch(planes, width, height, neighbours_torch(height), neighbours_torch(width), out);
}

}  // namespace ditrain::eval
