#include "ditrain/eval/fid.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "dataset/tile_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/npz.hpp"
#include "support/files.hpp"
#include "support/formula.hpp"
#include "support/npz.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;
using test::write_noise;

namespace {

FidRequest request(const std::string& real, const std::string& generated,
                   std::vector<FidMetric> metrics = {FidMetric::kFid}) {
  return {
      .real = real, .generated = generated, .features = {.kind = FeatureKind::kPixels}, .metrics = std::move(metrics)};
}

}  // namespace

TEST_CASE("the distance of sets of images is that of their pixels, and the protocol says how it came about") {
  TemporaryFolder folder;
  write_noise(folder / "a.npz", 400, 100, 40, "a");
  write_noise(folder / "b.npz", 300, 120, 40, "b");
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const FidReport report = evaluate_fid(team, request(folder / "a.npz", folder / "b.npz",
                                                      {FidMetric::kFid, FidMetric::kKid, FidMetric::kPrecisionRecall}));
  REQUIRE(report.fid);
  // 48 values differ by 20/255 in the mean; the spreads are equal but for the few samples.
  CHECK(report.distance->mean_term == Approx(48 * (20.0 / 255) * (20.0 / 255)).epsilon(0.05));
  CHECK(*report.fid > report.distance->mean_term);
  CHECK(*report.fid < report.distance->mean_term + 0.2 * report.distance->trace1);
  CHECK(*report.kid > 0);
  CHECK(report.kid_deviation);
  CHECK((*report.precision >= 0 && *report.precision <= 1));
  CHECK(!report.sfid);
  CHECK_THAT(report.protocol,
             Contains("features pixels (48 values of 4x4x3 pixels, divided by 255), not comparable with "
                      "published FIDs; real 400 images in " +
                      folder / "a.npz") &&
                 Contains(files::sha256_of_file(folder / "a.npz")) && Contains("; generated 300 images") &&
                 Contains("kid of 100 subsets of 300, seed 2020"));
  REQUIRE(report.warnings.size() == 1);
  CHECK_THAT(report.warnings[0], Contains("300 generated images: published numbers are of 50000"));
  const FidReport again = evaluate_fid(one, request(folder / "a.npz", folder / "b.npz"));
  CHECK(*again.fid == *report.fid);

  const nlohmann::json json = files::parse_json(to_json(report));
  for (const char* key : {"fid", "sfid", "is", "kid", "precision", "recall", "protocol"}) CHECK(json.contains(key));
  CHECK(json.at("fid") == *report.fid);
  CHECK(json.at("sfid").is_null());
  CHECK(json.at("protocol") == report.protocol);

  const FidReport self = evaluate_fid(team, request(folder / "a.npz", folder / "a.npz"));
  CHECK(std::abs(*self.fid) <= 1e-6 * (self.distance->trace1 + self.distance->trace2));
}

TEST_CASE("pixels of images of other sizes are not compared, though as many values are left of them") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 2});
  for (const auto& [name, side] : {std::pair{"small", 32}, {"large", 64}})
    for (int i = 0; i < 3; ++i) {
      std::filesystem::create_directories(folder / name);
      images::write_png(folder / name + "/" + std::to_string(i) + ".png",
                        {side, side, 3, std::vector<uint8_t>(size_t(side * side * 3), uint8_t(50 * i))});
    }
  FidRequest small = request(folder / "small", folder / "large");
  small.allow_small = true;
  CHECK_THROWS_WITH(evaluate_fid(team, small), Contains("large] images of another size than the real side's") &&
                                                   Contains("64x64x3") && Contains("32x32x3"));
}

