// Tiles of scenes on disk: safetensors shards that `ditdata make` writes and that training, statistics and evaluation
// read. A shard has these tensors:
//   images        [N, C, H, W] in the type of the source (U8, U16, I16, F32)
//   labels        [N] I64; all shards have it or none
//   geotransform  [N, 6] F64, GDAL's, of the tile's corner
//   metadata      [N, 7] F64, the numbers of base/metadata.hpp; NaN: unknown
//   valid         [N, H, W] U8, 0 where a mask of the source marks missing data; only if the source has a mask
// and this metadata: bands, scale, offset, nodata (JSON lists, one entry per band; null: none), crs (WKT), classes and
// source (JSON lists). What ditdata make goes on by: next ([piece of the scenes, tile in it] where the next shard
// begins), pieces (of all scenes) and dropped (tiles left out between the last shard and that place).
// A number is missing if it is not finite, equals the band's nodata, or lies where `valid` is 0.
#pragma once
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ditrain/base/metadata.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::dataset {

/// One band of a shard. quantity = number * scale + offset.
struct TileBand {
  std::string name;
  double scale = 1, offset = 0;
  std::optional<double> nodata = {};
  bool operator==(const TileBand&) const = default;
  double quantity(double number) const { return number * scale + offset; }
};
/// The metadata `bands`, `scale`, `offset` and `nodata` of a shard with these bands.
std::map<std::string, std::string> metadata_of(const std::vector<TileBand>& bands);
inline bool is_missing(double number, const TileBand& band) {
  return !(number - number == 0) || (band.nodata && number == *band.nodata);
}

struct TileShard {
  weights::SafetensorsFile file;
  images::PixelType type = images::PixelType::kU8;
  int64_t first = 0;  ///< number of its first tile among the tiles of all shards
  int64_t count = 0, channels = 0, height = 0, width = 0;
  std::vector<TileBand> bands;
  std::vector<int64_t> labels;       ///< [count]; empty: no labels
  std::vector<double> numbers = {};  ///< tensor `metadata`, [count, kNumMetadata]; empty: the shard has none
  std::vector<std::string> classes = {}, source = {};
  std::string crs = {};
  bool has_valid = false;

  /// The digital numbers of one band of one tile, [height, width]; may be unaligned. Tiles count from 0 in each shard.
  const std::byte* plane(int64_t tile, int64_t band) const;
  /// The mask of one tile, [height, width], 0: missing. Null: the shard has no masks.
  const uint8_t* valid(int64_t tile) const;
};

/// Calls f(pixel, number in the shard's type, whether it is missing) for each pixel of one band of one tile.
template <class F>
void for_pixels(const TileShard& shard, int64_t tile, int64_t band, const F& f) {
  images::with_tile_number(shard.type, [&](auto zero) {
    using T = decltype(zero);
    const std::byte* plane = shard.plane(tile, band);
    const uint8_t* valid = shard.valid(tile);
    const TileBand& facts = shard.bands[size_t(band)];
    const int64_t n = shard.height * shard.width;
    const auto number = [&](int64_t p) {
      T x;
      std::memcpy(&x, plane + p * int64_t(sizeof x), sizeof x);
      return x;
    };
    if (valid == nullptr && !facts.nodata && std::is_integral_v<T>) {  // a loop that becomes vectors
      for (int64_t p = 0; p < n; ++p) f(p, number(p), false);
    } else {
      for (int64_t p = 0; p < n; ++p) {
        const T x = number(p);
        f(p, x, (valid != nullptr && valid[p] == 0) || is_missing(double(x), facts));
      }
    }
  });
}

/// For work that resumes in a folder of shards: refuses an existing shard whose metadata differs from `expected`, which
/// this run would write.
/// Errors:   InputError [path] "WHAT made in another way: KEY"; it advises to use the same flags and `inputs` as before
void expect_made_so(const std::string& path, const std::map<std::string, std::string>& metadata,
                    const std::map<std::string, std::string>& expected, const std::string& what,
                    const std::string& inputs);

/// Replaces NaN, which marks missing pixels, in one band of one tile by the mean of the other pixels.
/// Errors:   InputError if no pixel is valid
template <class T>
void fill_missing(const TileShard& shard, int64_t tile, int64_t band, T* plane);

/// The digital numbers of one band of one tile; a missing one is replaced by the mean of the others.
/// Errors:   InputError if no pixel is valid
std::vector<double> filled_plane(const TileShard& shard, int64_t tile, int64_t band);

/// Opens the shards of a folder (in the order of their names), or one file, and checks that they belong together.
/// Errors:   InputError: no shards; tensors or metadata that are missing or do not fit; shards of different types,
///           bands (in another order too), sizes, classes, or with and without labels
class TileShards {
 public:
  explicit TileShards(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TileShard>& shards() const { return shards_; }
  int64_t size() const { return size_; }
  images::PixelType type() const { return shards_.front().type; }
  const std::vector<TileBand>& bands() const { return shards_.front().bands; }
  /// Band `number`, whose scale and offset are the same in all shards. Errors: InputError, where = shard: they differ
  const TileBand& common_band(int64_t number) const;
  std::vector<std::string> band_names() const;
  int64_t num_classes() const { return num_classes_; }
  const std::vector<std::string>& classes() const { return shards_.front().classes; }
  const TileShard& shard_of(int64_t tile) const;
  const std::vector<std::string>& other_files() const { return other_files_; }
  /// Tiles that ditdata make left out for missing pixels, as far as the shards tell.
  int64_t dropped() const;
  /// That the ditdata make of this folder is not done; "" if it is, or if the last shard does not tell.
  std::string describe_unfinished() const;

 private:
  void check_like_first(const TileShard& shard) const;

  std::string path_;
  std::vector<TileShard> shards_;
  std::vector<std::string> other_files_;
  int64_t size_ = 0, num_classes_ = 0;
};

/// Adds to a checksum what tells these tiles from others without reading them all: of each shard its header, its labels
/// and each thousandth tile.
void add_to(files::Checksum& sum, const TileShards& shards);

/// Whether the path holds tiles: a safetensors file with the tensor `images`, or a folder whose first shard has it.
bool holds_tiles(const std::string& path);

/// The form in which names of bands are compared: "B02" and "b2" become "B2", other names lower case.
std::string canonical_band(const std::string& name);
/// Whether a band has only a number for a name, "band3", as ditdata make names those of files without names.
bool is_numbered_band(const std::string& name);
/// The band that was probably meant by a name that none has; "" for B1, B02, ...: another number is another wavelength.
std::string nearest_band(const std::string& name, const std::vector<std::string>& have);
/// The position in `have` of each band in `want`.
/// Errors:   InputError with this `where`: an unknown name (the message gives the nearest), a name that is there twice
std::vector<int> find_bands(const std::vector<std::string>& have, const std::vector<std::string>& want,
                            const std::string& where);
/// Errors:   InputError with this `where`: two bands of one name
void check_distinct(const std::vector<std::string>& names, const std::string& where);

/// Positions of the bands that make colours; -1: there is no such band. Words decide first (red, near infrared, ...;
/// never red edge or short-wave infrared). Numbers decide only where the whole set identifies the sensor, because "B4"
/// means something else on each:
///   with B8A or B12, none above B12 (Sentinel-2)  red, green, blue, nir = B4, B3, B2, B8
///   B2, B3, B4, B8 alone (Landsat 8 has them too) red, green, blue = B4, B3, B2
///   B1, B2, B3, B4 alone                          blue, green, red, nir = B1, B2, B3, B4
struct ColourBands {
  int red = -1, green = -1, blue = -1, nir = -1;
  bool has_rgb() const { return red >= 0 && green >= 0 && blue >= 0; }
  bool has_false_colour() const { return nir >= 0 && red >= 0 && green >= 0; }
};
ColourBands find_colours(const std::vector<std::string>& names);
/// The colours of two lists of bands of one sensor. The longer list identifies the sensor for both.
struct CommonColours {
  ColourBands first, second;
};
CommonColours find_common_colours(const std::vector<std::string>& first, const std::vector<std::string>& second);

}  // namespace ditrain::dataset
