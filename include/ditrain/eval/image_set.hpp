// The images of one side of an evaluation: a folder of files, an array of an npz or npy, or safetensors shards. Their
// numbers depend on names alone. The workers of a team read them in blocks.
//
//   const auto set = open_image_set("samples");
//   set->visit(team, [&](int64_t i, const EvalImage& image) { ... });     // called by several workers at a time
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::eval {

/// One image of any number of channels, in u8 or f32.
struct EvalImage {
  int64_t height = 0, width = 0, channels = 0;
  bool is_u8 = true;
  bool channels_first = false;   ///< [C, H, W] rather than [H, W, C]
  std::vector<uint8_t> u8 = {};  ///< if is_u8
  std::vector<float> f32 = {};   ///< otherwise; the values of the file
  std::string name = {};         ///< for messages
};

/// Converts model output [C, H, W] in about [-1, 1] to the values that it would have in a file: one or three channels
/// are rounded to 8 bits, others and latents stay f32.
EvalImage round_as_saved(const float* chw, const dataset::SampleShape& shape, bool is_latent, std::string name);

/// Threads:  one caller at a time
class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual int64_t size() const = 0;
  virtual std::string describe() const = 0;  ///< "5000 images in the folder samples"
  /// A fingerprint of the images that were visited: the SHA-256 of the file or, for a folder, of the list that
  /// sha256sum prints for its files.
  virtual std::string sha256() const = 0;
  /// How the images were made (sample_facts.hpp), as one line of JSON from the file beside them; "" without that file.
  virtual std::string facts() const { return ""; }
  bool is_latent() const;  ///< whether the facts say so
  /// What lies there and is not read: folders inside class folders, other files; "": nothing.
  virtual std::string left_out() const { return ""; }
  /// The tiles behind the images, in digital numbers; null: the images are pictures or latents.
  virtual const dataset::TileShards* tiles() const { return nullptr; }
  /// Calls use(i, image) once for every image, in any order, from several workers at a time.
  /// Errors: InputError naming the image; what `use` throws
  void visit(parallel::Team& team, const std::function<void(int64_t, const EvalImage&)>& use);

  /// Must be called before image(i), for a range with begin <= i < end <= begin + most_prepared(). Fastest in rising
  /// order.
  virtual void prepare([[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) {}
  virtual int64_t most_prepared() const { return size(); }
  /// Reads one image. Threads: any number at a time. Errors: InputError naming the image
  virtual EvalImage image(int64_t i) = 0;
};

/// Opens the images at a path, which is one of
///   a folder of JPEG, PNG and BMP files, or of one sub-folder of them per class;
///   a .npz with an array `arr_0`, or a .npy, of images [N, H, W, C] or [N, H, W];
///   a safetensors file, or a folder of them, with [N, C, H, W] of `images`, `latents`, `mean` (of latents with their
///   moments) or `samples` (ditsample's, in [-1, 1], see round_as_saved).
/// Files are told apart by content. Where pictures lie beside shards the pictures are read, unless they cannot show
/// what the shards hold (tiles, latents, or a number of channels other than one and three). Tiles (tile_shards.hpp)
/// keep their digital numbers; a missing one becomes the mean of the valid ones of its band in its tile. `latents` and
/// `mean` are multiplied by `latent_scale`, or else by the scale_factor that their shards state, as training does.
/// Errors:   InputError, where = path: nothing of that kind, no images, a class without images, wrong types or shapes,
///           shards that state another scale_factor than the first one
std::unique_ptr<ImageSet> open_image_set(const std::string& path, std::optional<double> latent_scale = {});

/// Opens tiles; the channels of their images are these bands, in this order.
/// Errors:   InputError, where = path: no tiles, a band that is not there
std::unique_ptr<ImageSet> open_tiles(const std::string& path, const std::vector<std::string>& bands);

}  // namespace ditrain::eval
