// Decoding JPEG, for image_read.cpp.
#pragma once
#include <string>
#include <string_view>

#include "ditrain/images/image.hpp"

namespace ditrain::images {

/// What the markers of a JPEG tell before it is decoded.
struct JpegMarkers {
  int num_scans = 0;
  bool has_end = false;  ///< the marker EOI, which some cameras leave out
};

/// Decodes a JPEG to RGB as Pillow does: libjpeg-turbo with its default inverse transform (islow) and smooth ("fancy")
/// upsampling of chroma; grey is expanded, CMYK is taken as Adobe's inverted one. No EXIF rotation.
/// Errors:   InputError, where = path: no JPEG, over kMaxImagePixels (checked before decoding), corrupt, truncated, or
///           in need of more memory than an image of that size may take, or of more passes (scans) over many pixels.
///           Without an end it has to be of one scan, with all of its data.
ImageU8 decode_jpeg(const std::string& path, std::string_view file, const JpegMarkers& markers);

/// Errors:   InputError, where = path, for an image without pixels or with more than kMaxImagePixels
void check_image_size(const std::string& path, int64_t width, int64_t height);

}  // namespace ditrain::images
