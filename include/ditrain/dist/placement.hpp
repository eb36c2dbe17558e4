// What ranks of a node share: overlapping cores, and memory.
#pragma once
#include <map>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// The ranks of a node that have a PU in common with this rank.
struct MaskSharing {
  int ranks = 1;  ///< this one included: 1 if the launcher gave every rank cores of its own, more if ranks share a mask
                  ///< (mpirun --oversubscribe or --bind-to none)
  int number = 0;  ///< this rank's number among them
};

/// Nodes are those of the communicator: hosts may have one name. Collective; `pus` is this rank's affinity mask
/// (platform::affinity_mask).
MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus);

/// Counts for each number in `mine` the ranks of this node that give it, this one included. Collective, and a barrier
/// of the node.
std::map<int, int> count_sharers(Communicator& communicator, const std::vector<int>& mine);

}  // namespace ditrain::dist
