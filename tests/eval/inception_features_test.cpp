// Features of the FID Inception end to end, with weights by formula; and weight files that are something else.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/io/npz.hpp"
#include "ditrain/io/safetensors.hpp"
#include "support/files.hpp"
#include "support/formula.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;

namespace {

std::vector<float> formula_weight(const std::string& name, const Shape& shape) {
  const test::Formula u(name);
  double offset = 0, bound = 0.1;
  if (name.ends_with("running_var"))
    offset = 1, bound = 0.5;
  else if (name.ends_with("weight") && shape.size() == 1)
    offset = 1, bound = 0.25;
  else if (name.ends_with("weight"))
    bound = std::sqrt(3.0 / double(num_elements(shape) / shape[0])) * std::sqrt(2.0);
  std::vector<float> values(size_t(num_elements(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(offset + bound * u.symmetric(i));
  return values;
}

/// A weight file with those of the names that `keep` lets pass; `shape_of_fc` may be another network's.
void write_weights(const std::string& path, const std::function<bool(const std::string&)>& keep,
                   const std::vector<std::string>& more = {}, const Shape& shape_of_fc = {1008, 2048}) {
  std::vector<nn::InceptionWeight> wanted;
  for (const nn::InceptionWeight& w : nn::inception_weights())
    if (keep(w.name)) wanted.push_back({w.name, w.name == "fc.weight" ? shape_of_fc : w.shape});
  for (const std::string& name : more) wanted.push_back({name, {1}});
  std::vector<std::vector<float>> values;
  for (const nn::InceptionWeight& w : wanted) values.push_back(formula_weight(w.name, w.shape));
  std::vector<io::TensorToWrite> tensors;
  for (size_t i = 0; i < wanted.size(); ++i)
    tensors.push_back({wanted[i].name, "F32", wanted[i].shape, values[i].data()});
  io::write_safetensors(path, tensors);
}

/// n images of 40 x 24 with contents by formula, the k-th set.
void write_images(const std::string& path, int64_t n, int64_t k) {
  io::NpzU8Writer npz(path, "arr_0", {n, 40, 24, 3});
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<float> planes = test::formula_image("set" + std::to_string(k), i, 40, 24);
    std::vector<uint8_t> bytes;
    for (size_t at = 0; at < planes.size(); ++at)
      bytes.push_back(uint8_t(255 * planes[at / 3 + at % 3 * (planes.size() / 3)]));
    npz.append(bytes.data(), bytes.size());
  }
  npz.finish();
}

std::string problem(const std::string& path) {
  try {
    load_inception(path);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an evaluation with the network gives every metric, and the same bits for any number of threads") {
  TemporaryFolder folder;
  write_weights(folder / "weights.safetensors", [](const std::string&) { return true; });
  write_images(folder / "real.npz", 13, 0), write_images(folder / "fake.npz", 11, 1);
  FidRequest request{.real = folder / "real.npz",
                     .generated = folder / "fake.npz",
                     .metrics = {FidMetric::kKid, FidMetric::kPrecisionRecall, FidMetric::kInceptionScore},
                     .allow_small = true};
  request.features.weights = folder / "weights.safetensors";
  parallel::Team one({.num_workers = 1}), three({.num_workers = 3});
  const FidReport a = evaluate_fid(one, request), b = evaluate_fid(three, request);
  REQUIRE((a.kid && a.precision && a.recall && a.inception_score && a.kid_deviation));
  CHECK(*a.kid == *b.kid);
  CHECK(*a.precision == *b.precision);
  CHECK(*a.inception_score == *b.inception_score);
  CHECK(*a.inception_score >= 1);
  CHECK_THAT(a.protocol, Contains("preset pytorch-fid: bilinear") && Contains("weights sha256") &&
                             Contains("11 images in") && Contains("inception score of 10 splits"));
  CHECK_THAT(a.warnings.back(), Contains("published numbers are of 50000"));

  request.allow_small = false, request.metrics = {FidMetric::kFid};
  CHECK_THROWS_WITH(evaluate_fid(three, request), Contains("too few real images for 2048 dimensions"));
  request.metrics = {FidMetric::kSfid};
  CHECK_THROWS_WITH(evaluate_fid(three, request), Contains("too few real images"));

  SECTION("images one by one and as a batch, other presets, bf16") {
    const auto set = open_image_set(folder / "fake.npz");
    const Features f32 = features_of(three, *set, {.weights = request.features.weights, .spatial = true});
    REQUIRE(f32.values.size() == size_t(11 * 2048));
    REQUIRE(f32.spatial.size() == size_t(11 * nn::kInceptionSpatial));
    nn::Inception exact = load_inception(request.features.weights);
    nn::Inception rounded = load_inception(request.features.weights, DType::kBF16);
    ops::Context ctx(one);
    const EvalImage image = [&] {
      set->prepare(10, 11);
      return set->image(10);
    }();
    const Tensor input({1, 3, 299, 299}), features({1, 2048});
    make_fid_input({image.width, image.height, 3, image.u8}, FidPreset::kPytorchFid, Pin<float>(input));
    exact.run(ctx, input, {features});
    const std::vector<float> alone = to_vector(features);
    CHECK(std::equal(alone.begin(), alone.end(), f32.values.begin() + 10 * 2048));
    rounded.run(ctx, input, {features});
    const std::vector<float> half = to_vector(features);
    double error = 0, norm = 0;
    for (size_t i = 0; i < alone.size(); ++i)
      error += std::pow(double(half[i]) - double(alone[i]), 2), norm += std::pow(double(alone[i]), 2);
    INFO("relative error of bf16 features: " << std::sqrt(error / norm));
    CHECK(std::sqrt(error / norm) < 0.02);
    CHECK(error > 0);
    const Features adm = features_of(three, *set, {.weights = request.features.weights, .preset = FidPreset::kAdm});
    CHECK(adm.values != f32.values);
  }
}

TEST_CASE("weight files of other networks are refused by name") {
  TemporaryFolder folder;
  const auto markers = [](const std::string& name) {
    return name == "Conv2d_1a_3x3.conv.weight" || name == "Mixed_7c.branch_pool.conv.weight";
  };
  const std::string path = folder / "w.safetensors";
  write_weights(path, markers, {"AuxLogits.conv0.conv.weight"});
  CHECK_THAT(problem(path), Contains("torchvision's Inception") && Contains("AuxLogits"));
  write_weights(path, [&](const std::string& name) { return markers(name) || name == "fc.weight"; }, {}, {1000, 2});
  CHECK_THAT(problem(path), Contains("torchvision's Inception") && Contains("1000 classes"));
  write_weights(path, markers);
  CHECK_THAT(problem(path), Contains("a weight of the FID Inception is missing"));
  write_weights(path, [](const std::string&) { return false; }, {"blocks.0.attn.qkv.weight"});
  CHECK_THAT(problem(path), Contains("not the weights of the FID Inception") && Contains("blocks.0"));
  std::ofstream(folder / "text.pth") << "no weights at all";
  CHECK_THAT(problem(folder / "text.pth"), Contains("not a weight file"));
}

TEST_CASE("images that the network does not see are refused, grey ones become RGB") {
  TemporaryFolder folder;
  write_weights(folder / "weights.safetensors", [](const std::string&) { return true; });
  parallel::Team team({.num_workers = 2});
  const std::vector<float> latents(4 * 8 * 8, 0.5f);
  io::write_safetensors(folder / "latents.safetensors", {{"latents", "F32", {1, 4, 8, 8}, latents.data()}});
  FeatureSettings settings{.weights = folder / "weights.safetensors"};
  load_network(settings);
  CHECK_THROWS_WITH(features_of(team, *open_image_set(folder / "latents.safetensors"), settings),
                    Contains("the Inception network sees pictures of eight bits"));
  std::vector<uint8_t> grey, rgb;
  for (int i = 0; i < 9 * 7; ++i) grey.push_back(uint8_t(i * 4)), rgb.insert(rgb.end(), 3, uint8_t(i * 4));
  for (const auto& [name, channels, data] : {std::tuple{"grey", int64_t{1}, &grey}, {"rgb", int64_t{3}, &rgb}}) {
    io::NpzU8Writer npz(folder / (std::string(name) + ".npz"), "arr_0", {1, 9, 7, channels});
    npz.append(data->data(), data->size());
    npz.finish();
  }
  CHECK(features_of(team, *open_image_set(folder / "grey.npz"), settings).values ==
        features_of(team, *open_image_set(folder / "rgb.npz"), settings).values);
}
