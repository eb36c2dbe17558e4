// A run that is only looked at: placement, model, memory, steps.
#pragma once
#include "ditrain/dist/communicator.hpp"
#include "ditrain/config/config.hpp"

namespace ditrain::plan {

/// Prints what a run on `ranks` ranks (0: the ranks of `comm`) would look like.
/// Errors:   as run_training, as far as they can be seen without starting
void print_dry_run(const config::Config& config, int ranks, dist::Communicator& comm);

}  // namespace ditrain::plan
