// Features of the FID Inception end to end, with weights by formula; and weight files that are something else.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "dataset/tile_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/npz.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/files.hpp"
#include "support/formula.hpp"
#include "support/inception_weights.hpp"
#include "support/message_of.hpp"
#include "support/npz.hpp"
#include "support/pytorch_bytes.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;
using ditrain::test::message_of;

namespace {

/// n images of 40 x 24 with contents by formula, the k-th set.
void write_images(const std::string& path, int64_t n, int64_t k) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<float> planes = test::formula_image("set" + std::to_string(k), i, 40, 24);
    for (size_t at = 0; at < planes.size(); ++at)
      bytes.push_back(uint8_t(255 * planes[at / 3 + at % 3 * (planes.size() / 3)]));
  }
  test::write_npz(path, {n, 40, 24, 3}, bytes);
}

/// |a - b| / |b| over the first n numbers.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b, size_t n) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) error += std::pow(double(a[i]) - double(b[i]), 2), norm += std::pow(double(b[i]), 2);
  return std::sqrt(error / norm);
}

constexpr double kMostErrorOfBf16 = 0.02;  // as the guide "Evaluate" says

std::string problem_of(const std::string& path) {
  return message_of([&] { load_inception(path); }, "");
}

}  // namespace

TEST_CASE("an evaluation with the network gives every metric, and the same bits for any number of threads") {
  TemporaryFolder folder;
  test::write_inception_weights(folder / "weights.safetensors");
  write_images(folder / "real.npz", 9, 0), write_images(folder / "fake.npz", 5, 1);
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
                             Contains("5 images in") && Contains("inception score of 5 splits"));
  CHECK_THAT(a.protocol, Contains("real 9 images in " + folder / "real.npz" + ", 40x24 pixels"));
  CHECK_THAT(a.warnings.at(a.warnings.size() - 2), Contains("images of 40x24 pixels are squashed to squares"));
  CHECK_THAT(a.warnings.back(), Contains("published numbers are of 50000"));
  CHECK_FALSE(a.error_of_precision);

  // Statistics that are saved give the same sFID as the images, without them.
  request.metrics = {FidMetric::kSfid}, request.keep_statistics = true;
  const FidReport of_images = evaluate_fid(three, request);
  const double from_images = *of_images.sfid;
  of_images.kept->write(folder / "saved.npz");
  request.real = folder / "saved.npz", request.keep_statistics = false;
  CHECK(*evaluate_fid(one, request).sfid == from_images);
  CHECK(from_images > 0);

  put_file(folder / "real.npz.json", R"({"latents": true})");
  request.real = folder / "real.npz";
  CHECK_THROWS_WITH(evaluate_fid(one, request), Contains("the Inception network sees pictures, not latents"));
  request.real = folder / "fake.npz", request.allow_small = false, request.metrics = {FidMetric::kFid};
  CHECK_THROWS_WITH(evaluate_fid(three, request), Contains("too few real images for 2048 dimensions"));
  request.metrics = {FidMetric::kSfid};
  CHECK_THROWS_WITH(evaluate_fid(three, request), Contains("too few real images"));
}

