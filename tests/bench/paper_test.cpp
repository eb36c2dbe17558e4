#include "ditrain/bench/paper.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/files.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

namespace {

const Experiment& experiment(const std::string& name) {
  const std::vector<Experiment>& all = paper_experiments();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Experiment& e) { return name == e.name; });
  REQUIRE(found != all.end());
  return *found;
}

}  // namespace

TEST_CASE("paper: an experiment is a table with the paper's numbers, and says what differs") {
  const std::string text = paper_section(experiment("operators"), {{"one", 13.3, 2.5}, {"other", 120, NAN}}, "a.svg");
  CHECK_THAT(text, Contains("| one | 13.3 | 2.50 |\n| other | 120 | - |\n") && Contains("![") && Contains("](a.svg)"));
  CHECK_THAT(text, Contains(experiment("operators").differs));
  CHECK_THAT(paper_section(experiment("table-1"), {}), !Contains("|"));
}

TEST_CASE("paper: a picture has two bars per comparison, as long as the logarithm of their numbers") {
  const std::string svg = paper_bars_svg("t", {{"a", 4, 2}, {"b", NAN, 0.5}});
  std::vector<double> widths;
  for (size_t at = svg.find("\" width=\"", svg.find("<line")); at != std::string::npos;
       at = svg.find("\" width=\"", at + 1))
    widths.push_back(std::stod(svg.substr(at + 9)));
  REQUIRE(widths.size() == 3);  // what is not a number has none
  CHECK(widths[0] == Approx(2 * widths[1]).margin(0.2));
  CHECK(widths[2] == Approx(widths[1]).margin(0.2));
}

TEST_CASE("paper: operators are measured beside plain loops, and the page is written") {
  const TemporaryFolder folder;
  Harness harness(1, Effort::quick());
  bench_paper(harness, {.only = {"operators", "table-1"}, .out = folder / "out"});
  CHECK(harness.report().rows.size() == 3);
  for (const Row& row : harness.report().rows) CHECK(row.peers.front().second > 0);
  const std::string page = files::read_text_file(folder / "out/paper.md", 1 << 20);
  CHECK_THAT(page, Contains("| tanh-GELU forward over plain loops | 13.3 | ") && Contains("](operators.svg)") &&
                       Contains("Table 1") && !Contains("Table 2"));
  CHECK(std::filesystem::exists(folder / "out/operators.svg"));
}

TEST_CASE("paper: an experiment that cannot run is left out, and the others are measured") {
  const TemporaryFolder folder;
  Harness harness(1, Effort::quick());
  PaperBench bench{.only = {"operators", "figure-9"}, .sets = {"kernels.gemm=own"}, .out = folder / "out"};
  bench_paper(harness, bench);
  CHECK(harness.report().rows.size() == 3);
  const std::string page = files::read_text_file(folder / "out/paper.md", 1 << 20);
  CHECK_THAT(page, Contains("left out: [ditbench] --set kernels.gemm is not measured here") &&
                       Contains("](operators.svg)") && !Contains("](figure-9.svg)"));
  bench.only = {"figure-9", "table-1"};  // nothing is measured
  CHECK_THROWS_WITH(bench_paper(harness, bench), Contains("kernels.gemm is not measured here"));
}

TEST_CASE("paper: a platform that is not there is refused before anything is measured") {
  Harness harness(1, Effort::quick());
  CHECK_THROWS_AS(bench_paper(harness, {.only = {"operators", "figure-10"}, .platform = "no/such/file.yaml"}),
                  InputError);
  CHECK(harness.report().rows.empty());
}

TEST_CASE("paper: a key that is not there is refused before anything is measured") {
  Harness harness(1, Effort::quick());
  CHECK_THROWS_WITH(bench_paper(harness, {.only = {"operators"}, .sets = {"model.depht=3"}}), Contains("model.depht"));
  CHECK(harness.report().rows.empty());
}

TEST_CASE("paper: what is not in the paper is refused") {
  Harness harness(1, Effort::quick());
  CHECK_THROWS_WITH(bench_paper(harness, {.only = {"table-9"}}), Contains("table-9") && Contains("table-2, table-3"));
  CHECK_THROWS_WITH(bench_paper(harness, {.model = "custom"}), Contains("S, B, L, XL"));
}
