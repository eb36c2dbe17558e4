#include "ditrain/ops/random.hpp"

#include <algorithm>

#include "ditrain/kernels/random.hpp"

namespace ditrain::ops {

void fill_normal(Context& ctx, std::span<const RandomKey> keys, int64_t elements, float* out) {
  constexpr int64_t kGrain = 1024;  // elements: some microseconds of work
  ctx.for_range(int64_t(keys.size()) * elements, kGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    while (begin < end) {
      const int64_t i = begin / elements, stop = std::min(end, (i + 1) * elements);
      kernels::fill_normal(keys[size_t(i)], uint64_t(begin - i * elements), out + begin, stop - begin);
      begin = stop;
    }
  });
}

}  // namespace ditrain::ops
