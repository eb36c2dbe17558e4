// The autoencoder (AutoencoderKL) of latent diffusion: images to latents and back, for inference. It does not use the
// tape: nothing is stored for a backward pass.
//
// Problem:      an image of 256 x 256 takes 272 GFLOP to encode, and its activations are 33 MB each.
// Difficulties: every group normalisation needs all of an image before its first pixel; weights come under three sets
//               of names.
// Abstractions: AutoencoderConfig (sizes), autoencoder_weights (every weight, declared once), AutoencoderPlan (the
//               steps for one size of image and where each result lies, made before anything is computed), Autoencoder.
//
//   Autoencoder vae(config, DType::kF32, [&](const std::string& name, const Shape& shape) { return read(name); });
//   vae.encode(ctx, images, moments);      // [B, 3, H, W] in [-1, 1] to [B, 2 z, H / 8, W / 8]: mean, log-variance
//   vae.decode(ctx, latents, images);
// Images of a batch are computed one after the other, each by all workers, so that activations take the memory of one
// image. No normalised image is stored: a convolution runs over slices of rows, whose input is normalised just before
// with the statistics of the whole image, and overwrites its input where it can.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/ops/conv.hpp"

namespace ditrain::nn {

struct AutoencoderConfig {
  std::vector<int64_t> channels = {128, 256, 512, 512};  ///< per level, the finest first
  int64_t image_channels = 3, latent_channels = 4;
  int64_t layers = 2;  ///< resnet blocks per level of the encoder; the decoder has one more
  int64_t groups = 32;

  int64_t levels() const { return int64_t(channels.size()); }
  int64_t shrink() const { return int64_t{1} << (levels() - 1); }  ///< side of the image / side of its latent
};
/// Errors: InputError for impossible sizes
void check_autoencoder_config(const AutoencoderConfig& config);

/// The scale factor of latents of Stable Diffusion's autoencoders.
inline constexpr double kStableDiffusionScale = 0.18215;

/// A weight by its current name in diffusers, with its shape there (convolutions [N, C, k, k]).
struct AutoencoderWeight {
  std::string name;
  Shape shape;
};
/// Which half is used: the weights of the other half need not be in memory.
enum class AutoencoderUse { kBoth, kEncode, kDecode };
std::vector<AutoencoderWeight> autoencoder_weights(const AutoencoderConfig& config,
                                                   AutoencoderUse use = AutoencoderUse::kBoth);
/// The names of a weight in files of diffusers before 2023 and of the original latent-diffusion code, which counts the
/// levels of the decoder from the finest one.
std::string older_autoencoder_name(const std::string& name);
std::string original_autoencoder_name(const std::string& name, int64_t levels);
/// Derives the sizes from the shapes of tensors under current names. `groups` cannot be derived and stays 32.
/// Errors: InputError [where] with the name of a weight that is missing or has a wrong shape
AutoencoderConfig autoencoder_config_of(const std::string& where, const std::map<std::string, Shape>& shapes);

/// Bytes that an Autoencoder of these sizes will take for its weights, and for the activations of one image of H x W
/// pixels.
size_t autoencoder_weight_bytes(const AutoencoderConfig& config, DType type, AutoencoderUse use);
size_t autoencoder_activation_bytes(const AutoencoderConfig& config, DType type, bool encodes, int64_t height,
                                    int64_t width);

/// Bytes of scratch per worker for one image: for its attention, in which every worker has all keys. GEMMs add a few
/// MB.
size_t autoencoder_scratch_bytes(const AutoencoderConfig& config, DType type, int64_t height, int64_t width);

/// One convolution of an autoencoder, on an image of height x width (after doubling, if it is doubled) with `channels`.
struct AutoencoderConv {
  int64_t height, width, channels, outputs;
  ops::Conv2d conv;
};
/// All convolutions for an image of H x W pixels, in order.
std::vector<AutoencoderConv> autoencoder_convolutions(const AutoencoderConfig& config, bool encodes, int64_t height,
                                                      int64_t width);

/// Pixels per slice: 64 rows of an image of 256 x 256. GEMMs are as fast as for whole images, and the buffer is a
/// fraction of an image.
inline constexpr int64_t kSlicePixels = 16384;

struct AutoencoderPlan;  // src/nn/autoencoder_plan.hpp

/// Weights of an autoencoder in memory, ready to run.
/// Types:    kF32: weights and activations f32; kBF16: both bf16, sums and statistics f32, inputs and outputs f32
/// Numerics: bit-identical for any number of workers
class Autoencoder {
 public:
  /// Returns the values of a weight, row-major in the shape of autoencoder_weights().
  using Source = std::function<std::vector<float>(const std::string& name, const Shape& shape)>;
  /// Receives the output of a module, for comparisons: its name in diffusers and [1, H, W, C] in f32.
  using Observer = std::function<void(const std::string& module, const Tensor& y)>;

  /// slice_pixels: about how many output pixels a convolution computes at a time; their input is normalised into a
  /// buffer of that size just before. No bit depends on it.
  /// Errors: as check_autoencoder_config
  Autoencoder(const AutoencoderConfig& config, DType type, const Source& source,
              AutoencoderUse use = AutoencoderUse::kBoth, int64_t slice_pixels = kSlicePixels);
  ~Autoencoder();
  Autoencoder(Autoencoder&&) noexcept;

  const AutoencoderConfig& config() const { return config_; }
  DType type() const { return type_; }
  size_t weight_bytes() const;

  /// Bytes of the activations of one image of H x W pixels, known before anything is computed; scratch of the context
  /// comes on top.
  size_t encode_bytes(int64_t height, int64_t width) const;
  size_t decode_bytes(int64_t height, int64_t width) const;  ///< likewise, for an image of that size
  double encode_macs(int64_t height, int64_t width) const;   ///< multiply-adds of convolutions and attention
  double decode_macs(int64_t height, int64_t width) const;

  /// Shapes:   images [B, image_channels, H, W], moments [B, 2 latent_channels, H / shrink, W / shrink], both f32
  /// Errors:   ShapeError for other shapes and for sides that shrink() does not divide
  void encode(ops::Context& ctx, const Tensor& images, const Tensor& moments, const Observer& observer = {});
  /// Shapes:   latents [B, latent_channels, h, w] (not multiplied by any scale), images [B, image_channels, h shrink,
  ///           w shrink], not clamped
  void decode(ops::Context& ctx, const Tensor& latents, const Tensor& images, const Observer& observer = {});

 private:
  struct Weights;
  struct Memory;
  const AutoencoderPlan& plan(bool encodes, int64_t height, int64_t width) const;
  void run(ops::Context& ctx, bool encodes, const Tensor& in, const Tensor& out, const Observer& observer);

  AutoencoderConfig config_;
  DType type_;
  AutoencoderUse use_;
  int64_t slice_pixels_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Memory> memory_;
};

/// The normal distribution given by moments [B, 2 z, h, w].
/// Math:     mean = moments[:, :z], logvar = moments[:, z:] clamped to [-30, 20]
struct Posterior {
  explicit Posterior(const Tensor& moments);
  Tensor mean, logvar;  ///< [B, z, h, w]
  /// mean + exp(logvar / 2) eps
  Tensor sample(const Tensor& eps) const;
};

}  // namespace ditrain::nn
