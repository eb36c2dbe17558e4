#include "disk_queue.hpp"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace ditrain::memory {
namespace {

constexpr size_t kRequest = size_t{512} << 10;  // bytes: enough for the rate of an NVMe disk
constexpr unsigned kDepth = 16;                 // requests under way: its parallelism

// What is left of one request.
struct Request {
  size_t offset = 0, bytes = 0;
  std::byte* data = nullptr;
};

std::string too_short() { return "the file is shorter than it was made"; }

std::string one_by_one(int fd, DiskOperation operation, Request r) {
  while (r.bytes > 0) {
    const ssize_t n = operation == DiskOperation::kRead ? ::pread(fd, r.data, r.bytes, off_t(r.offset))
                                                        : ::pwrite(fd, r.data, r.bytes, off_t(r.offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::strerror(errno);
    if (n == 0) return too_short();
    r.offset += size_t(n), r.data += n, r.bytes -= size_t(n);
  }
  return "";
}

class Queue {
 public:
  Queue() { error_ = -io_uring_queue_init(kDepth, &ring_, 0); }
  ~Queue() {
    if (error_ == 0) io_uring_queue_exit(&ring_);
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  int error() const { return error_; }

  // Requests under way are waited for after an error, too: the kernel writes into their memory.
  std::string transfer(int fd, DiskOperation operation, Request whole) {
    std::vector<Request> requests;
    for (size_t at = 0; at < whole.bytes; at += kRequest)
      requests.push_back({whole.offset + at, std::min(kRequest, whole.bytes - at), whole.data + at});
    std::string problem;
    size_t next = 0;
    unsigned under_way = 0;
    while (under_way > 0 || (next < requests.size() && problem.empty())) {
      for (; problem.empty() && next < requests.size() && under_way < kDepth; ++next, ++under_way)
        prepare(fd, operation, &requests[next]);
      if (const int n = io_uring_submit_and_wait(&ring_, 1); n < 0 && n != -EINTR) return std::strerror(-n);
      io_uring_cqe* done = nullptr;
      while (io_uring_peek_cqe(&ring_, &done) == 0) {
        auto* request = static_cast<Request*>(io_uring_cqe_get_data(done));
        const int result = done->res;
        io_uring_cqe_seen(&ring_, done);
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

 private:
  void prepare(int fd, DiskOperation operation, Request* r) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // there is room: no more than kDepth are under way
    if (operation == DiskOperation::kRead)
      io_uring_prep_read(entry, fd, r->data, unsigned(r->bytes), r->offset);
    else
      io_uring_prep_write(entry, fd, r->data, unsigned(r->bytes), r->offset);
    io_uring_sqe_set_data(entry, r);
  }

  io_uring ring_{};
  int error_ = 0;
};

Queue& queue_of_this_thread() {
  thread_local Queue queue;
  return queue;
}

}  // namespace

std::string queue_refusal() {
  if (std::getenv("DITRAIN_NO_IO_URING") != nullptr) return "refused by DITRAIN_NO_IO_URING";
  const int error = queue_of_this_thread().error();
  return error == 0 ? "" : std::strerror(error);
}

std::string disk_transfer(int fd, DiskOperation operation, size_t offset, std::byte* data, size_t bytes) {
  const Request whole{offset, bytes, data};
  if (std::getenv("DITRAIN_NO_IO_URING") != nullptr || queue_of_this_thread().error() != 0)
    return one_by_one(fd, operation, whole);
  return queue_of_this_thread().transfer(fd, operation, whole);
}

}  // namespace ditrain::memory
