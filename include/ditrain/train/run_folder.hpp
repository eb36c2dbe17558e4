// The run folder OUT: which run may use it, and its files besides checkpoints.
#pragma once
#include <string>

#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

class RunFolder {
 public:
  /// Creates OUT and its sub-folders (rank 0 only).
  /// Errors:   InputError if it cannot be written to, or if `resuming` is false and it holds a run already
  RunFolder(std::string path, bool resuming);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string sample_picture(int64_t step) const;  ///< OUT/samples/step_00001000.png

  void write(const std::string& name, const std::string& content) const;
  /// A line that cannot be written (disk full) is warned about once and left out; training goes on.
  void append_metrics(const StepMetrics& metrics);

 private:
  std::string path_;
  bool warned_ = false;
};

/// Whether the folder holds a run (a config, metrics or checkpoints).
bool holds_run(const std::string& path);

}  // namespace ditrain::train
