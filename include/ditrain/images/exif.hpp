// The orientation that cameras write into photographs (EXIF). The reference ignores it; data.exif_orientation applies
// it.
#pragma once
#include <string_view>

#include "ditrain/images/image.hpp"

namespace ditrain::images {

/// Tag 274 of the first directory of a JPEG's EXIF segment, 1 to 8; 1 (upright) if it is missing or makes no sense.
/// Source:   JEITA CP-3451 (EXIF 2.3), section 4.6.4
int exif_orientation(std::string_view jpeg);

/// Mirrors and turns the picture as the orientation says, so that it is upright.
ImageU8 turn_upright(const ImageU8& image, int orientation);

}  // namespace ditrain::images
