// JPEG through libjpeg-turbo. The library is told to stop where it would end the program or go on with grey: its errors
// leave through longjmp, so that nothing with a destructor may live in the functions that call it, and a file that ends
// early is an error. Its messages come back as text.
// Source:   libjpeg-turbo's libjpeg.txt; Pillow's JpegImagePlugin.py and Convert.c for CMYK.
#include "image_jpeg.hpp"

#include <fmt/format.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstddef>  // jpeglib.h uses size_t and FILE without including them
#include <cstdio>
#include <cstdlib>
// clang-format off: its numbers depend on what jpeglib.h says
#include <jerror.h>
// clang-format on

#include "ditrain/base/error.hpp"

namespace ditrain::images {
namespace {

constexpr int64_t kMaxPixelPasses = 16 * kMaxImagePixels;

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
  bool data_ended;  // zeros stand for what was missing in a scan
};

void leave_with_error(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<ErrorManager*>(jpeg->err);
  jpeg->err->format_message(jpeg, errors->message);
  std::longjmp(errors->leave, 1);
}

// Warnings are of data that can be decoded in some way, as Pillow does too, but for the end of the data.
void on_message(j_common_ptr jpeg, int) {
  if (jpeg->err->msg_code == JWRN_HIT_MARKER) reinterpret_cast<ErrorManager*>(jpeg->err)->data_ended = true;
}

// Called only when all bytes are used up.
boolean end_of_data(j_decompress_ptr jpeg) {
  auto* errors = reinterpret_cast<ErrorManager*>(jpeg->err);
  std::snprintf(errors->message, sizeof errors->message, "data that ends early");
  std::longjmp(errors->leave, 1);
}

void skip_data(j_decompress_ptr jpeg, long bytes) {
  if (bytes <= 0) return;
  if (static_cast<size_t>(bytes) > jpeg->src->bytes_in_buffer) end_of_data(jpeg);
  jpeg->src->next_input_byte += bytes;
  jpeg->src->bytes_in_buffer -= static_cast<size_t>(bytes);
}

// MULDIV255 of Pillow: a b / 255, rounded.
uint8_t scaled(int a, int b) {
  const int t = a * b + 128;
  return static_cast<uint8_t>(((t >> 8) + t) >> 8);
}

// Adobe writes 255 for no ink; with that undone, what is left of white after black is weakened by each of the others.
void cmyk_to_rgb(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(cmyk[3] - scaled(255 - cmyk[c], cmyk[3]));
}

// The decoder with its memory; longjmp ends in one of the two functions that set `errors.leave`.
class Decoder {
 public:
  explicit Decoder(std::string_view file) {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave_with_error;
    errors_.base.emit_message = on_message;
    source_.init_source = [](j_decompress_ptr) {};
    source_.fill_input_buffer = end_of_data;
    source_.skip_input_data = skip_data;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = [](j_decompress_ptr) {};
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
    source_.bytes_in_buffer = file.size();
  }
  ~Decoder() { jpeg_destroy_decompress(&jpeg_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  bool read_header() {
    if (setjmp(errors_.leave) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.src = &source_;
    return jpeg_read_header(&jpeg_, TRUE) == JPEG_HEADER_OK;
  }

  /// Rows of 3 (or, for CMYK, 4) bytes per pixel into `rows`, one after the other.
  bool decode(uint8_t* rows) {
    if (setjmp(errors_.leave) != 0) return false;
    jpeg_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    // What progressive files keep: coefficients of all components, 2 bytes each, and some rows.
    jpeg_.mem->max_memory_to_use =
        static_cast<long>(8) * jpeg_.image_width * jpeg_.image_height * jpeg_.num_components + (64l << 20);
    jpeg_start_decompress(&jpeg_);
    const size_t row_bytes = size_t{jpeg_.output_width} * static_cast<size_t>(jpeg_.output_components);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = rows + jpeg_.output_scanline * row_bytes;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  int64_t width() const { return jpeg_.image_width; }
  int64_t height() const { return jpeg_.image_height; }
  bool is_cmyk() const { return jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK; }
  /// Whether a file that ends with its data has all of it: of several scans any could be missing.
  bool is_whole() const {
    return !errors_.data_ended && jpeg_.progressive_mode == 0 && jpeg_.arith_code == 0 &&
           jpeg_.comps_in_scan == jpeg_.num_components;
  }
  const char* message() const { return errors_.message; }

 private:
  jpeg_decompress_struct jpeg_{};
  jpeg_source_mgr source_{};
  ErrorManager errors_{};
};

// Whether it worked; `*bytes` is the caller's to free then. (Else the library may have freed it as it grew.)
bool compress(const ImageU8& image, int quality, ErrorManager& errors, unsigned char** bytes, unsigned long* size) {
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

}  // namespace

std::string encode_jpeg(const ImageU8& image, int quality) {
  ErrorManager errors{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool worked = compress(image, quality, errors, &bytes, &size);
  const std::string jpeg(reinterpret_cast<const char*>(bytes), worked ? size : 0);
  if (worked) std::free(bytes);
  if (!worked)
    throw RunError({.where = "images", .what = "the image cannot be encoded as JPEG", .got = errors.message});
  return jpeg;
}

ImageU8 decode_jpeg(const std::string& path, std::string_view file, const JpegMarkers& markers) {
  std::string ended;  // with the marker that is missing
  if (!markers.has_end) ended = std::string(file) + "\xff\xd9";
  Decoder decoder(markers.has_end ? file : std::string_view(ended));
  const auto corrupt = [&](const char* why) {
    throw InputError({.where = path, .what = "the image is corrupt or truncated", .got = why});
  };
  if (!decoder.read_header()) corrupt(decoder.message());
  check_image_size(path, decoder.width(), decoder.height());
  // Every scan is a pass over the image, and a file may hold one in a few bytes.
  if (markers.num_scans > kMaxPixelPasses / (decoder.width() * decoder.height())) {
    throw InputError({.where = path,
                      .what = "the JPEG has too many scans for its size",
                      .got = fmt::format("{} of {} x {} pixels", markers.num_scans, decoder.width(), decoder.height()),
                      .expected = fmt::format("at most {} pixels in all scans", kMaxPixelPasses)});
  }
  ImageU8 image{decoder.width(), decoder.height(), 3, {}};
  const int64_t pixels = image.width * image.height;
  std::vector<uint8_t> decoded(static_cast<size_t>(pixels * (decoder.is_cmyk() ? 4 : 3)));
  if (!decoder.decode(decoded.data())) corrupt(decoder.message());
  if (!markers.has_end && !decoder.is_whole()) corrupt("a JPEG without its end");
  if (!decoder.is_cmyk()) {
    image.pixels = std::move(decoded);
    return image;
  }
  image.pixels.resize(static_cast<size_t>(pixels * 3));
  cmyk_to_rgb(decoded.data(), pixels, image.pixels.data());
  return image;
}

}  // namespace ditrain::images