TEST_CASE("statistics stand in for images, where means and covariances are enough") {
  TemporaryFolder folder;
  write_noise(folder / "a.npz", 400, 100, 40, "a");
  write_noise(folder / "b.npz", 300, 120, 30, "b");
  parallel::Team team({.num_workers = 2});
  FidRequest images = request(folder / "a.npz", folder / "b.npz");
  images.keep_statistics = true;
  const FidReport from_images = evaluate_fid(team, images);
  from_images.kept->write(folder / "s.npz");
  const FidReport from_statistics = evaluate_fid(team, request(folder / "s.npz", folder / "b.npz"));
  CHECK(*from_statistics.fid == Approx(*from_images.fid).epsilon(1e-12));
  CHECK_THAT(from_statistics.protocol, Contains("real statistics of 48 dimensions in " + folder / "s.npz"));
  CHECK_THAT(from_statistics.protocol, Contains("(400 images, features pixels (48 values of 4x4x3 pixels"));
  FidRequest both = request(folder / "s.npz", folder / "s.npz");
  both.features.kind = FeatureKind::kInception;  // as ditfid has it: the files say what they are of
  const FidReport same = evaluate_fid(team, both);
  CHECK(*same.fid == Approx(0).margin(1e-9));
  CHECK(same.features == FeatureKind::kPixels);
  CHECK_THAT(same.protocol, Contains("features pixels, not comparable with published FIDs; real statistics"));
  CHECK(same.warnings.empty());
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "s.npz", folder / "b.npz", {FidMetric::kKid})),
                    Contains("s.npz] 'kid' needs images, not statistics"));
  const std::string adm = std::string(DITRAIN_GOLDEN_DIR) + "/npz_files/adm.npz";  // images and statistics of a network
  CHECK_THROWS_WITH(evaluate_fid(team, request(adm, folder / "b.npz")),
                    Contains("too few real images for 90 dimensions"));
  const double six[36] = {1};
  weights::write_npz_f64(folder / "six.npz", {{"mu", {6}, six}, {"sigma", {6, 6}, six}});
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "six.npz", folder / "b.npz")),
                    Contains("b.npz] the two sides have features of different dimensions; got 48, expected 6"));
  weights::write_npz_f64(folder / "half.npz", {{"mu", {6}, six}});
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "half.npz", folder / "b.npz")),
                    Contains("there is no array 'sigma'"));
}

