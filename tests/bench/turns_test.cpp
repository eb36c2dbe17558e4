#include "../../src/bench/turns.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

using namespace ditrain::bench;

TEST_CASE("turns: all are called in turn, and the first round does not count") {
  std::string order;
  std::vector<double> told;
  std::vector<Contender> two = {{"a", [&] { order += "a"; }},
                                {"b", [&] { order += "b"; }, [&] { order += "<"; },
                                 [&](double seconds) { order += ">", told.push_back(seconds); }}};
  take_turns(two, 2);
  CHECK(order == "a<ba<b>a<b>");
  CHECK(two[0].seconds.size() == 2);
  CHECK(two[1].seconds == told);
}

TEST_CASE("turns: quantiles are of the times themselves, and ratios of those of one round") {
  const Row row = timed_row("r", "f32", {3, 1, 2});
  CHECK((row.time.median_s == 2 && row.time.min_s == 1 && row.time.p90_s == 3 && row.time.repeats == 3));
  CHECK(std::isnan(row.share));
  CHECK(std::isnan(timing_of({}).median_s));
  CHECK(median_ratio({2, 6, 8}, {1, 2, 8}) == 2);
  CHECK(nearest({1, 5, 9}, 6) == 1);
}
