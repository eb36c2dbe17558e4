#include "ditrain/bench/tune.hpp"

#include <catch2/catch.hpp>
#include <set>

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;
using kernels::GemmBlocking;

namespace {

bool same(const GemmBlocking& a, const GemmBlocking& b) { return a.rows == b.rows && a.cols == b.cols; }

const Field* field(const Row& row, const std::string& name) {
  for (const Field& f : row.details)
    if (f.name == name) return &f;
  return nullptr;
}
double number(const Row& row, const std::string& name) {
  const Field* f = field(row, name);
  return f == nullptr ? -1 : std::get<double>(f->value);
}

}  // namespace

TEST_CASE("tune: candidates are the derived blocks, then whole tiles around them, each once") {
  for (const GemmBlocking derived : {GemmBlocking{168, 1000}, {28, 256}, {1024, 4608}, {1, 1}}) {
    const std::vector<GemmBlocking> all = tuning_candidates(derived);
    CAPTURE(derived.rows, derived.cols);
    CHECK(same(all.front(), derived));
    CHECK((all.size() >= 5 && all.size() <= 31));
    std::set<std::pair<int64_t, int64_t>> different;
    for (const GemmBlocking& b : all) {
      CHECK_NOTHROW(kernels::check_gemm_blocking(b));
      CHECK(different.emplace(b.rows, b.cols).second);
      if (same(b, derived)) continue;
      CHECK(b.rows % kernels::gemm_tile_rows() == 0);
      CHECK(b.rows <= 2 * derived.rows + kernels::gemm_tile_rows());
      CHECK(((b.cols >= 256 && b.cols <= 4608) || b.cols == derived.cols));
    }
  }
}

TEST_CASE("tune: every candidate has a row, the best are timed again, the winner is one of them") {
  Harness harness(2, Effort::quick());
  const GemmBlocking before = kernels::gemm_blocking(), derived{56, 512};
  const GemmBlocking best = bench_tune(harness, {.model = "S", .batch = 1}, derived);
  const std::vector<GemmBlocking> candidates = tuning_candidates(derived);
  const Report& report = harness.report();
  REQUIRE(report.rows.size() == candidates.size());
  const bool bf16 = report.peak_bf16_gflops > 0 || kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  int again = 0;
  double fastest = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Row& row = report.rows[i];
    CAPTURE(row.name);
    CHECK(std::get<int64_t>(field(row, "block_rows")->value) == candidates[i].rows);
    CHECK(std::get<int64_t>(field(row, "block_cols")->value) == candidates[i].cols);
    CHECK(number(row, "first") > 0);
    if (field(row, "again") == nullptr) continue;
    ++again;
    fastest = std::max(fastest, number(row, "again"));
    CHECK(number(row, "f32") > 0);
    CHECK((number(row, "bf16") > 0) == bf16);
    const double mean = bf16 ? std::sqrt(number(row, "f32") * number(row, "bf16")) : number(row, "f32");
    CHECK(number(row, "again") == Approx(mean));  // as many products of each type
  }
  CHECK(again == 5);
  CHECK(number(report.rows[0], "first") == 1);
  CHECK(number(report.rows[0], "again") == 1);
  if (fastest > kWorthTuning)
    for (size_t i = 0; i < candidates.size(); ++i)
      CHECK(same(candidates[i], best) == (number(report.rows[i], "again") == fastest));
  else
    CHECK(same(best, derived));
  CHECK_THAT(report.notes.back(),
             Contains("fastest: blocks ") && Contains(fastest > kWorthTuning ? "taken" : "the derived blocks stay"));
  CHECK(same(kernels::gemm_blocking(), before));
}