TEST_CASE("statistics that were made in another way are refused, with both values") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 1});
  const FeatureStatistics plain{{1, 2}, {4, 0, 0, 9}};
  const Composite colours{"true colour", {"Red", "Green", "Blue"}, {0, 0, 0}, {100, 200, 300}, /*unstretched=*/true};
  StatisticsFacts facts{.features = "inception", .preset = "adm", .weights_sha256 = "abc"};
  facts.precision = "f32", facts.images = 5000;
  const auto write = [&](const char* name, auto change) {
    StatisticsFacts changed = facts;
    change(changed);
    write_statistics(folder / name, {{plain}}, changed);
    return folder / name;
  };
  const std::string real = write("real.npz", [](StatisticsFacts&) {});
  const auto problem = [&](auto change) {
    FidRequest both = request(real, write("other.npz", change));
    both.features.kind = FeatureKind::kInception;
    try {
      return "accepted: " + evaluate_fid(team, both).protocol;
    } catch (const InputError& e) {
      return std::string(e.what());
    }
  };
  CHECK_THAT(problem([](StatisticsFacts& f) { f.images = 7, f.precision = "bf16"; }),
             Contains("features inception; real statistics of 2 dimensions in " + real +
                      " (5000 images, features inception in f32, preset adm, weights sha256 abc)") &&
                 Contains("(7 images, features inception in bf16"));
  CHECK_THAT(problem([](StatisticsFacts& f) { f.features = "pixels"; }),
             Contains("real.npz] the statistics are of other features than the other side; got inception, expected "
                      "pixels"));
  CHECK_THAT(problem([](StatisticsFacts& f) { f.preset = "clean"; }),
             Contains("of another preset") && Contains("got adm, expected clean"));
  CHECK_THAT(problem([](StatisticsFacts& f) { f.weights_sha256 = "def"; }),
             Contains("of other weights (sha256)") && Contains("got abc, expected def"));
  CHECK_THAT(problem([&](StatisticsFacts& f) { f.composites = {colours}; }),
             Contains("of other composites") && Contains("got true colour (Red 0 to 100, Green 0 to 200, Blue 0 to "
                                                         "300), expected none"));
  CHECK_THAT(problem([](StatisticsFacts& f) { f.input = "12 values of 2x2x3 pixels"; }), Contains("of other pixels"));

  // Of two composites, each with its own statistics.
  const FeatureStatistics moved{{1, 4}, {4, 0, 0, 9}};
  facts.composites = {colours, {"false colour", {"NIR", "Red", "Green"}, {0, 0, 0}, {400, 100, 200}}};
  write_statistics(folder / "two.npz", {{plain}, {plain}}, facts);
  write_statistics(folder / "moved.npz", {{plain}, {moved}}, facts);
  FidRequest composites = request(folder / "two.npz", folder / "moved.npz");
  composites.features.kind = FeatureKind::kInception;
  const FidReport report = evaluate_fid(team, composites);
  CHECK(*report.fid == Approx(0).margin(1e-9));
  CHECK(report.composite == colours);
  CHECK(read_statistics_facts(weights::NpzFile(folder / "two.npz"))->composites == facts.composites);
  REQUIRE(report.others.size() == 1);
  CHECK(*report.others[0].fid == Approx(4));
  CHECK(report.others[0].composite->name == "false colour");

  // Of images of another shape with as many values, and of another kind of features.
  write_noise(folder / "a.npz", 60, 100, 40, "a");
  StatisticsFacts wide{.features = "pixels", .preset = {}, .weights_sha256 = {}};
  wide.input = "48 values of 2x8x3 pixels, divided by 255";
  FeatureStatistics many{std::vector<double>(48), std::vector<double>(48 * 48)};
  for (size_t i = 0; i < 48; ++i) many.sigma[49 * i] = 1;
  write_statistics(folder / "wide.npz", {{many}}, wide);
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "wide.npz", folder / "a.npz")),
                    Contains("of other pixels") && Contains("48 values of 4x4x3 pixels"));
  FidRequest no_weights = request(folder / "wide.npz", folder / "a.npz");
  no_weights.features.kind = FeatureKind::kInception;
  CHECK_THROWS_WITH(evaluate_fid(team, no_weights), Contains("got pixels, expected inception"));
  CHECK_THROWS_WITH(evaluate_fid(team, request(real, folder / "a.npz")),
                    Contains("got inception, expected pixels") && Contains("--features inception"));

  // Those of other tools say nothing: a note, and the other side's word.
  write_statistics(folder / "foreign.npz", {{many}});
  const FidReport noted = evaluate_fid(team, request(folder / "foreign.npz", folder / "a.npz"));
  CHECK_THAT(noted.warnings.at(0), Contains("foreign.npz: the statistics do not say how they were made"));
  const FidReport unknown = evaluate_fid(team, request(folder / "foreign.npz", folder / "foreign.npz"));
  CHECK(!unknown.features);
  CHECK_THAT(unknown.protocol, Contains("features as both files of statistics have them"));
  facts.composites[1].high[2] = 0;
  write_statistics(folder / "no_width.npz", {{plain}, {plain}}, facts);
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "no_width.npz", real)),
                    Contains("no_width.npz] 'ditrain': the stretch of a band has no width"));
  const std::string text = "{\"features\": 3}";
  weights::write_npz_f64(folder / "bad.npz", {{"mu", {2}, plain.mu.data()},
                                              {"sigma", {2, 2}, plain.sigma.data()},
                                              {"ditrain", {int64_t(text.size())}, nullptr, text}});
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "bad.npz", folder / "a.npz")),
                    Contains("bad.npz] 'ditrain' does not say how the statistics were made"));
}

