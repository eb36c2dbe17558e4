// Sample grids as small JPEGs, for pages that carry them.
#pragma once
#include <string>

#include "ditrain/images/image.hpp"

namespace ditrain::report {

/// The picture as JPEG of at most max_bytes (at least 4 KiB): first with less quality, then with fewer pixels.
std::string small_jpeg(images::ImageU8 image, size_t max_bytes);

std::string base64(std::string_view bytes);

}  // namespace ditrain::report
