// Finds out which cores and other resources the ranks of a node share.
#pragma once
#include <map>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// The ranks of a node that have a PU in common with this rank.
struct MaskSharing {
  int ranks = 1;   ///< including this one: 1 if the launcher gave every rank its own cores, more if ranks share a mask
                   ///< (mpirun --oversubscribe or --bind-to none)
  int number = 0;  ///< this rank's number among them
  bool equal = true;  ///< all of them have the same mask
};

/// Compares the affinity masks of the ranks of each node. Collective. `pus` is this rank's mask
/// (platform::affinity_mask). Nodes are those of the communicator, because hosts may have equal names.
MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus);

/// For each number in `mine` (of a NUMA node, for example), counts the ranks of this node that pass it, including this
/// one. Collective, and a barrier of the node.
std::map<int, int> count_sharers(Communicator& communicator, const std::vector<int>& mine);

}  // namespace ditrain::dist
