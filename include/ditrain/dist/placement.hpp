// Whether ranks of a node step on each other's cores.
#pragma once
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// The ranks of a node that have a PU in common with this rank.
struct MaskSharing {
  int ranks = 1;   ///< this one included: 1 if the launcher gave every rank cores of its own, more if ranks share a mask
                   ///< (mpirun --oversubscribe or --bind-to none)
  int number = 0;  ///< this rank's number among them
};

/// Nodes are those of the communicator: hosts may have one name. Collective; `pus` is this rank's affinity mask
/// (platform::affinity_mask).
MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus);

}  // namespace ditrain::dist
