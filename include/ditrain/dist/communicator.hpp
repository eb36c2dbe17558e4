// The ranks of a run and their communication. One interface, two implementations: MPI (mpi_comm.cpp) and a single rank
// without MPI (null_comm.cpp). "Collective" means that every rank calls the same functions in the same order. Results
// of reductions are bit-identical on every rank. Never call any of this in a signal handler.
//
//   const auto comm = make_communicator(&argc, &argv);
//   comm->allreduce_sum(values, n);                       // double; for gradients see gradient_buckets.hpp
//
// Waiting threads sleep between polls. set_timeout() turns a rank that does not come into a TimeoutError that names it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/progress_thread.hpp"

namespace ditrain::dist {

/// The results of a reduction of gradients other than the sum itself.
struct ReductionOutcome {
  double sum_squares = 0;         ///< of the sums, in f64; bit-identical on all ranks; not finite if a sum is not
  double start_s = 0, end_s = 0;  ///< now_s() times between which it was under way
};

/// An operation under way. Its buffer must not be touched until test() or a wait has returned true.
/// Destroying an unfinished request waits for it, except while an exception unwinds the stack.
class Request {
 public:
  virtual ~Request() = default;
  /// True once it is done; also lets MPI make progress.
  virtual bool test() = 0;
  /// Returns true when it is done, false if it is not within `seconds`. Calling it again is harmless.
  virtual bool wait_for(double seconds) = 0;
  /// Returns when it is done.
  void wait();
  /// The outcome of a finished reduction, if it has one.
  virtual std::optional<ReductionOutcome> outcome() const { return std::nullopt; }
};

/// One that was done when it was made.
class DoneRequest final : public Request {
 public:
  bool test() override { return true; }
  bool wait_for(double) override { return true; }
};

/// How often a rank has entered operations that need all ranks. The watchdog compares these counts.
struct Arrivals {
  uint64_t control = 0;    ///< reductions of doubles, broadcasts, barriers, gathers
  uint64_t gradients = 0;  ///< buckets of gradients
  bool answered = true;    ///< false: the rank did not answer, the counts are unknown
  double disk_idle_s = std::numeric_limits<double>::infinity();  ///< seconds since the rank's last DiskWork ended
};

/// The counters behind Arrivals; any thread may read them.
struct Counts {
  std::atomic<uint64_t> control{0}, gradients{0};
  std::atomic<int> disk_work{0}, watched_work{0};
  std::atomic<double> disk_work_end_s{-std::numeric_limits<double>::infinity()};
  std::atomic<double> disk_moved_s{0};

  Arrivals now() const;
  double disk_still_s() const;
};

/// A rank waited longer than its timeout. Other ranks throw it only after rank 0 of the run has had time to report it.
struct TimeoutError : RunError {
  using RunError::RunError;
};

/// All ranks of the run, or some of them (see split).
/// Errors:  functions throw RunError if MPI reports an error, TimeoutError if the timeout is over; LogicFault for a
///          negative count or a rank out of range.
/// Threads: any thread may call any function; requests may be used by one thread while others use the rest. Collective
///          operations of one kind (gradients; everything else) have one order on all ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;           ///< number among the ranks of this node
  virtual int local_size() const = 0;           ///< ranks on this node
  virtual int num_nodes() const = 0;            ///< nodes of the run
  virtual std::string description() const = 0;  ///< library and granted thread level, for the log
  /// Number of the node of each rank; nodes are numbered in the order of their lowest ranks. All 0 unless overridden.
  virtual std::vector<int> nodes() const { return std::vector<int>(size_t(world_size()), 0); }
  /// The host name of a rank, for messages.
  virtual std::string host(int rank) const;
  /// The number of a rank among all ranks of the run, for messages.
  virtual int rank_in_run(int rank) const { return rank; }
  virtual bool is_part_of_run() const { return false; }  ///< true: made by split()

  /// Collective. The ranks that give the same color (0 or more) get a communicator of their own, ordered by key, equal
  /// keys by rank (as MPI_Comm_split). It shares the progress thread; its functions need no common order with those of
  /// this communicator. It starts with this one's timeout, which can then be changed independently. It may outlive this
  /// one.
  /// Errors: LogicFault for a negative color, and where ranks cannot be split
  virtual std::unique_ptr<Communicator> split(int color, int key);
  /// The thread that makes progress; nullptr with one rank, which needs none.
  virtual ProgressThread* progress_thread() { return nullptr; }

