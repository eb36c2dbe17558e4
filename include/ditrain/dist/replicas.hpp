// Whether ranks still hold the same weights. They should, to the bit: all add the same gradients to the same numbers. A
// rank that does not (a bit that flipped in memory, a processor that computes wrong, a build that differs) would spoil
// the others' training from then on without a word.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// Something that all ranks should hold alike.
struct Replica {
  std::string name;  ///< for people: "weights"
  uint64_t checksum = 0;
};

/// Compares the checksums of all ranks that have the same `part` of a model (all of it, unless ranks share one), and
/// bring the same names in the same order. Collective over all ranks. The measure is what more than half of those ranks
/// have, else what the first of them has; `when` is for the message: "after step 100".
/// Errors:   RunError "[replicas] ...", the same on all ranks, naming ranks that differ, their hosts, and in what
void compare_replicas(Communicator& communicator, const std::vector<Replica>& mine, const std::string& when,
                      int part = 0);

}  // namespace ditrain::dist
