#include "ditrain/base/interval.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;

TEST_CASE("an interval is over when its time has passed, by the clock that it is given") {
  double now = 100;
  Interval interval(60, [&] { return now; });
  CHECK_FALSE(interval.is_over());
  CHECK(interval.left_s() == 60);
  now = 150;
  CHECK_FALSE(interval.is_over(9));
  CHECK(interval.is_over(10));
  now = 160;
  CHECK(interval.is_over());
  interval.restart();
  CHECK_FALSE(interval.is_over());
  now = 220;
  CHECK(interval.is_over());
}

TEST_CASE("an interval of no seconds is never over") {
  double now = 0;
  Interval off(0, [&] { return now; });
  now = 1e9;
  CHECK_FALSE(off.is_on());
  CHECK_FALSE(off.is_over(1e9));
}
