// The autoencoder: its plan, bits on any team, bf16 beside f32, sizes that do not fit. Its numbers are compared with
// those of the reference in tests/verify and tests/eval.
#include "ditrain/nn/autoencoder.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "../../src/nn/autoencoder_plan.hpp"
#include "ditrain/base/error.hpp"
#include "support/compare.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::nn;
using namespace ditrain::test;

namespace {

AutoencoderConfig small_config() { return {.channels = {16, 32}, .layers = 1, .groups = 8}; }

// Scales near 1, other weights with the deviation that keeps activations about as large as they are.
std::vector<float> some_weights(const std::string& name, const Shape& shape) {
  const bool bias = name.ends_with("bias"), norm = !bias && shape.size() == 1;
  const double fan_in = double(num_elements(shape)) / double(shape[0]);
  std::vector<float> w = to_vector(
      random_tensor(shape, std::hash<std::string>{}(name) % 1000, bias || norm ? 0.1f : float(1 / std::sqrt(fan_in))));
  for (float& x : w) x += norm ? 1.0f : 0.0f;
  return w;
}

struct Results {
  std::vector<float> moments, images;
};
Results run(int workers, DType type, const AutoencoderConfig& config, const Shape& image,
            int64_t slice_pixels = kSlicePixels) {
  Workers crew(workers, workers > 2 ? 2 : 1);
  Autoencoder vae(config, type, some_weights, AutoencoderUse::kBoth, slice_pixels);
  const int64_t z = config.latent_channels, f = config.shrink();
  const Tensor moments({image[0], 2 * z, image[2] / f, image[3] / f}), decoded(image);
  vae.encode(crew.ctx, random_tensor(image, 1, 0.5f), moments);
  vae.decode(crew.ctx, random_tensor({image[0], z, image[2] / f, image[3] / f}, 2), decoded);
  return {to_vector(moments), to_vector(decoded)};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::all_of(a.begin(), a.end(), [](float x) { return std::isfinite(x); }) && a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_plan(const AutoencoderPlan& plan) {
  int64_t live = 0;
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const PlannedValue& a = plan.values[i];
    REQUIRE(a.offset + a.size() <= plan.elements);
    for (size_t j = i + 1; j < plan.values.size(); ++j) {
      const PlannedValue& b = plan.values[j];
      const bool apart = a.last < b.first || b.last < a.first;
      const bool beside = a.offset + a.size() <= b.offset || b.offset + b.size() <= a.offset;
      REQUIRE((apart || beside));
    }
  }
  for (int step = 0; step < int(plan.steps.size()); ++step) {
    int64_t now = 0;
    for (const PlannedValue& v : plan.values) now += v.first <= step && step <= v.last ? v.size() : 0;
    live = std::max(live, now);
  }
  CHECK(double(plan.elements) <= 1.05 * double(live));  // little is lost between values
}

}  // namespace

TEST_CASE("autoencoder: results that are needed at the same time lie apart, and little memory is lost") {
  const AutoencoderConfig full, small = small_config();
  for (const auto& [h, w] : {std::pair<int64_t, int64_t>{256, 256}, {192, 256}, {64, 64}}) {
    check_plan(plan_encoder(full, h, w));
    check_plan(plan_decoder(full, h / 8, w / 8));
  }
  check_plan(plan_encoder(small, 24, 40));
  check_plan(plan_decoder(small, 12, 20));
}

TEST_CASE("autoencoder: multiply-adds and memory of the full model are those of its layers") {
  const AutoencoderConfig full;
  CHECK(2 * plan_encoder(full, 256, 256).macs == Approx(272e9).epsilon(0.01));
  // At 256 x 256: a value of 256 channels, one of 128, and 66 rows of 256; two of 128, and 66 rows of 128.
  CHECK(plan_decoder(full, 32, 32).elements == (256 * (256 + 128) + 66 * 256) * 256);
  CHECK(plan_encoder(full, 256, 256).elements == (256 * (128 + 128) + 66 * 128) * 256);
  // Normalised images beside them would take 1.6 and 1.5 times as much.
  const auto whole = [](int64_t side) { return int64_t{2} * side * side; };
  CHECK(double(plan_decoder(full, 128, 128, whole(1024)).elements) >
        1.6 * double(plan_decoder(full, 128, 128).elements));
  CHECK(double(plan_encoder(full, 1024, 1024, whole(1024)).elements) >
        1.45 * double(plan_encoder(full, 1024, 1024).elements));
}

TEST_CASE("autoencoder: the same bits in slices of any number of rows") {
  const AutoencoderConfig falling{.channels = {32, 16, 16}, .layers = 1, .groups = 8};
  for (const AutoencoderConfig& config : {small_config(), falling})
    for (const DType type : {DType::kF32, DType::kBF16})
      for (const Shape& image : {Shape{2, 3, 24, 36}, Shape{1, 3, 36, 64}, Shape{1, 3, 4, 8}}) {
        const Results whole = run(2, type, config, image, int64_t{1} << 40);
        for (const int64_t slice_pixels : {1, 100, 500}) {
          INFO(dtype_name(type) << ' ' << to_string(image) << ' ' << slice_pixels);
          const Results sliced = run(2, type, config, image, slice_pixels);
          CHECK(same_bits(sliced.moments, whole.moments));
          CHECK(same_bits(sliced.images, whole.images));
        }
      }
}

