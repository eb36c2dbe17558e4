// What all parts of a run share: what is trained, where on the machine and with which ranks. It is whole when it is
// constructed: a run that does not fit its node is refused before.
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
  /// Whether this rank has a part of the checkpoints.
  bool writes() const { return plan.gradients.sharded || groups.data().rank() == 0; }
  const std::string& disk_folder() const;  ///< of the disk tier
  std::string checkpoints() const { return options.out + "/checkpoints"; }
  /// A fallback or an advice of this rank, for the report; "" is none.
  void note(const std::string& line) {
    if (!line.empty()) placement.notes.push_back(line);
  }
  /// Collective. On rank 0: each line of any rank, with the number of ranks that have it; elsewhere none.
  std::map<std::string, int> lines_of_ranks(const std::string& mine);
  std::string of_ranks(const std::string& line, int ranks) const;

  const plan::Settled& settled;
  const config::Config& config;
  const TrainOptions& options;
  dist::Communicator& comm;
  const double start_s;
  plan::Placement placement;
  plan::RankGroups groups;
  parallel::Team team;
  ops::Context ctx;
  const plan::RunPlan plan;
  const std::string products;  ///< what computes the matrix products
  const DType peak_type;       ///< of the peak that steps are held against

 private:
  plan::RunPlan make_plan();
};

/// In this scope: seconds a rank waits for the others, whichever of them it talks to; 0 waits for ever.
class RankTimeoutScope {
 public:
  RankTimeoutScope(RunContext& run, double seconds) : all_(run.comm, seconds), data_(run.groups.data(), seconds) {
    if (run.groups.tensor() != nullptr) tensor_.emplace(run.groups.tensor()->communicator(), seconds);
  }

 private:
  dist::TimeoutScope all_, data_;
  std::optional<dist::TimeoutScope> tensor_;
};

}  // namespace ditrain::train
