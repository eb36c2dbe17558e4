#include "ditrain/ops/checksum.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

namespace ditrain::ops {
namespace {

constexpr int64_t kBlock = 1 << 16;  // bytes that one chain of sums covers
constexpr int64_t kLanes = 8;        // chains side by side: a product takes 3 cycles, one can start in each
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

/// A bijection that spreads every bit over all (the last step of splitmix64).
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Each step of a lane is a bijection of what came before and of the new word: a change of one word stays visible.
using Lanes = std::array<uint64_t, kLanes>;
void add_words(Lanes& lanes, const std::byte* p) {
  Lanes words;
  std::memcpy(words.data(), p, sizeof(words));
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = (std::rotl(lanes[i], 23) ^ words[i]) * kOdd;
}

uint64_t block_sum(const std::byte* p, int64_t bytes, int64_t number) {
  constexpr int64_t kStep = sizeof(Lanes);
  Lanes lanes{};
  int64_t i = 0;
  for (; i + kStep <= bytes; i += kStep) add_words(lanes, p + i);
  if (i < bytes) {
    std::array<std::byte, sizeof(Lanes)> rest{};
    std::memcpy(rest.data(), p + i, size_t(bytes - i));
    add_words(lanes, rest.data());
  }
  uint64_t sum = mixed(uint64_t(number) + kOdd) ^ uint64_t(bytes);
  for (const uint64_t lane : lanes) sum = mixed(sum ^ lane) + kOdd;
  return sum;
}

}  // namespace

uint64_t checksum(Context& ctx, const Tensor& x) {
  const std::vector<Tensor> parts = x.parts();
  if (parts.size() > 1) {
    uint64_t sum = 0;
    for (size_t i = 0; i < parts.size(); ++i) sum += mixed(checksum(ctx, parts[i]) ^ mixed(i + 1));
    return sum;
  }
  const Pin<void> pin(x);
  const auto* data = static_cast<const std::byte*>(pin.get());
  std::atomic<uint64_t> sum{0};
  ctx.for_range(int64_t(x.bytes()), kBlock, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    uint64_t mine = 0;
    for (int64_t i = begin; i < end; i += kBlock) mine += block_sum(data + i, std::min(kBlock, end - i), i / kBlock);
    sum += mine;
  });
  return sum;
}

}  // namespace ditrain::ops
