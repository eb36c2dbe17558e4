// Writes samples while ranks draw them: one picture or GeoTIFF per sample, all values in one file where pictures cannot
// show them, and on request a grid and an .npz. Every file gets its final name when it is complete.
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

/// "000012.png"
std::string sample_name(int64_t number, bool geotiff);

/// The samples to write: model output, or images that a VAE decoded from it.
struct SampleForm {
  int64_t channels, height, width;
  bool is_latent = false;                            ///< the samples are latents that are not decoded
  std::optional<dataset::BandScaling> scaling = {};  ///< for tiles, which are written in digital numbers
  std::optional<images::RasterInfo> like = {};
  bool is_picture() const { return !is_latent && (channels == 1 || channels == 3); }
  int64_t pixels() const { return height * width; }
  images::PixelType type() const { return scaling ? scaling->type : images::PixelType::kF32; }
  /// Converts model values [n, channels, height, width] to type(); returns their bytes.
  std::vector<std::byte> numbers(const float* values, int64_t n) const;
};

/// The files to write.
struct SampleFiles {
  std::string folder, grid = {}, npz = {};  ///< grid, npz: paths of files; empty: none
  int64_t num = 0;                          ///< number of images over all ranks
  bool geotiff = false;                     ///< instead of PNGs
  int64_t drawn = 0;                        ///< PNGs that are there already, from number 0 on; add() takes the others
};

/// Files:    FOLDER/000000.png (or .tif), ...; and kRawSamplesFile if the samples are no pictures, or are digital
///           numbers: tensor `images` in the type of the data with the metadata of tiles (other data: `samples` in
///           f32), and `labels`, -1 for no label
/// Memory:   rank 0 holds the pictures of the grid, and the values that all ranks pass to one add()
/// Errors:   RunError (disk full, ...): files that are not whole are removed. The constructor: InputError for samples
///           that are too large for PNG; for a grid or an npz also as images::read_image for those that are there
class SampleWriter {
 public:
  /// `form` and `picture` must outlive it.
  SampleWriter(const SampleFiles& files, const SampleForm& form, const BandPictures& picture,
               const std::vector<int64_t>& labels, dist::Communicator& comm);
  ~SampleWriter();
  /// Collective. Takes the values of this rank's next n samples, of which the first has number `first`; the numbers of
  /// rank r + 1 follow those of rank r.
  void add(ops::Context& ctx, const std::vector<float>& values, int64_t first, int64_t n);
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ditrain::eval
