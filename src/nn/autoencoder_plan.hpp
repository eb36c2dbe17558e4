// What an autoencoder does for one size of image: steps in order, and where in one block of memory the result of each
// lies. Values that do not live at the same time share memory.
#pragma once
#include <string>
#include <vector>

#include "ditrain/nn/autoencoder.hpp"
#include "ditrain/ops/conv.hpp"

namespace ditrain::nn {

/// A result [1, height, width, channels].
struct PlannedValue {
  int64_t height = 0, width = 0, channels = 0;
  int first = 0, last = 0;  ///< steps that write it and that read it last
  int64_t offset = 0;       ///< elements in the block
  int64_t size() const { return height * width * channels; }
  Shape shape() const { return {1, height, width, channels}; }
};

struct PlannedStep {
  enum class Kind { kConv, kNorm, kAttention };
  static constexpr int kOutside = -1;  ///< a value outside of the block: its input and output, in f32
  Kind kind = Kind::kConv;
  std::string weight = {};         ///< beginning of its weights' names; kAttention has none
  std::string norm = {};           ///< kConv: that of the norm before it, with SiLU; empty: none
  int x = kOutside, y = kOutside;  ///< kConv: y may be x, whose memory the result then takes
  int residual = kOutside;         ///< kConv: added to the result; kOutside: none
  ops::Conv2d conv = {};           ///< kConv
  int buffer = kOutside;           ///< kConv with a norm, or with y in the place of x: rows of x, slice by slice
  int64_t slice_rows = 0;          ///< of the result, if there is a buffer
  bool makes_moments = false;      ///< kConv: a norm of its result follows
  int64_t in = 0, out = 0;         ///< kConv: channels
  std::string module = {};         ///< its result is that of this module of diffusers; empty: of none
  std::string norm_module = {};    ///< likewise, of its norm
  int64_t height = 0, width = 0;   ///< of the result
};

struct AutoencoderPlan {
  std::vector<PlannedValue> values;
  std::vector<PlannedStep> steps;
  int64_t elements = 0;         ///< of the block
  int64_t moment_elements = 0;  ///< f32, the most that a step needs
  int64_t tokens = 0;           ///< of the attention
  double macs = 0;
};

/// Encoder: of images of that size. Decoder: of latents of that size. slice_pixels: as for Autoencoder.
AutoencoderPlan plan_encoder(const AutoencoderConfig& config, int64_t height, int64_t width,
                             int64_t slice_pixels = kSlicePixels);
AutoencoderPlan plan_decoder(const AutoencoderConfig& config, int64_t height, int64_t width,
                             int64_t slice_pixels = kSlicePixels);

inline std::string numbered(const std::string& name, int64_t i) { return name + "." + std::to_string(i); }

/// The joined projection of queries, keys and values: of this name in a plan, and made of three weights.
inline const std::string kJoinedProjection = "to_qkv";

}  // namespace ditrain::nn
