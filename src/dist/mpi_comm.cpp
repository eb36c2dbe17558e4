// The communicator over MPI. Two communicators of MPI's for the same ranks: gradients and messages on one, everything
// else on the other, so that a thread which talks about gradients and one which gathers metrics need no common order of
// calls. All operations are non-blocking underneath: waiting can be polite and can end. (A blocking MPI_Allreduce in a
// thread of its own is 1.5 times as fast as MPI_Iallreduce with Open MPI 4.1, 128 MiB and 2 ranks of a node; but it
// spins, and nothing can end it. What is fast is the reduction through shared memory, see engine.hpp.)
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"
#include "mpi_support.hpp"
#include "mpi_watch.hpp"

namespace ditrain::dist {
namespace {

constexpr double kRankZeroFirst_s = 3;  // for rank 0 to say what went wrong
constexpr double kPatience_s = 2;       // for the answer of a rank that may be busy, not dead

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(int* argc, char*** argv, const MpiConfig& config)
      : session_owner_(std::make_shared<MpiSession>(argc, argv, config.funneled)),
        session_(*session_owner_),
        control_(session_, MPI_COMM_WORLD),
        gradients_(session_, MPI_COMM_WORLD),
        max_count_(config.max_count) {
    DITRAIN_CHECK(max_count_ >= 1 && max_count_ <= std::numeric_limits<int>::max(), std::to_string(max_count_));
    find_own_rank();
    find_neighbours(config.ranks_per_node);
    watch_ = run_watch_ = std::make_shared<MpiWatch>(session_, control_.get(), counts());
  }
  /// The parent's ranks that give this color.
  MpiCommunicator(MpiCommunicator& parent, int color, int key)
      : session_owner_(parent.session_owner_),
        session_(*session_owner_),
        control_(session_, parent.control_.get(), color, key),
        gradients_(session_, control_.get()),
        max_count_(parent.max_count_),
        run_watch_(parent.run_watch_) {
    find_own_rank();
    std::vector<std::pair<int, int>> places;  // node and its part, which in the parent is one number
    for (const double rank : gather_to_all(parent.rank_)) {
      places.emplace_back(parent.nodes_[size_t(rank)], 0);
      hosts_.push_back(parent.hosts_[size_t(rank)]);
      ranks_in_run_.push_back(parent.rank_in_run(int(rank)));
    }
    number_nodes(places);
    watch_ = std::make_shared<MpiWatch>(session_, control_.get(), counts());
    set_timeout(parent.timeout_s());  // last: a timeout asks the watch
  }

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  int num_nodes() const override { return num_nodes_; }
  std::vector<int> nodes() const override { return nodes_; }
  std::string host(int rank) const override { return hosts_[size_t(rank)].name; }
  int rank_in_run(int rank) const override { return ranks_in_run_.empty() ? rank : ranks_in_run_[size_t(rank)]; }
  bool is_part_of_run() const override { return !ranks_in_run_.empty(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    DITRAIN_CHECK(color >= 0, "color " + std::to_string(color));
    return std::make_unique<MpiCommunicator>(*this, color, key);
  }
  ProgressThread* progress_thread() override { return &session_.thread(); }
  std::string description() const override { return session_.description(); }

  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) override {
    check_count(n);
    return start(n, "MPI_Iallreduce", [=, this](int64_t first, int count, MPI_Request* r) {
      return MPI_Iallreduce(MPI_IN_PLACE, data + first, count, MPI_FLOAT, MPI_SUM, gradients_.get(), r);
    });
  }
  std::unique_ptr<Request> start_send(const void* data, size_t bytes, int to, int tag) override {
    check_rank(to);
    return start(int64_t(bytes), "MPI_Isend", [=, this](int64_t first, int count, MPI_Request* r) {
      return MPI_Isend(static_cast<const char*>(data) + first, count, MPI_BYTE, to, tag, gradients_.get(), r);
    });
  }
  std::unique_ptr<Request> start_receive(void* data, size_t bytes, int from, int tag) override {
    check_rank(from);
    return start(int64_t(bytes), "MPI_Irecv", [=, this](int64_t first, int count, MPI_Request* r) {
      return MPI_Irecv(static_cast<char*>(data) + first, count, MPI_BYTE, from, tag, gradients_.get(), r);
    });
  }

  void allreduce_sum(double* data, int64_t n) override { allreduce(data, n, MPI_SUM); }
  void allreduce_max(double* data, int64_t n) override { allreduce(data, n, MPI_MAX); }

  uint64_t allreduce_or(uint64_t flags) override {
    control(1, "MPI_Iallreduce", [&](int64_t, int, MPI_Request* r) {
      return MPI_Iallreduce(MPI_IN_PLACE, &flags, 1, MPI_UINT64_T, MPI_BOR, control_.get(), r);
    });
    return flags;
  }

