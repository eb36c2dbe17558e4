// Writes samples as ranks draw them: a picture or a GeoTIFF of each, all values in one file where pictures cannot show
// them, and on demand a grid and an .npz. Every file appears under its name when it is whole.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/band_picture.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::eval {

inline constexpr const char* kRawSamplesFile = "samples.safetensors";
inline constexpr int64_t kMaxGridImages = 1024;

/// What samples are: the model's data, or what the VAE makes of it.
struct SampleForm {
  int64_t channels, height, width;
  bool is_latent = false;                            ///< and not decoded
  std::optional<dataset::BandScaling> scaling = {};  ///< of tiles: values are digital numbers
  std::optional<images::RasterInfo> like = {};
  bool is_picture() const { return !is_latent && (channels == 1 || channels == 3); }
  int64_t pixels() const { return height * width; }
  images::PixelType type() const { return scaling ? scaling->type : images::PixelType::kF32; }
  /// Values [n, channels, height, width] of this type.
  std::vector<std::byte> numbers(const float* values, int64_t n) const;
};

/// Where they go.
struct SampleFiles {
  std::string folder, grid = {}, npz = {};  ///< grid, npz: paths of files; empty: none
  int64_t num = 0;                          ///< images of all ranks
  bool geotiff = false;                     ///< instead of PNGs
};

/// Files:    FOLDER/000000.png (or .tif), ...; kRawSamplesFile if the data is no picture or digital numbers: `images`
///           in the type of the data with the metadata of tiles, or `samples` as f32 of other data, and `labels`,
///           -1 where there is none
/// Memory:   rank 0 holds the pictures of the grid, and the values that all ranks hand to one add()
/// Errors:   RunError (disk full, ...): files that are not whole are removed
class SampleWriter {
 public:
  /// `form` and `picture` must outlive it.
  SampleWriter(const SampleFiles& files, const SampleForm& form, const BandPictures& picture,
               const std::vector<int64_t>& labels, dist::Communicator& comm);
  ~SampleWriter();
  /// Collective: values of n samples of this rank, the first with number `first`. Those of rank r + 1 follow those of
  /// rank r.
  void add(ops::Context& ctx, const std::vector<float>& values, int64_t first, int64_t n);
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ditrain::eval
