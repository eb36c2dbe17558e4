// What the parts of the MPI communicator share: error checks, the session that lives in the progress thread, requests.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// Errors: throws RunError unless the code is MPI_SUCCESS
void check_mpi(int code, const char* call);

/// Calls f(first, count) for pieces of at most max_count of 0 <= i < n.
template <class F>
void for_each_piece(int64_t n, int64_t max_count, F f) {
  for (int64_t first = 0; first < n; first += max_count) f(first, int(std::min(max_count, n - first)));
}

/// MPI_Init ... MPI_Finalize in a thread of its own. MPI can be started once in a process.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv, bool funneled);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Runs f where MPI may be called: here, or in the progress thread.
  template <class F>
  void run(F&& f) {
    if (thread_level_ == MPI_THREAD_MULTIPLE) return f();
    thread_.call(std::ref(f));
  }
  ProgressThread& thread() { return thread_; }
  std::string description() const;

 private:
  ProgressThread thread_;
  int thread_level_ = MPI_THREAD_SINGLE;
  const int exceptions_;
};

/// A communicator of MPI's that reports errors instead of ending the process. Making one is collective.
class OwnComm {
 public:
  /// A duplicate.
  OwnComm(MpiSession& session, MPI_Comm of);
  /// The ranks of `of` that give this color.
  OwnComm(MpiSession& session, MPI_Comm of, int color, int key);
  ~OwnComm();
  OwnComm(const OwnComm&) = delete;
  OwnComm& operator=(const OwnComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  void return_errors();

  MpiSession& session_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  const int exceptions_;
};

/// The operations on the pieces of one buffer.
class MpiRequest final : public Request {
 public:
  explicit MpiRequest(MpiSession& session) : session_(session), exceptions_(std::uncaught_exceptions()) {}
  ~MpiRequest() override;
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  /// start(first, count, MPI_Request*) returns the code of the MPI call named `call`, for every piece of n elements.
  template <class F>
  void start(int64_t n, int64_t max_count, const char* call, F start) {
    pieces_.reserve(size_t(n / max_count + 1));  // MPI must not see a request move
    session_.run([&] {
      for_each_piece(n, max_count, [&](int64_t first, int count) {
        check_mpi(start(first, count, &pieces_.emplace_back(MPI_REQUEST_NULL)), call);
      });
    });
  }

  bool test() override;
  bool wait_for(double seconds) override;

 private:
  MpiSession& session_;
  std::vector<MPI_Request> pieces_;
  bool done_ = false;
  const int exceptions_;
};

}  // namespace ditrain::dist
