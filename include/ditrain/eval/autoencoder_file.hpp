// Autoencoders (VAE) from files: safetensors or PyTorch (.ckpt, .pt, .bin), or a diffusers folder with its config.json.
// Tensor names may be those of diffusers (also before 2023) or of the original latent-diffusion code; the weights may
// be alone in the file or inside a whole Stable Diffusion checkpoint. Sizes follow from the shapes of the weights.
#pragma once
#include <optional>
#include <string>

#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::eval {

/// Settings that a file of weights may lack. A value that is set here overrides config.json.
struct AutoencoderOptions {
  std::optional<int64_t> groups = {};       ///< of GroupNorm; else norm_num_groups of config.json, else 32
  std::optional<double> scale_factor = {};  ///< else scaling_factor of config.json, else see AutoencoderFile
};

/// An autoencoder in a file: names, shapes and settings are read and checked, the values of the weights are not read
/// yet.
/// Errors:   InputError [path]: neither safetensors nor PyTorch; weights of something else (a DiT, a classifier); a
///           weight that is missing, superfluous or of another shape or type; a config.json that contradicts the
///           weights
class AutoencoderFile {
 public:
  /// `path`: a file, a folder with diffusion_pytorch_model.safetensors, or a folder whose sub-folder `vae` has it.
  explicit AutoencoderFile(const std::string& path, const AutoencoderOptions& options = {});
  ~AutoencoderFile();
  AutoencoderFile(AutoencoderFile&&) noexcept;

  const nn::AutoencoderConfig& config() const;
  /// The factor on latents. Without config.json it is known only for an autoencoder of Stable Diffusion's sizes.
  /// Errors: InputError if it is unknown; the message says how to state it
  double scale_factor() const;
  std::string describe_scale() const;  ///< the factor, and whether it is assumed
  const std::string& weights_path() const;
  /// Advice for a number that the file lacks: which line to write in which config.json, so that all programs know it.
  std::string advice_on_setting(const char* key, double value) const;

  /// Bytes of the weights and of one image of height x width with `workers` workers: activations, image, latents and
  /// scratch.
  size_t bytes(DType type, nn::AutoencoderUse use, int64_t height, int64_t width, int workers) const;

  nn::Autoencoder load(DType type, nn::AutoencoderUse use = nn::AutoencoderUse::kBoth) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::eval
