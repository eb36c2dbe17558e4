// Starting programs as a shell would: command line, environment and limits in; exit code, output and files out.
// Everything a test makes lives in its TemporaryFolder and every program it started ends with it.
//
//   TemporaryFolder scratch;
//   const Result r = run(mpirun(2, program("ditrain", {"--config", config})), {.timeout_s = 30});
//   REQUIRE(r.exit_code == 0);
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/temporary_folder.hpp"

namespace ditrain::e2e {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;
using ditrain::TemporaryFolder;

Args operator+(Args a, const Args& b);

struct RunOptions {
  double timeout_s = 120;       ///< after it the program is ended and Result::timed_out set
  int64_t max_file_bytes = -1;  ///< RLIMIT_FSIZE, with its signal ignored: writes beyond it fail as on a full disk
  int64_t max_data_bytes = -1;  ///< RLIMIT_DATA of the program and its children
  std::vector<std::string> environment = {};  ///< "NAME=VALUE", added to that of the test
};

struct Result {
  int exit_code = -1;  ///< 128 + N for a program that signal N ended
  bool timed_out = false;
  std::string out, err;
  double seconds = 0;
  int64_t peak_bytes = 0;  ///< resident, of the largest process among the program and its children

  /// What went wrong, for INFO.
  std::string text() const;
};

/// A program that runs beside the test.
class Process {
 public:
  explicit Process(const Args& command, const RunOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  void send(int signal_number);
  /// Waits for the end, at most the timeout counted from the start.
  Result wait();

 private:
  void reap(bool block);

  RunOptions options_;
  TemporaryFolder scratch_;
  pid_t pid_ = -1;
  bool ended_ = false;
  double start_s_ = 0;
  Result result_;
};

Result run(const Args& command, const RunOptions& options = {});
/// Fails the test unless the command ends with exit code 0. `line`: of the test.
Result require_ok(const Args& command, const RunOptions& options = {}, int line = __builtin_LINE());
/// Fails the test unless the command ends with this exit code and says each of these texts on stderr.
Result require_error(const Args& command, const std::vector<std::string>& texts, int exit_code = 2,
                     int line = __builtin_LINE());
/// Fails the test unless that is exit code 2, an error that is said once, with each of these texts, and `out` was not
/// made.
void require_refused(const Result& result, const std::string& out, const std::vector<std::string>& texts);
/// The results of commands that run at the same time: for those that mostly wait, as mpirun does for a second after an
/// error.
std::vector<Result> run_side_by_side(const std::vector<Args>& commands, const RunOptions& options = {});

/// More steps than any test waits for.
inline constexpr int64_t kForEver = 1000000;

/// The process of that MPI rank, among all that this test may see, whose command line names `out`; 0: there is none.
pid_t process_of_rank(int rank, const std::string& out);

/// The variable of the environment with which a program has this library before all others.
std::string preload(const std::string& library);
/// The environment in which a call goes wrong once, as tests/support/trapped_calls.cpp says.
std::vector<std::string> trap(const std::string& call, const std::string& path, const std::string& action,
                              int rank = 0);
bool is_stopped(pid_t process);
bool has_open(pid_t process, const std::string& path);
/// Whether the process is gone, or waits for somebody to ask for its exit code.
bool has_ended(pid_t process);

/// Command line of a program of this build.
Args program(const std::string& name, const Args& arguments = {});
/// The same under mpirun, also with more ranks than cores.
Args mpirun(int ranks, const Args& command, const Args& mpirun_arguments = {});

/// The command itself for one rank.
Args on_ranks(int ranks, const Args& command);

/// ditrain on a model that is quick everywhere: quickstart.yaml made small, with settings of its own
/// where that may change, without samples and validation, checkpoints only at the end. Later --set flags win.
Args tiny_ditrain(const std::string& out, int64_t steps, const Args& more = {});
/// {"--set", "a=b", "--set", ...}
Args sets(const std::vector<std::string>& assignments);

/// True once `condition()` is; false after the time.
template <class F>
bool wait_until(F condition, double timeout_s = 60, double poll_s = 0.005);
void sleep_s(double seconds);

std::string read_file(const std::string& path);
nlohmann::json read_json(const std::string& path);
void write_file(const std::string& path, const std::string& content);
bool same_file(const std::string& a, const std::string& b);
/// Every file below the folder with its content; a link with its target.
std::vector<std::pair<std::string, std::string>> folder_content(const std::string& path);
/// What readers of a folder of data see, by name: no lock, and nothing of a file whose program was killed while it
/// was being written.
std::vector<std::pair<std::string, std::string>> data_files(const std::string& folder);

/// The lines of OUT/metrics.jsonl that are whole objects.
std::vector<nlohmann::json> read_metrics(const std::string& out);
std::vector<double> column(const std::vector<nlohmann::json>& metrics, const std::string& key);
/// Largest |a - b| / |b| of two columns of the same length; infinity for columns of other lengths or empty ones.
double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b);
/// 1, 2, ... up to the number of lines.
bool steps_are_complete(const std::vector<nlohmann::json>& metrics, int64_t last);
bool steps_increase(const std::vector<nlohmann::json>& metrics);

/// The steps of the checkpoints that a run has.
std::vector<int64_t> checkpoints(const std::string& out);
/// OUT/checkpoints/step_0...N
std::string checkpoint_of(const std::string& out, int64_t step);
/// Names of the tensor files in which the two checkpoints differ; empty if all bytes are equal.
std::string different_files(const std::string& checkpoint_a, const std::string& checkpoint_b);

template <class F>
bool wait_until(F condition, double timeout_s, double poll_s) {
  const double end = now_s() + timeout_s;
  while (!condition()) {
    if (now_s() > end) return false;
    sleep_s(poll_s);
  }
  return true;
}

}  // namespace ditrain::e2e

/// Fails the test with all that the program said.
#define REQUIRE_EXIT(command_result, code)                  \
  do {                                                      \
    const ::ditrain::e2e::Result& ended = (command_result); \
    INFO(#command_result << ": " << ended.text());          \
    REQUIRE_FALSE(ended.timed_out);                         \
    REQUIRE(ended.exit_code == (code));                     \
  } while (false)
