// The dry run: plans a run (placement, model, memory, steps) and prints the plan without starting it.
#pragma once
#include <memory>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

struct DryRun {
  RunPlan plan;                            ///< the plan of the run, without measured bandwidth
  std::string settled;                     ///< lines that say what was `auto`
  std::string placement;                   ///< lines with the places of ranks, real or assumed
  std::unique_ptr<dataset::Dataset> data;  ///< null: data.path is not set
};
/// Plans a run on `ranks` ranks (0: the ranks of `comm`). Collective.
/// Errors:   as run_training for configs that cannot work on such ranks, also for a data.path that is set but wrong
DryRun plan_dry_run(const config::Config& config, int ranks, dist::Communicator& comm);

/// Prints what plan_dry_run has planned for a run whose folder would be `run_folder`, and which has `done` steps
/// already. Without data.path a line says what to set, and everything that follows from the data is left out.
/// Collective.
/// Errors:   those of run_training that can be found without starting
void print_dry_run(const config::Config& config, const DryRun& dry_run, int ranks, const std::string& run_folder,
                   int64_t done, dist::Communicator& comm);

}  // namespace ditrain::plan
