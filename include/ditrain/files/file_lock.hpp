// A lock that one process at a time has, or the processes of one job, on any node that sees the file: fcntl, which NFS
// and Lustre honour too, unless they are mounted with locks that each node keeps for itself (nolock, local_lock,
// localflock). The system takes it back when the process ends, however it ends; that of a node which died ends with its
// lease on the file server.
#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace ditrain::files {

class FileLock {
 public:
  /// Makes the file if it is missing. Errors: InputError if it cannot be opened to write
  explicit FileLock(std::string path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  enum class Attempt { kLocked, kHeldByOther, kNoLocks };
  /// kNoLocks: this file system has none; reason() says what it answers.
  Attempt try_lock();
  /// Makes it one lock of all processes of a job: the process of try_lock() shares it first, then others may. It is
  /// held until the last of them has ended. kHeldByOther: the process of try_lock() has not shared it.
  Attempt share();
  /// try_lock() and share(), for rank 0. Tries again for up to `patience_s` while another process has it: the system
  /// takes back the lock of a process that was killed a moment later. `waiting` is called once, before the first wait.
  Attempt lock_for_job(double patience_s, const std::function<void()>& waiting = {});
  const std::string& reason() const { return reason_; }
  /// Says who has it, for who reads the file. Errors: RunError
  void describe(const std::string& holder);
  /// What the holder says of itself; if it has ended, also which process of its job has not.
  std::string holder() const;
  /// If it has ended: a process that shared it and has not; 0: on another node.
  std::optional<pid_t> left_over() const;

 private:
  Attempt set(short type, off_t begin);

  std::string path_, reason_;
  int fd_;
  bool locked_ = false;
};

/// Host, process, job and time, as one line: for FileLock::describe.
std::string this_process();

/// The lock FOLDER/.lock of a program that fills the folder with shards, made if it is missing: on rank 0. Waits a few
/// seconds for a process that is ending; warns where the file system has no locks.
/// Errors:   InputError [FOLDER] if another process writes to it
std::unique_ptr<FileLock> lock_output_folder(const std::string& folder);
/// The same lock on the other ranks, once rank 0 has it: the folder is locked until the last rank has ended.
/// Errors:   RunError [FOLDER] if rank 0 has lost it; InputError if the folder is not seen here
std::unique_ptr<FileLock> join_output_folder(const std::string& folder);

}  // namespace ditrain::files
