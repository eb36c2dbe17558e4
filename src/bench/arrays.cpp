#include "ditrain/bench/arrays.hpp"

#include <algorithm>
#include <array>

#include "ditrain/base/random.hpp"

namespace ditrain::bench {
namespace {

constexpr int64_t kPiece = 1024;  // elements, as the element-wise operators are cut

template <class T, class Convert>
void fill(ops::Context& ctx, const Tensor& t, float low, float high, const Convert& convert) {
  const Pin<T> p(t);
  const RandomKey key(0, Stream::kTest, 1);
  ctx.for_range(t.size(), kPiece, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::array<float, kPiece> x;
    for (int64_t i = begin; i < end; i += kPiece) {
      const int64_t n = std::min(kPiece, end - i);
      key.fill_uniform(x.data(), n, uint64_t(i));
      for (int64_t j = 0; j < n; ++j) p[i + j] = convert(low + (high - low) * x[size_t(j)]);
    }
  });
}

}  // namespace

void fill_random(ops::Context& ctx, const Tensor& t, float low, float high) {
  if (t.dtype() == DType::kBF16)
    fill<BFloat16>(ctx, t, low, high, [](float x) { return to_bf16(x); });
  else
    fill<float>(ctx, t, low, high, [](float x) { return x; });
}

Tensor random_tensor(ops::Context& ctx, const Shape& shape, float low, float high, DType type) {
  Tensor t(shape, type);
  fill_random(ctx, t, low, high);
  return t;
}

}  // namespace ditrain::bench
