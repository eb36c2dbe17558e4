// Autoencoders: small ones, and that of Stable Diffusion at full size. Weights stand in the file or follow from the
// formula. Tolerances are those of the fixtures' description, relative to the largest value of a tensor.
#include <cmath>

#include "ditrain/nn/autoencoder.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kLargestSide = 2048, kMostChannels = 1024;

/// Sizes of the small models; those of Stable Diffusion where the file tells none.
nn::AutoencoderConfig read_config(Verification& v) {
  nn::AutoencoderConfig config;
  if (!v.has("cfg.levels")) return config;
  config.latent_channels = v.setting("cfg.z", 1, kMostChannels);
  config.layers = v.setting("cfg.layers", 1, 8);
  config.groups = v.setting("cfg.groups", 1, kMostChannels);
  config.channels.resize(size_t(v.setting("cfg.levels", 1, 8)));
  for (size_t i = 0; i < config.channels.size(); ++i)
    config.channels[i] = v.setting("cfg.channels" + std::to_string(i), 1, kMostChannels);
  return config;
}

nn::Autoencoder make_model(Verification& v, const nn::AutoencoderConfig& config, DType type = DType::kF32) {
  return {config, type, [&](const std::string& name, const Shape& shape) {
            return v.has(name) ? v.f32(name, shape) : v.formula(name, shape);
          }};
}

/// 2 image(k) - 1 of the formula image STEM.image, k = 0, 1, ...
std::vector<float> formula_images(const Verification& v, const Shape& shape) {
  std::vector<float> values;
  for (int64_t k = 0; k < shape[0]; ++k)
    for (const float x :
         formula_image(v.stem() + ".image." + std::to_string(k) + v.suffix(), k, shape[1], shape[2], shape[3]))
      values.push_back(2 * x - 1);
  return values;
}

Tensor read_images(Verification& v) {
  const Shape shape = v.shape("image", 4, kLargestSide);
  const std::vector<float> formula = formula_images(v, shape);
  v.check("image", shape, to_f64(formula), 0, Per::unit());
  return v.tensor("image", shape);
}

Tensor read_latents(Verification& v, const nn::AutoencoderConfig& config) {
  const Shape shape = v.shape("latent", 4, kLargestSide);
  if (shape[1] != config.latent_channels) v.refuse("latent: channels", to_string(shape));
  return v.tensor("latent", shape);
}

struct Tolerances {
  double moments, mean, logvar, sample, kl, decoded;
};

Shape moments_shape(const nn::AutoencoderConfig& c, const Tensor& images) {
  return {images.dim(0), 2 * c.latent_channels, images.dim(2) / c.shrink(), images.dim(3) / c.shrink()};
}

Tensor decode(Verification& v, nn::Autoencoder& model, const Tensor& latents) {
  const int64_t shrink = model.config().shrink();
  const Tensor images(
      {latents.dim(0), model.config().image_channels, latents.dim(2) * shrink, latents.dim(3) * shrink});
  model.decode(v.ctx(), latents, images);
  return images;
}

/// What the same network gives in bf16, from the same images and latents: every activation and weight is rounded to a
/// relative error of 2^-9 at most, 2^-9 / sqrt(3) in the mean; the sum over some 90 independent roundings on the way
/// through encoder or decoder is sqrt(90) of that, 0.0107. Twice as much passes.
constexpr double kBf16Bound = 0.022;

struct Bf16Results {
  std::vector<double> moments, decoded;
};
Bf16Results run_bf16(Verification& v, const Tensor& images, const Tensor& latents) {
  nn::Autoencoder model = make_model(v, read_config(v), DType::kBF16);
  const Tensor moments(moments_shape(model.config(), images));
  model.encode(v.ctx(), images, moments);
  return {to_f64(moments), to_f64(decode(v, model, latents))};
}

/// The divergence of each image's posterior from the unit normal.
std::vector<double> divergence(const nn::Posterior& p) {
  const std::vector<double> mean = to_f64(p.mean), logvar = to_f64(p.logvar);
  const auto images = size_t(p.mean.dim(0)), each = mean.size() / images;
  std::vector<double> kl(images, 0.0);
  for (size_t i = 0; i < mean.size(); ++i)
    kl[i / each] += 0.5 * (mean[i] * mean[i] + std::exp(logvar[i]) - 1 - logvar[i]);
  return kl;
}

