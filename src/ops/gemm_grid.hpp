// How workers share out a product.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ditrain/kernels/gemm.hpp"

namespace ditrain::ops {

// Cuts of a product. Clusters take rows of c, or columns (ClusterSplit::kN); the workers of a cluster then share out
// its part as a grid. Workers of the same columns are a packing group: they pack b once, into memory of their cluster.
//
// Equal parts matter more than whole register tiles, since a partial tile of few rows costs by its rows: with cuts at
// multiples of 28 rows (two tiles of AVX-512) one of two workers had up to 2 % more to do. 16 rows are a cache line of
// an operand that is read transposed.
inline constexpr int64_t kRowGrain = 16, kColumnGrain = kernels::kPackedColumns;
inline constexpr int64_t kGroupRows = 24;    // with fewer rows a worker would wait for b from the L3 cache
inline constexpr int64_t kGroupB = 1 << 16;  // elements of b: packing fewer takes no longer than a barrier

// Times in multiply-adds, about.
struct PackingCost {
  double element;  // to pack one
  double others;   // to read one that another worker has packed, as a share of `element`
};

struct Grid {
  int rows = 1, columns = 1;  // parts; rows * columns workers
  bool together = false;      // workers of the same columns pack b together
};

inline Grid grid_of(int workers, int64_t m, int64_t n, int64_t k, int64_t grain, bool packed_b, bool may_pack_together,
                    const PackingCost& packing) {
  Grid best;
  double best_cost = 1e300;
  for (int rows = workers; rows >= 1; --rows) {
    if (workers % rows != 0) continue;
    const int columns = workers / rows;
    const int64_t mm = std::max(grain, (m + rows - 1) / rows), nn = std::max(kColumnGrain, (n + columns - 1) / columns);
    const double b = packing.element * double(nn);
    const double alone = packed_b ? 0 : b, group = b * (1 + packing.others * (rows - 1)) / rows;
    const bool together = may_pack_together && rows > 1 && mm >= kGroupRows && nn * k >= kGroupB && group < alone;
    const double cost = double(mm * nn) + packing.element * double(mm) + (together ? group : alone);
    if (cost < best_cost) best_cost = cost, best = {rows, columns, together};
  }
  return best;
}

}  // namespace ditrain::ops
