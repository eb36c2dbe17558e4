// The order in which samples are seen: a fresh shuffle of the whole set for each epoch. Positions count samples since
// the start of training over all ranks together, so the order is the same for any number of ranks and after a resume.
#pragma once
#include <cstdint>

namespace ditrain::dataset {

/// Maps a global position to the index of a sample: position = epoch * size + i, and i runs through a permutation of
/// [0, size) keyed by (seed, epoch).
/// Math:    a Feistel network on pairs (l, r) in [0, a) x [0, b), a * b >= size, whose rounds add a random function of
///          one half to the other; indices outside [0, size) are sent through it again until they fall inside ("cycle
///          walking"). Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 3, 5
/// Memory:  O(1), no list of indices
/// Threads: index_at is pure
/// Errors:  the constructor throws InputError unless 1 <= dataset_size <= 2^40
class EpochSampler {
 public:
  EpochSampler(int64_t dataset_size, uint64_t seed);
  int64_t size() const { return size_; }
  /// global_position >= 0.
  int64_t index_at(int64_t global_position) const;

 private:
  int64_t size_;
  uint64_t a_, b_;  // a_ * b_ >= size_, both about sqrt(size_)
  uint64_t seed_;
};

}  // namespace ditrain::dataset
