// Ranks of a run and how they talk. One interface, two implementations: MPI (mpi_comm.cpp) and a single rank without
// MPI (null_comm.cpp). Collective: every rank calls the same functions in the same order. Results of reductions are the
// same bits on every rank. Never call any of this in a signal handler.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ditrain::dist {

/// An operation under way. Its buffer belongs to it until test() gave true or wait() returned.
/// Destroying an unfinished request waits for it, except while an exception unwinds the stack.
class Request {
 public:
  virtual ~Request() = default;
  /// True once it is done; also lets MPI make progress.
  virtual bool test() = 0;
  /// Returns when it is done. Calling it again is harmless.
  virtual void wait() = 0;
};

/// All ranks of the run.
/// Errors: functions throw RunError if MPI reports an error; LogicFault for a negative count or a rank out of range.
/// Threads: start_allreduce_sum and its requests may be used by one thread while another uses the rest, if
///          concurrent_calls() says so.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;           ///< number among the ranks of this node
  virtual int local_size() const = 0;           ///< ranks on this node
  virtual int num_nodes() const = 0;            ///< nodes of the run
  virtual bool concurrent_calls() const = 0;    ///< two threads may be inside at once (MPI_THREAD_MULTIPLE granted)
  virtual std::string description() const = 0;  ///< library and granted thread level, for the log

  /// data[i] becomes the sum over ranks, for i < n; starts it and returns. n may differ from call to call, not by rank.
  virtual std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) = 0;

  /// data[i] becomes the sum, largest or smallest over ranks, for i < n. A NaN may or may not survive max and min.
  virtual void allreduce_sum(double* data, int64_t n) = 0;
  virtual void allreduce_max(double* data, int64_t n) = 0;
  virtual void allreduce_min(double* data, int64_t n) = 0;
  /// Bitwise or over ranks.
  virtual uint64_t allreduce_or(uint64_t flags) = 0;
  /// Copies `bytes` of rank `root` into every rank's `data`.
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  /// Returns when every rank is here.
  virtual void barrier() = 0;
  /// On `root` the texts of all ranks in order of rank; elsewhere empty. LogicFault for 2 GiB or more together.
  virtual std::vector<std::string> gather_strings(const std::string& text, int root = 0) = 0;
  /// On `root` world_size * n values, rank by rank; elsewhere empty. The same n on every rank.
  virtual std::vector<double> gather(const double* values, int64_t n, int root = 0) = 0;

  /// Flushes the standard streams and ends all ranks now with this exit code, without running destructors.
  [[noreturn]] void abort(int exit_code);

 protected:
  /// Ends the other ranks, and this one too if it likes.
  virtual void end_all_ranks(int exit_code) = 0;
};

/// The only rank: every operation is a no-op or a copy.
std::unique_ptr<Communicator> make_null_communicator();

/// The name of the launcher that started this process as one of several MPI ranks, from its environment variables;
/// "" for a plain run (also inside a Slurm allocation, where only srun sets PMI variables).
std::string mpi_launcher();

/// MPI if the process was launched by mpirun or srun (see mpi_launcher), else the null communicator without MPI_Init.
/// The MPI communicator finalises MPI in its destructor, except while an exception unwinds the stack: the other ranks
/// could hang in a collective then, so the program calls abort() or just ends, which makes the launcher end the job.
/// max_count: elements of one MPI call; longer operations are cut into pieces.
/// Errors: throws RunError if MPI does not start (Open MPI may end the process by itself instead), or if the launcher
///         says that there are several ranks and MPI that there is one: they are of different MPI libraries.
std::unique_ptr<Communicator> make_communicator(int* argc, char*** argv, int64_t max_count = int64_t{1} << 30);

}  // namespace ditrain::dist
