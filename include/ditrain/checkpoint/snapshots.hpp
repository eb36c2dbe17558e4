// Snapshots of the power averages of the weights (optim/power_average.hpp), and the averages of any width that they
// give.
//
//   RUN/snapshots/step_00001000/{averages.safetensors,state.json}     every ema.snapshots_every steps
//
// They are hard links to files of the checkpoint of that step, and stay when the checkpoint is removed.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ditrain/checkpoint/export.hpp"

namespace ditrain::checkpoint {

std::string snapshots_of(const std::string& run_folder);

struct Snapshots {
  struct One {
    std::string folder;
    int64_t updates;
  };
  std::vector<One> all;  ///< by step, the last one is that of `newest`
  WeightsSource newest;
};

/// Finds the snapshots of a run. `path` is a run folder or one of its snapshots, RUN/snapshots/step_N; later snapshots
/// are then ignored.
/// Errors:   InputError if there are none; as read_checkpoint_state
Snapshots find_snapshots(const std::string& path);

/// The model with the average of this width at the step of the newest snapshot, allocated for inference.
/// Math:     width in [optim::kLeastWidth, optim::kGreatestWidth]; optim::solve_average over both averages of all
///           snapshots, sums in f64; an older one that is damaged is left out with a warning
/// Errors:   InputError for a newest snapshot that is damaged, and for files of another model
std::unique_ptr<nn::Model> load_average(const Snapshots& snapshots, double width);

}  // namespace ditrain::checkpoint
