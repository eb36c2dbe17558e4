// Samples a whole scene, larger than the model's input, conditioned on an image of that scene: for example near
// infrared for a red, green and blue scene.
//
// Problem:      a model sees tiles. Tiles that are sampled one by one do not match at their borders.
// Abstraction:  the sampler's state is the whole scene. At every evaluation the model sees overlapping tiles of it, its
//               outputs are averaged with the weights of a window, and the sampler takes one step over the scene.
// Source:       MultiDiffusion (Bar-Tal et al. 2023)
#pragma once
#include "ditrain/dataset/config.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/images/raster.hpp"

namespace ditrain::eval {

/// The bands of a raster that data.condition names, scaled as in training.
struct ConditionScene {
  images::RasterInfo info;
  std::vector<float> image = {};  ///< [condition channels, height, width]; NaN: no data
  double without_data = 0;        ///< share of pixels that lack a band
};
/// Opens the raster and checks its bands; reads no pixels. Warns if neither the raster nor the tiles that the model
/// learnt from say which pixels are missing.
/// Errors:   InputError, where = path: what Raster refuses; a band that data.condition names is not there
images::RasterInfo find_condition(const std::string& path, const dataset::Config& data);
/// Reads the bands, scaled as tiles are; pixels without data are treated as in tiles (dataset/tiles.cpp).
/// Errors:   as find_condition, and what Raster::read refuses; a scene without any data
ConditionScene read_condition(const std::string& path, const dataset::Config& data);

struct SceneRequest {
  diffusion::SamplerConfig sampler = {};
  uint64_t seed = 0;
  int64_t index = 0;              ///< number of this sample among all samples of the scene
  int64_t height = 0, width = 0;  ///< pixels; at least those of the model's input
  Condition condition = {};       ///< image [condition channels, height, width]; label and numbers, for all tiles
  int64_t batch = kDefaultBatch;  ///< tiles at once, >= 1
  DType precision = DType::kF32;  ///< as in GenerateRequest
  size_t modulation_bytes = kModulationBytes;
  nn::Model* guide = nullptr;  ///< and guide_routes: as in GenerateRequest; routes are drawn per tile
  nn::Routes guide_routes = {};
};

/// Draws one scene with the weights that the model's parameters are bound to.
/// Math:     a pixel's output is the mean over its tiles, weighted by w(y) w(x), w(i) = sin^2(pi (i + 1/2) / side).
///           Tiles begin every half side less a pixel; the last ones end with the scene. Noise k of channel c and row y
///           is kernels::fill_normal of RandomKey(seed, Stream::kSampleNoise, index 2^40 + c 2^24 + y, k), element x:
///           the same for a pixel whatever the tiles and the size of the scene
/// Shapes:   returns [in_channels, height, width]
/// Numerics: bit-identical for any number of workers; f32 sums in the order of the tiles
/// Memory:   bytes_per_scene_pixel() per pixel of the scene, and generate_bytes() for `batch` tiles
/// Errors:   as generate(), and InputError for a scene that is smaller than the model's input
std::vector<float> generate_scene(ops::Context& ctx, nn::Model& model, const diffusion::Config& config,
                                  const SceneRequest& request, const GenerateProgress& progress = {});

/// Upper bound of the bytes per pixel of a scene, without the model and its tiles.
size_t bytes_per_scene_pixel(const nn::ModelConfig& model, const diffusion::SamplerConfig& sampler);

}  // namespace ditrain::eval
