#include "ditrain/bench/sample.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"

using namespace ditrain;
using namespace ditrain::bench;

namespace {

SampleBench tiny_sample() {
  return {.model = "custom",
          .batches = {1, 3},
          .sets = {"model.hidden_size=32", "model.depth=2", "model.num_heads=2", "model.patch_size=8"}};
}

}  // namespace

TEST_CASE("sample: one row per batch size, whose times add up") {
  SampleBench bench = tiny_sample();
  bench.precision = GENERATE(DType::kF32, DType::kBF16);
  Harness harness(2, Effort::quick());
  bench_sampling(harness, bench);
  const auto j = files::parse_json(to_json(harness.report()));
  REQUIRE(j.at("rows").size() == 2);
  for (const auto& row : j.at("rows")) {
    CAPTURE(files::json_text(row));
    for (const char* key : {"median_s", "gflops", "mfu", "step_s", "products_s", "attention_s", "memory_bytes"})
      CHECK(row.at(key).get<double>() > 0);
    double sum = 0;
    for (const char* key : {"products_s", "attention_s", "elementwise_s", "waiting_s", "other_s"})
      sum += row.at(key).get<double>();
    const double seconds = row.at("median_s");
    CHECK(sum == Approx(seconds).epsilon(0.01));
    CHECK(row.at("step_s").get<double>() == Approx(seconds / 2));
    CHECK(row.at("mfu") == row.at("share"));
    CHECK(row.at("name") == "sample custom");
    CHECK(row.at("dtype") == dtype_name(bench.precision));
  }
  const auto flop = [&](size_t i) {
    return j.at("rows").at(i).at("gflops").get<double>() * j.at("rows").at(i).at("median_s").get<double>();
  };
  CHECK(flop(1) == Approx(3 * flop(0)));
}

TEST_CASE("sample: what the bench decides itself is refused") {
  Harness harness(1, Effort::quick());
  for (const std::string key : {"sample.steps", "sample.cfg_scale", "sample.guide", "train.global_batch"}) {
    SampleBench bench = tiny_sample();
    bench.sets.push_back(key + "=2");
    CHECK_THROWS_WITH(bench_sampling(harness, bench), Catch::Contains(key + " is not measured here"));
  }
}

TEST_CASE("sample: a model that cannot be guided is refused") {
  Harness harness(1, Effort::quick());
  SampleBench bench = tiny_sample();
  bench.sets.push_back("model.class_dropout=0");
  CHECK_THROWS_AS(bench_sampling(harness, bench), InputError);
}
