// A lock that one process, or the processes of one job, can hold at a time, on any node that sees the file. It uses
// fcntl locks, which NFS and Lustre honour too, unless they are mounted with node-local locks (nolock, local_lock,
// localflock). The system releases the lock when the process ends, however it ends; the lock of a node that died ends
// with its lease on the file server.
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
  /// kNoLocks: this file system has none; reason() says what it answers. A holder may remove the file before it ends:
  /// whoever waited then locks the next one. Errors: as the constructor
  Attempt try_lock();
  /// Shares the lock between all processes of a job: the process that called try_lock() shares it first, then others
  /// may. It is held until the last of them has ended. kHeldByOther: the first process has not shared it.
  Attempt share();
  /// try_lock() and share(), for rank 0. Tries again for up to `patience_s` seconds while another process has the lock,
  /// because the system releases the lock of a killed process a moment later. `waiting` is called once, before the
  /// first wait.
  Attempt lock_for_job(double patience_s, const std::function<void()>& waiting = {});
  const std::string& reason() const { return reason_; }
  /// Writes a description of the holder into the file, for other processes. Errors: RunError
  void describe(const std::string& holder);
  /// The description of the holder; if the holder has ended, also which process of its job still runs.
  std::string holder() const;
  /// If the holder has ended: a process that shares the lock and still runs; 0: it is on another node.
  std::optional<pid_t> surviving_process() const;

 private:
  Attempt set(short type, off_t begin);
  int open() const;
  bool is_removed() const;  // the file that is open has lost its name, and may not be the one that others lock

  std::string path_, reason_;
  int fd_;
  bool locked_ = false;
};

/// Host, process, job and time, as one line: for FileLock::describe.
std::string this_process();

/// The lock FOLDER/.lock of a program that fills the folder with shards, made if it is missing: on rank 0. Waits a few
/// seconds for a process that is ending; warns where the file system has no locks.
/// Errors:   InputError [FOLDER] if another process writes to it; as make_output_folder and FileLock
std::unique_ptr<FileLock> lock_output_folder(const std::string& folder);
/// The same lock on the other ranks, once rank 0 has it: the folder is locked until the last rank has ended.
/// Errors:   RunError [FOLDER] if rank 0 has lost it; InputError if the folder is not seen here
std::unique_ptr<FileLock> join_output_folder(const std::string& folder);

}  // namespace ditrain::files
