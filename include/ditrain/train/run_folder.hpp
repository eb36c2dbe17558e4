// The run folder OUT: which run may use it, and its files besides checkpoints.
#pragma once
#include <string>

#include "ditrain/io/file_lock.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

/// Keeps other runs out of a run folder for as long as it lives, on all nodes that see the folder.
class RunLock {
 public:
  /// Waits up to `patience_s` for a run that is ending. Errors: InputError that says who holds the folder
  RunLock(const std::string& folder, double patience_s);
  const std::string& note() const { return note_; }  ///< why the folder is not locked; "": it is

 private:
  io::FileLock lock_;
  std::string note_;
};

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
