#include "ditrain/ops/gemm.hpp"

#include <algorithm>

namespace ditrain::ops {
namespace {

using kernels::GemmArgs;

// Cuts of a product: each worker gets a block of c. Rows and columns are cut so that the blocks are near square (least
// packing), at multiples that keep register tiles whole (28 = 2 x 14 rows, 32 columns).
constexpr int64_t kRowGrain = 28, kColumnGrain = 32;

// How many parts the rows get. All cuts give blocks of about the same area, so the least mm^2 + nn^2 is the most square
// one, which packs least of a and b (mm + nn rows of k); fewer rows than a grain cost as much as a grain.
int row_parts(int num_workers, int64_t m, int64_t n) {
  int best = 1;
  double best_cost = 1e300;
  for (int rows = 1; rows <= num_workers; ++rows) {
    if (num_workers % rows != 0) continue;
    const int columns = num_workers / rows;
    const double mm = double((m + rows - 1) / rows), nn = double((n + columns - 1) / columns);
    const double packing = double(std::max<int64_t>(kRowGrain, (m + rows - 1) / rows)) * mm + nn * nn;
    // Fewer than about 4 rows or 16 columns a worker: only if every cut is like that.
    const double too_fine = (rows > m / 4 + 1 ? 1e12 : 0) + (columns > n / 16 + 1 ? 1e12 : 0);
    if (packing + too_fine < best_cost) best_cost = packing + too_fine, best = rows;
  }
  return best;
}

}  // namespace

void gemm(Context& ctx, const GemmArgs& whole) {
  const int workers = ctx.team().num_workers();
  const int rows = row_parts(workers, whole.m, whole.n), columns = workers / rows;
  ctx.team().run([&](const parallel::Worker& w) {
    const parallel::Range r = parallel::partition(whole.m, w.worker / columns, rows, kRowGrain);
    const parallel::Range c = parallel::partition(whole.n, w.worker % columns, columns, kColumnGrain);
    if (r.empty() || c.empty()) return;
    const GemmArgs part = kernels::block_of(whole, r.begin, r.size(), c.begin, c.size());
    kernels::gemm(part, ctx.scratch(w, kernels::gemm_scratch_bytes(part)));
  });
}

}  // namespace ditrain::ops
