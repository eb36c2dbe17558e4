// Between images and the latents that a model learns: an autoencoder and its scale factor. Training encodes with it
// (data.vae) and shows its samples decoded (sample.vae); ditsample decodes.
//
//   LatentCodec codec(LatentCodecPlan("sd-vae-ft-ema.safetensors", {4, 32, 32}), nn::AutoencoderUse::kDecode);
//   std::vector<float> images = codec.decode(ctx, samples);
#pragma once
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/eval/autoencoder_file.hpp"

namespace ditrain::eval {

/// The file, its weights not yet in memory: what a plan has to know.
class LatentCodecPlan {
 public:
  /// Errors:   InputError as AutoencoderFile and its scale_factor(), and for other channels than those of `latents`
  LatentCodecPlan(const std::string& path, const dataset::SampleShape& latents);

  const dataset::SampleShape& latents() const { return latents_; }
  const dataset::SampleShape& images() const { return images_; }  ///< of which the latents are made
  /// Weights, and what an image takes with `workers` workers.
  size_t bytes(bool encodes, int workers) const;
  std::string describe() const;
  double scale_factor() const { return file_.scale_factor(); }
  /// Refuses a VAE whose latents are multiplied by another factor than those that a model learned. Errors: InputError
  void expect_scale(double learned, const std::string& said_by) const;

 private:
  friend class LatentCodec;
  AutoencoderFile file_;
  dataset::SampleShape latents_, images_;
};

/// Numerics: f32; the bits do not depend on the number of workers or of images at a time
class LatentCodec {
 public:
  LatentCodec(const LatentCodecPlan& plan, nn::AutoencoderUse use);

  const dataset::SampleShape& latents() const { return latents_; }
  const dataset::SampleShape& images() const { return images_; }

  /// Latents of keys.size() images in a row, drawn from their posteriors, times the scale factor.
  std::vector<float> encode(ops::Context& ctx, const std::vector<float>& images, const std::vector<RandomKey>& keys);
  /// Images, not clamped, of scaled latents in a row.
  std::vector<float> decode(ops::Context& ctx, std::vector<float> latents);

 private:
  dataset::SampleShape latents_, images_;
  float scale_;
  nn::Autoencoder vae_;
};

/// Some samples of a set of images as latents, each encoded once: validation looks at the same ones every time.
class EncodedImages final : public dataset::Dataset {
 public:
  /// All outlive the object.
  EncodedImages(const dataset::Config& config, const dataset::Dataset& images, LatentCodec& codec);
  /// Encodes those samples that are not there yet; others must not be loaded. Sample i draws the same each time.
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
