// Inputs of the network as FID tools make them. ditverify compares them bit for bit (fid_presets).
#include "ditrain/eval/fid_preset.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/crc32.hpp"
#include "pillow_bicubic.hpp"

using namespace ditrain;
using namespace ditrain::eval;

namespace {

// The four weights of a pixel sum up to 1 but for their rounding, as in torch.
constexpr float kTorchRounding = 4.8e-7f;

struct Tool {
  const char* name;
  FidPreset preset;
};
constexpr Tool kTools[] = {
    {"pytorch_fid", FidPreset::kPytorchFid}, {"tf1", FidPreset::kAdm}, {"clean", FidPreset::kClean}};

}  // namespace

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
