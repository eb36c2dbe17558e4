// The communicator over MPI. Two duplicates of the world: gradients (requests) on one, everything else on the other, so
// that a thread which talks about gradients and one which gathers metrics need no common order of calls.
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {
namespace {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw RunError({.where = "mpi", .what = std::string(call) + " failed: " + std::string(text, size_t(length))});
}

/// Calls f(first, count) for pieces of at most max_count of 0 <= i < n.
template <class F>
void for_each_piece(int64_t n, int64_t max_count, F f) {
  for (int64_t first = 0; first < n; first += max_count) f(first, int(std::min(max_count, n - first)));
}

/// The all-reduces of the pieces of one buffer.
class MpiRequest final : public Request {
 public:
  MpiRequest() : exceptions_(std::uncaught_exceptions()) {}
  ~MpiRequest() override {
    if (done_ || std::uncaught_exceptions() > exceptions_) return;
    MPI_Waitall(int(pieces_.size()), pieces_.data(), MPI_STATUSES_IGNORE);
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  MPI_Request* add_piece() { return &pieces_.emplace_back(MPI_REQUEST_NULL); }
  void reserve(size_t pieces) { pieces_.reserve(pieces); }  // MPI must not see a request move

  bool test() override {
    int flag = 1;
    if (!done_) check_mpi(MPI_Testall(int(pieces_.size()), pieces_.data(), &flag, MPI_STATUSES_IGNORE), "MPI_Testall");
    return done_ = flag != 0;
  }
  void wait() override {
    if (!done_) check_mpi(MPI_Waitall(int(pieces_.size()), pieces_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    done_ = true;
  }

 private:
  std::vector<MPI_Request> pieces_;
  bool done_ = false;
  const int exceptions_;
};

const char* thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "single";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    default:
      return "multiple";
  }
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, size_t(length));
  return version.substr(0, version.find_first_of(",\n"));  // Open MPI goes on with package, commit and date
}

/// MPI_Init ... MPI_Finalize. MPI can be started once in a process.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv) : exceptions_(std::uncaught_exceptions()) {
    int started = 0;
    MPI_Initialized(&started);
    DITRAIN_CHECK(!started, "MPI is already started: a process has one MPI communicator");
    check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &thread_level_), "MPI_Init_thread");
  }
  ~MpiSession() {
    if (std::uncaught_exceptions() <= exceptions_) MPI_Finalize();
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  int thread_level() const { return thread_level_; }

 private:
  int thread_level_ = MPI_THREAD_SINGLE;
  const int exceptions_;
};

/// A duplicate of the world that reports errors instead of ending the process.
class WorldDuplicate {
 public:
  WorldDuplicate() : exceptions_(std::uncaught_exceptions()) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~WorldDuplicate() {
    if (std::uncaught_exceptions() <= exceptions_) MPI_Comm_free(&comm_);
  }
  WorldDuplicate(const WorldDuplicate&) = delete;
  WorldDuplicate& operator=(const WorldDuplicate&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  const int exceptions_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(int* argc, char*** argv, int64_t max_count) : session_(argc, argv), max_count_(max_count) {
    DITRAIN_CHECK(max_count >= 1 && max_count <= std::numeric_limits<int>::max(), std::to_string(max_count));
    check_mpi(MPI_Comm_rank(control_.get(), &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(control_.get(), &world_size_), "MPI_Comm_size");
    find_neighbours();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  int num_nodes() const override { return num_nodes_; }
  bool concurrent_calls() const override { return session_.thread_level() == MPI_THREAD_MULTIPLE; }
  std::string description() const override {
    return library_version() + ", thread level " + thread_level_name(session_.thread_level());
  }

  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) override {
    check_count(n);
    auto request = std::make_unique<MpiRequest>();
    request->reserve(size_t(n / max_count_ + 1));
    for_each_piece(n, max_count_, [&](int64_t first, int count) {
      check_mpi(
          MPI_Iallreduce(MPI_IN_PLACE, data + first, count, MPI_FLOAT, MPI_SUM, gradients_.get(), request->add_piece()),
          "MPI_Iallreduce");
    });
    return request;
  }

  void allreduce_sum(double* data, int64_t n) override { allreduce(data, n, MPI_SUM); }
  void allreduce_max(double* data, int64_t n) override { allreduce(data, n, MPI_MAX); }
  void allreduce_min(double* data, int64_t n) override { allreduce(data, n, MPI_MIN); }

  uint64_t allreduce_or(uint64_t flags) override {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &flags, 1, MPI_UINT64_T, MPI_BOR, control_.get()), "MPI_Allreduce");
    return flags;
  }

  void broadcast(void* data, size_t bytes, int root) override {
    check_root(root);
    for_each_piece(int64_t(bytes), max_count_, [&](int64_t first, int count) {
      check_mpi(MPI_Bcast(static_cast<char*>(data) + first, count, MPI_BYTE, root, control_.get()), "MPI_Bcast");
    });
  }

