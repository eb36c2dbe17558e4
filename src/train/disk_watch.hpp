// Ends a run whose disk hangs. Other ranks wait without a timeout for one that writes a checkpoint, since disks may be
// slow; this thread of every rank looks whether its own disk still gets anywhere (checkpoint.timeout_s).
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::train {

class DiskWatch {
 public:
  /// From now on the run ends with kExitFailed when a DiskWork of this rank gets nowhere for longer than `timeout_s`;
  /// 0: never. The thread runs on `pus` (empty: those of the caller). It touches no file, as they may hang too.
  DiskWatch(dist::Communicator& comm, double timeout_s, const std::vector<int>& pus);
  ~DiskWatch();
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

 private:
  void run();
  [[noreturn]] void end_run(double still_s);

  dist::Communicator& comm_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ditrain::train