  void broadcast(void* data, size_t bytes, int root) override {
    check_rank(root);
    control(int64_t(bytes), "MPI_Ibcast", [=, this](int64_t first, int count, MPI_Request* r) {
      return MPI_Ibcast(static_cast<char*>(data) + first, count, MPI_BYTE, root, control_.get(), r);
    });
  }

  void barrier() override {
    control(1, "MPI_Ibarrier", [&](int64_t, int, MPI_Request* r) { return MPI_Ibarrier(control_.get(), r); });
  }

  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    check_rank(root);
    const std::vector<double> sizes = gather_to_all(double(text.size()));
    std::vector<std::string> out(rank_ == root ? sizes.size() : 0);
    for (size_t i = 0; i < out.size(); ++i) out[i].reserve(size_t(sizes[i]));
    // In rounds, so that MPI's counts and places stay within an int.
    const auto most = size_t(std::max<int64_t>(1, max_count_ / world_size_));
    const auto longest = size_t(*std::max_element(sizes.begin(), sizes.end()));
    std::vector<int> counts(sizes.size()), starts(sizes.size());
    std::string all;
    for (size_t first = 0; first < longest; first += most) {
      for (size_t i = 0; i < sizes.size(); ++i)
        counts[i] = int(std::min(most, size_t(sizes[i]) - std::min(first, size_t(sizes[i]))));
      std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), 0);
      if (rank_ == root) all.resize(size_t(starts.back()) + size_t(counts.back()));
      control(1, "MPI_Igatherv", [&](int64_t, int, MPI_Request* r) {
        return MPI_Igatherv(text.data() + std::min(first, text.size()), counts[size_t(rank_)], MPI_CHAR, all.data(),
                            counts.data(), starts.data(), MPI_CHAR, root, control_.get(), r);
      });
      for (size_t i = 0; i < out.size(); ++i) out[i].append(all, size_t(starts[i]), size_t(counts[i]));
    }
    return out;
  }

  std::vector<double> gather(const double* values, int64_t n, int root) override {
    check_count(n);
    check_rank(root);
    DITRAIN_CHECK(n <= max_count_, "gather of " + std::to_string(n) + " values");
    std::vector<double> all(rank_ == root ? size_t(n) * size_t(world_size_) : 0);
    control(1, "MPI_Igather", [&](int64_t, int, MPI_Request* r) {
      return MPI_Igather(values, int(n), MPI_DOUBLE, all.data(), int(n), MPI_DOUBLE, root, control_.get(), r);
    });
    return all;
  }

 private:
  struct Host {
    char name[64] = {};
  };

  void end_all_ranks(int exit_code) override {
    session_.run([=] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
  }
  std::vector<Arrivals> ask_arrivals() override {
    std::vector<Arrivals> arrivals = watch_->ask(kPatience_s);
    // Rank 0 speaks for all and ends the job: until then it must be answered, or it would name this rank as well.
    if (rank_in_run(rank_) != 0) std::this_thread::sleep_for(std::chrono::duration<double>(kRankZeroFirst_s));
    session_.thread().halt(true);
    return arrivals;
  }
  std::vector<Arrivals> ask_run() override { return run_watch_->ask(kPatience_s); }
  static void check_count(int64_t n) { DITRAIN_CHECK(n >= 0, "count " + std::to_string(n)); }
  void check_rank(int rank) const {
    DITRAIN_CHECK(rank >= 0 && rank < world_size_,
                  "rank " + std::to_string(rank) + " of " + std::to_string(world_size_));
  }

  template <class F>
  std::unique_ptr<MpiRequest> start(int64_t n, const char* call, F f) {
    auto request = std::make_unique<MpiRequest>(session_);
    request->start(n, max_count_, call, f);
    return request;
  }
  template <class F>
  void control(int64_t n, const char* call, F f) {
    count_control();
    const std::unique_ptr<MpiRequest> request = start(n, call, f);
    await(*request, call);
  }

  void allreduce(double* data, int64_t n, MPI_Op op) {
    check_count(n);
    control(n, "MPI_Iallreduce", [=, this](int64_t first, int count, MPI_Request* r) {
      return MPI_Iallreduce(MPI_IN_PLACE, data + first, count, MPI_DOUBLE, op, control_.get(), r);
    });
  }

  std::vector<double> gather_to_all(double value) {
    std::vector<double> all(static_cast<size_t>(world_size_));
    control(1, "MPI_Iallgather", [&](int64_t, int, MPI_Request* r) {
      return MPI_Iallgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, control_.get(), r);
    });
    return all;
  }

  void find_own_rank() {
    session_.run([&] {
      check_mpi(MPI_Comm_rank(control_.get(), &rank_), "MPI_Comm_rank");
      check_mpi(MPI_Comm_size(control_.get(), &world_size_), "MPI_Comm_size");
    });
  }

  /// The lowest rank of this node, as the library sees it.
  int lowest_neighbour() {
    int lowest = rank_;
    session_.run([&] {
      MPI_Comm node = MPI_COMM_NULL;
      check_mpi(MPI_Comm_split_type(control_.get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
                "MPI_Comm_split_type");
      check_mpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast");
      MPI_Comm_free(&node);
    });
    return lowest;
  }

  void find_neighbours(int ranks_per_node) {
    std::vector<std::pair<int, int>> places;  // (lowest rank, part of its node)
    std::map<int, int> ranks_of;
    for (const double lowest : gather_to_all(lowest_neighbour())) {
      const int before = ranks_of[int(lowest)]++;
      places.emplace_back(int(lowest), ranks_per_node > 0 ? before / ranks_per_node : 0);
    }
    number_nodes(places);
    hosts_.resize(size_t(world_size_));
    Host own;
    gethostname(own.name, sizeof(own.name) - 1);
    control(1, "MPI_Iallgather", [&](int64_t, int, MPI_Request* r) {
      return MPI_Iallgather(&own, sizeof(Host), MPI_BYTE, hosts_.data(), sizeof(Host), MPI_BYTE, control_.get(), r);
    });
  }

  /// From where each rank is: nodes in the order of their lowest ranks.
  void number_nodes(const std::vector<std::pair<int, int>>& places) {
    std::map<std::pair<int, int>, int> number;
    for (const auto& place : places) nodes_.push_back(number.try_emplace(place, int(number.size())).first->second);
    num_nodes_ = int(number.size());
    const int mine = nodes_[size_t(rank_)];
    local_size_ = int(std::count(nodes_.begin(), nodes_.end(), mine));
    local_rank_ = int(std::count(nodes_.begin(), nodes_.begin() + rank_, mine));
  }

  const std::shared_ptr<MpiSession> session_owner_;  // first: it must outlive what belongs to it
  MpiSession& session_;
  OwnComm control_, gradients_;
  const int64_t max_count_;
  int rank_ = 0, world_size_ = 1, local_rank_ = 0, local_size_ = 1, num_nodes_ = 1;
  std::vector<int> nodes_;
  std::vector<Host> hosts_;
  std::vector<int> ranks_in_run_;                // empty: the numbers are those of the run
  std::shared_ptr<MpiWatch> watch_, run_watch_;  // of these ranks, of all ranks of the run
};

