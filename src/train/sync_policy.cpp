#include "ditrain/train/sync_policy.hpp"

#include <algorithm>
#include <numeric>

#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::train {

double squares_of(ops::Context& ctx, const float* grads, const parallel::Range& slice) {
  std::vector<double> pieces(size_t(dist::num_pieces(slice.size())));
  ctx.for_range(int64_t(pieces.size()), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = slice.begin + piece * dist::kPiece;
      pieces[size_t(piece)] = kernels::sum_squares(grads + first, std::min(dist::kPiece, slice.end - first));
    }
  });
  return std::accumulate(pieces.begin(), pieces.end(), 0.0);
}

}  // namespace ditrain::train
