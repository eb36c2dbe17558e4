#include "ditrain/bench/conv.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "ditrain/files/json.hpp"
#include "ditrain/nn/autoencoder.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Json = nlohmann::json;

namespace {
ConvShape tiny_conv() { return {"tiny", "3x3", 2, 8, 5, 16, ops::Conv2d::same(3)}; }
}  // namespace

TEST_CASE("conv: a row has kernel, channels and share, in both precisions") {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Harness harness(2, Effort::quick());
    harness.add(measure_conv(harness, tiny_conv(), type, nullptr));
    const Json row = files::parse_json<Json>(to_json(harness.report())).at("rows").at(0);
    CHECK(row.at("name") == "tiny 3x3");
    CHECK(row.at("dtype") == dtype_name(type));
    CHECK(row.at("kernel") == "3x3");
    CHECK(row.at("channels") == 5);
    CHECK(row.at("outputs") == 16);
    CHECK(row.at("share").get<double>() > 0);
    CHECK_FALSE(row.contains("peers"));
  }
  CHECK(tiny_conv().flop() == 2.0 * 2 * 8 * 16 * (8 * 3 - 2) * 3 * 5);  // two lines of padding are left out
}

TEST_CASE("conv: oneDNN, where it is installed, stands beside ours") {
  Harness harness(1, Effort::quick());
  const std::unique_ptr<Peer> peer = load_peer(Library::kOneDnn, harness);
  if (peer == nullptr) SKIP(harness.report().notes.back());
  for (const int64_t stride : {1, 2}) {
    ConvShape shape = tiny_conv();
    shape.conv.stride_h = shape.conv.stride_w = stride;
    const Row row = measure_conv(harness, shape, DType::kF32, peer.get());
    REQUIRE(row.peers.size() == 1);
    CHECK_THAT(row.peers[0].first, Catch::StartsWith("oneDNN 2."));
    CHECK(row.peers[0].second > 0);
  }
  CHECK(peer->convolution({4, 4, 1, 1, {}}, 1, DType::kF32) != nullptr);
}

TEST_CASE("conv: the list has every shape once, those of both networks") {
  std::set<std::string> names, networks;
  int64_t wide = 0;
  for (const ConvShape& s : conv_shapes()) {
    CHECK(names.insert(s.name()).second);
    networks.insert(s.network);
    wide += s.conv.kernel_h == 3 && s.conv.kernel_w == 3 && s.channels >= 128 && s.outputs >= 128 ? 1 : 0;
    CHECK(s.y()[1] > 0);
  }
  CHECK(networks == std::set<std::string>{"VAE", "Inception"});
  CHECK(wide >= 15);
}

TEST_CASE("inception: the features of a batch are a row with images a second and memory") {
  Harness harness(2, Effort::quick());
  bench_inception(harness, {.images = 1});
  const Json rows = files::parse_json<Json>(to_json(harness.report())).at("rows");
  REQUIRE(rows.size() == 1);
  CHECK(rows.at(0).at("name") == "FID Inception, 1 images");
  for (const char* key : {"share", "images_per_second", "memory_bytes", "weight_bytes", "peak_rss_bytes"}) {
    INFO(key);
    CHECK(rows.at(0).at(key).get<double>() > 0);
  }
}

TEST_CASE("vae: encoding and decoding are rows with images a second and memory") {
  Harness harness(2, Effort::quick());
  bench_vae(harness, {.side = 16});
  const Json rows = files::parse_json<Json>(to_json(harness.report())).at("rows");
  REQUIRE(rows.size() == 2);
  CHECK(rows.at(0).at("name") == "VAE encode 16x16");
  CHECK(rows.at(1).at("name") == "VAE decode 16x16");
  for (const Json& row : rows)
    for (const char* key : {"share", "images_per_second", "memory_bytes", "weight_bytes", "peak_rss_bytes",
                            "products_s", "attention_s", "elementwise_s"})
      CHECK(row.at(key).get<double>() > 0);
}

TEST_CASE("vae: the convolutions of the network are those of its layers") {
  double macs = 0;
  for (const nn::AutoencoderConv& c : nn::autoencoder_convolutions({}, true, 256, 256)) {
    const Shape x = {1, c.height, c.width, c.channels}, w = {c.conv.kernel_h, c.conv.kernel_w, c.channels, c.outputs};
    macs += double(num_elements(ops::conv2d_shape(x, w, c.conv))) * double(num_elements(w)) / double(c.outputs);
  }
  CHECK(2 * macs == Approx(272e9).epsilon(0.02));  // all but the attention's
}
