// Samples images from a model: labels, the loop from noise to data on the model's tape, and the weights to use. An
// image depends only on weights, settings, seed and its number: it is bit-identical for any number of ranks and threads
// and any batch size. Writing files is in sample_writer.hpp.
//
//   const WeightsFrom averaged(model.parameters(), model.parameters().ema);
//   GenerateRequest request{.sampler = sampler, .seed = 0, .conditions = conditions_of(make_labels(...))};
//   std::vector<float> images = generate(ctx, model, config.diffusion, request);
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::eval {

/// Bytes for precomputed adaLN modulations. It holds 85 pairs of time and label of DiT-XL, enough that their GEMMs are
/// not limited by memory bandwidth.
inline constexpr size_t kModulationBytes = size_t{64} << 20;

inline constexpr int64_t kDefaultBatch = 32;  ///< images at once; guidance runs the model on twice as many

struct GenerateRequest {
  diffusion::SamplerConfig sampler = {};
  uint64_t seed = 0;
  std::vector<Condition> conditions = {};  ///< one per image; parts that the model does not take are ignored
  int64_t first_index = 0;                 ///< number of the first of these images among all images of the run
  int64_t batch = kDefaultBatch;           ///< images at once, >= 1
  /// Of products and activations, of the model and of its guide; kBF16 needs their ParameterStore::values_bf16.
  DType precision = DType::kF32;
  /// Bytes for modulations that are computed for several steps at once; those of a single step may take more.
  size_t modulation_bytes = kModulationBytes;
  /// A weaker model that guidance leads away from (autoguidance); null: classifier-free guidance by the model itself.
  nn::Model* guide = nullptr;
  /// Routes of the guide's tokens. Without a guide, they apply to the model when it acts as its own guide.
  nn::Routes guide_routes = {};
};

/// Receives the finished share of the request, in (0, 1], after every step.
using GenerateProgress = std::function<void(double share)>;

/// Whether classifier-free guidance works: the model takes labels or metadata, and was trained to do without them.
inline bool takes_guidance(const nn::ModelConfig& m) {
  const bool labels = m.num_classes != 0, numbers = !m.metadata.empty();
  return (labels || numbers) && (!labels || m.class_dropout > 0) && (!numbers || m.metadata_drop > 0);
}

/// Draws request.conditions.size() images with the weights that the model's parameters are bound to.
/// Math:     x_T = noise 0 of the image; then diffusion::sample_loop, loop step k with noise k + 1. Noise k of image i
///           is kernels::fill_normal of RandomKey(seed, Stream::kSampleNoise, i, k), i counted from first_index. Routes
///           of evaluation k of the guide: nn::draw_remaining_tokens by RandomKey(seed, Stream::kRoute, i, k)
/// Shapes:   returns [n, in_channels, H, W]
/// Numerics: bit-identical for any batch, number of workers and split of the images over calls
/// Memory:   generate_bytes() for min(batch, n) images
/// Errors:   InputError for settings that SamplerConfig::validate refuses, a label out of range, a condition's image of
///           another size than the model takes, and guidance without a guide where takes_guidance() is false
std::vector<float> generate(ops::Context& ctx, nn::Model& model, const diffusion::Config& config,
                            const GenerateRequest& request, const GenerateProgress& progress = {});

/// Why samples may not be finite, and what to try.
struct LikelyCause {
  const char *what, *advice;
};
inline constexpr LikelyCause kDiverged{"the weights have probably diverged in training, or guidance is too strong",
                                       "an earlier checkpoint (metrics.jsonl has loss and grad_norm), a smaller "
                                       "cfg_scale, or clipping"},
    kBadVae{"the latents are finite, what the VAE makes of them is not",
            "the VAE that the latents of training were made with"};

/// Refuses images with NaN or infinity, which no longer show after rounding to digital numbers or 8 bits.
/// Shapes:   n consecutive images, numbered from `first`
/// Errors:   RunError with the number of such values, and the cause
void expect_finite(const std::vector<float>& images, int64_t n, int64_t first, const LikelyCause& cause);

/// Peak bytes of generate() for `batch` images at once, without the returned images. A guide is assumed to be as large
/// as the model; its weights are not counted.
size_t generate_bytes(nn::Model& model, const diffusion::Config& config, const diffusion::SamplerConfig& sampler,
                      int64_t batch, bool has_guide = false, DType precision = DType::kF32);

/// While this object lives, the values of the parameters are views of `arena` (the EMA, for example), but not those in
/// bf16. Nothing is copied. No optimiser step may run meanwhile.
class WeightsFrom {
 public:
  WeightsFrom(autograd::ParameterStore& parameters, const Tensor& arena);
  ~WeightsFrom();
  WeightsFrom(const WeightsFrom&) = delete;
  WeightsFrom& operator=(const WeightsFrom&) = delete;

 private:
  struct Saved {
    autograd::Parameter* parameter;
    Tensor value;
  };
  std::vector<Saved> saved_;
};

/// Labels of `num` images. spec: "0,1,2" (image i gets entry i modulo the length of the list) | "uniform" (drawn from
/// the seed and i) | "balanced" (i modulo num_classes) | "none" (num_classes, the label of dropped labels). A model
/// without classes (num_classes 0) gets zeros.
/// Errors:   InputError for other words, labels outside [0, num_classes), and a list for a model without classes
std::vector<int64_t> make_labels(const std::string& spec, int64_t num, int64_t num_classes, uint64_t seed);

}  // namespace ditrain::eval
