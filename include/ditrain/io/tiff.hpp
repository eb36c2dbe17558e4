// Samples of any number of bands as TIFF files that GDAL and its relatives open: what PNG cannot hold.
#pragma once
#include <cstdint>
#include <string>

namespace ditrain::io {

/// Writes a little-endian baseline TIFF: f32, `channels` bands, pixel-interleaved, one uncompressed strip, atomically.
/// No georeference: generated images have no location.
/// Shapes:   chw [channels, height, width]
/// Errors:   RunError if the disk says no; LogicFault for sizes that TIFF's 32-bit offsets or 16-bit counts cannot hold
void write_tiff_f32(const std::string& path, const float* chw, int64_t channels, int64_t height, int64_t width);

}  // namespace ditrain::io
