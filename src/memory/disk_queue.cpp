#include "disk_queue.hpp"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace ditrain::memory {

// What is left of one request.
struct DiskQueue::Request {
  size_t offset = 0, bytes = 0;
  std::byte* data = nullptr;
};

namespace {

constexpr size_t kRequest = size_t{512} << 10;  // bytes: enough for the rate of an NVMe disk
constexpr unsigned kDepth = 16;                 // requests under way: its parallelism
constexpr int kTries = 5000;                    // of a kernel that is busy, a millisecond apart

std::string too_short() { return "the file is shorter than it was made"; }

void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

bool passes(int error) { return error == EAGAIN || error == EBUSY || error == EINTR; }

std::string one_by_one(int fd, DiskOperation operation, size_t offset, std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = operation == DiskOperation::kRead ? ::pread(fd, data, bytes, off_t(offset))
                                                        : ::pwrite(fd, data, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::strerror(errno);
    if (n == 0) return too_short();
    offset += size_t(n), data += n, bytes -= size_t(n);
  }
  return "";
}

}  // namespace

std::string what_allows_io_uring(int error, const std::string& root) {
  std::ifstream setting(root + "/proc/sys/kernel/io_uring_disabled");
  int disabled = 0;
  if (error == EPERM && setting >> disabled && disabled != 0) return "sysctl kernel.io_uring_disabled=0 (as root)";
  switch (error) {
    case EPERM:
    case EACCES:
      return "a container's seccomp profile that allows io_uring (docker run --security-opt seccomp=FILE)";
    case ENOSYS:
      return "Linux 5.6 or newer, or a container's seccomp profile that allows io_uring";
    case ENOMEM:
      return "ulimit -l unlimited";
    case EMFILE:
      return "a larger ulimit -n";
    default:
      return "";
  }
}

DiskQueue::DiskQueue() : DiskQueue(io_uring_submit_and_wait) {}

DiskQueue::DiskQueue(Submit submit) : submit_(submit) {
  if (std::getenv("DITRAIN_NO_IO_URING") != nullptr)
    refusal_ = "refused by DITRAIN_NO_IO_URING";
  else
    open_ring();
}

DiskQueue::~DiskQueue() {
  if (ring_) io_uring_queue_exit(ring_.get());
}

void DiskQueue::open_ring() {
  ring_ = std::make_unique<io_uring>();
  const int error = -io_uring_queue_init(kDepth, ring_.get(), 0);
  if (error == 0) {
    io_uring_probe* const probe = io_uring_get_probe_ring(ring_.get());
    const bool can = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    if (can) return;
    io_uring_queue_exit(ring_.get());
  }
  ring_.reset();
  refusal_ = error == 0 ? "it has no reads and writes of buffers" : std::strerror(error);
  if (const std::string mend = what_allows_io_uring(error == 0 ? ENOSYS : error); !mend.empty())
    refusal_ += "; " + mend;
}

std::string DiskQueue::transfer(int fd, DiskOperation operation, size_t offset, std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  return ring_ ? through_ring(fd, operation, {offset, bytes, data}) : one_by_one(fd, operation, offset, data, bytes);
}

void DiskQueue::prepare(int fd, DiskOperation operation, Request* r) {
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());  // there is room: no more than kDepth are under way
  if (operation == DiskOperation::kRead)
    io_uring_prep_read(entry, fd, r->data, unsigned(r->bytes), r->offset);
  else
    io_uring_prep_write(entry, fd, r->data, unsigned(r->bytes), r->offset);
  io_uring_sqe_set_data(entry, r);
}

// Returns once something may be done. A busy kernel is asked again.
std::string DiskQueue::submit() {
  for (int tries = 0;; ++tries) {
    const int n = submit_(ring_.get(), 1);
    if (n >= 0) return "";
    if (!passes(-n) || tries == kTries) return std::string("io_uring: ") + std::strerror(-n);
    if (io_uring_cq_ready(ring_.get()) > 0) return "";
    if (n != -EINTR) wait_a_little();
  }
}

// The kernel reads or writes the memory of what it was given until that is done; what it was not given is dropped with
// the ring.
void DiskQueue::abandon(unsigned under_way) {
  for (under_way -= io_uring_sq_ready(ring_.get()); under_way > 0;) {
    io_uring_cqe* done = nullptr;
    if (io_uring_wait_cqe(ring_.get(), &done) != 0) {
      wait_a_little();
      continue;
    }
    io_uring_cqe_seen(ring_.get(), done);
    --under_way;
  }
  io_uring_queue_exit(ring_.get());
  open_ring();
}

std::string DiskQueue::through_ring(int fd, DiskOperation operation, const Request& whole) {
  std::vector<Request> requests;
  for (size_t at = 0; at < whole.bytes; at += kRequest)
    requests.push_back({whole.offset + at, std::min(kRequest, whole.bytes - at), whole.data + at});
  std::string problem;
  size_t next = 0;
  unsigned under_way = 0;
  while (under_way > 0 || (next < requests.size() && problem.empty())) {
    for (; problem.empty() && next < requests.size() && under_way < kDepth; ++next, ++under_way)
      prepare(fd, operation, &requests[next]);
    if (const std::string refused = submit(); !refused.empty()) {
      abandon(under_way);
      return problem.empty() ? refused : problem;
    }
    io_uring_cqe* done = nullptr;
    while (io_uring_peek_cqe(ring_.get(), &done) == 0) {
      auto* request = static_cast<Request*>(io_uring_cqe_get_data(done));
      const int result = done->res;
      io_uring_cqe_seen(ring_.get(), done);
      --under_way;
      if (result == -EINTR || result == -EAGAIN || (result > 0 && size_t(result) < request->bytes)) {
        const size_t part = size_t(std::max(result, 0));
        request->offset += part, request->data += part, request->bytes -= part;
        if (problem.empty()) prepare(fd, operation, request), ++under_way;
      } else if (result < 0) {
        problem = std::strerror(-result);
      } else if (result == 0) {
        problem = too_short();
      }
    }
  }
  return problem;
}

}  // namespace ditrain::memory
