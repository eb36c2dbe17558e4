// The FID Inception with weights by formula: every module, and what the presets of FID tools make of images. Tolerances
// are relative to the largest value of a tensor, no looser than the fixtures' description suggests for any module; that
// of a network's input against the float64 run follows from the size of the image.
#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/fid_preset.hpp"
#include "ditrain/nn/inception.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kMostImages = 16, kLargestSide = 2048, kSide = nn::kInceptionSide, kStep = 13, kSamples = 23;
constexpr double kGain = 1.4142135623730951;  // of weights: the square root of 2, for ReLU

nn::Inception make_network(const Verification& v) {
  return {DType::kF32, [&](const std::string& name, const Shape& shape) {
            std::vector<float> values(size_t(num_elements(shape)));
            fill_by_formula(name, v.suffix(), shape, 0, int64_t(values.size()), values.data(), kGain);
            return values;
          }};
}

/// image(key, k) [3, h, w] in [0, 1).
std::vector<float> formula_image(const Verification& v, const std::string& key, int64_t k, int64_t h, int64_t w) {
  const FormulaSequence numbers(key + "." + std::to_string(k) + v.suffix());
  const double a = k % 2 == 0 ? 0.5 : 0.125;
  std::vector<float> values;
  for (int64_t i = 0; i < 3 * h * w; ++i) {
    const int64_t c = i / (h * w), y = i / w % h, x = i % w;
    const double wave = double(((c + 1) * x + (3 - c) * y + 17 * k) % 64) / 64.0;
    values.push_back(float(a * numbers.unit(uint64_t(i)) + (1 - a) * wave));
  }
  return values;
}

/// How far an input in f32 is off that of the float64 run: the scale and the position of a pixel are rounded, each by
/// 2^-24 of at most a side; two neighbours differ by up to 2, along two axes; and the blend of four pixels is rounded.
double input_error(int64_t h, int64_t w) { return double(2 * 2 * 2 * std::max(h, w) + 16) * 0x1p-24; }

/// Every 13th row and column of a network's input.
std::vector<double> sampled(const float* input) {
  std::vector<double> some;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < kSide; y += kStep)
      for (int64_t x = 0; x < kSide; x += kStep) some.push_back(double(input[(c * kSide + y) * kSide + x]));
  return some;
}

/// [B, C]: means over space of [B, H, W, C].
std::vector<double> means(const Tensor& y) {
  const int64_t B = y.dim(0), C = y.dim(3), pixels = y.dim(1) * y.dim(2);
  std::vector<double> mean(size_t(B * C), 0.0);
  const std::vector<double> values = to_f64(y);
  for (size_t i = 0; i < values.size(); ++i)
    mean[i / size_t(pixels * C) * size_t(C) + i % size_t(C)] += values[i] / double(pixels);
  return mean;
}

void check_if_there(Verification& v, const std::string& name, const Tensor& y, double tolerance) {
  if (v.has(name)) v.check_both(name, {y.dim(0), y.dim(3)}, means(y), tolerance);
}

}  // namespace

void verify_fid_inception(Verification& v) {
  nn::Inception network = make_network(v);
  constexpr int64_t kImages = 2;
  const Tensor images({kImages, 3, kSide, kSide}), features({kImages, nn::kInceptionFeatures});
  for (int64_t k = 0; k < kImages; ++k) {
    const std::string number = std::to_string(k);
    const Shape shape = v.shape("images." + number, 3, kLargestSide);
    if (shape[0] != 3) throw InputError({.where = "images." + number, .what = "channels", .got = to_string(shape)});
    const std::vector<float> planes = formula_image(v, "inception.image", k, shape[1], shape[2]);
    v.check("images." + number, shape, to_f64(planes), 0, Per::unit());
    const Pin<float> input(images.rows(k, k + 1));
    eval::make_torch_fid_input(planes, shape[1], shape[2], input);
    v.check_both("pre.sample." + number, {3, kSamples, kSamples}, sampled(input), input_error(shape[1], shape[2]),
                 Per::unit());
  }
  network.run(v.ctx(), images, {.features = features}, [&](const std::string& module, const Tensor& y) {
    check_if_there(v, "mean." + module, y, 2e-6);
    check_if_there(v, module == "Mixed_6e" ? "block2" : module, y, 2e-6);
  });
  v.check_both("features", features, 3e-6);
}

