#include "ditrain/dataset/sampler.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"

namespace ditrain::dataset {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40;  // keeps both halves far below 2^32, the range of RandomKey::below
// Rounds: 4 hide the structure of large sets (Luby and Rackoff); sets of a few samples have few distinct round
// functions and need more to reach all permutations about equally often.
constexpr uint64_t kRounds = 10;

}  // namespace

EpochSampler::EpochSampler(int64_t dataset_size, uint64_t seed) : size_(dataset_size), seed_(seed) {
  if (dataset_size < 1 || dataset_size > kMaxSize)
    throw InputError({.where = "data",
                      .what = "cannot shuffle a set of this size",
                      .got = std::to_string(dataset_size),
                      .expected = "1 to 2^40 samples"});
  const auto n = uint64_t(dataset_size);
  a_ = uint64_t(std::ceil(std::sqrt(double(n))));
  b_ = (n + a_ - 1) / a_;
}

int64_t EpochSampler::index_at(int64_t global_position) const {
  DITRAIN_CHECK(global_position >= 0, "position " + std::to_string(global_position));
  const RandomKey key(seed_, Stream::kShuffle, uint64_t(global_position / size_));
  auto x = uint64_t(global_position % size_);
  do {
    uint64_t l = x / b_, r = x % b_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t counter = round << 32;
      if (round % 2 == 0)
        l = (l + key.below(counter | r, a_)) % a_;
      else
        r = (r + key.below(counter | l, b_)) % b_;
    }
    x = l * b_ + r;
  } while (x >= uint64_t(size_));
  return int64_t(x);
}

}  // namespace ditrain::dataset
