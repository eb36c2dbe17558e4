#include "ditrain/bench/conv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/kernels/random.hpp"
#include "ditrain/nn/autoencoder.hpp"
#include "ditrain/nn/inception.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::bench {
namespace {

using ops::Conv2d;

constexpr int64_t kInceptionImages = 8;

ConvShape vae(const std::string& layer, int64_t side, int64_t channels, int64_t outputs, const Conv2d& conv) {
  return {"VAE", fmt::format("{} {}->{} @{}", layer, channels, outputs, side), 1, side, channels, outputs, conv};
}
ConvShape inception(int64_t side, int64_t channels, int64_t outputs, const Conv2d& conv) {
  const std::string stride = conv.stride_h > 1 ? " stride 2" : "";
  return {"Inception",
          fmt::format("{}x{}{} {}->{} @{}", conv.kernel_h, conv.kernel_w, stride, channels, outputs, side),
          kInceptionImages,
          side,
          channels,
          outputs,
          conv};
}

std::vector<ConvShape> vae_shapes() {
  const Conv2d one, three = Conv2d::same(3), grown = Conv2d::same(3, true);
  const Conv2d halved{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_bottom = 1, .pad_right = 1};
  return {
      vae("3x3", 256, 3, 128, three),        vae("3x3", 256, 128, 128, three), vae("halving", 256, 128, 128, halved),
      vae("3x3", 128, 128, 256, three),      vae("1x1", 128, 128, 256, one),   vae("3x3", 128, 256, 256, three),
      vae("halving", 128, 256, 256, halved), vae("3x3", 64, 256, 512, three),  vae("3x3", 64, 512, 512, three),
      vae("halving", 64, 512, 512, halved),  vae("3x3", 32, 512, 512, three),  vae("doubling", 32, 512, 512, grown),
      vae("doubling", 64, 512, 512, grown),  vae("3x3", 128, 512, 256, three), vae("doubling", 128, 256, 256, grown),
      vae("3x3", 256, 256, 128, three),      vae("1x1", 256, 256, 128, one),   vae("3x3", 256, 128, 3, three),
      vae("1x1", 64, 256, 512, one),         vae("1x1", 128, 512, 256, one),   vae("1x1", 32, 512, 1536, one),
      vae("1x1", 32, 512, 512, one),         vae("3x3", 32, 4, 512, three),    vae("3x3", 32, 512, 8, three)};
}

std::vector<ConvShape> inception_shapes() {
  const auto valid = [](int64_t k, int64_t stride) {
    return Conv2d{.kernel_h = k, .kernel_w = k, .stride_h = stride, .stride_w = stride};
  };
  const Conv2d one, three = Conv2d::same(3), five = Conv2d::same(5);
  const Conv2d row{.kernel_w = 7, .pad_left = 3, .pad_right = 3}, column{.kernel_h = 7, .pad_top = 3, .pad_bottom = 3};
  const Conv2d short_row{.kernel_w = 3, .pad_left = 1, .pad_right = 1};
  return {
      inception(299, 3, 32, valid(3, 2)), inception(149, 32, 32, valid(3, 1)),  inception(147, 32, 64, three),
      inception(73, 64, 80, one),         inception(73, 80, 192, valid(3, 1)),  inception(35, 48, 64, five),
      inception(35, 96, 96, three),       inception(35, 288, 64, one),          inception(35, 288, 384, valid(3, 2)),
      inception(17, 768, 192, one),       inception(17, 128, 128, row),         inception(17, 192, 192, row),
      inception(17, 192, 192, column),    inception(17, 192, 320, valid(3, 2)), inception(8, 448, 384, three),
      inception(8, 384, 384, short_row),  inception(8, 2048, 320, one)};
}

bool counts_in_mean(const ConvShape& shape) {
  return shape.conv.kernel_h == 3 && shape.conv.kernel_w == 3 && shape.channels >= 128 && shape.outputs >= 128;
}

std::unique_ptr<Peer> load_rival(Harness& harness) {
  return load_peer(Library::kOneDnn, harness,
                   ", layouts of its own choice; where an image is doubled, it gets the doubled one");
}

// Numbers that keep activations about as large as they are; their values do not change the time.
std::vector<float> some_weights(const std::string& name, const Shape& shape) {
  const bool norm = shape.size() == 1 && !name.ends_with("bias");
  const double deviation = std::sqrt(3.0 * double(shape[0]) / double(num_elements(shape)));
  std::vector<float> values(size_t(num_elements(shape)));
  kernels::fill_uniform(RandomKey(0, Stream::kTest, 0), 0, values.data(), int64_t(values.size()));
  for (float& x : values) {
    const double unit = 2 * double(x) - 1;
    x = float(norm ? 1.0 : shape.size() == 1 ? 0.1 * unit : deviation * unit);
  }
  return values;
}

// All convolutions of an image by the peer, one after the other; equal ones share their arrays.
std::function<void()> all_convolutions(Peer& peer, const nn::Autoencoder& model, bool encodes, int64_t side) {
  std::map<std::vector<int64_t>, std::function<void()>> different;
  std::vector<std::function<void()>> calls;
  for (const nn::AutoencoderConv& c : nn::autoencoder_convolutions(model.config(), encodes, side, side)) {
    std::function<void()>& one =
        different[{c.height, c.width, c.channels, c.outputs, c.conv.kernel_h, c.conv.stride_h, c.conv.pad_top}];
    if (!one) one = peer.convolution(c, 1, model.type());
    if (!one) return {};
    calls.push_back(one);
  }
  return [calls] {
    for (const auto& call : calls) call();
  };
}

void add_network_row(Harness& harness, const Work& work, int64_t images, size_t bytes, size_t weight_bytes,
                     const CallTimes* times = nullptr) {
  Row row = harness.measure(work);
  row.details = {{"images_per_second", double(images) / row.time.median_s},
                 {"memory_bytes", int64_t(bytes)},
                 {"weight_bytes", int64_t(weight_bytes)}};
  if (times != nullptr) times->add_split(row, /*optimizer=*/false);
  row.details.push_back({"peak_rss_bytes", int64_t(platform::peak_resident_bytes())});
  harness.add(std::move(row));
}

void add_vae_row(Harness& harness, nn::Autoencoder& model, bool encodes, int64_t side, Peer* peer) {
  const int64_t z = model.config().latent_channels, f = model.config().shrink();
  ops::Context& ctx = harness.ctx();
  const Tensor images = random_tensor(ctx, {1, model.config().image_channels, side, side}, -1, 1);
  const Tensor latents = random_tensor(ctx, {1, z, side / f, side / f}, -2, 2), moments({1, 2 * z, side / f, side / f});
  const double macs = encodes ? model.encode_macs(side, side) : model.decode_macs(side, side);
  const auto call = [&] { encodes ? model.encode(ctx, images, moments) : model.decode(ctx, latents, images); };
  CallTimes times(ctx);
  Work work{.name = fmt::format("VAE {} {}x{}", encodes ? "encode" : "decode", side, side),
            .dtype = model.type(),
            .call = [&] { times.make(call); },
            .flop = 2 * macs};
  const size_t bytes = encodes ? model.encode_bytes(side, side) : model.decode_bytes(side, side);
  if (peer != nullptr)
    if (const auto theirs = all_convolutions(*peer, model, encodes, side))
      work.rivals.push_back({peer->name(), theirs});
  add_network_row(harness, work, 1, bytes, model.weight_bytes(), &times);
}

}  // namespace