TEST_CASE("features: images one by one and as a batch, files of PyTorch, other presets, bf16") {
  TemporaryFolder folder;
  test::write_inception_weights(folder / "weights.safetensors");
  write_images(folder / "images.npz", 9, 1);
  parallel::Team one({.num_workers = 1}), three({.num_workers = 3});
  const auto set = open_image_set(folder / "images.npz");
  FeatureSettings settings{.weights = folder / "weights.safetensors", .spatial = true};
  const Features f32 = features_of(three, *set, settings);
  REQUIRE(f32.values.size() == size_t(9 * 2048));
  REQUIRE(f32.spatial.size() == size_t(9 * nn::kInceptionSpatial));

  test::StateDictFile file;
  for (const nn::InceptionWeight& w : nn::inception_weights()) {
    file.add(w.name, w.shape, test::formula_weight(w.name, w.shape));
    if (w.name.ends_with("running_var"))
      file.add_count(w.name.substr(0, w.name.size() - 11) + "num_batches_tracked", 0);
  }
  file.add("fc.bias", {1008}, test::formula_weight("fc.bias", {1008}));
  const std::string pth = folder / "weights.pth", bytes = file.finish();
  std::ofstream(pth, std::ios::binary) << bytes;
  nn::Inception exact = load_inception(pth);
  ops::Context ctx(one);
  set->prepare(8, 9);
  const EvalImage image = set->image(8);
  const Tensor input({1, 3, 299, 299}), features({1, 2048});
  make_fid_input({image.width, image.height, 3, image.u8}, FidPreset::kPytorchFid, Pin<float>(input));
  exact.run(ctx, input, {features});
  const std::vector<float> alone = to_vector(features);
  CHECK(std::equal(alone.begin(), alone.end(), f32.values.begin() + 8 * 2048));

  settings.preset = FidPreset::kAdm;
  CHECK(features_of(three, *set, settings).values != f32.values);

  settings.preset = FidPreset::kPytorchFid, settings.precision = DType::kBF16;
  const Features half = features_of(three, *set, settings);
  REQUIRE(half.error_of_precision);
  const double of_first = relative_difference(half.values, f32.values, 8 * 2048);
  CHECK(*half.error_of_precision == Approx(of_first));
  CHECK(of_first > 0);
  CHECK(of_first < kMostErrorOfBf16);
  CHECK(relative_difference(half.values, f32.values, 9 * 2048) < kMostErrorOfBf16);
  CHECK_THAT(half.description, Contains("network in bf16: its features of the first 8 images are off by"));
}

TEST_CASE("weight files of other networks are refused by name") {
  TemporaryFolder folder;
  const auto markers = [](const std::string& name) {
    return name == "Conv2d_1a_3x3.conv.weight" || name == "Mixed_7c.branch_pool.conv.weight";
  };
  const std::string path = folder / "w.safetensors";
  test::write_inception_weights(path, markers, {"AuxLogits.conv0.conv.weight"});
  CHECK_THAT(problem_of(path), Contains("torchvision's Inception") && Contains("AuxLogits"));
  test::write_inception_weights(path, [&](const std::string& name) { return markers(name) || name == "fc.weight"; }, {},
                                {1000, 2});
  CHECK_THAT(problem_of(path), Contains("torchvision's Inception") && Contains("1000 classes"));
  test::write_inception_weights(path, markers);
  CHECK_THAT(problem_of(path), Contains("a weight of the FID Inception is missing"));
  test::write_inception_weights(path, [](const std::string&) { return false; }, {"blocks.0.attn.qkv.weight"});
  CHECK_THAT(problem_of(path), Contains("not the weights of the FID Inception") && Contains("blocks.0"));
  std::ofstream(folder / "text.pth") << "no weights at all";
  CHECK_THAT(problem_of(folder / "text.pth"), Contains("not a weight file"));
}

