// Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends only on (seed, stream, index, counter), never on ranks, threads or the order of calls:
//   RandomKey key(seed, Stream::kNoise, step, global_sample_index);   key.normal(i)   // the i-th normal of that sample
#pragma once
#include <array>
#include <cstdint>

namespace ditrain {

/// The use of a random number. Each use has its own stream, so that adding a use never changes the numbers of another.
/// Never renumber.
enum class Stream : uint32_t {
  kInit = 1,
  kNoise = 2,
  kTimestep = 3,
  kLabelDrop = 4,
  kFlip = 5,
  kShuffle = 6,
  kShapes = 7,
  kSampleNoise = 8,
  kSampleLabel = 9,
  kEval = 10,
  kTest = 11,
  kPosterior = 12,
  kHeldOut = 13,
  kResample = 14,
  kRoute = 15
};

/// Philox4x32-10: ten rounds on a 128-bit counter under a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// The sequence behind a RandomKey: element i is word i % 4 of philox4x32({i / 4, number}, key), low words first.
struct PhiloxSequence {
  uint32_t key[2];
  uint64_t number;
};

/// One random sequence, addressed by element. Each of the functions is pure. They are the reference of the vectorised
/// ones in ditrain/kernels/random.hpp, which fill whole arrays many times as fast.
class RandomKey {
 public:
  /// seed: the run's seed. a, b: what the sequence belongs to, e.g. (step, global sample index) or (epoch, 0).
  RandomKey(uint64_t seed, Stream stream, uint64_t a, uint64_t b = 0);

  uint32_t bits(uint64_t i) const;               ///< 32 random bits
  float uniform(uint64_t i) const;               ///< in [0, 1), 24 bits
  uint64_t below(uint64_t i, uint64_t n) const;  ///< integer in [0, n), n < 2^32: multiply-shift (bias < n / 2^64)
  float normal(uint64_t i) const;                ///< N(0, 1), Box-Muller in f64, |x| < 9
  /// out[j] = uniform(first + j) for j < n, at a quarter of the work.
  void fill_uniform(float* out, int64_t n, uint64_t first = 0) const;
  /// out[j] = normal(first + j) for j < n, at a quarter of the work.
  void fill_normal(float* out, int64_t n, uint64_t first = 0) const;

  const PhiloxSequence& sequence() const { return sequence_; }

 private:
  std::array<uint32_t, 4> block(uint64_t index) const;
  PhiloxSequence sequence_;
};

}  // namespace ditrain
