// How workers share out a product: by rows, by columns, and who packs b.
#include "../../src/ops/gemm_grid.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;
using ops::Grid;
using ops::PackingCost;

namespace {

constexpr PackingCost kVectors{9, 0}, kVectorsBesideUnit{9, 0.5}, kUnit{350, 1};

struct Case {
  const char* what;
  int workers;
  int64_t m, n, k;
  Grid vectors, vectors_beside_unit, unit;
};

bool same(const Grid& a, const Grid& b) {
  return a.rows == b.rows && a.columns == b.columns && a.together == b.together;
}

}  // namespace

TEST_CASE("a product is cut so that least is packed, counted with what it costs to read what others packed") {
  for (const Case& x : {
           Case{"a forward product of many rows", 2, 4096, 1152, 384, {2, 1, true}, {2, 1, true}, {2, 1, false}},
           Case{"a square weight gradient", 2, 384, 384, 4096, {2, 1, true}, {2, 1, true}, {2, 1, false}},
           Case{"one of three times as many columns", 2, 384, 1152, 4096, {2, 1, true}, {1, 2, false}, {1, 2, false}},
           Case{"one of a quarter of the columns", 2, 1536, 384, 4096, {2, 1, true}, {2, 1, true}, {2, 1, false}},
           Case{"a grid of workers", 16, 4096, 4608, 1152, {16, 1, true}, {4, 4, true}, {4, 4, false}},
           Case{"few rows", 4, 16, 1024, 1024, {1, 4, false}, {1, 4, false}, {1, 4, false}},
           Case{"a b that takes no longer to pack than a barrier",
                2,
                4096,
                64,
                64,
                {2, 1, false},
                {2, 1, false},
                {2, 1, false}},
       }) {
    CAPTURE(x.what);
    const auto cut = [&](const PackingCost& cost, bool packed_b = false) {
      return ops::grid_of(x.workers, x.m, x.n, x.k, ops::kRowGrain, packed_b, !packed_b, cost);
    };
    const auto check = [&](const Grid& got, const Grid& expected) {
      CAPTURE(got.rows, got.columns, got.together);
      CHECK(same(got, expected));
    };
    check(cut(kVectors), x.vectors), check(cut(kVectorsBesideUnit), x.vectors_beside_unit), check(cut(kUnit), x.unit);
    // A b that was packed before costs nothing: rows are cut, so that each row of a is packed once.
    if (x.m >= 64 * x.workers) check(cut(kUnit, true), {x.workers, 1, false});
  }
}