/// Ranks that the launcher announced in this variable; 0: it did not.
int announced_ranks(const char* variable) {
  const char* ranks = std::getenv(variable);
  return ranks == nullptr ? 0 : std::atoi(ranks);
}

/// srun starts tasks that do not find each other if it was not told which PMI the library speaks. `instead` is what
/// this one of them found.
void check_slurm_step(const std::string& instead) {
  const int tasks = announced_ranks("SLURM_STEP_NUM_TASKS");
  if (tasks <= 1) return;
  throw InputError({.where = "mpi",
                    .what = "srun started several tasks that MPI does not know as ranks: each would train alone",
                    .got = fmt::format("SLURM_STEP_NUM_TASKS={} and {}", tasks, instead),
                    .hint = "srun --mpi=pmix (srun --mpi=list shows what there is), or mpirun"});
}

/// A launcher of another MPI, or an srun that speaks another PMI, starts ranks that do not find each other: each would
/// train alone, into the same folder.
void check_launcher(const Communicator& comm) {
  if (comm.world_size() > 1) return;
  const std::string alone = "1 rank in " + comm.description();
  const auto check = [&](const char* variable) {
    if (announced_ranks(variable) <= 1) return;
    throw RunError({.where = "mpi",
                    .what = "mpirun and the MPI library of ditrain do not belong together: each rank sees itself alone",
                    .got = fmt::format("{}={} and {}", variable, announced_ranks(variable), alone),
                    .hint = "the launcher of that library"});
  };
  check("OMPI_COMM_WORLD_SIZE");  // before Slurm's: mpirun may start remote ranks by srun
  check_slurm_step(alone);        // before PMI's: srun may set it, too
  check("PMI_SIZE");
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

std::unique_ptr<Communicator> make_communicator(int* argc, char*** argv, const MpiConfig& config) {
  if (mpi_launcher().empty()) {
    check_slurm_step("no PMI or PMIx variables");
    return make_null_communicator();
  }
  auto comm = std::make_unique<MpiCommunicator>(argc, argv, config);
  check_launcher(*comm);
  return comm;
}

}  // namespace ditrain::dist
