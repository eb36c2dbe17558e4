// Converts between images and the latents that a model learns, by an autoencoder and its scale factor. Training encodes
// its data (data.vae) and decodes its samples to show them (sample.vae); ditsample decodes.
//
//   LatentCodec codec(LatentCodecPlan("sd-vae-ft-ema.safetensors", {4, 32, 32}), nn::AutoencoderUse::kDecode);
//   std::vector<float> images = codec.decode(ctx, samples);
#pragma once
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/eval/autoencoder_file.hpp"

namespace ditrain::eval {

/// The file of an autoencoder before its weights are loaded: shapes and bytes for the memory plan.
class LatentCodecPlan {
 public:
  /// Errors:   InputError as AutoencoderFile and its scale_factor(), and if its latents have other channels than
  ///           `latents`
  LatentCodecPlan(const std::string& path, const dataset::SampleShape& latents, DType precision = DType::kF32);

  const dataset::SampleShape& latents() const { return latents_; }
  const dataset::SampleShape& images() const { return images_; }  ///< shape of the images behind the latents
  /// Bytes of the weights and of one image with `workers` workers.
  size_t bytes(bool encodes, int workers) const;
  std::string describe() const;
  double scale_factor() const { return file_.scale_factor(); }
  /// Refuses a VAE with another scale factor than `learned`, which the model was trained with and `said_by` states.
  /// Errors:   InputError
  void expect_scale(double learned, const std::string& said_by) const;

 private:
  friend class LatentCodec;
  AutoencoderFile file_;
  dataset::SampleShape latents_, images_;
  DType precision_;
};

/// Encodes and decodes.
/// Numerics: the plan's precision; bit-identical for any number of workers and of images per call
class LatentCodec {
 public:
  LatentCodec(const LatentCodecPlan& plan, nn::AutoencoderUse use);

  const dataset::SampleShape& latents() const { return latents_; }
  const dataset::SampleShape& images() const { return images_; }

  /// Returns the latents of keys.size() consecutive images: image i draws from its posterior with keys[i]; the draw is
  /// multiplied by the scale factor.
  std::vector<float> encode(ops::Context& ctx, const std::vector<float>& images, const std::vector<RandomKey>& keys);
  /// Returns the images of consecutive scaled latents, not clamped to [-1, 1].
  std::vector<float> decode(ops::Context& ctx, std::vector<float> latents);

 private:
  dataset::SampleShape latents_, images_;
  float scale_;
  nn::Autoencoder vae_;
};

/// Some samples of an image data set as latents, each encoded once. Validation uses it, because it looks at the same
/// samples every time.
class EncodedImages final : public dataset::Dataset {
 public:
  /// All arguments must outlive the object.
  EncodedImages(const dataset::Config& config, const dataset::Dataset& images, LatentCodec& codec);
  /// Encodes those of `samples` that are not encoded yet. load() takes only samples that were prepared. Sample i always
  /// draws the same latent.
  void prepare(ops::Context& ctx, const std::vector<int64_t>& samples);
  std::string describe() const override { return images_.describe(); }

 private:
  void read(int64_t index, bool flip, float* chw, Condition* condition) const override;

  struct Sample {
    std::vector<float> latent;
    Condition condition;
  };
  const dataset::Dataset& images_;
  LatentCodec& codec_;
  std::map<int64_t, Sample> samples_;
};

}  // namespace ditrain::eval
