// Whether ranks of a node step on each other's cores.
#pragma once
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// How many ranks of this rank's node, itself included, have a PU in common with it: 1 if the launcher gave every rank
/// cores of its own, more if ranks share a mask (mpirun --oversubscribe or --bind-to none). Nodes are told apart by
/// host name. Collective; `pus` is this rank's affinity mask (platform::affinity_mask). For platform::default_threads.
int ranks_on_mask(Communicator& communicator, const std::vector<int>& pus);

}  // namespace ditrain::dist