TEST_CASE("autoencoder: the same bits on any team") {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Results one = run(1, type, small_config(), {2, 3, 20, 36});
    for (const int workers : {2, 3, 4}) {
      const Results many = run(workers, type, small_config(), {2, 3, 20, 36});
      CHECK(many.moments == one.moments);
      CHECK(many.images == one.images);
    }
  }
}

TEST_CASE("autoencoder: images of a batch do not touch each other") {
  Workers crew(2);
  Autoencoder vae(small_config(), DType::kF32, some_weights);
  const Tensor images = random_tensor({3, 3, 8, 12}, 1), all({3, 8, 4, 6}), last({1, 8, 4, 6});
  vae.encode(crew.ctx, images, all);
  vae.encode(crew.ctx, images.rows(2, 3), last);
  CHECK(to_vector(all.rows(2, 3)) == to_vector(last));
}

TEST_CASE("autoencoder: one half alone gives the same bits, from the weights of that half") {
  Workers crew(2);
  const Results both = run(2, DType::kF32, small_config(), {1, 3, 16, 16});
  Autoencoder encoder(small_config(), DType::kF32, some_weights, AutoencoderUse::kEncode),
      decoder(small_config(), DType::kF32, some_weights, AutoencoderUse::kDecode);
  const Tensor moments({1, 8, 8, 8}), images({1, 3, 16, 16});
  encoder.encode(crew.ctx, random_tensor({1, 3, 16, 16}, 1, 0.5f), moments);
  decoder.decode(crew.ctx, random_tensor({1, 4, 8, 8}, 2), images);
  CHECK(to_vector(moments) == both.moments);
  CHECK(to_vector(images) == both.images);
  CHECK_THROWS_AS(encoder.decode(crew.ctx, random_tensor({1, 4, 8, 8}, 2), images), LogicFault);
  CHECK_THROWS_AS(decoder.encode(crew.ctx, images, moments), LogicFault);
  const auto bytes = [](AutoencoderUse use) { return autoencoder_weight_bytes(small_config(), DType::kF32, use); };
  CHECK(bytes(AutoencoderUse::kEncode) + bytes(AutoencoderUse::kDecode) == bytes(AutoencoderUse::kBoth));
  CHECK(encoder.weight_bytes() == bytes(AutoencoderUse::kEncode));
}

TEST_CASE("autoencoder: bf16 stays near f32") {
  const Results f32 = run(2, DType::kF32, small_config(), {1, 3, 32, 32});
  const Results bf16 = run(2, DType::kBF16, small_config(), {1, 3, 32, 32});
  CHECK(relative_l2(bf16.moments, f32.moments) < 0.03);
  CHECK(relative_l2(bf16.images, f32.images) < 0.03);
  CHECK(bf16.moments != f32.moments);
}

TEST_CASE("autoencoder: sizes that do not fit are refused") {
  parallel::Team team(parallel::Team::Config{});
  ops::Context ctx(team);
  Autoencoder vae(small_config(), DType::kF32, some_weights);
  CHECK_THROWS_WITH(vae.encode(ctx, Tensor({1, 3, 9, 8}), Tensor({1, 8, 4, 4})), Catch::Contains("multiples of 2"));
  AutoencoderConfig halved_three_times = small_config();
  halved_three_times.channels = {8, 8, 8, 8};
  Autoencoder deep(halved_three_times, DType::kF32, some_weights);
  CHECK_THROWS_WITH(deep.encode(ctx, Tensor({1, 3, 16, 12}), Tensor({1, 8, 2, 2})), Catch::Contains("multiples of 8"));
  CHECK_THROWS_AS(vae.encode(ctx, Tensor({1, 4, 8, 8}), Tensor({1, 8, 4, 4})), ShapeError);
  CHECK_THROWS_AS(vae.encode(ctx, Tensor({1, 3, 8, 8}), Tensor({1, 8, 4, 5})), ShapeError);
  CHECK_THROWS_AS(vae.decode(ctx, Tensor({1, 3, 4, 4}), Tensor({1, 3, 8, 8})), ShapeError);
  for (const AutoencoderConfig& bad :
       {AutoencoderConfig{.channels = {}}, AutoencoderConfig{.channels = {12}, .groups = 8},
        AutoencoderConfig{.channels = {1024}}, AutoencoderConfig{.layers = 0}})
    CHECK_THROWS_AS(check_autoencoder_config(bad), InputError);
}

TEST_CASE("autoencoder: names of weights in older files and in the original code") {
  const std::string up = "decoder.up_blocks.0.upsamplers.0.conv.weight",
                    key = "encoder.mid_block.attentions.0.to_k.bias";
  CHECK(original_autoencoder_name(up, 4) == "decoder.up.3.upsample.conv.weight");
  CHECK(original_autoencoder_name(key, 4) == "encoder.mid.attn_1.k.bias");
  CHECK(original_autoencoder_name("decoder.mid_block.resnets.1.norm2.bias", 4) == "decoder.mid.block_2.norm2.bias");
  CHECK(original_autoencoder_name("encoder.down_blocks.1.resnets.0.conv_shortcut.bias", 4) ==
        "encoder.down.1.block.0.nin_shortcut.bias");
  CHECK(older_autoencoder_name(key) == "encoder.mid_block.attentions.0.key.bias");
  CHECK(autoencoder_weights({}).size() == 248);
}
