// The training run: the one place where configs, ranks and files come together.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::train {

struct TrainOptions {
  std::string out;           ///< run folder
  bool resume_auto = false;  ///< resume the run in `out`, if it has a checkpoint
  std::string resume_from;   ///< resume from this folder; "": from none
  /// Stop with a checkpoint before 99 % of this time, counted from start_s, are over; 0: no limit.
  double max_hours = 0;
  double start_s = now_s();          ///< when the program began
  bool strict = false;               ///< fallbacks (threads not pinned, slower kernels) are errors
  std::optional<std::string> trace;  ///< write a timeline; "": to OUT/trace.json
  bool resumes() const { return resume_auto || !resume_from.empty(); }
};

/// Whether a start would find what the config and the options name: checkpoints, guide, reference, weights and tuning.
/// For a dry run: writes nothing. A checkpoint to resume from is compared with the config, which is settled as in a
/// plan, if that names its data, and with its classes.
/// Returns   the step that the run would go on from; 0 for a new one
/// Errors:   InputError, as of run_training
int64_t check_start(const config::Config& config, const TrainOptions& options,
                    const std::vector<std::string>& class_names);

/// Trains until train.steps, a stop request or an error. Collective.
/// Returns   kExitDone, or kExitStoppedEarly if a signal or max_hours stopped it after writing a checkpoint
/// Errors:   InputError for configs, data, folders and memory plans that cannot work, before anything large is
///           allocated, and for checkpoints that do not fit; RunError for a loss that is not finite (on_non_finite:
///           stop) or a last checkpoint that cannot be written
int run_training(const config::Config& config, const TrainOptions& options, dist::Communicator& comm);

}  // namespace ditrain::train
