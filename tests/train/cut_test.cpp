#include "ditrain/train/cut.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::train;
using Catch::Contains;
using ops::Cut;

namespace {

Config model(const std::string& name) {
  Config c;
  c.model.name = name;
  nn::apply_name(c.model);
  return c;
}

}  // namespace

TEST_CASE("auto cuts what clusters would read less of") {
  const Config b = model("DiT-B/2"), xl = model("DiT-XL/2");
  CHECK(plan_cut(b, 8, 1).why == "one cluster: nothing is cut over clusters");
  // 12 C^2 = 7.08 M weights against 7 M C = 11.01 M inputs of 2,048 rows, one of them twice
  CHECK(plan_cut(b, 8, 2).cut == Cut::kSamples);
  CHECK_THAT(plan_cut(b, 8, 2).why, Contains("25.2 M values so, 29.1 M the other way"));
  CHECK(plan_cut(xl, 4, 2).cut == Cut::kN);
  CHECK(plan_cut(xl, 8, 2).cut == Cut::kSamples);
  CHECK(plan_cut(b, 7, 2).cut == Cut::kN);
  CHECK_THAT(plan_cut(b, 7, 2).why, Contains("7 samples do not divide"));
}

TEST_CASE("a cut that is asked for is made, or refused") {
  Config c = model("DiT-B/2");
  c.parallel.cut = "n";
  CHECK(plan_cut(c, 8, 2).cut == Cut::kN);
  c.parallel.cut = "samples";
  CHECK(plan_cut(c, 4, 4).cut == Cut::kSamples);
  CHECK_THROWS_WITH(plan_cut(c, 6, 4), Contains("got a micro-batch of 6 for 4 clusters, expected a multiple"));
  CHECK_THROWS_AS(plan_cut(c, 6, 4), InputError);
}