  /// Starts an all-reduce: data[i] becomes the sum over ranks, for i < n. n must be the same on all ranks.
  virtual std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) = 0;
  /// Starts a message to or from one rank. Messages between two ranks with the same tag (0 ... 32000) arrive in the
  /// order of the calls. Errors: LogicFault with a single rank
  virtual std::unique_ptr<Request> start_send(const void* data, size_t bytes, int to, int tag);
  virtual std::unique_ptr<Request> start_receive(void* data, size_t bytes, int from, int tag);

  /// data[i] becomes the sum or the maximum over ranks, for i < n. The maximum may drop a NaN.
  virtual void allreduce_sum(double* data, int64_t n) = 0;
  virtual void allreduce_max(double* data, int64_t n) = 0;
  /// Bitwise or over ranks.
  virtual uint64_t allreduce_or(uint64_t flags) = 0;
  /// Copies `bytes` of rank `root` into every rank's `data`.
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  /// Returns when every rank is here.
  virtual void barrier() = 0;
  /// Returns on `root` the texts of all ranks in order of rank, elsewhere nothing.
  virtual std::vector<std::string> gather_strings(const std::string& text, int root = 0) = 0;
  /// Returns on `root` world_size * n values, rank by rank, elsewhere nothing. n must be the same on every rank.
  virtual std::vector<double> gather(const double* values, int64_t n, int root = 0) = 0;

  /// Sets how long an operation may keep this rank waiting before it throws a TimeoutError; infinity (the initial
  /// value): no limit. Time in which another rank is in DiskWork does not count, as long as all ranks of the run
  /// answer.
  void set_timeout(double seconds) { timeout_s_ = seconds; }
  double timeout_s() const { return timeout_s_; }
  /// Adds one to the gradient operations that this rank has entered.
  void count_gradients() { ++counts_->gradients; }
  Arrivals arrivals() const { return counts_->now(); }
  /// Seconds since this rank's watched DiskWork last made progress, to detect disks that hang; 0: it does none.
  double disk_still_s() const { return counts_->disk_still_s(); }

  /// Returns when the request is done. Errors: TimeoutError after the timeout, see give_up()
  void await(Request& request, const std::string& what);
  /// Gives up the wait for `what` ("bucket 3 of 12"): asks all ranks of this communicator how far they are, and names
  /// those that lag or do not answer. If the communicator is a part of the run, a lagging rank may itself wait for a
  /// rank outside of it.
  /// Errors: always throws TimeoutError
  [[noreturn]] void give_up(const std::string& what);

  /// Flushes the standard streams and ends all ranks now with this exit code, without running destructors.
  [[noreturn]] void abort(int exit_code);

 protected:
  /// Ends the other ranks; it may end this one too.
  virtual void end_all_ranks(int exit_code) = 0;
  /// The counts of every rank now. One rank calls it, without help of the others. Nothing else may be called
  /// afterwards.
  virtual std::vector<Arrivals> ask_arrivals() { return {arrivals()}; }
  /// The counts of every rank of the run now; the run continues. Empty: unknown.
  virtual std::vector<Arrivals> ask_run() { return {}; }
  void count_control() { ++counts_->control; }
  const std::shared_ptr<Counts>& counts() const { return counts_; }

 private:
  friend class DiskWork;
  double patience_with_disks(const std::string& what);

  std::atomic<double> timeout_s_{std::numeric_limits<double>::infinity()};
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

/// Marks a scope in which this rank waits for its disk. Other ranks wait for it without a timeout, as long as this rank
/// answers. `communicator` must be that of all ranks.
class DiskWork {
 public:
  /// kWaits: what may stand still without harm, as a terminal does; disk_still_s() leaves it out.
  enum class Kind { kWatched, kWaits };
  explicit DiskWork(Communicator& communicator, Kind kind = Kind::kWatched);
  ~DiskWork();
  DiskWork(const DiskWork&) = delete;
  DiskWork& operator=(const DiskWork&) = delete;

  /// Reports progress: an operation on the disk has ended.
  void moved() const;

 private:
  const std::shared_ptr<Counts> counts_;
  const Kind kind_;
};

/// Sets the timeout within a scope: seconds that an operation may keep this rank waiting; 0: no limit.
class TimeoutScope {
 public:
  TimeoutScope(Communicator& communicator, double seconds);
  ~TimeoutScope() { communicator_.set_timeout(before_); }
  TimeoutScope(const TimeoutScope&) = delete;
  TimeoutScope& operator=(const TimeoutScope&) = delete;

 private:
  Communicator& communicator_;
  double before_;
};

/// Returns the root's text on every rank. Collective.
std::string broadcast_text(Communicator& communicator, std::string text, int root = 0);
/// Returns on `root` the values of all ranks in order of rank, elsewhere nothing. Ranks may give different numbers of
/// values. Collective.
std::vector<float> gather_floats(Communicator& communicator, std::vector<float> mine, int root = 0);

/// The only rank: every operation is a no-op or a copy.
std::unique_ptr<Communicator> make_null_communicator();

/// The name of the launcher that started this process as one of several MPI ranks, from its environment variables;
/// "" for a plain run (also inside a Slurm allocation, where only srun sets PMI variables).
std::string mpi_launcher();

struct MpiConfig {
  int64_t max_count = int64_t{1} << 30;  ///< elements of one MPI call; longer operations are split into pieces
  bool funneled = false;                 ///< request MPI_THREAD_FUNNELED only
  int ranks_per_node = 0;                ///< simulate nodes with at most this many ranks; 0: the real nodes
};

/// Makes the MPI communicator if mpirun or srun launched the process (see mpi_launcher), else the null communicator,
/// without MPI_Init. The progress thread owns MPI: under MPI_THREAD_MULTIPLE other threads call MPI too, otherwise all
/// calls go through that thread. The destructor of the MPI communicator finalises MPI, except while an exception
/// unwinds the stack: the other ranks could then hang in a collective, so the program calls abort() or just ends, and
/// the launcher ends the job.
/// Errors:  RunError if MPI does not start (Open MPI may end the process by itself instead), or if the launcher reports
///          several ranks but MPI one, because they belong to different MPI libraries. InputError if srun started
///          several tasks without PMI, or with a PMI that MPI does not speak
std::unique_ptr<Communicator> make_communicator(int* argc, char*** argv, const MpiConfig& config = {});

}  // namespace ditrain::dist
