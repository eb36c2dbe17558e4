// One read or write of a disk as many requests at once: through io_uring where the kernel lets us, else one after the
// other with pread and pwrite.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

struct io_uring;

namespace ditrain::memory {

enum class DiskOperation { kRead, kWrite };

/// The line that would let io_uring be had, after such an error of the kernel; "" if none does. Files are read below
/// `root` ("" is the real system).
std::string what_allows_io_uring(int error, const std::string& root = "");

class DiskQueue {
 public:
  /// Hands what is prepared to the kernel and waits for that number of completions: io_uring_submit_and_wait. A test
  /// fails it.
  using Submit = int (*)(io_uring*, unsigned);

  DiskQueue();
  explicit DiskQueue(Submit submit);
  ~DiskQueue();
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  /// Returns what went wrong; "" if nothing did. When it returns, the kernel has done with `data`, also after an error.
  /// Threads: any number, one after the other
  std::string transfer(int fd, DiskOperation operation, size_t offset, std::byte* data, size_t bytes);

  /// Why io_uring cannot be used, and what would mend it; "" if it is used. DITRAIN_NO_IO_URING in the environment
  /// refuses it, for tests.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Request;
  void open_ring();
  void prepare(int fd, DiskOperation operation, Request* request);
  std::string through_ring(int fd, DiskOperation operation, const Request& whole);
  std::string submit();
  void abandon(unsigned under_way);

  const Submit submit_;
  std::mutex mutex_;
  std::unique_ptr<io_uring> ring_;  // null: refused
  std::string refusal_;
};

}  // namespace ditrain::memory
