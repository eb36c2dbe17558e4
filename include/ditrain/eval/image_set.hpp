// The images of one side of an evaluation: a folder of files, an array of an npz or npy, or shards of safetensors. They
// are numbered in an order that depends on names alone, and come in blocks, read by the workers of a team.
//
//   const auto set = open_image_set("samples");
//   set->visit(team, [&](int64_t i, const EvalImage& image) { ... });     // called by several workers at a time
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::eval {

/// One image of any number of channels; either eight bits or f32.
struct EvalImage {
  int64_t height = 0, width = 0, channels = 0;
  bool is_u8 = true;
  bool channels_first = false;   ///< [C, H, W] rather than [H, W, C]
  std::vector<uint8_t> u8 = {};  ///< if is_u8
  std::vector<float> f32 = {};   ///< otherwise; the values of the file
  std::string name = {};         ///< for messages
};

/// An image [C, H, W] in about [-1, 1] as programs write it: one or three channels are rounded to eight bits.
EvalImage as_in_a_file(const float* chw, const dataset::SampleShape& shape, std::string name);

/// Threads:  one caller at a time
class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual int64_t size() const = 0;
  virtual std::string describe() const = 0;  ///< "5000 images in the folder samples"
  /// A fingerprint of what was visited: the SHA-256 of the file, or of the list that sha256sum would print of the
  /// files.
  virtual std::string sha256() const = 0;
  /// Facts that the program that made the images left beside them (sample_facts.hpp), as one line of JSON; "" without
  /// facts.
  virtual std::string facts() const { return ""; }
  /// The tiles that the images are made of, in digital numbers; null: they are pictures or latents.
  virtual const dataset::TileShards* tiles() const { return nullptr; }
  /// Calls use(i, image) for all images, each once, in no order. Errors: InputError naming the image; what `use` throws
  void visit(parallel::Team& team, const std::function<void(int64_t, const EvalImage&)>& use);

  /// Call before image(i) for begin <= i < end <= begin + most_prepared(). Fastest in rising order.
  virtual void prepare([[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) {}
  virtual int64_t most_prepared() const { return size(); }
  /// Reads one image. Threads: any number at a time. Errors: InputError naming the image
  virtual EvalImage image(int64_t i) = 0;
};

/// Opens a folder of JPEG, PNG and BMP files (or of one sub-folder of them per class), a .npz or .npy with an array
/// `arr_0` of images [N, H, W, C] or [N, H, W], or a safetensors file or a folder of them with `images`, `latents` or
/// `samples` (of ditsample, in [-1, 1]: as_in_a_file) [N, C, H, W]. The content tells files apart. Pictures beside
/// shards are what is read, unless they cannot show what the shards hold (tiles, or other than one or three channels).
/// Tiles (tile_shards.hpp) keep their numbers; a missing one gets the mean of the valid ones of its band in its tile.
/// Errors:   InputError, where = path: nothing of that kind, no images, a class without images, wrong types or shapes
std::unique_ptr<ImageSet> open_image_set(const std::string& path);

/// Tiles, the channels of whose images are these bands, in this order.
/// Errors:   InputError, where = path: no tiles, a band that is not there
std::unique_ptr<ImageSet> open_tiles(const std::string& path, const std::vector<std::string>& bands);

}  // namespace ditrain::eval
