#include "grid_picture.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain::report {
namespace {

constexpr int64_t kMaxSide = 1024;  // pixels; more is not seen on a page

images::ImageU8 scaled_by(const images::ImageU8& image, double factor) {
  const auto side = [&](int64_t n) { return std::max<int64_t>(1, int64_t(double(n) * factor)); };
  return images::resize(image, side(image.width), side(image.height), images::ResizeFilter::kBox);
}

}  // namespace

std::string small_jpeg(images::ImageU8 image, size_t max_bytes) {
  DITRAIN_CHECK(max_bytes >= 4096, "no room for the tables of a JPEG");
  const int64_t longer = std::max(image.width, image.height);
  if (longer > kMaxSide) image = scaled_by(image, double(kMaxSide) / double(longer));
  for (;; image = scaled_by(image, 0.7))
    for (const int quality : {90, 80, 65, 50})
      if (std::string jpeg = images::encode_jpeg(image, quality); jpeg.size() <= max_bytes) return jpeg;
}

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t k) { return i + k < bytes.size() ? uint32_t(uint8_t(bytes[i + k])) : 0; };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (int k = 0; k < 4; ++k) text += i + size_t(k) <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

}  // namespace ditrain::report