TEST_CASE("tiles are compared in composites of bands by name: order and type of the bands change nothing") {
  TemporaryFolder folder;
  test::write_inception_weights(folder / "weights.safetensors");
  const auto write = [&](const char* name, auto zero, const char* type, const std::vector<std::string>& bands,
                         int key) {
    std::vector<decltype(zero)> numbers;
    for (int64_t tile = 0; tile < 2; ++tile)
      for (const std::string& band : bands) {
        const test::Formula u(fmt::format("{}.{}.{}", key, tile, band));
        for (uint64_t p = 0; p < 64; ++p) numbers.push_back(decltype(zero)(std::floor(100 + 90 * u.symmetric(p))));
      }
    dataset::TestTiles{.n = 2, .side = 8, .bands = bands}.write(folder / name, numbers, type);
    return folder / name;
  };
  const std::vector<std::string> stored = {"Red", "Green", "Blue", "NIR"}, turned = {"Blue", "Green", "Red", "NIR"};
  FidRequest request{.real = write("real.safetensors", uint8_t{}, "U8", stored, 1),
                     .generated = write("a.safetensors", uint8_t{}, "U8", stored, 2),
                     .metrics = {FidMetric::kKid, FidMetric::kInceptionScore},
                     .allow_small = true};
  request.keep_statistics = true;
  request.features.weights = folder / "weights.safetensors", request.features.preset = FidPreset::kAdm;
  load_network(request.features);
  parallel::Team team({.num_workers = 2});
  const FidReport report = evaluate_fid(team, request);
  report.kept->write(folder / "saved.npz");
  REQUIRE(report.kid);
  REQUIRE(report.others.size() == 1);
  CHECK(report.composite->name == "true colour");
  CHECK(report.others[0].composite->name == "false colour");
  CHECK(*report.others[0].kid != *report.kid);
  REQUIRE(report.bands);
  CHECK(report.bands->bands.size() == 4);
  CHECK_THAT(report.protocol, Contains("2 tiles in " + folder / "real.safetensors" + " in true colour (Red ") &&
                                  Contains("inception score of splits of 5000 images"));
  const auto json = files::parse_json(to_json(report));
  CHECK(json.at("kid") == *report.kid);
  REQUIRE(json.at("composites").size() == 2);
  CHECK(json.at("composites")[1].at("kid") == *report.others[0].kid);
  CHECK(json.at("composites")[0].at("bands") == std::vector<std::string>{"Red", "Green", "Blue"});

  FidRequest other = request;
  other.keep_statistics = false, other.metrics = {FidMetric::kKid};
  other.generated = write("b.safetensors", uint16_t{}, "U16", turned, 2);
  const FidReport same = evaluate_fid(team, other);
  CHECK(*same.kid == *report.kid);
  CHECK(*same.others.at(0).kid == *report.others[0].kid);

  // Statistics keep the stretch, and those of both composites.
  const auto facts = read_statistics_facts(weights::NpzFile(folder / "saved.npz"));
  REQUIRE(facts);
  CHECK(facts->preset == "adm");
  CHECK(facts->weights_sha256 == request.features.weights_sha256);
  CHECK(facts->images == 2);
  CHECK(facts->composites == std::vector<Composite>{*report.composite, *report.others[0].composite});
  CHECK(weights::NpzFile(folder / "saved.npz").to_f64("mu") != weights::NpzFile(folder / "saved.npz").to_f64("mu_1"));
  other.real = folder / "saved.npz", other.metrics = {FidMetric::kFid};
  other.features.preset = FidPreset::kClean;
  CHECK_THROWS_WITH(evaluate_fid(team, other),
                    Contains("of another preset") && Contains("got adm, expected clean") && Contains("--preset adm"));

  // Pictures are none of these composites; tiles of eight bits as they are can be compared with pictures.
  write_images(folder / "pictures.npz", 3, 1);
  FidRequest pictures = request;
  pictures.keep_statistics = false, pictures.metrics = {FidMetric::kFid};
  pictures.real = folder / "saved.npz", pictures.generated = folder / "pictures.npz";
  CHECK_THROWS_WITH(evaluate_fid(team, pictures), Contains("pictures.npz] no composites can be made of these images") &&
                                                      Contains("got 3 images in") &&
                                                      Contains("expected tiles, of which true colour (Red "));
  pictures.metrics = {FidMetric::kSfid}, pictures.keep_statistics = true;
  pictures.real = request.real;
  const FidReport of_pictures = evaluate_fid(team, pictures);
  const double distance = *of_pictures.sfid;
  of_pictures.kept->write(folder / "bytes.npz");
  pictures.real = folder / "bytes.npz", pictures.keep_statistics = false;
  CHECK(*evaluate_fid(team, pictures).sfid == distance);

  // Names that tell no colours: three bands of eight bits are taken as they are, others are refused.
  FidRequest plain = request;
  plain.keep_statistics = false, plain.metrics = {FidMetric::kKid}, plain.features.preset = FidPreset::kAdm;
  plain.real = plain.generated = write("x.safetensors", uint8_t{}, "U8", {"B5", "B6", "B7"}, 1);
  const FidReport unnamed = evaluate_fid(team, plain);
  CHECK_FALSE(unnamed.composite);
  CHECK_THAT(unnamed.warnings.at(0), Contains("bands B5, B6, B7 are taken for red, green and blue"));
  plain.generated = write("y.safetensors", uint8_t{}, "U8", {"B4", "B5", "B6", "B7"}, 1);
  CHECK_THROWS_WITH(evaluate_fid(team, plain),
                    Contains("which both sides need by name") && Contains("got B4, B5, B6, B7 of u8"));
  plain.real = plain.generated = write("z.safetensors", uint16_t{}, "U16", {"B5", "B6", "B7"}, 1);
  CHECK_THROWS_WITH(evaluate_fid(team, plain), Contains("got B5, B6, B7 of u16"));
  const std::vector<uint8_t> four(4 * 64);
  weights::write_safetensors(folder / "four.safetensors", {{"images", "U8", {1, 4, 8, 8}, four.data()}});
  CHECK_THROWS_WITH(features_of(team, *open_image_set(folder / "four.safetensors"), request.features),
                    Contains("4 channels of u8"));
}

