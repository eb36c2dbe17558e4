#include "ditrain/bench/gemm.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;
using Json = nlohmann::json;

namespace {

// A model of the smallest width that has all five layers.
constexpr ModelShape kTiny = {"tiny", 16, 2, 2, 1};

}  // namespace

TEST_CASE("gemm: every product of a block has a row of the contract, in both precisions") {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Harness harness(2, Effort::quick());
    for (const ProductShape& shape : product_shapes(kTiny, 20)) harness.add(measure_product(harness, shape, precision));
    const Json j = files::parse_json<Json>(to_json(harness.report()));
    REQUIRE(j.at("rows").size() == 15);
    for (const Json& row : j.at("rows")) {
      CAPTURE(files::json_text(row));
      const bool skinny = row.at("name").get<std::string>().find("condition") != std::string::npos;
      CHECK(row.at("dtype") == dtype_name(precision));
      const bool weight_gradient = row.at("trans") == "TN", half = precision == DType::kBF16;
      CHECK(row.at("types") == (!half                       ? "f32 x f32 -> f32"
                                : skinny && weight_gradient ? "f32 x f32 -> f32"
                                : skinny                    ? "f32 x bf16 -> f32"
                                : weight_gradient           ? "bf16 x bf16 -> f32"
                                                            : "bf16 x bf16 -> bf16"));
      for (const char* key : {"m", "n", "k", "median_s", "share"}) CHECK(row.at(key).get<double>() > 0);
      CHECK(row.at(skinny ? "gb_s" : "gflops").get<double>() > 0);
      CHECK(row.at("cache") == (skinny ? "cold" : "warm"));
      CHECK_FALSE(row.contains("peers"));
    }
    CHECK(j.at("rows").at(0).at("trans") == "NT");
    CHECK(j.at("rows").at(5).at("trans") == "NN");
    CHECK(j.at("rows").at(10).at("trans") == "TN");
  }
}

TEST_CASE("gemm: installed peers stand in the rows, others in the notes") {
  Harness harness(1, Effort::quick());
  const Peers peers = load_peers(harness);
  harness.add(measure_product(harness, product_shapes(kTiny, 20)[0], DType::kF32, peers));
  const Report& report = harness.report();
  CHECK(report.notes.size() == std::size(kLibraries));
  REQUIRE(report.rows[0].peers.size() == peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    CHECK(report.rows[0].peers[i].first == peers[i]->name());  // with the version
    CHECK(report.rows[0].peers[i].second > 0);
  }
  for (const std::string& note : report.notes) CHECK_THAT(note, Contains("thread(s)") || Contains("package"));
}

TEST_CASE("gemm: each precision has means of its large rows, which name the worst") {
  Harness harness(2, Effort::quick());
  bench_gemm(harness, {.model = "DiT-S/2", .batch = 1, .precisions = {DType::kF32, DType::kBF16}});
  const Report& report = harness.report();
  REQUIRE(report.rows.size() == 46);
  REQUIRE(report.notes.size() == 6);
  for (const bool bf16 : {false, true}) {
    const std::string type = bf16 ? "bf16" : "f32";
    std::vector<double> shares;
    int64_t packed = 0;
    for (size_t i = bf16 ? 23 : 0; i < (bf16 ? 46 : 23); ++i) {
      const Row& row = report.rows[i];
      CHECK(row.dtype == type);
      const bool before = row.name.find("B packed before") != std::string::npos;
      if (before) ++packed;
      if (row.name.find("condition") == std::string::npos && !before) shares.push_back(row.share);
    }
    CHECK(packed == 8);  // of four layers, forward and data gradient
    const std::string* const notes = &report.notes[bf16 ? 3 : 0];
    CHECK_THAT(notes[0], Contains("12 rows in " + type + " with"));
    const size_t at = notes[0].find(": ");
    CHECK(std::stod(notes[0].substr(at + 2)) == Approx(100 * geometric_mean(shares)).margin(0.051));
    CHECK_THAT(notes[1], Contains("worst row in " + type + " that memory limits") && Contains("S condition"));
    CHECK_THAT(notes[2], Contains("8 rows in " + type + " with B packed before"));
  }
}

TEST_CASE("gemm: models without a table are refused") {
  CHECK(model_shape("XL").width == 1152);
  CHECK(model_shape("DiT-B/2").width == 768);
  CHECK_THROWS_AS(model_shape("DiT-S/8"), InputError);
  CHECK_THROWS_AS(model_shape("M"), InputError);
}