TEST_CASE("what an evaluation takes follows from the headers of the files") {
  TemporaryFolder folder;
  write_noise(folder / "a.npz", 1000, 100, 40, "a");
  write_noise(folder / "b.npz", 500, 100, 40, "b");
  const EvaluationBytes one = evaluation_bytes(request(folder / "a.npz", folder / "b.npz"), 1, 1);
  CHECK(one.bytes == 1500 * 48 * 4 + 6 * 48 * 48 * 8);
  CHECK(one.what == "features of 1000 images in " + folder / "a.npz" + " and 500 images in " + folder / "b.npz");
  const FidRequest more = request(folder / "a.npz", folder / "b.npz", {FidMetric::kPrecisionRecall});
  CHECK(evaluation_bytes(more, 1, 1).bytes > one.bytes + 512 * 1000 * 8);
  CHECK(evaluation_bytes(request(folder / "a.npz", folder / "b.npz"), 2, 2).bytes ==
        (2 * 1500 * 48 * 4 + 6 * 48 * 48 * 8) / 2);
  FidRequest inception = request(folder / "a.npz", folder / "b.npz", {FidMetric::kInceptionScore});
  inception.features.kind = FeatureKind::kInception;
  CHECK(evaluation_bytes(inception, 1, 1).bytes ==
        1500 * 2048 * 4 + 500 * 1008 * 12 + size_t(6) * 2048 * 2048 * 8 + kInceptionBytes);
}

TEST_CASE("requests that the sides cannot answer are refused before an image of them is read") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 1});
  write_noise(folder / "a.npz", 60, 100, 40, "a");
  const FeatureStatistics plain{{1, 2}, {4, 0, 0, 9}};
  write_statistics(folder / "s.npz", {{plain}});
  const std::string broken = folder / "broken";  // of images that cannot be read, but for the first
  std::filesystem::create_directory(broken);
  for (int i = 0; i < 3; ++i)
    images::write_png(broken + "/" + std::to_string(i) + ".png", {4, 4, 3, std::vector<uint8_t>(48, uint8_t(50 * i))});
  put_file(broken + "/2.png", "damaged");
  const auto refused = [&](const std::string& real, const std::string& generated, std::vector<FidMetric> metrics,
                           const std::string& text) {
    FidRequest asked = request(real, generated, std::move(metrics));
    asked.allow_small = true;
    CHECK_THROWS_WITH(evaluate_fid(team, asked), Contains(text));
  };
  refused(broken, folder / "s.npz", {FidMetric::kFid, FidMetric::kKid}, "s.npz] 'kid' needs images, not statistics");
  refused(folder / "s.npz", broken, {FidMetric::kFid}, "features of different dimensions; got 48, expected 2");
  refused(broken, folder / "a.npz", {FidMetric::kPrecisionRecall},
          "broken] too few real images for 'pr'; got 3, expected at least 4");
  refused(broken, folder / "a.npz", {FidMetric::kFid, FidMetric::kBands}, "broken] there are no tiles");
}

TEST_CASE("statistics of spatial features give sFID without images and without weights") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 2});
  const FeatureStatistics plain{{1, 2}, {4, 0, 0, 9}}, moved{{1, 4}, {1, 0, 0, 9}};
  const FeatureStatistics spatial{{0, 1, 2}, {1, 0, 0, 0, 4, 0, 0, 0, 9}},
      other{{0, 1, 5}, {4, 0, 0, 0, 4, 0, 0, 0, 4}};
  write_statistics(folder / "a.npz", {{plain, spatial}});
  CHECK(weights::NpzFile(folder / "a.npz").names() == std::vector<std::string>{"mu", "sigma", "mu_s", "sigma_s"});
  write_statistics(folder / "b.npz", {{moved, other}});
  FidRequest both = request(folder / "a.npz", folder / "b.npz", {FidMetric::kFid, FidMetric::kSfid});
  both.features.kind = FeatureKind::kInception;
  both.keep_statistics = true;
  const FidReport report = evaluate_fid(team, both);
  report.kept->write(folder / "again.npz");
  CHECK(*report.fid == Approx(4 + 1));       // |(0, 2)|^2 + (2 - 1)^2
  CHECK(*report.sfid == Approx(9 + 1 + 1));  // |(0, 0, 3)|^2 + (1 - 2)^2 + (3 - 2)^2
  CHECK(read_statistics(weights::NpzFile(folder / "again.npz"), kSpatialStatistics).sigma == spatial.sigma);

  write_statistics(folder / "none.npz", {{moved}});
  both.generated = folder / "none.npz";
  CHECK_THROWS_WITH(evaluate_fid(team, both),
                    Contains("none.npz] 'sfid' needs images or statistics of spatial features"));
  write_statistics(folder / "other.npz", {{moved, plain}});
  both.generated = folder / "other.npz";
  CHECK_THROWS_WITH(evaluate_fid(team, both),
                    Contains("other.npz] the two sides have features of different dimensions; got 2, expected 3"));
}