TEST_CASE("the network sees the three bands of a model in training as red, green and blue, or it is refused") {
  const TemporaryFolder folder;
  dataset::TestTiles{.bands = {"B2", "B3", "B4", "B8A"}}.write(folder / "sentinel2.safetensors");
  dataset::TestTiles{.bands = {"Blue", "Green", "Red", "x"}}.write(folder / "named.safetensors");
  const auto expect = [&](const char* tiles, const std::vector<std::string>& bands) {
    dataset::Config config;
    config.kind = dataset::find_kind("tiles"), config.path = folder / tiles, config.bands = bands;
    config.scaling = {dataset::ScalingFrom::kRange, 0, 1000};
    dataset::settle_tiles(config);
    expect_colours_in_order(config);
  };
  CHECK_NOTHROW(expect("sentinel2.safetensors", {"B4", "B3", "B2"}));
  CHECK_NOTHROW(expect("sentinel2.safetensors", {"B4", "B3", "B8A"}));  // no colours: as they are
  CHECK_NOTHROW(expect("named.safetensors", {"Red", "Green", "Blue"}));
  CHECK_NOTHROW(expect("named.safetensors", {"Blue", "Green", "Red", "x"}));
  CHECK_THROWS_WITH(expect("sentinel2.safetensors", {"B2", "B3", "B4"}),
                    Contains("data.bands] eval.features: inception sees the channels") &&
                        Contains("got B2, B3, B4, expected B4, B3, B2"));
  CHECK_THROWS_WITH(expect("named.safetensors", {"Blue", "Green", "Red"}), Contains("expected Red, Green, Blue"));
}

TEST_CASE("images that the network does not see are refused, grey ones become RGB") {
  TemporaryFolder folder;
  test::write_inception_weights(folder / "weights.safetensors");
  parallel::Team team({.num_workers = 2});
  const std::vector<float> latents(4 * 8 * 8, 0.5f);
  weights::write_safetensors(folder / "latents.safetensors", {{"latents", "F32", {1, 4, 8, 8}, latents.data()}});
  FeatureSettings settings{.weights = folder / "weights.safetensors"};
  load_network(settings);
  CHECK_THROWS_WITH(features_of(team, *open_image_set(folder / "latents.safetensors"), settings),
                    Contains("the Inception network sees pictures of eight bits"));
  std::vector<uint8_t> grey, rgb;
  for (int i = 0; i < 9 * 7; ++i) grey.push_back(uint8_t(i * 4)), rgb.insert(rgb.end(), 3, uint8_t(i * 4));
  test::write_npz(folder / "grey.npz", {1, 9, 7, 1}, grey), test::write_npz(folder / "rgb.npz", {1, 9, 7, 3}, rgb);
  CHECK(features_of(team, *open_image_set(folder / "grey.npz"), settings).values ==
        features_of(team, *open_image_set(folder / "rgb.npz"), settings).values);
}
