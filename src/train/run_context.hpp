// What all parts of a run share: what is trained, where on the machine and with which ranks. The constructor completes
// it, and refuses a run that does not fit its node.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/train/trainer.hpp"

namespace ditrain::train {

struct RunContext {
  /// Collective. All arguments outlive the object.
  /// Errors:   InputError as plan_placement, plan_run, check_memory and check_tiers
  RunContext(const plan::Settled& settled, const TrainOptions& options, dist::Communicator& comm);

  bool leader() const { return comm.rank() == 0; }
  /// Whether this rank writes a part of the checkpoints.
  bool writes() const { return plan.gradients.sharded || groups.summing().rank() == 0; }
  const std::string& disk_folder() const;  ///< the folder of the disk tier
  std::string checkpoints() const { return options.out + "/checkpoints"; }
  /// Adds a fallback or an advice of this rank to the report; "" adds nothing.
  void note(const std::string& line) {
    if (!line.empty()) placement.notes.push_back(line);
  }
  /// Collective. Returns on rank 0 each line of any rank with the number of ranks that have it; elsewhere nothing.
  std::map<std::string, int> lines_of_ranks(const std::string& mine);
  std::string of_ranks(const std::string& line, int ranks) const;

  const plan::Settled& settled;
  const config::Config& config;
  const TrainOptions& options;
  dist::Communicator& comm;
  plan::Placement placement;
  plan::RankGroups groups;
  parallel::Team team;
  ops::Context ctx;
  const std::string products;  ///< what computes the GEMMs
  const plan::RunPlan plan;
  const DType peak_type;  ///< type of the peak that steps are compared with

 private:
  plan::RunPlan make_plan();
};

/// Sets for its scope the seconds that a rank waits for any other; 0 waits for ever.
class RankTimeoutScope {
 public:
  RankTimeoutScope(RunContext& run, double seconds) : all_(run.comm, seconds), data_(run.groups.data(), seconds) {
    if (run.groups.tensor() != nullptr) tensor_.emplace(run.groups.tensor()->communicator(), seconds);
    if (&run.groups.summing() != &run.groups.data()) summing_.emplace(run.groups.summing(), seconds);
  }

 private:
  dist::TimeoutScope all_, data_;
  std::optional<dist::TimeoutScope> tensor_, summing_;
};

}  // namespace ditrain::train
