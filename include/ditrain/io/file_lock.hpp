// A lock that one process at a time has, on any node that sees the file: fcntl, which NFS and Lustre honour too. The
// system takes it back when the process ends, however it ends.
#pragma once
#include <string>

namespace ditrain::io {

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
  const std::string& reason() const { return reason_; }
  /// Says who has it, for who reads the file. Errors: RunError
  void describe(const std::string& holder);
  /// What the holder says; "" if that cannot be read.
  std::string holder() const;

 private:
  std::string path_, reason_;
  int fd_;
  bool locked_ = false;
};

/// Host, process, job and time, as one line: for FileLock::describe.
std::string this_process();

}  // namespace ditrain::io
