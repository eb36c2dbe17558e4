// What tests/CMakeLists.txt tries test_main.cpp with: cases that pass, fail and are skipped.
#include <catch2/catch.hpp>

#include "skip.hpp"

TEST_CASE("passes") { CHECK(true); }
TEST_CASE("fails") { CHECK(false); }
TEST_CASE("is skipped") { SKIP("this machine lacks it"); }
TEST_CASE("is skipped in one run of two") {
  if (GENERATE(true, false)) SKIP("this machine lacks the first");
  CHECK(true);
}
TEST_CASE("is skipped in both runs") {
  const int run = GENERATE(1, 2);
  SKIP("this machine lacks number " + std::to_string(run));
}
