#include "reach.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

namespace ditrain::bench {
namespace {

constexpr int64_t kStreamGrain = 1024;  // elements: as the element-wise operators are cut
constexpr size_t kLine = 64;            // bytes: what one load brings
constexpr size_t kMostChased = size_t{256} << 20;

// A random cycle through all lines of a block: each begins with the number of the next.
void lay_chain(std::byte* data, size_t lines) {
  std::vector<uint32_t> next(lines);
  std::iota(next.begin(), next.end(), 0u);
  std::mt19937_64 random(1);
  for (size_t i = lines - 1; i > 0; --i) std::swap(next[i], next[random() % i]);  // one cycle (Sattolo)
  for (size_t i = 0; i < lines; ++i) std::memcpy(data + i * kLine, &next[i], sizeof next[i]);
}

// Goes on where the pass before ended: passes over the same lines would find them in a cache.
double chase_s(const std::byte* data, int64_t loads, uint32_t& at, const Effort& effort) {
  const double start = effort.clock();
  for (int64_t i = 0; i < loads; ++i) std::memcpy(&at, data + size_t(at) * kLine, sizeof at);
  volatile uint32_t sink = at;
  static_cast<void>(sink);
  return (effort.clock() - start) / double(loads);
}

}  // namespace

void stream(ops::Context& ctx, const kernels::StreamMix& mix, const std::vector<float*>& arrays, int64_t n) {
  ctx.for_range(n, kStreamGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::vector<float*> part = arrays;
    for (float*& p : part) p += begin;
    volatile float sink = kernels::stream_pass(mix, part.data(), end - begin);
    static_cast<void>(sink);
  });
}

std::vector<double> pass_seconds(ops::Context& ctx, const kernels::StreamMix& mix, std::byte* data, size_t bytes,
                                 const Effort& effort) {
  std::vector<double> seconds;
  for (int64_t i = 0; i <= effort.repeats; ++i) {
    const double start = effort.clock();
    stream(ctx, mix, {reinterpret_cast<float*>(data)}, int64_t(bytes / sizeof(float)));
    if (i > 0) seconds.push_back(effort.clock() - start);
  }
  return seconds;
}

std::vector<double> load_seconds(std::byte* data, size_t bytes, const Effort& effort) {
  lay_chain(data, std::min(bytes, kMostChased) / kLine);
  std::vector<double> seconds;
  uint32_t at = 0;
  for (int64_t i = 0; i <= effort.repeats; ++i) {
    const double s = chase_s(data, effort.cold_arrays ? 1 << 20 : 1 << 10, at, effort);
    if (i > 0) seconds.push_back(s);
  }
  return seconds;
}

}  // namespace ditrain::bench
