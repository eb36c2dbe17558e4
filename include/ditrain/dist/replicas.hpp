// Checks that ranks still hold bit-identical weights, as they must, since all apply the same gradients to the same
// weights. A rank that differs (a flipped bit in memory, a faulty processor, another build) would silently spoil the
// training of all others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// A checksum of something that must be equal on all ranks.
struct Replica {
  std::string name;  ///< for messages: "weights"
  uint64_t checksum = 0;
};

/// Compares the checksums of all ranks that have the same `part` of a model (the whole model, unless ranks share a
/// replica). These ranks must pass the same names in the same order. Collective over all ranks. The reference is the
/// value of more than half of those ranks, else that of the first. `when` and `hint` are for the message: "after step
/// 100", what to do.
/// Errors:   RunError "[replicas] ...", the same on all ranks, with the ranks that differ, their hosts and the names
void compare_replicas(Communicator& communicator, const std::vector<Replica>& mine, const std::string& when,
                      int part = 0, const std::string& hint = "");

}  // namespace ditrain::dist
