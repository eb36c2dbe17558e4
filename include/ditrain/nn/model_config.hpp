// Architecture and sizes of a model.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"

namespace ditrain::nn {

/// The architecture (model.kind): each has a row in src/nn/models.cpp.
enum class ModelKind { kDit, kUvit };
inline constexpr Word<ModelKind> kModelKinds[] = {{"dit", ModelKind::kDit}, {"uvit", ModelKind::kUvit}};
constexpr std::span<const Word<ModelKind>> words_of(ModelKind) { return kModelKinds; }

/// Normalisation of queries and keys over the width of a head, before the attention (model.qk_norm): RMSNorm with a
/// scale, or LayerNorm with scale and shift. It bounds attention scores, which keeps bf16 training stable.
enum class QkNorm { kNone, kRms, kLayer };
inline constexpr Word<QkNorm> kQkNorms[] = {{"none", QkNorm::kNone}, {"rms", QkNorm::kRms}, {"layer", QkNorm::kLayer}};
constexpr std::span<const Word<QkNorm>> words_of(QkNorm) { return kQkNorms; }

/// Norm before attention, MLP and final layer (model.norm, nn/norm.cpp).
enum class Norm { kLayer, kRms };
inline constexpr Word<Norm> kNorms[] = {{"layer", Norm::kLayer}, {"rms", Norm::kRms}};
constexpr std::span<const Word<Norm>> words_of(Norm) { return kNorms; }

/// MLP of a block (model.mlp, nn/mlp_half.cpp).
enum class Mlp { kGelu, kSwiglu };
inline constexpr Word<Mlp> kMlps[] = {{"gelu", Mlp::kGelu}, {"swiglu", Mlp::kSwiglu}};
constexpr std::span<const Word<Mlp>> words_of(Mlp) { return kMlps; }

/// How positions of tokens enter the model (model.position): a table added to the embeddings, or rotary embedding
/// (RoPE) of queries and keys.
enum class Position { kSincos, kRope };
inline constexpr Word<Position> kPositions[] = {{"sincos", Position::kSincos}, {"rope", Position::kRope}};
constexpr std::span<const Word<Position>> words_of(Position) { return kPositions; }

/// Value of num_classes for model.num_classes: auto. A run replaces it by the number of classes of the data before it
/// builds a model.
inline constexpr int64_t kClassesOfData = -1;

struct ModelConfig {
  ModelKind kind = ModelKind::kDit;
  std::string name = "DiT-S/2";  ///< one of model_names(kind), or "custom" for the sizes given below
  int64_t input_height = 32, input_width = 32;
  int64_t in_channels = 4;
  int64_t condition_channels = 0;  ///< channels of an image that conditions the model; not predicted
  int64_t patch_size = 2;
  int64_t patch_overlap = 0;     ///< pixels of the neighbours on every side of a patch, read and predicted with it
  int64_t patch_bottleneck = 0;  ///< width between the two linear maps of the patch embedding; 0: one map
  int64_t hidden_size = 384;
  int64_t depth = 12;
  int64_t num_heads = 6;
  double mlp_ratio = 4;
  int64_t num_classes = 1000;              ///< 0: no labels, no label table
  double class_dropout = 0.1;              ///< share of labels replaced by the null class in training
  std::vector<std::string> metadata = {};  ///< numbers of kMetadata that condition the model
  /// In training: the share of samples that drop all numbers, and, of the other samples, the chance that each number is
  /// dropped.
  double metadata_drop = 0.1;
  bool learn_sigma = true;  ///< 2C output channels: prediction and variance
  QkNorm qk_norm = QkNorm::kNone;
  Norm norm = Norm::kLayer;
  Mlp mlp = Mlp::kGelu;
  Position position = Position::kSincos;

  int64_t grid_height() const { return input_height / patch_size; }
  int64_t grid_width() const { return input_width / patch_size; }
  int64_t tokens() const { return grid_height() * grid_width(); }
  int64_t patch_side() const { return patch_size + 2 * patch_overlap; }  ///< of the pixels that a token reads
  int64_t out_channels() const { return learn_sigma ? 2 * in_channels : in_channels; }
  /// Columns between the two layers of the MLP. SwiGLU has three matrices instead of two, with two thirds of the
  /// columns, hence equally many multiply-adds (LightningDiT's int(2/3 * int(width * ratio))).
  int64_t mlp_size() const {
    const auto gelu = int64_t(double(hidden_size) * mlp_ratio);
    return mlp == Mlp::kSwiglu ? int64_t(2.0 / 3.0 * double(gelu)) : gelu;
  }
  /// Sets mlp_ratio for this mlp_size(); of SwiGLU's ratios that with the least product, a multiple of 1 / hidden_size.
  void set_mlp_size(int64_t columns) {
    const int64_t gelu = mlp == Mlp::kSwiglu ? (3 * columns + 1) / 2 : columns;
    mlp_ratio = double(gelu) / double(hidden_size);
    if (mlp_size() != columns) mlp_ratio = (double(gelu) + 0.5) / double(hidden_size);  // that was rounded down
  }
  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t pixels() const { return input_height * input_width; }
  /// Rows of the label table: the classes and, where labels can be dropped, the null class (the reference's rule).
  int64_t label_rows() const { return num_classes == 0 ? 0 : num_classes + (class_dropout > 0 ? 1 : 0); }
};

/// The names that `apply_name` knows for an architecture, "DiT-S/2" ... "DiT-XL/8", then "custom"; or for all of them.
std::vector<std::string> model_names(ModelKind kind);
std::vector<std::string> model_names();
/// "dit (...) or ...", for help texts.
std::string describe_model_kinds();

/// Fills hidden_size, depth, num_heads and patch_size from config.name; "custom" leaves them as they are.
/// Errors:   InputError for a name that config.kind does not have, with the nearest one, or the kind that has it
void apply_name(ModelConfig& config);

/// Checks that the sizes fit together (patch divides both sides, heads divide the width, width divisible by 4, ...).
/// Errors:   InputError "[model] ..."
void validate(const ModelConfig& config);

}  // namespace ditrain::nn
