// Resampling with Pillow's arithmetic, and the centre crop built on it.
// Source:   Pillow's documented method: support scaled by the shrink factor (antialiasing), weights normalised per
//           output pixel, rounded to 22-bit fixed point, each pass rounded and clipped to 8 bits, horizontal first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/images/image.hpp"

namespace ditrain::images {
namespace {

constexpr int kPrecisionBits = 32 - 8 - 2;  // 8 bits of pixel and 2 of headroom: negative lobes, sums over 1

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

ResizeTaps taps_of(int64_t out_index, int64_t in_size, double scale, ResizeFilter filter) {
  const double stretch = std::max(scale, 1.0);
  const double support = (filter == ResizeFilter::kBox ? 0.5 : 2.0) * stretch;
  const double center = (static_cast<double>(out_index) + 0.5) * scale;
  const double step = 1.0 / stretch;
  const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
  const int64_t last = std::min(static_cast<int64_t>(center + support + 0.5), in_size);
  ResizeTaps taps{first, std::vector<double>(static_cast<size_t>(std::max<int64_t>(last - first, 0)))};
  double sum = 0.0;
  for (size_t i = 0; i < taps.weights.size(); ++i) {
    const double x = (static_cast<double>(static_cast<int64_t>(i) + first) - center + 0.5) * step;
    taps.weights[i] = filter == ResizeFilter::kBox ? box(x) : bicubic(x);
    sum += taps.weights[i];
  }
  if (sum != 0.0)
    for (double& w : taps.weights) w /= sum;
  return taps;
}

// The same with weights in fixed point.
struct FixedTaps {
  int64_t first;
  std::vector<int32_t> weights;
};

std::vector<FixedTaps> fixed_taps(int64_t in_size, int64_t out_size, ResizeFilter filter) {
  std::vector<FixedTaps> all;
  for (const ResizeTaps& taps : resize_taps(in_size, out_size, filter)) {
    FixedTaps& fixed = all.emplace_back(FixedTaps{taps.first, {}});
    for (const double w : taps.weights)
      fixed.weights.push_back(static_cast<int32_t>((w < 0 ? -0.5 : 0.5) + w * (1 << kPrecisionBits)));
  }
  return all;
}

constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);

uint8_t round_and_clip(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

template <int kChannels>
void resize_row(const uint8_t* in, const std::vector<FixedTaps>& taps, uint8_t* out) {
  for (const FixedTaps& t : taps) {
    int32_t sums[kChannels];
    std::fill_n(sums, kChannels, kHalf);
    const uint8_t* pixel = in + t.first * kChannels;
    for (const int32_t w : t.weights)
      for (int c = 0; c < kChannels; ++c) sums[c] += *pixel++ * w;
    for (const int32_t sum : sums) *out++ = round_and_clip(sum);
  }
}

ImageU8 resize_width(const ImageU8& in, int64_t width, ResizeFilter filter) {
  const std::vector<FixedTaps> taps = fixed_taps(in.width, width, filter);
  ImageU8 out{width, in.height, in.channels, {}};
  out.pixels.resize(static_cast<size_t>(width * in.height * in.channels));
  const auto row = in.channels == 1 ? resize_row<1> : resize_row<3>;
  for (int64_t y = 0; y < in.height; ++y)
    row(in.pixels.data() + y * in.width * in.channels, taps, out.pixels.data() + y * width * in.channels);
  return out;
}

ImageU8 resize_height(const ImageU8& in, int64_t height, ResizeFilter filter) {
  const std::vector<FixedTaps> taps = fixed_taps(in.height, height, filter);
  const int64_t row_size = in.width * in.channels;
  ImageU8 out{in.width, height, in.channels, {}};
  out.pixels.resize(static_cast<size_t>(row_size * height));
  std::vector<int32_t> sums(static_cast<size_t>(row_size));
  for (int64_t y = 0; y < height; ++y) {
    const FixedTaps& t = taps[static_cast<size_t>(y)];
    std::fill(sums.begin(), sums.end(), kHalf);
    const uint8_t* row = in.pixels.data() + t.first * row_size;
    for (const int32_t w : t.weights)
      for (int32_t& sum : sums) sum += *row++ * w;
    std::transform(sums.begin(), sums.end(), out.pixels.begin() + y * row_size, round_and_clip);
  }
  return out;
}

// Half to even, like Python's round().
int64_t round_scaled(int64_t size, double scale) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(size) * scale));
}

void check_image(const ImageU8& image) {
  DITRAIN_CHECK(image.channels == 1 || image.channels == 3, "channels must be 1 or 3");
  DITRAIN_CHECK(image.width > 0 && image.height > 0 &&
                    static_cast<int64_t>(image.pixels.size()) == image.width * image.height * image.channels,
                "pixels do not match the size");
}

}  // namespace

std::vector<ResizeTaps> resize_taps(int64_t in_size, int64_t out_size, ResizeFilter filter) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  std::vector<ResizeTaps> taps;
  for (int64_t i = 0; i < out_size; ++i) taps.push_back(taps_of(i, in_size, scale, filter));
  return taps;
}

ImageU8 resize(const ImageU8& image, int64_t width, int64_t height, ResizeFilter filter) {
  check_image(image);
  DITRAIN_CHECK(width > 0 && height > 0, "empty size");
  // The intermediate image is [image.height, width].
  if (width > kMaxImagePixels / std::max(height, image.height)) {
    throw InputError({.where = "resize",
                      .what = "the resized image is too large (extreme aspect ratio?)",
                      .got = fmt::format("{} x {} to {} x {}", image.width, image.height, width, height),
                      .expected = fmt::format("at most {} pixels", kMaxImagePixels)});
  }
  if (width == image.width && height == image.height) return image;
  if (height == image.height) return resize_width(image, width, filter);
  if (width == image.width) return resize_height(image, height, filter);
  return resize_height(resize_width(image, width, filter), height, filter);
}

ImageU8 center_crop_adm(const ImageU8& image, int64_t size_h, int64_t size_w) {
  check_image(image);
  DITRAIN_CHECK(size_h > 0 && size_w > 0, "empty crop");
  ImageU8 scaled = image;
  while (scaled.width >= 2 * size_w && scaled.height >= 2 * size_h)
    scaled = resize(scaled, scaled.width / 2, scaled.height / 2, ResizeFilter::kBox);
  const double scale = std::max(static_cast<double>(size_h) / static_cast<double>(scaled.height),
                                static_cast<double>(size_w) / static_cast<double>(scaled.width));
  const int64_t width = round_scaled(scaled.width, scale), height = round_scaled(scaled.height, scale);
  scaled = resize(scaled, width, height, ResizeFilter::kBicubic);
  const int64_t top = (height - size_h) / 2, left = (width - size_w) / 2;
  ImageU8 crop{size_w, size_h, image.channels, {}};
  for (int64_t y = 0; y < size_h; ++y) {
    const uint8_t* row = scaled.pixels.data() + ((top + y) * width + left) * image.channels;
    crop.pixels.insert(crop.pixels.end(), row, row + size_w * image.channels);
  }
  return crop;
}

}  // namespace ditrain::images
