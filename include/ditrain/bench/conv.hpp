// Times the convolutions of the VAE and of Inception, compared with the FMA peak and oneDNN; and whole encodes, decodes
// and Inception passes.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/bench/peers.hpp"
#include "ditrain/ops/conv.hpp"

namespace ditrain::bench {

/// One layer: its network, its name and its sizes.
struct ConvShape {
  std::string network, layer;
  int64_t images, side, channels, outputs;  ///< side of the square input images, in pixels; input and output channels
  ops::Conv2d conv;

  std::string name() const { return network + " " + layer; }
  Shape x() const { return {images, side, side, channels}; }
  Shape w() const { return {conv.kernel_h, conv.kernel_w, channels, outputs}; }
  Shape y() const { return ops::conv2d_shape(x(), w(), conv); }
  double flop() const;  ///< without lines of padding above and below, which kernels may skip
};

/// Layers of Stable Diffusion's VAE for one image of 256 x 256 (each shape once, without the two between moments and
/// latents), and one layer of each kind of Inception v3 for eight images of 299 x 299.
std::vector<ConvShape> conv_shapes();

/// One row: ops::conv2d with a bias and weights packed beforehand, on the whole team.
/// peer      may be null, or a library without convolutions
/// Details   kernel, channels, outputs, images, side
Row measure_conv(Harness& harness, const ConvShape& shape, DType type, Peer* peer);

struct ConvBench {
  std::vector<DType> precisions = {DType::kF32};
  bool peers = false;  ///< time oneDNN in alternation with ours
};
/// One row per shape, then notes: the geometric mean and the worst share of the 3x3 kernels with at least 128 input and
/// output channels, and the mean ratio to the peer.
void bench_conv(Harness& harness, const ConvBench& bench);

struct InceptionBench {
  std::vector<DType> precisions = {DType::kF32};
  int64_t images = 8;
};
/// One row per precision: the features of a batch by the FID Inception with random weights.
/// Details   images_per_second, memory_bytes (activations), weight_bytes, peak_rss_bytes during the row
void bench_inception(Harness& harness, const InceptionBench& bench);

struct VaeBench {
  std::vector<DType> precisions = {DType::kF32};
  int64_t side = 256;  ///< of the images, in pixels; a multiple of 8
  bool peers = false;  ///< time oneDNN's convolutions in alternation with our whole pass
};
/// Two rows per precision: encoding and decoding one image, by the autoencoder of Stable Diffusion with random weights.
/// The peer runs only the convolutions, in layouts of its choice, without normalisation or attention.
/// Details   images_per_second, memory_bytes (activations), weight_bytes, where the time of the median call went as for
///           bench_steps, peak_rss_bytes during the row
void bench_vae(Harness& harness, const VaeBench& bench);

}  // namespace ditrain::bench
