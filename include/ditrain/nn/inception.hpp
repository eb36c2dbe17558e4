// The FID Inception: the network of 2015-12-05 whose features published FIDs compare. Its weights have the names of its
// port to PyTorch (pt_inception-2015-12-05-6726825d.pth). Inference only, outside the tape.
//
// Problem:      torchvision's network of the same name has other weights, other pooling and 1,000 classes; its features
//               give other distances.
// Difficulties: blocks concatenate the channels of their branches; copying them would pass over memory twice.
// Abstractions: InceptionPlan (steps of one image and where each result lies, made before anything is computed), views
//               of channels (ops/conv.hpp), Inception.
//
//   Inception network(DType::kF32, [&](const std::string& name, const Shape& shape) { return read(name); });
//   network.run(ctx, images, {features, spatial, logits});
//
// Differs from torchvision: average pools leave out the padding, the last block pools the maximum, no second head.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/ops/conv.hpp"

namespace ditrain::nn {

inline constexpr int64_t kInceptionSide = 299, kInceptionFeatures = 2048, kInceptionClasses = 1008;
/// The features of sFID: the first channels of the first branch of Mixed_6d, row by row.
inline constexpr int64_t kInceptionSpatialSide = 17, kInceptionSpatialChannels = 7;
inline constexpr int64_t kInceptionSpatial = kInceptionSpatialSide * kInceptionSpatialSide * kInceptionSpatialChannels;

struct InceptionWeight {
  std::string name;
  Shape shape;
};
/// Every weight that the network reads, in the order of execution; fc last, without its bias.
std::vector<InceptionWeight> inception_weights();

struct InceptionPlan;  // src/nn/inception_plan.hpp

/// Types:    kF32: weights and activations f32; kBF16: both bf16, sums f32; fc, inputs and outputs f32
/// Numerics: BatchNorm (eps 1e-3) is folded into the convolutions in f64. The bits depend neither on the number of
///           workers nor on how images are grouped into batches
class Inception {
 public:
  /// Returns the values of a weight, row-major in the shape of inception_weights().
  using Source = std::function<std::vector<float>(const std::string& name, const Shape& shape)>;
  /// Receives the output of a module, for comparisons: its name (block0 and block1: the two pools of the stem) and
  /// [B,H,W,C] in f32.
  using Observer = std::function<void(const std::string& module, const Tensor& y)>;
  struct Outputs {
    Tensor features;      ///< [B, 2048]
    Tensor spatial = {};  ///< [B, 17, 17, 7]; undefined: not wanted
    Tensor logits = {};   ///< [B, 1008], without the bias, as the Inception Score takes them; undefined: not wanted
  };

  Inception(DType type, const Source& source);
  ~Inception();
  Inception(Inception&&) noexcept;

  DType type() const { return type_; }
  size_t weight_bytes() const;
  size_t activation_bytes(int64_t batch) const;  ///< known before anything is computed; scratch comes on top
  double macs() const;                           ///< multiply-adds of the convolutions for one image

  /// Shapes:   images [B, 3, 299, 299] f32
  /// Errors:   ShapeError
  void run(ops::Context& ctx, const Tensor& images, const Outputs& out, const Observer& observer = {});

 private:
  struct Layer {
    ops::ConvWeights weight;
    Tensor bias;
  };
  DType type_;
  std::unique_ptr<InceptionPlan> plan_;
  std::vector<Layer> layers_;
  Tensor fc_, block_;
};

}  // namespace ditrain::nn