void verify_with_noise(Verification& v, const Tolerances& t) {
  nn::Autoencoder model = make_model(v, read_config(v));
  const Tensor images = read_images(v), moments(moments_shape(model.config(), images));
  model.encode(v.ctx(), images, moments);
  v.check_both("moments", moments, t.moments);
  const nn::Posterior posterior(moments);
  v.check_both("mean", posterior.mean, t.mean);
  v.check_both("logvar", posterior.logvar, t.logvar);
  v.check_both("sample", posterior.sample(v.tensor("eps", posterior.mean.shape())), t.sample);
  v.check_both("kl", {images.dim(0)}, divergence(posterior), t.kl, Per::entry());
  const Tensor latents = read_latents(v, model.config()), decoded = decode(v, model, latents);
  v.check_both("decoded", decoded, t.decoded);
  const Bf16Results bf16 = run_bf16(v, images, latents);
  v.check_bf16("moments", moments.shape(), bf16.moments, kBf16Bound);
  v.check_bf16("decoded", decoded.shape(), bf16.decoded, kBf16Bound);
}

/// Means over space of what modules give, in the order of execution.
nn::Autoencoder::Observer mean_checker(Verification& v) {
  return [&v](const std::string& module, const Tensor& y) {
    if (v.has("mean." + module)) v.check_both("mean." + module, {y.shape().back()}, means_over_space(y), 3e-6);
  };
}

std::vector<double> every_seventh(const std::vector<double>& values) {
  std::vector<double> some;
  for (size_t i = 0; i < values.size(); i += 7) some.push_back(values[i]);
  return some;
}

void verify_rect_stats(Verification& v) {
  nn::Autoencoder model = make_model(v, read_config(v));
  const int64_t shrink = model.config().shrink();
  const int64_t h = v.setting("cfg.h", 1, kLargestSide), w = v.setting("cfg.w", 1, kLargestSide);
  if (h % shrink != 0 || w % shrink != 0)
    v.refuse("cfg.h, cfg.w: sides of the image", to_string({h, w}), "multiples of " + std::to_string(shrink));
  const Tensor images = from_values({1, 3, h, w}, formula_images(v, {1, 3, h, w}));
  std::vector<double> some;
  for (int64_t i = 0; i < images.size(); i += 997) some.push_back(double(Pin<float>(images)[i]));
  v.check("image.check", {int64_t(some.size())}, some, 0, Per::unit());
  const Tensor moments(moments_shape(model.config(), images)), decoded(images.shape());
  model.encode(v.ctx(), images, moments, mean_checker(v));
  v.check_both("moments", moments, 9e-6);
  model.decode(v.ctx(), nn::Posterior(moments).mean, decoded, mean_checker(v));
  const std::vector<double> seventh = every_seventh(to_f64(decoded));
  v.check_both("decoded.s7", {int64_t(seventh.size())}, seventh, 2e-5);
  const Bf16Results bf16 = run_bf16(v, images, nn::Posterior(moments).mean);
  v.check_bf16("moments", moments.shape(), bf16.moments, kBf16Bound);
  v.check_bf16("decoded.s7", {int64_t(seventh.size())}, every_seventh(bf16.decoded), kBf16Bound);
}

}  // namespace

void verify_vae_small(Verification& v) { verify_with_noise(v, {9e-6, 1e-5, 7e-6, 5e-6, 2e-6, 8e-6}); }

void verify_vae_stats(Verification& v) {
  if (v.has("cfg.h")) return verify_rect_stats(v);
  verify_with_noise(v, {1e-5, 1e-5, 2e-5, 8e-6, 2e-6, 2e-5});
}

void verify_vae_rect(Verification& v) {
  nn::Autoencoder model = make_model(v, read_config(v));
  const Tensor images = read_images(v), moments(moments_shape(model.config(), images));
  model.encode(v.ctx(), images, moments);
  v.check_both("moments", moments, 2e-5);
  const Tensor mode = nn::Posterior(moments).mean;
  v.check_both("mode", mode, 2e-5);
  v.check_both("decoded", decode(v, model, mode), 4e-5);
  const Tensor latents = read_latents(v, model.config()), decoded = decode(v, model, latents);
  v.check_both("decoded_given", decoded, 2e-5);
  const Bf16Results bf16 = run_bf16(v, images, latents);
  v.check_bf16("moments", moments.shape(), bf16.moments, kBf16Bound);
  v.check_bf16("decoded_given", decoded.shape(), bf16.decoded, kBf16Bound);
}

}  // namespace ditrain::verify