double ConvShape::flop() const {
  const int64_t height = conv.doubled ? 2 * side : side, rows = y()[1];
  int64_t lines = 0;  // of the kernel, over all lines of the result
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < conv.kernel_h; ++i) {
      const int64_t at = r * conv.stride_h - conv.pad_top + i;
      lines += at >= 0 && at < height ? 1 : 0;
    }
  return 2.0 * double(num_elements(y())) / double(rows) * double(lines * conv.kernel_w * channels);
}

Row measure_conv(Harness& harness, const ConvShape& shape, DType type, Peer* peer) {
  ops::Context& ctx = harness.ctx();
  const Tensor x = random_tensor(ctx, shape.x(), -0.5f, 0.5f, type);
  const ops::ConvWeights w = ops::packed_weights(random_tensor(ctx, shape.w(), -0.5f, 0.5f, type));  // as networks do
  const Tensor bias = random_tensor(ctx, {shape.outputs}, -0.5f, 0.5f), y(shape.y(), type);
  Work work{.name = shape.name(),
            .dtype = type,
            .call = [&] { ops::conv2d(ctx, x, w, bias, shape.conv, y); },
            .flop = shape.flop()};
  work.details = {{"kernel", fmt::format("{}x{}", shape.conv.kernel_h, shape.conv.kernel_w)},
                  {"channels", shape.channels},
                  {"outputs", shape.outputs},
                  {"images", shape.images, false},
                  {"side", shape.side, false}};
  const int64_t side = shape.conv.doubled ? 2 * shape.side : shape.side;  // a peer is given the doubled image
  if (peer != nullptr)
    if (const auto theirs =
            peer->convolution({side, side, shape.channels, shape.outputs, shape.conv}, shape.images, type))
      work.rivals.push_back({peer->name(), theirs});
  return harness.measure(work);
}

