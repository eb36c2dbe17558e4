// What counts as damage of a checkpoint that a run resumes from.
#include "../../src/train/starting_point.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;
using namespace ditrain::train;
using Catch::Contains;

TEST_CASE("a checkpoint that does not fit the run is not damaged: no older one may take its place") {
  const auto fits = [] {};
  const auto damaged = [] { throw InputError({.where = "ema.safetensors", .what = "the file is damaged"}); };
  const auto other = [] { throw ShapeError({.where = "tensor", .what = "slice [32] at 4096"}); };
  CHECK(damage_of(fits).empty());
  CHECK_THAT(damage_of(damaged), Contains("ema.safetensors"));
  CHECK_THROWS_AS(damage_of(other), InputError);
  CHECK_THROWS_WITH(damage_of(other), Contains("does not fit this run") && Contains("slice [32] at 4096"));
}
