#include "ditrain/bench/step.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

namespace {

StepBench tiny() {
  return {.model = "custom",
          .batches = {1, 3},
          .sets = {"model.hidden_size=32", "model.depth=2", "model.num_heads=2", "model.patch_size=8"}};
}

}  // namespace

TEST_CASE("step: one row per batch size, with the fields of the contract") {
  Harness harness(2, Effort::quick());
  bench_steps(harness, tiny());
  const auto j = files::parse_json(to_json(harness.report()));
  REQUIRE(j.at("rows").size() == 2);
  for (const auto& row : j.at("rows")) {
    CAPTURE(files::json_text(row));
    for (const char* key : {"median_s", "gflops", "images_per_second", "mfu", "forward_s", "backward_s",
                            "optimizer_phase_s", "products_s", "attention_s", "elementwise_s", "optimizer_s", "other_s",
                            "peak_rss_bytes", "kept_bytes_per_image"})
      CHECK(row.at(key).get<double>() > 0);
    double sum = 0;
    for (const char* key : {"products_s", "attention_s", "elementwise_s", "optimizer_s", "waiting_s", "other_s"})
      sum += row.at(key).get<double>();
    CHECK(sum == Approx(row.at("median_s").get<double>()).epsilon(0.01));  // one repeat: the median is that step
    CHECK(row.at("mfu") == row.at("share"));
    CHECK(row.at("name") == "step custom");
    CHECK(row.at("dtype") == "f32");
    const double seconds = row.at("median_s");
    CHECK(row.at("images_per_second").get<double>() == Approx(row.at("batch").get<double>() / seconds));
    CHECK(row.at("forward_s").get<double>() + row.at("backward_s").get<double>() < 1.001 * seconds);
  }
  const auto& kept = j.at("rows").at(0).at("kept_bytes_per_image");
  CHECK(kept == j.at("rows").at(1).at("kept_bytes_per_image"));
  StepBench in_parts = tiny();
  in_parts.batches = {6}, in_parts.sets.push_back("train.micro_batch=2");
  Harness again(2, Effort::quick());
  CHECK(kept ==
        files::parse_json(to_json((bench_steps(again, in_parts), again.report())))["rows"][0]["kept_bytes_per_image"]);
}

TEST_CASE("step: what cannot run is refused before anything is measured") {
  Harness harness(1, Effort::quick());
  StepBench bench = tiny();
  bench.sets.push_back("train.precision=f16");
  CHECK_THROWS_AS(bench_steps(harness, bench), InputError);
  bench = tiny();
  bench.sets.push_back("model.depht=3");
  CHECK_THROWS_AS(bench_steps(harness, bench), InputError);
  for (const std::string set : {"parallel.threads=2", "parallel.clusters=1", "train.global_batch=2"}) {
    bench = tiny();
    bench.sets.push_back(set);
    CHECK_THROWS_WITH(bench_steps(harness, bench),
                      Contains(set.substr(0, set.find('=')) + " is not measured here") && Contains("try --"));
  }
  CHECK(harness.report().rows.empty());
}

TEST_CASE("step: the peak of memory is that of its row") {
  Harness harness(1, Effort::quick());
  StepBench bench = tiny();
  bench.batches = {1024, 1};
  bench_steps(harness, bench);
  const std::vector<std::string>& notes = harness.report().notes;
  if (std::any_of(notes.begin(), notes.end(), [](const auto& n) { return n.starts_with("peak_rss_bytes: "); }))
    SKIP("the kernel has no peak that begins anew");
  const auto rows = files::parse_json(to_json(harness.report())).at("rows");
  CHECK(rows[1].at("peak_rss_bytes").get<double>() < 0.9 * rows[0].at("peak_rss_bytes").get<double>());
}

TEST_CASE("model names may be short") {
  CHECK(model_name("S") == "DiT-S/2");
  CHECK(model_name("XL") == "DiT-XL/2");
  CHECK(model_name("DiT-B/8") == "DiT-B/8");
  CHECK_THROWS_AS(model_name("M"), InputError);
}
