// Loads a model with weights from a checkpoint or an exported file, and exports a model to files that other programs
// read.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::checkpoint {

/// Weights on disk and the config of the model that they belong to.
struct WeightsSource {
  std::string file;  ///< the .safetensors file
  config::Config config;
  int64_t step = -1;                          ///< optimiser steps done; -1: the file does not say
  std::string weights = {};                   ///< "ema", "model" or "ema width 0.1"; "": the file does not say
  std::vector<std::string> class_names = {};  ///< by label; empty: the file does not say
};

/// Which weights: the EMA, or the model's current weights.
enum class Weights { kEma, kModel };
inline constexpr Word<Weights> kWeights[] = {{"ema", Weights::kEma}, {"model", Weights::kModel}};
constexpr std::span<const Word<Weights>> words_of(Weights) { return kWeights; }

/// Finds weights and their config. `path` is a run folder, a folder of checkpoints or a checkpoint folder (`weights`
/// picks the file), or a .safetensors file. A file from ditexport has its config inside; others need state.json
/// (checkpoints) or config.yaml beside them.
/// Errors:   InputError if no weights or no config are found
WeightsSource find_weights(const std::string& path, Weights weights);

/// The model of that source with its weights, allocated for inference; `products` kBF16 adds their copy in bf16.
/// Errors:   InputError as load_weights
std::unique_ptr<nn::Model> load_model(const WeightsSource& source, DType products = DType::kF32);

/// The guide of autoguidance for samples of a model with that config, whose labels have these names (empty: not known):
/// EMA weights of `path`, as find_weights takes it. Warns if it was trained on another data.path, or on images that
/// data.hold_out keeps from the model.
/// Errors:   as find_weights; InputError for a guide that was trained on other channels, sizes, classes or ranges of
///           the data, or on another process, or whose labels mean other classes
WeightsSource find_guide(const std::string& path, const config::Config& config,
                         const std::vector<std::string>& class_names);
/// Its model; null for config::kRoutedGuide, the model itself. Errors: as find_guide and load_model
std::unique_ptr<nn::Model> load_guide(const std::string& path, const config::Config& config,
                                      const std::vector<std::string>& class_names, DType products = DType::kF32);

/// The keys that differ and that change the meaning of a model's outputs. The folder of a condition's tiles does not,
/// nor does a scale of latents that one side leaves to its VAE.
std::vector<config::Difference> differences_of_meaning(config::Config a, config::Config b);

/// Writes one safetensors file with the names and shapes of the public state dict of the model's kind (frozen tensors,
/// pos_embed, included), all tensors of `dtype` (f32 or bf16). Its metadata hold the config without paths, so that
/// ditsample can use the file alone, and `step` and `weights` of `origin`, as WeightsSource has them. Weights are those
/// that the parameters are bound to.
/// Errors:   InputError if `path` exists or its folder cannot be written to; RunError (disk full, ...), then nothing is
///           left behind
void export_public(const std::string& path, nn::Model& model, const config::Config& config, DType dtype,
                   const WeightsSource& origin = {});

/// What keeps the network of the reference (models.py of facebookresearch/DiT) from loading an export_public() of a
/// model.kind dit: "model.patch_overlap 2 (0 before training makes it loadable)", ...; empty: it loads.
std::vector<std::string> obstacles_of_reference(const nn::ModelConfig& model);
/// How other programs call the network: "flow: t from 0 (noise) to 1 (data), predicts x0".
std::string describe_calls(const diffusion::Config& config);

/// Writes FOLDER/transformer/{config.json, diffusion_pytorch_model.safetensors} for diffusers' DiTTransformer2DModel
/// and FOLDER/scheduler/scheduler_config.json (DDIM); models of 4 channel latents and 1000 classes also get a
/// model_index.json of DiTPipeline (whose null label is 1000), whose VAE is to be given when loading.
/// Shapes:   q, k, v are thirds of qkv; the embedders of t and y are repeated in every block, as that class stores them
/// Differs:  diffusers divides the exponents of its timestep frequencies by 127 where the reference divides by 128
/// Errors:   InputError as check_diffusers, and for a position table other than the sincos table; as export_public
void export_diffusers(const std::string& folder, nn::Model& model, const config::Config& config, DType dtype);

/// Errors:   InputError for a model that DiTTransformer2DModel cannot express: height other than width, given channels,
///           metadata, no classes, no row for dropped labels (class_dropout 0), overlapping patches, rotary embedding,
///           mlp_ratio other than 4, another kind of model, a parameter without a name there
void check_diffusers(const nn::ModelConfig& model);
/// Errors:   InputError for a process whose times diffusers' schedulers give to a model in another way: flow
void check_diffusers(const diffusion::Config& diffusion);

}  // namespace ditrain::checkpoint
