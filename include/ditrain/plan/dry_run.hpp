// A run that is only looked at: placement, model, memory, steps.
#pragma once
#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::plan {

/// Prints what a run on `ranks` ranks (0: the ranks of `comm`) would look like. Without data.path a line says
/// what to set, and only what follows from the data is left out.
/// Errors:   as run_training, as far as they can be seen without starting; a data.path that is set but wrong is one
void print_dry_run(const config::Config& config, int ranks, dist::Communicator& comm);

}  // namespace ditrain::plan
