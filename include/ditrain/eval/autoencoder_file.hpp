// Autoencoders (VAE) from files: safetensors or PyTorch (.ckpt, .pt, .bin) under the names of today's diffusers, of
// diffusers before 2023 or of the original latent-diffusion code, alone or inside a whole checkpoint of Stable
// Diffusion; or a folder of diffusers with its config.json. Sizes follow from the shapes of the weights.
#pragma once
#include <optional>
#include <string>

#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::eval {

/// What a file need not tell. Given values win over those of a config.json.
struct AutoencoderOptions {
  std::optional<int64_t> groups = {};       ///< of group normalisation; else norm_num_groups of config.json, else 32
  std::optional<double> scale_factor = {};  ///< else scaling_factor of config.json, else see AutoencoderFile
};

/// An autoencoder in a file, read but for the values of its weights.
/// Errors:   InputError [path]: neither safetensors nor PyTorch; weights of something else (a DiT, a classifier); a
///           weight that is missing, superfluous or of another shape or type; a config.json that contradicts the
///           weights
class AutoencoderFile {
 public:
  /// `path`: a file, or a folder with diffusion_pytorch_model.safetensors, or with such a folder `vae`.
  explicit AutoencoderFile(const std::string& path, const AutoencoderOptions& options = {});
  ~AutoencoderFile();
  AutoencoderFile(AutoencoderFile&&) noexcept;

  const nn::AutoencoderConfig& config() const;
  /// What latents are multiplied by. Without config.json it is known for the sizes of Stable Diffusion's alone.
  /// Errors: InputError naming the way to tell it
  double scale_factor() const;
  std::string describe_scale() const;  ///< the number, and whether it is assumed
  const std::string& weights_path() const;
  /// What to write where so that all programs know a number that the file does not tell.
  std::string how_to_tell(const char* key, double value) const;

  /// Weights, and what an image of height x width takes with `workers` workers: activations, the image and its latents,
  /// and scratch.
  size_t bytes(DType type, nn::AutoencoderUse use, int64_t height, int64_t width, int workers) const;

  nn::Autoencoder load(DType type, nn::AutoencoderUse use = nn::AutoencoderUse::kBoth) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::eval
