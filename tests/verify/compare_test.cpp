#include "ditrain/verify/compare.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::verify;

namespace {

Comparison against(const std::vector<double>& got, const std::vector<double>& want, double tolerance, int64_t rows) {
  return compare(got, want, tolerance, piece_scales(want, rows));
}

}  // namespace

TEST_CASE("an error is held against the scale of its piece") {
  const std::vector<double> want{100, -200, 0.5, 1};
  std::vector<double> got = want;
  got[2] += 0.01;
  CHECK(against(got, want, 1e-3, 1).passed);
  const Comparison c = against(got, want, 1e-3, 2);
  CHECK_FALSE(c.passed);
  CHECK(c.index == 2);
  CHECK(c.got == Approx(0.51));
  CHECK(c.want == 0.5);
  CHECK(c.scale == 1);
  CHECK(c.max_abs == Approx(0.01));
  CHECK(c.max_rel == Approx(0.01));
  CHECK(against(got, want, 0.0101, 2).passed);
}

TEST_CASE("single entries can be relative") {
  const std::vector<double> want{1e-6, 1, 0}, got{1.1e-6, 1, 1e-9};
  CHECK(compare(got, want, 1e-5, piece_scales(want, 1)).passed);
  CHECK_FALSE(compare(got, want, 1e-5, entry_scales(want)).passed);
  CHECK(compare(got, want, 0.11, entry_scales(want)).passed);
}

TEST_CASE("the worst entry is the one farthest over its scale") {
  const std::vector<double> want{1000, 1}, got{1001, 1.5};
  const Comparison c = compare(got, want, 0.1, entry_scales(want));
  CHECK(c.index == 1);
  CHECK(c.max_abs == 1);
  CHECK(c.max_rel == Approx(0.5));
}

TEST_CASE("results of low precision are compared in the L2 norm") {
  const std::vector<double> want{3, -4, 0, 0}, got{3.03, -4.04, 0, 0};
  CHECK(compare_l2(want, want, 0).passed);
  const Comparison c = compare_l2(got, want, 0.0101);
  CHECK(c.passed);
  CHECK(c.max_rel == Approx(0.01));
  CHECK(c.max_abs == Approx(0.04));
  CHECK(c.index == 1);
  CHECK(c.scale == Approx(2.5));
  CHECK_FALSE(compare_l2(got, want, 0.0099).passed);
  const double nan = std::nan("");
  CHECK_FALSE(compare_l2(std::vector<double>{3, nan, 0, 0}, want, 10).passed);
}

TEST_CASE("what is not finite never passes") {
  for (const double bad : {double(NAN), HUGE_VAL, -HUGE_VAL}) {
    for (const bool in_got : {true, false}) {
      std::vector<double> got{1, 2, 3}, want{1, 2, 3};
      (in_got ? got : want)[1] = bad;
      const Comparison c = compare(got, want, 1e9, std::vector<double>{1.0});
      CHECK_FALSE(c.passed);
      CHECK(c.nan_count == 1);
      CHECK(c.index == 1);
    }
  }
  // Both sides infinite: their difference is NaN, and an infinite value of the file must not become the scale.
  const std::vector<double> infinite{HUGE_VAL};
  CHECK_FALSE(against(infinite, infinite, 1, 1).passed);
}

TEST_CASE("a tolerance or a scale of 0 asks for equality") {
  const std::vector<double> want{1, 2}, near{1, 2 + 1e-15};
  CHECK(against(want, want, 0, 1).passed);
  CHECK_FALSE(against(near, want, 0, 1).passed);
  const std::vector<double> none{0.0};
  CHECK(compare(want, want, 1, none).passed);
  CHECK_FALSE(compare(near, want, 1, none).passed);
}

TEST_CASE("sizes that do not fit are our own mistake") {
  const std::vector<double> two{1, 2}, three{1, 2, 3};
  CHECK_THROWS_AS(compare(two, three, 1, three), LogicFault);
  CHECK_THROWS_AS(compare(three, three, 1, two), LogicFault);
  CHECK_THROWS_AS(compare({}, {}, 1, two), LogicFault);
  CHECK_THROWS_AS(piece_scales(three, 2), LogicFault);
}
