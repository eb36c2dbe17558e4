// libjpeg ends the program at an error unless it is told to jump; nothing with a destructor lives where it may.
#include "grid_picture.hpp"

#include <jpeglib.h>

#include <csetjmp>
#include <cstddef>  // jpeglib.h uses size_t and FILE without including them
#include <cstdlib>

#include "ditrain/base/error.hpp"

namespace ditrain::report {
namespace {

constexpr int64_t kMaxSide = 1024;  // pixels; more is not seen on a page

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf leave;
};

void leave_with_error(j_common_ptr jpeg) { std::longjmp(reinterpret_cast<ErrorManager*>(jpeg->err)->leave, 1); }

// Whether it worked; `*bytes` is the caller's to free in any case.
bool compress(const images::ImageU8& image, int quality, unsigned char** bytes, unsigned long* size) {
  ErrorManager errors;
  jpeg_compress_struct jpeg;
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave_with_error;
  if (setjmp(errors.leave) != 0) {
    jpeg_destroy_compress(&jpeg);
    return false;
  }
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, bytes, size);
  jpeg.image_width = JDIMENSION(image.width), jpeg.image_height = JDIMENSION(image.height);
  jpeg.input_components = int(image.channels);
  jpeg.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, quality, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row =
        const_cast<JSAMPROW>(image.pixels.data() + size_t(jpeg.next_scanline) * image.width * image.channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  return true;
}

std::string encode(const images::ImageU8& image, int quality) {
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool worked = compress(image, quality, &bytes, &size);
  const std::string jpeg(reinterpret_cast<const char*>(bytes), worked ? size : 0);
  std::free(bytes);
  if (!worked) throw RunError({.where = "report", .what = "a sample grid cannot be encoded as JPEG"});
  return jpeg;
}

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
      if (std::string jpeg = encode(image, quality); jpeg.size() <= max_bytes) return jpeg;
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