std::vector<ConvShape> conv_shapes() {
  std::vector<ConvShape> all = vae_shapes();
  for (const ConvShape& s : inception_shapes()) all.push_back(s);
  return all;
}

void bench_conv(Harness& harness, const ConvBench& bench) {
  const std::unique_ptr<Peer> peer = bench.peers ? load_rival(harness) : nullptr;
  const std::vector<ConvShape> shapes = conv_shapes();
  const size_t first = harness.rows().size();
  for (const DType type : bench.precisions)
    for (const ConvShape& shape : shapes) harness.add(measure_conv(harness, shape, type, peer.get()));
  const Report& report = harness.report();
  for (size_t i = 0; i < bench.precisions.size(); ++i) {
    std::vector<const Row*> all, counted;
    for (size_t j = 0; j < shapes.size(); ++j) {
      all.push_back(&report.rows[first + i * shapes.size() + j]);
      if (counts_in_mean(shapes[j])) counted.push_back(all.back());
    }
    harness.note(mean_share(counted, "3x3 kernels and >= 128 channels"));
    harness.note(mean_ratios(all));
  }
}

void bench_inception(Harness& harness, const InceptionBench& bench) {
  for (const DType type : bench.precisions) {
    harness.restart_peak_memory();
    nn::Inception network(type, some_weights);
    const Tensor images =
        random_tensor(harness.ctx(), {bench.images, 3, nn::kInceptionSide, nn::kInceptionSide}, -1, 1);
    const Tensor features({bench.images, nn::kInceptionFeatures});
    const Work work{.name = fmt::format("FID Inception, {} images", bench.images),
                    .dtype = type,
                    .call = [&] { network.run(harness.ctx(), images, {features}); },
                    .flop = 2 * network.macs() * double(bench.images)};
    add_network_row(harness, work, bench.images, network.activation_bytes(bench.images), network.weight_bytes());
  }
}

void bench_vae(Harness& harness, const VaeBench& bench) {
  const std::unique_ptr<Peer> peer = bench.peers ? load_rival(harness) : nullptr;
  if (peer != nullptr) harness.note("onednn runs the convolutions of the network alone, without norms and attention");
  for (const DType type : bench.precisions) {
    for (const bool encodes : {true, false}) {
      harness.restart_peak_memory();
      nn::Autoencoder model({}, type, some_weights,
                            encodes ? nn::AutoencoderUse::kEncode : nn::AutoencoderUse::kDecode);
      add_vae_row(harness, model, encodes, bench.side, peer.get());
    }
  }
}

}  // namespace ditrain::bench
