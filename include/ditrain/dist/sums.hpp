// Orders of summation. They are fixed in the source, so that every rank gets bit-identical sums.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

// A bucket is summed in pieces of this many elements from its start, and squares are added piece by piece. A piece of
// the sum and a piece of another rank fit together into a 32 KiB L1 cache.
inline constexpr int64_t kPiece = 4096;

inline int64_t num_pieces(int64_t n) { return (n + kPiece - 1) / kPiece; }

/// The binary tree of a reproducible sum: the sum of n terms is the sum of the first n/2 (rounded down) plus the sum of
/// the rest. If the terms are split into 2^k equal parts, each part's sum is a subtree, and the parts' sums are added
/// as a tree again: the result does not depend on which rank summed which part. This class takes terms one after the
/// other: term i is added to some of the waiting sums, the youngest first; the result then waits itself, unless it is
/// the total.
class SumTree {
 public:
  explicit SumTree(int64_t terms);  ///< >= 1
  int64_t terms() const { return int64_t(merges_.size()); }
  int merges(int64_t term) const { return merges_[size_t(term)]; }    ///< number of waiting sums to add this term to
  int waiting(int64_t term) const { return waiting_[size_t(term)]; }  ///< sums that wait when the term comes
  int most_waiting() const;                                           ///< log2(terms), rounded up

 private:
  std::vector<int> merges_, waiting_;
};

/// The sum of terms[0], terms[stride], ... (n >= 1 of them) along that tree.
double tree_sum(const double* terms, int64_t n, int64_t stride = 1);

/// Checks that summing over the ranks of each node, then over nodes, follows the tree over all ranks.
/// Errors:   InputError unless there are 2^n ranks, and each node has 2^k consecutive ones, k the same for all
void expect_subtrees(const Communicator& communicator);

}  // namespace ditrain::dist
