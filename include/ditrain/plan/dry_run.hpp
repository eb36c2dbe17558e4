// A run that is only looked at: placement, model, memory, steps.
#pragma once
#include <memory>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

struct DryRun {
  RunPlan plan;           ///< that of the run, but for the bandwidth between domains, which is not measured
  std::string settled;    ///< lines that say what was `auto`
  std::string placement;  ///< lines that say where its ranks lie, or would lie
  std::unique_ptr<dataset::Dataset> data;  ///< null: data.path is not set
};
/// The plan of a run on `ranks` ranks (0: the ranks of `comm`). Collective.
/// Errors:   as run_training for configs that cannot work on such ranks
DryRun plan_dry_run(const config::Config& config, int ranks, dist::Communicator& comm);

/// Prints what that run into `run_folder` would look like. Without data.path a line says what to set, and only what
/// follows from the data is left out. Collective.
/// Errors:   as run_training, as far as they can be seen without starting; a data.path that is set but wrong is one
void print_dry_run(const config::Config& config, int ranks, const std::string& run_folder, dist::Communicator& comm);

}  // namespace ditrain::plan
