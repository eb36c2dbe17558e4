// Checks that ranks still hold bit-identical weights, as they should: all apply the same gradients to the same weights.
// A rank that differs (a flipped bit in memory, a faulty processor, another build) would silently spoil the training of
// all others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// Something that all ranks should hold alike.
struct Replica {
  std::string name;  ///< for messages: "weights"
  uint64_t checksum = 0;
};

/// Compares the checksums of all ranks that have the same `part` of a model (all of it, unless ranks share one), and
/// bring the same names in the same order. Collective over all ranks. The reference is the value of more than half of
/// those ranks, else that of the first. `when` is for the message: "after step 100".
/// Errors:   RunError "[replicas] ...", the same on all ranks, naming ranks that differ, their hosts, and in what
void compare_replicas(Communicator& communicator, const std::vector<Replica>& mine, const std::string& when,
                      int part = 0);

}  // namespace ditrain::dist
