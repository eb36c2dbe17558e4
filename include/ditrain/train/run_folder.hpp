// The run folder OUT: which run may use it, and its files besides checkpoints.
#pragma once
#include <string>

#include "ditrain/files/file_lock.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

/// Keeps other runs out of a run folder, on all nodes that see it, until the last rank with a lock ends.
class RunLock {
 public:
  /// For rank 0. Waits up to `patience_s` seconds for a run that is ending.
  /// Errors: InputError naming the process that holds the folder
  RunLock(const std::string& folder, double patience_s);
  /// For other ranks that write, once rank 0 has its lock. Errors: RunError if that lock has been lost
  explicit RunLock(const std::string& folder);
  const std::string& note() const { return note_; }  ///< why the folder is not locked; "": it is

 private:
  void note_without_locks(const std::string& folder);

  files::FileLock lock_;
  std::string note_;
};

class RunFolder {
 public:
  /// Creates OUT and its sub-folders, and clears them of unfinished files (rank 0 only).
  /// Errors:   InputError if it cannot be written to, or if `resuming` is false and it holds a run already
  RunFolder(std::string path, bool resuming);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string sample_picture(int64_t step) const;  ///< OUT/samples/step_00001000.png

  void write(const std::string& name, const std::string& content) const;
  /// A line that cannot be written (disk full) is warned about once and left out; training continues.
  void append_metrics(const StepMetrics& metrics);

 private:
  std::string path_;
  bool warned_ = false;
};

/// Whether the folder holds a run (a config, metrics or checkpoints).
/// Errors: std::filesystem_error if the folder cannot be examined
bool holds_run(const std::string& path);

}  // namespace ditrain::train