  void barrier() override { check_mpi(MPI_Barrier(control_.get()), "MPI_Barrier"); }

  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    check_root(root);
    const std::vector<double> sizes = gather_to_all(double(text.size()));
    const double total = std::accumulate(sizes.begin(), sizes.end(), 0.0);
    DITRAIN_CHECK(total <= std::numeric_limits<int>::max(), "gather_strings of 2 GiB or more");
    const std::vector<int> counts(sizes.begin(), sizes.end());
    std::vector<int> starts(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
    std::string all(rank_ == root ? size_t(total) : 0, '\0');
    check_mpi(MPI_Gatherv(text.data(), int(text.size()), MPI_CHAR, all.data(), counts.data(), starts.data(), MPI_CHAR,
                          root, control_.get()),
              "MPI_Gatherv");
    std::vector<std::string> out;
    if (rank_ != root) return out;
    for (size_t i = 0; i < counts.size(); ++i) out.push_back(all.substr(size_t(starts[i]), size_t(counts[i])));
    return out;
  }

  std::vector<double> gather(const double* values, int64_t n, int root) override {
    check_count(n);
    check_root(root);
    DITRAIN_CHECK(n <= max_count_, "gather of " + std::to_string(n) + " values");
    std::vector<double> all(rank_ == root ? size_t(n) * size_t(world_size_) : 0);
    check_mpi(MPI_Gather(values, int(n), MPI_DOUBLE, all.data(), int(n), MPI_DOUBLE, root, control_.get()),
              "MPI_Gather");
    return all;
  }

 private:
  void end_all_ranks(int exit_code) override { MPI_Abort(MPI_COMM_WORLD, exit_code); }
  static void check_count(int64_t n) { DITRAIN_CHECK(n >= 0, "count " + std::to_string(n)); }
  void check_root(int root) const {
    DITRAIN_CHECK(root >= 0 && root < world_size_,
                  "root " + std::to_string(root) + " of " + std::to_string(world_size_));
  }

  void find_neighbours() {
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(control_.get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
    MPI_Comm_rank(node, &local_rank_);
    MPI_Comm_size(node, &local_size_);
    MPI_Comm_free(&node);
    double first_of_node = local_rank_ == 0;
    allreduce_sum(&first_of_node, 1);
    num_nodes_ = int(first_of_node);
  }

  void allreduce(double* data, int64_t n, MPI_Op op) {
    check_count(n);
    for_each_piece(n, max_count_, [&](int64_t first, int count) {
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, data + first, count, MPI_DOUBLE, op, control_.get()), "MPI_Allreduce");
    });
  }

  std::vector<double> gather_to_all(double value) {
    std::vector<double> all(static_cast<size_t>(world_size_));
    check_mpi(MPI_Allgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, control_.get()), "MPI_Allgather");
    return all;
  }

  MpiSession session_;  // first: it must outlive the duplicates
  WorldDuplicate control_, gradients_;
  const int64_t max_count_;
  int rank_ = 0, world_size_ = 1, local_rank_ = 0, local_size_ = 1, num_nodes_ = 1;
};

/// A launcher of another MPI starts ranks that do not find each other: each would train alone, into the same folder.
void check_launcher(const Communicator& comm) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* ranks = std::getenv(variable);
    if (ranks == nullptr || std::atoi(ranks) <= 1 || comm.world_size() > 1) continue;
    throw RunError({.where = "mpi",
                    .what = "mpirun and the MPI library of ditrain do not belong together: each rank sees itself alone",
                    .got = std::string(variable) + "=" + ranks + " and 1 rank in " + comm.description(),
                    .hint = "the launcher of that library"});
  }
}

}  // namespace

std::string mpi_launcher() {
  struct Sign {
    const char *variable, *launcher;
  };
  // PMI and PMIx are how launchers (srun, MPICH's mpiexec, prterun) tell a process its rank.
  for (const Sign& sign : std::initializer_list<Sign>{{"OMPI_COMM_WORLD_SIZE", "Open MPI mpirun"},
                                                      {"PMIX_RANK", "a PMIx launcher"},
                                                      {"PMI_RANK", "a PMI launcher"},
                                                      {"PMI_SIZE", "a PMI launcher"}})
    if (std::getenv(sign.variable)) return sign.launcher;
  return "";
}

std::unique_ptr<Communicator> make_communicator(int* argc, char*** argv, int64_t max_count) {
  if (mpi_launcher().empty()) return make_null_communicator();
  auto comm = std::make_unique<MpiCommunicator>(argc, argv, max_count);
  check_launcher(*comm);
  return comm;
}

}  // namespace ditrain::dist
