// What the tests feed to the programs: image folders, latents, and checkpoints that were tampered with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ditrain::e2e {

/// PATH/class_K/I.png, `num_classes` x `images_per_class` pictures of 40 x 32 pixels that all differ.
void write_image_folder(const std::string& path, int64_t num_classes, int64_t images_per_class);

/// PATH/field/a.tif and PATH/lake/b.tif: scenes of 13 bands of Sentinel-2 (u16, height x width pixels of 10 m) that
/// differ by class; does nothing in a build without GDAL.
void write_scenes(const std::string& path, int64_t height = 64, int64_t width = 128);

/// PATH/X.SAFE: a product of Sentinel-2 at level 2A as it is downloaded, of 120 x 120 pixels of 10 m, of which 12
/// columns are 0: bands in R10m, R20m and R60m, rasters that are no bands, masks. Files are GeoTIFFs under the names of
/// JPEG 2000 files, for want of a writer, and state no number of missing pixels; nothing in a build without GDAL.
void write_level_2a(const std::string& path);
/// The same at level 1C: all 13 bands in one folder.
void write_level_1c(const std::string& path);

/// PATH/config.json and the weights of a tiny autoencoder beside it, as diffusers stores them: 4 channels of half the
/// size.
void write_small_vae(const std::string& path);

/// A shard of latents [labels.size(), 4, 8, 8], standard normal; in samples of `huge` every value is
/// 3e38 with the sign of the normal one: finite, but the model overflows on it.
void write_latents(const std::string& path, const std::vector<int64_t>& labels, const std::vector<int64_t>& huge = {});
/// Settings for a model of those latents.
std::vector<std::string> latents_settings(const std::string& folder);

struct LooseTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};
/// Reads a safetensors file, lets `change` work on its tensors and writes it back.
void rewrite_tensors(const std::string& path, const std::function<void(std::map<std::string, LooseTensor>&)>& change);

}  // namespace ditrain::e2e