TEST_CASE("paths that cannot be read are found before anything is computed, folders that are not complete are told") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 1});
  write_noise(folder / "few.npz", 20, 100, 40, "a");  // too few: found once features are there
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "few.npz", folder / "nowhere")),
                    Contains("nowhere] there is no such folder or file"));
  const std::string samples = folder / "samples";
  std::filesystem::create_directory(samples);
  for (uint8_t i = 0; i < 4; ++i)
    images::write_png(samples + "/" + std::to_string(i) + ".png", {4, 4, 3, std::vector<uint8_t>(48, uint8_t(50 * i))});
  const auto warnings_of = [&](const std::string& facts) {
    std::ofstream(samples + "/samples.json") << facts;
    return evaluate_fid(team, request(folder / "few.npz", samples, {FidMetric::kPrecisionRecall})).warnings;
  };
  CHECK_THAT(warnings_of(R"({"images": 5})").at(0), Contains("samples.json tells of 5 images, but there are 4"));
  for (const char* facts : {R"({"images": 4})", R"({"images": "5"})", "[5]", "7"})
    CHECK(warnings_of(facts).size() == 1);
}

TEST_CASE("pixels of tiles are compared by the names of their bands, and mean the same on both sides") {
  TemporaryFolder folder;
  parallel::Team team({.num_workers = 1});
  const auto write = [&](const char* name, const std::vector<std::string>& bands, auto zero, const char* type,
                         const std::map<std::string, std::string>& metadata = {}) {
    std::vector<decltype(zero)> numbers;
    for (int64_t tile = 0; tile < 20; ++tile)
      for (const std::string& band : bands) {
        const test::Formula u(std::to_string(tile) + dataset::canonical_band(band));
        for (uint64_t p = 0; p < 4; ++p)
          numbers.push_back(decltype(zero)(100 + 20 * (band[0] - 'A') / 26.0 + 30 * u.symmetric(p)));
      }
    dataset::TestTiles{.n = 20, .side = 2, .bands = bands, .metadata = metadata}.write(folder / name, numbers, type);
    return folder / name;
  };
  const std::map<std::string, std::string> scaled = {{"scale", "[1, 2, 1]"}, {"offset", "[0, 0, -1]"}};
  const std::string real = write("real.safetensors", {"Red", "Green", "Blue"}, uint16_t{}, "U16", scaled);
  const std::string turned = write("turned.safetensors", {"BLUE", "Green", "Red"}, float{}, "F32",
                                   {{"scale", "[1, 2, 1]"}, {"offset", "[-1, 0, 0]"}});
  FidRequest both = request(real, write("same.safetensors", {"Blue", "Green", "Red"}, uint16_t{}, "U16",
                                        {{"scale", "[1, 2, 1]"}, {"offset", "[-1, 0, 0]"}}));
  both.keep_statistics = true;
  const FidReport same = evaluate_fid(team, both);
  same.kept->write(folder / "s.npz");
  CHECK(std::abs(*same.fid) <= 1e-6 * (same.distance->trace1 + same.distance->trace2));
  CHECK(same.distance->mean_term == 0);
  CHECK_THAT(same.protocol, Contains("12 values of 2x2x3 pixels, bands red, green * 2 + 0, blue * 1 + -1)"));
  CHECK(evaluate_fid(team, request(real, turned)).distance->mean_term < 4);  // u16 cuts off 1/2 of 12 values

  const auto refused = [&](const std::string& path, const std::string& text) {
    CHECK_THROWS_WITH(evaluate_fid(team, request(real, path)), Contains(text));
  };
  refused(write("nir.safetensors", {"Red", "Green", "NIR"}, uint16_t{}, "U16", scaled),
          "nir.safetensors] pixels of tiles with other bands than the real side's; got Red, Green, NIR, expected Red, "
          "Green, Blue");
  refused(write("u8.safetensors", {"Red", "Green", "Blue"}, uint8_t{}, "U8", scaled), "with other numbers");
  refused(write("plain.safetensors", {"Blue", "Green", "Red"}, uint16_t{}, "U16"),
          "with other scales or offsets than the real side's; got Green * 1 + 0, expected Green * 2 + 0");

  // Statistics know their bands.
  CHECK_NOTHROW(evaluate_fid(team, request(folder / "s.npz", real)));
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "s.npz", turned)),
                    Contains("s.npz] the statistics are of other pixels") && Contains("bands blue * 1 + -1, green"));
}

