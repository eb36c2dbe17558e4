// Convolutions of the VAE and of Inception beside the FMA peak and oneDNN; encoding and decoding of whole images.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/bench/peers.hpp"
#include "ditrain/ops/conv.hpp"

namespace ditrain::bench {

/// One layer: where it is from, and its sizes.
struct ConvShape {
  std::string network, layer;
  int64_t images, side, channels, outputs;  ///< side: of square images as they go in
  ops::Conv2d conv;

  std::string name() const { return network + " " + layer; }
  Shape x() const { return {images, side, side, channels}; }
  Shape w() const { return {conv.kernel_h, conv.kernel_w, channels, outputs}; }
  Shape y() const { return ops::conv2d_shape(x(), w(), conv); }
  double flop() const;  ///< without lines of padding above and below, which kernels may leave out
};

/// Layers of Stable Diffusion's VAE at 256 x 256, one image (all but the two between moments and latents, each shape
/// once), and layers of Inception v3 at 299 x 299, eight images, one of each kind.
std::vector<ConvShape> conv_shapes();

/// One row: ops::conv2d with a bias and weights that were packed before, on the whole team.
/// peer      may be null, or have no convolutions
/// Details   kernel, channels, outputs, images, side
Row measure_conv(Harness& harness, const ConvShape& shape, DType type, Peer* peer);

struct ConvBench {
  std::vector<DType> precisions = {DType::kF32};
  bool peers = false;  ///< time oneDNN in alternation with ours
};
/// A row for every shape, then notes: the geometric mean and the worst share of 3x3 kernels with at least 128 channels
/// on both sides, and the mean of the peer's ratios.
void bench_conv(Harness& harness, const ConvBench& bench);

struct InceptionBench {
  std::vector<DType> precisions = {DType::kF32};
  int64_t images = 8;
};
/// One row per precision: features of a batch by the FID Inception with made-up weights.
/// Details   images_per_second, memory_bytes (activations), weight_bytes, peak_rss_bytes of the process so far
void bench_inception(Harness& harness, const InceptionBench& bench);

struct VaeBench {
  std::vector<DType> precisions = {DType::kF32};
  int64_t side = 256;  ///< of the images, a multiple of 8
  bool peers = false;  ///< time oneDNN's convolutions in alternation with the whole of ours
};
/// Two rows per precision: encoding and decoding one image, by the autoencoder of Stable Diffusion with random weights.
/// A peer runs the convolutions alone, in the layouts of its choice: it normalises nothing and has no attention.
/// Details   images_per_second, memory_bytes (activations), weight_bytes, where the time of the median call went as for
///           bench_steps, peak_rss_bytes of the process so far
void bench_vae(Harness& harness, const VaeBench& bench);

}  // namespace ditrain::bench