void verify_fid_presets(Verification& v) {
  struct Tool {
    const char* name;
    eval::FidPreset preset;
    double features, spatial, logits, biased;  // tolerances
  };
  constexpr Tool kTools[] = {{"pytorch_fid", eval::FidPreset::kPytorchFid, 8e-6, 2e-4, 8e-6, 9e-6},
                             {"tf1", eval::FidPreset::kAdm, 7e-6, 1e-4, 7e-6, 7e-6},
                             {"clean", eval::FidPreset::kClean, 3e-6, 2e-5, 5e-6, 5e-6}};
  nn::Inception network = make_network(v);
  const int64_t n = v.shape("hw", 2, kMostImages)[0];
  const std::vector<int64_t> hw = v.i64("hw", {n, 2}, 1, kLargestSide);
  std::vector<images::ImageU8> pictures;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t h = hw[size_t(2 * k)], w = hw[size_t(2 * k + 1)];
    const std::vector<float> planes = formula_image(v, "presets.image", k, h, w);
    images::ImageU8 picture{w, h, 3, std::vector<uint8_t>(planes.size())};
    std::vector<int64_t> check;
    for (int64_t i = 0; i < int64_t(planes.size()); ++i) {
      const auto byte = uint8_t(std::floor(256 * planes[size_t(i)]));
      picture.pixels[size_t(i % (h * w) * 3 + i / (h * w))] = byte;
      if (i % 997 == 0) check.push_back(byte);
    }
    v.check_exact("image." + std::to_string(k) + ".check", {int64_t(check.size())}, check);
    pictures.push_back(std::move(picture));
  }
  std::vector<double> fc_bias(size_t(nn::kInceptionClasses));
  {
    std::vector<float> bias(fc_bias.size());
    fill_by_formula("fc.bias", v.suffix(), {nn::kInceptionClasses}, 0, nn::kInceptionClasses, bias.data());
    fc_bias = to_f64(bias);
  }
  constexpr int64_t kGrid = nn::kInceptionSpatialSide;
  const Tensor images({n, 3, kSide, kSide}), features({n, nn::kInceptionFeatures}),
      spatial({n, kGrid, kGrid, nn::kInceptionSpatialChannels}), logits({n, nn::kInceptionClasses});
  for (const Tool& tool : kTools) {
    const std::string name = tool.name;
    for (int64_t k = 0; k < n; ++k) {
      const Pin<float> input(images.rows(k, k + 1));
      eval::make_fid_input(pictures[size_t(k)], tool.preset, input);
      const std::string sample = "pre." + name + "." + std::to_string(k);
      v.check(sample, {3, kSamples, kSamples}, sampled(input), 0, Per::unit());
      if (v.has(sample + ".f64"))
        v.check(sample + ".f64", {3, kSamples, kSamples}, sampled(input),
                input_error(pictures[size_t(k)].height, pictures[size_t(k)].width), Per::unit());
    }
    network.run(v.ctx(), images, {features, spatial, logits});
    v.check_both("features." + name, features, tool.features);
    v.check_both("spatial." + name, spatial, tool.spatial);
    v.check_both("logits." + name, logits, tool.logits);
    std::vector<double> biased = to_f64(logits);
    for (size_t i = 0; i < biased.size(); ++i) biased[i] += fc_bias[i % fc_bias.size()];
    v.check_both("logits_bias." + name, {n, nn::kInceptionClasses}, biased, tool.biased);
  }
}

}  // namespace ditrain::verify
