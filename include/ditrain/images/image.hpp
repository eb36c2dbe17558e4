// 8-bit images: reading (JPEG, PNG, BMP), the centre crop of the reference's data pipeline, JPEG, PNG and grids for
// samples. Multi-band rasters are not images in this sense and have readers of their own.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ditrain::images {

struct ImageU8 {
  int64_t width = 0, height = 0, channels = 0;
  std::vector<uint8_t> pixels;  ///< [height, width, channels]
};

inline constexpr int64_t kMaxImagePixels = int64_t{64} << 20;
inline constexpr size_t kMaxImageFileBytes = size_t{256} << 20;

/// Reads a JPEG, PNG or BMP as RGB, by content, not by name: grey is expanded, alpha dropped, 16 bits become the upper
/// 8. No EXIF rotation. JPEGs, CMYK included, decode to the same pixels as in Pillow (libjpeg-turbo).
/// Errors:   InputError, where = path: unreadable, over kMaxImageFileBytes or kMaxImagePixels (checked before
///           decoding), unknown format, corrupt or truncated (PNG checksums included)
ImageU8 read_image(const std::string& path);
/// The same, of a file in memory; `path` names it in errors.
ImageU8 decode_image(const std::string& path, std::string_view file);

enum class ResizeFilter { kBox, kBicubic };

/// The input pixels [first, first + weights.size()) of one output pixel; the weights add up to 1.
struct ResizeTaps {
  int64_t first = 0;
  std::vector<double> weights = {};
};
/// The taps of every output pixel along a side, antialiased as in Pillow: the filter widens as the image shrinks.
std::vector<ResizeTaps> resize_taps(int64_t in_size, int64_t out_size, ResizeFilter filter);

/// Resizes with antialiasing: horizontal, then vertical pass, each rounded to 8 bits; weights in fixed point (22 bits).
/// Equals Pillow's Image.resize (up to version 12; 13 runs the vertical pass first on tall images) bit for bit; bicubic
/// has a = -0.5. InputError if the result is over kMaxImagePixels.
ImageU8 resize(const ImageU8& image, int64_t width, int64_t height, ResizeFilter filter);

/// Centre crop to size_h x size_w: halve (box filter) while the image is at least twice the size both ways, scale
/// (bicubic) by the least factor that covers the size, cut out the middle.
/// For size_h == size_w this is the rule of the reference (center_crop_arr), bit for bit with Pillow up to version 12.
/// Errors:   InputError if the scaled image would be over kMaxImagePixels (extreme aspect ratio).
ImageU8 center_crop_adm(const ImageU8& image, int64_t size_h, int64_t size_w);

/// Writes a grey (1 channel) or RGB (3) PNG through write_file_atomically.
/// Errors:   RunError: over kMaxImagePixels, disk full, ...
void write_png(const std::string& path, const ImageU8& image);

/// A grey (1 channel) or RGB (3) image as the bytes of a JPEG, with libjpeg's defaults (RGB: chroma at half the
/// resolution). quality: 1 to 100.
/// Errors:   RunError with libjpeg's message
std::string encode_jpeg(const ImageU8& image, int quality);

/// Images of one size in rows of `columns`, `pad` black pixels between and around them. At least one image; of many the
/// first ones, in as many columns and rows as kMaxImagePixels has room for.
ImageU8 make_grid(const std::vector<ImageU8>& images, int64_t columns, int64_t pad);

/// clamp(127.5 x + 128, 0, 255), truncated, as the reference saves its samples; NaN becomes 0.
uint8_t to_u8(float x);

/// A sample in about [-1, 1], shape [channels, height, width], as an image: 3 channels or more show the first three as
/// RGB, fewer show the first one as grey.
ImageU8 to_image(const float* chw, int64_t channels, int64_t height, int64_t width);

}  // namespace ditrain::images
