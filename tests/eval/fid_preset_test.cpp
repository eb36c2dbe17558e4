#include "ditrain/eval/fid_preset.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/crc32.hpp"
#include "pillow_bicubic.hpp"
#include "support/fixture.hpp"
#include "support/formula.hpp"

using namespace ditrain;
using namespace ditrain::eval;

namespace {

// Image k of the fixture: eight bits, rows of RGB.
images::ImageU8 fixture_image(const test::Fixture& file, int64_t k) {
  const std::vector<int64_t> hw = file.i64("hw");
  const int64_t h = hw[size_t(2 * k)], w = hw[size_t(2 * k + 1)];
  const std::vector<float> planes = test::formula_image("presets.image", k, h, w);
  images::ImageU8 image{w, h, 3, std::vector<uint8_t>(planes.size())};
  const std::vector<int64_t> check = file.i64("image." + std::to_string(k) + ".check");
  for (int64_t i = 0; i < int64_t(planes.size()); ++i) {
    const auto byte = uint8_t(std::floor(256 * planes[size_t(i)]));
    image.pixels[size_t(i % (h * w) * 3 + i / (h * w))] = byte;
    if (i % 997 == 0) REQUIRE(byte == check[size_t(i / 997)]);
  }
  return image;
}

// The four weights of a pixel sum up to 1 but for their rounding, as in torch.
constexpr float kTorchRounding = 4.8e-7f;

struct Tool {
  const char* name;
  FidPreset preset;
};
constexpr Tool kTools[] = {
    {"pytorch_fid", FidPreset::kPytorchFid}, {"tf1", FidPreset::kAdm}, {"clean", FidPreset::kClean}};

}  // namespace

TEST_CASE("each preset makes the network's input of its tool, bit for bit") {
  const test::Fixture file("fid_presets.safetensors");
  std::vector<float> input(size_t(3 * kFidInputSize * kFidInputSize));
  for (int64_t k = 0; k < file.shape("hw")[0]; ++k) {
    const images::ImageU8 image = fixture_image(file, k);
    for (const Tool& tool : kTools) {
      CAPTURE(k, image.width, image.height, tool.name);
      make_fid_input(image, tool.preset, input.data());
      const std::vector<float> want = file.f32("pre." + std::string(tool.name) + "." + std::to_string(k));
      std::vector<float> got;
      for (int64_t c = 0; c < 3; ++c)
        for (int64_t y = 0; y < kFidInputSize; y += 13)
          for (int64_t x = 0; x < kFidInputSize; x += 13)
            got.push_back(input[size_t((c * kFidInputSize + y) * kFidInputSize + x)]);
      REQUIRE(got.size() == want.size());
      CHECK(test::compare(test::to_f64(got), test::to_f64(want), 0));
    }
  }
}

TEST_CASE("the preset clean has Pillow's bits for widths and heights below, at and above the network's") {
  std::vector<float> input(size_t(3 * kFidInputSize * kFidInputSize));
  for (const pillow_bicubic::Case& c : pillow_bicubic::kCases) {
    images::ImageU8 image{c.width, c.height, 3, std::vector<uint8_t>(size_t(3 * c.width * c.height))};
    auto next = uint32_t(1000 * c.width + c.height);
    for (uint8_t& byte : image.pixels) {
      uint32_t v = 2654435761u * next++;
      v ^= v >> 15;
      byte = uint8_t(2246822519u * v >> 24);
    }
    CAPTURE(c.width, c.height);
    make_fid_input(image, FidPreset::kClean, input.data());
    CHECK(files::crc32(0, input.data(), input.size() * sizeof(float)) == c.crc);
  }
}

TEST_CASE("any size becomes a finite input in the preset's range, one pixel and long strips included") {
  std::vector<float> input(size_t(3 * kFidInputSize * kFidInputSize));
  for (const auto& [w, h] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {1, 3000}, {3000, 2}, {299, 1}, {300, 298}}) {
    images::ImageU8 image{w, h, 3, {}};
    for (int64_t i = 0; i < w * h * 3; ++i) image.pixels.push_back(i % 5 == 0 ? 255 : 0);
    for (const Tool& tool : kTools) {
      CAPTURE(w, h, tool.name);
      make_fid_input(image, tool.preset, input.data());
      const float top = tool.preset == FidPreset::kPytorchFid ? 1.0f + kTorchRounding : 0.9921875f;
      const auto [low, high] = std::minmax_element(input.begin(), input.end());
      CHECK(*low >= -1.0f);
      CHECK(*high <= top);
    }
  }
  images::ImageU8 white{40, 30, 3, std::vector<uint8_t>(3600, 255)};
  for (const Tool& tool : kTools) {
    make_fid_input(white, tool.preset, input.data());
    const bool torch = tool.preset == FidPreset::kPytorchFid;
    const float top = torch ? 1.0f : 0.9921875f, rounding = torch ? kTorchRounding : 0.0f;
    CHECK(std::all_of(input.begin(), input.end(), [&](float v) { return std::abs(v - top) <= rounding; }));
  }
  CHECK_THROWS_AS(make_fid_input({1, 1, 1, {0}}, FidPreset::kClean, input.data()), LogicFault);
}

TEST_CASE("presets have the words of the contract") {
  CHECK(all_words<FidPreset>() == std::vector<std::string>{"pytorch-fid", "adm", "clean"});
  for (const Tool& tool : kTools) CHECK(std::string(description_of(tool.preset)).size() > 10);
}
