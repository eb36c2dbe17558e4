// Decoding JPEG, for image_read.cpp.
#pragma once
#include <string>
#include <string_view>

#include "ditrain/images/image.hpp"

namespace ditrain::images {

/// Decodes a JPEG to RGB as Pillow does: libjpeg-turbo with its default inverse transform (islow) and smooth ("fancy")
/// upsampling of chroma; grey is expanded, CMYK is taken as Adobe's inverted one. No EXIF rotation.
/// Errors:   InputError, where = path: no JPEG, over kMaxImagePixels (checked before decoding), corrupt, truncated, or
///           in need of more memory than an image of that size may take, or of more passes (`num_scans`) over many
///           pixels
ImageU8 decode_jpeg(const std::string& path, std::string_view file, int num_scans);

/// Errors:   InputError, where = path, for an image without pixels or with more than kMaxImagePixels
void check_image_size(const std::string& path, int64_t width, int64_t height);

}  // namespace ditrain::images