TEST_CASE("what would be no honest number is refused") {
  TemporaryFolder folder;
  write_noise(folder / "many.npz", 100, 100, 40, "a");
  write_noise(folder / "few.npz", 48, 100, 40, "b");
  write_noise(folder / "one.npz", 1, 100, 40, "b");
  parallel::Team team({.num_workers = 1});
  FidRequest small = request(folder / "many.npz", folder / "few.npz");
  CHECK_THROWS_WITH(evaluate_fid(team, small), Contains("few.npz] too few generated images for 48 dimensions") &&
                                                   Contains("got 48, expected at least 49") &&
                                                   Contains("--allow-small"));
  small.allow_small = true;
  const FidReport report = evaluate_fid(team, small);
  CHECK(*report.fid > 0);
  CHECK_THAT(report.warnings.at(0), Contains("48 generated images for 48 dimensions"));
  small.generated = folder / "one.npz";
  CHECK_THROWS_WITH(evaluate_fid(team, small), Contains("expected at least 2"));
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "many.npz", folder / "few.npz", {FidMetric::kSfid})),
                    Contains("'sfid' needs a network; got --features pixels, expected fid, kid or pr"));
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "many.npz", folder / "few.npz", {FidMetric::kInceptionScore})),
                    Contains("'is' needs a network"));
  FidRequest inception = request(folder / "many.npz", folder / "few.npz");
  inception.features.kind = FeatureKind::kInception;
  CHECK_THROWS_WITH(evaluate_fid(team, inception), Contains("need its weights"));
  FidRequest saved = request(folder / "many.npz", folder / "few.npz", {FidMetric::kKid});
  saved.real = folder / "few.npz", saved.keep_statistics = true;
  CHECK_THROWS_WITH(evaluate_fid(team, saved), Contains("few.npz] too few real images for 48 dimensions"));
  // Numbers of sensors beside eight bits; from 0 to 1 both mean the same.
  const auto write_numbers = [&](const char* name, double factor, double in_image_50 = 1) {
    std::vector<double> values;
    for (int64_t i = 0; i < 100 * 48; ++i)
      values.push_back(factor * (i / 48 == 50 ? in_image_50 : 1) * double(i % 101) / 100);
    weights::write_npz_f64(folder / name, {{"arr_0", {100, 4, 4, 3}, values.data()}});
  };
  write_numbers("sensor.npz", 3000), write_numbers("unit.npz", 1.05), write_numbers("late.npz", 1, 1000);
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "many.npz", folder / "sensor.npz")),
                    Contains("sensor.npz] pixels of other numbers than the real side's, which are of eight bits") &&
                        Contains("got 0 to 3000 in 8 images"));
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "many.npz", folder / "late.npz")),
                    Contains("late.npz] pixels"));
  CHECK_THROWS_WITH(evaluate_fid(team, request(folder / "sensor.npz", folder / "many.npz")),
                    Contains("than the generated side's"));
  CHECK_NOTHROW(evaluate_fid(team, request(folder / "many.npz", folder / "unit.npz")));
  saved.metrics = {FidMetric::kBands};
  CHECK_THROWS_WITH(evaluate_fid(team, saved), Contains("'bands' makes no statistics"));
}
