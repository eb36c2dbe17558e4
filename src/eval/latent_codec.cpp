#include "ditrain/eval/latent_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/random.hpp"

namespace ditrain::eval {

LatentCodecPlan::LatentCodecPlan(const std::string& path, const dataset::SampleShape& latents, DType precision)
    : file_(path), latents_(latents), precision_(precision) {
  const nn::AutoencoderConfig& c = file_.config();
  if (c.latent_channels != latents.channels)
    throw InputError({.where = file_.weights_path(),
                      .what = "this VAE has other channels than the model",
                      .got = std::to_string(c.latent_channels),
                      .expected = std::to_string(latents.channels)});
  images_ = {c.image_channels, latents.height * c.shrink(), latents.width * c.shrink()};
  file_.scale_factor();  // refuses a file that does not tell
}

size_t LatentCodecPlan::bytes(bool encodes, int workers) const {
  return file_.bytes(precision_, encodes ? nn::AutoencoderUse::kEncode : nn::AutoencoderUse::kDecode, images_.height,
                     images_.width, workers);
}

std::string LatentCodecPlan::describe() const {
  return fmt::format("VAE {}: latents of {} x {} x {} for images of {} x {} (scale factor {})", file_.weights_path(),
                     latents_.channels, latents_.height, latents_.width, images_.height, images_.width,
                     file_.describe_scale());
}

void LatentCodecPlan::expect_scale(double learned, const std::string& said_by) const {
  const double own = file_.scale_factor();
  if (std::abs(own - learned) <= 1e-6 * std::abs(learned)) return;
  throw InputError({.where = file_.weights_path(),
                    .what = "latents of this VAE have another scale than those that the model learned",
                    .got = "scale factor " + file_.describe_scale(),
                    .expected = fmt::format("{:.9g} ({})", learned, said_by),
                    .hint = "the VAE that made the latents, or " + file_.advice_on_setting("scaling_factor", learned)});
}

LatentCodec::LatentCodec(const LatentCodecPlan& plan, nn::AutoencoderUse use)
    : latents_(plan.latents_),
      images_(plan.images_),
      scale_(float(plan.file_.scale_factor())),
      vae_(plan.file_.load(plan.precision_, use)) {}

std::vector<float> LatentCodec::encode(ops::Context& ctx, const std::vector<float>& images,
                                       const std::vector<RandomKey>& keys) {
  const auto n = int64_t(keys.size());
  DITRAIN_CHECK(int64_t(images.size()) == n * images_.elements(), "whole images, one for each key");
  if (n == 0) return {};
  const Tensor moments({n, 2 * latents_.channels, latents_.height, latents_.width});
  vae_.encode(ctx, from_values({n, images_.channels, images_.height, images_.width}, images), moments);
  const nn::Posterior posterior(moments);
  const Tensor noise(posterior.mean.shape());
  {
    const Pin<float> p(noise);
    for (int64_t i = 0; i < n; ++i)
      kernels::fill_normal(keys[size_t(i)], 0, p + i * latents_.elements(), latents_.elements());
  }
  std::vector<float> latents = to_vector(posterior.sample(noise));
  for (float& x : latents) x *= scale_;
  return latents;
}

std::vector<float> LatentCodec::decode(ops::Context& ctx, std::vector<float> latents) {
  const int64_t n = int64_t(latents.size()) / latents_.elements();
  DITRAIN_CHECK(int64_t(latents.size()) == n * latents_.elements(), "whole latents");
  if (n == 0) return {};
  for (float& x : latents) x /= scale_;
  const Tensor images({n, images_.channels, images_.height, images_.width});
  vae_.decode(ctx, from_values({n, latents_.channels, latents_.height, latents_.width}, latents), images);
  return to_vector(images);
}

EncodedImages::EncodedImages(const dataset::Config& config, const dataset::Dataset& images, LatentCodec& codec)
    : Dataset(config, codec.latents()), images_(images), codec_(codec) {
  size_ = images.size(), num_classes_ = images.num_classes(), class_names_ = images.class_names();
}

void EncodedImages::prepare(ops::Context& ctx, const std::vector<int64_t>& samples) {
  std::vector<float> image(static_cast<size_t>(codec_.images().elements()));
  for (const int64_t index : samples) {
    if (samples_.contains(index)) continue;
    Sample sample;
    images_.load(index, /*flip=*/false, image.data(), &sample.condition);
    sample.latent = codec_.encode(ctx, image, {RandomKey(0, Stream::kPosterior, uint64_t(index))});
    samples_[index] = std::move(sample);
  }
}

void EncodedImages::read(int64_t index, bool, float* chw, Condition* condition) const {
  const auto found = samples_.find(index);
  DITRAIN_CHECK(found != samples_.end(), "a sample that was encoded");
  std::copy(found->second.latent.begin(), found->second.latent.end(), chw);
  *condition = found->second.condition;
}

}  // namespace ditrain::eval
