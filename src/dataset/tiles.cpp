// Tiles of scenes (tile_shards.hpp): chosen bands, scaled to [-1, 1]. Shards stay mapped; a tile is converted when it
// is wanted. A missing pixel gets the mean of the valid pixels of its band in its tile, so that it neither adds an edge
// nor shifts the colours; a tile in which a band has no valid pixel is unreadable (data.on_bad_file).
#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/files/checksum.hpp"

namespace ditrain::dataset {
namespace {

class Tiles final : public Dataset {
 public:
  Tiles(const OpenRequest& request, const Config& settled)
      : Dataset(settled, request.shape), shards_(settled.path), scaling_(scaling_of(settled)) {
    bands_ = find_bands(shards_.band_names(), settled.bands, "data.bands");
    size_ = shards_.size();
    num_classes_ = shards_.num_classes();
    class_names_ = shards_.classes();
    for (const TileShard& shard : shards_.shards())
      for (const int64_t label : shard.labels) note_class(label);
    for (const std::string& name : shards_.other_files())
      if (name != "stats.json") ignore_file(name);
    check_shape();
  }

  std::string describe() const override {
    const TileShard& s = shards_.shards().front();
    const std::string labels = num_classes_ == 0 ? "no labels" : std::to_string(num_classes_) + " classes";
    return "tiles '" + shards_.path() + "': " + std::to_string(size_) + " of " + std::to_string(s.height) + " x " +
           std::to_string(s.width) + " (" + std::string(word_of(s.type)) + ") in " +
           std::to_string(shards_.shards().size()) + " shards, " + labels +
           ", bands in [-1, 1]: " + scaling_.describe();
  }

  // Covers of each shard its header and size, and each thousandth tile.
  std::string samples_checksum() const override {
    files::Checksum sum;
    for (const TileShard& shard : shards_.shards()) {
      const weights::TensorView& images = shard.file.tensor("images");
      sum.add(shard.file.data(), size_t(shard.file.tensors().front().offset));
      const size_t tile = images.bytes / size_t(std::max<int64_t>(1, shard.count));
      for (int64_t i = 0; i < shard.count; i += 1000) sum.add(images.data + size_t(i) * tile, tile);
      sum.add(shard.labels.data(), shard.labels.size() * sizeof shard.labels[0]);
    }
    const std::string scaling = scaling_.describe();
    sum.add(scaling.data(), scaling.size());
    return files::to_hex(sum.value());
  }

 private:
  void check_shape() const {
    const TileShard& s = shards_.shards().front();
    if (shape_.channels != int64_t(bands_.size()))
      throw ShapeError({.where = "data",
                        .what = "the model has another number of channels than data.bands",
                        .got = "model.in_channels " + std::to_string(shape_.channels),
                        .expected = std::to_string(bands_.size()),
                        .hint = "model.in_channels: " + std::to_string(bands_.size())});
    if (shape_.height != s.height || shape_.width != s.width)
      throw ShapeError({.where = "data",
                        .what = "the tiles have another size than the model's input",
                        .got = std::to_string(s.height) + " x " + std::to_string(s.width),
                        .expected = std::to_string(shape_.height) + " x " + std::to_string(shape_.width),
                        .hint = "model.input_size of these tiles, or ditdata make --tile N"});
  }

  void read(int64_t index, bool flip, float* chw, Condition* condition) const override {
    const TileShard& shard = shards_.shard_of(index);
    const int64_t tile = index - shard.first;
    for (int64_t c = 0; c < shape_.channels; ++c) {
      read_band(shard, tile, c, flip, chw + c * shape_.height * shape_.width);
    }
    condition->label = shard.labels.empty() ? 0 : shard.labels[size_t(tile)];
  }

  void read_band(const TileShard& shard, int64_t tile, int64_t channel, bool flip, float* out) const {
    const auto c = size_t(channel);
    const double low = scaling_.low[c];
    const float factor = float(2 / (scaling_.high[c] - low)), offset = float(-1 - low * 2 / (scaling_.high[c] - low));
    int64_t missing = 0;
    for_pixels(shard, tile, bands_[c], [&](int64_t p, auto x, bool is_gone) {
      const float scaled = std::clamp(float(x) * factor + offset, -1.0f, 1.0f);
      out[p] = is_gone ? NAN : scaled;
      missing += is_gone;
    });
    if (missing > 0) fill_missing(shard, tile, bands_[c], out);
    if (flip)
      for (int64_t y = 0; y < shape_.height; ++y) std::reverse(out + y * shape_.width, out + (y + 1) * shape_.width);
  }

  TileShards shards_;
  BandScaling scaling_;
  std::vector<int> bands_;
};

}  // namespace

std::unique_ptr<Dataset> open_tiles(const OpenRequest& request) {
  Config settled = request.config;
  settle_tiles(settled);
  return std::make_unique<Tiles>(request, settled);
}

}  // namespace ditrain::dataset
