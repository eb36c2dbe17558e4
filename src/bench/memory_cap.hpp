// A limit on the memory of programs that a bench starts, all of them together.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

namespace ditrain::bench {

/// A cgroup of its own (v2, or the memory controller of v1) where this process may make one; else RLIMIT_DATA of each
/// of `processes` processes, which counts what they map privately for writing, touched or not, but nothing they share.
class MemoryCap {
 public:
  /// bytes 0: no limit.
  MemoryCap(size_t bytes, int processes);
  ~MemoryCap();  ///< removes the cgroup; its processes have ended
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;

  /// Puts the calling process, between fork and exec, under the limit. False: the system refused.
  bool enter() const noexcept;
  /// Processes that the system has killed over the limit so far (cgroup only).
  int64_t kills() const;
  bool limited() const { return bytes_ > 0; }
  std::string description() const;

 private:
  bool make_group(const std::string& parent, const char* limit_file, const char* events_file);

  size_t bytes_, each_;
  std::string group_, events_;  // folder of the cgroup and its file of events; empty: no cgroup
  std::string members_;         // cgroup.procs
};

}  // namespace ditrain::bench
