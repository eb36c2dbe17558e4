// A program that a bench starts and measures from outside.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "memory_cap.hpp"
#include "peer_library.hpp"

namespace ditrain::bench {

/// Runs in a process group of its own, so that Ctrl-C is for the bench to act on, with its output in a file. Ends with
/// this object, and so do the processes it started; also with the bench, whatever ends that.
class Child {
 public:
  struct Options {
    std::string output;                         ///< file for stdout and stderr together
    std::vector<std::string> environment = {};  ///< "NAME=VALUE", before what this process has
    const MemoryCap* cap = nullptr;             ///< must outlive the child
  };
  /// command[0] is a path. Errors: RunError if no process can be made
  Child(const std::vector<std::string>& command, const Options& options);
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool running();
  /// The exit code of a child that has ended, or 128 + N if signal N ended it.
  int exit_code() const { return exit_code_; }
  /// What it has written to its output so far.
  std::string said() const;
  /// RunError "WHAT ended with exit code N:", and the last words of its output.
  [[noreturn]] void fail(const std::string& what) const;
  pid_t pid() const { return pid_; }
  /// It and all processes below it, parents first.
  std::vector<pid_t> processes() const;
  /// Kills all that it started, then, if that does not end it (mpirun cleans up), itself; returns when it is gone.
  void end();
  /// Asks it to stop by itself (SIGUSR2), and ends it if it has not after so many seconds.
  void stop(double seconds);

 private:
  bool wait(bool block);

  std::string output_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int exit_code_ = -1;
};

/// The path of another program in the folder of this one. Errors: InputError for `bench` if it is missing
std::string program_beside(const char* name, const char* bench);
/// What mpirun has to find in its environment to start ranks for this user.
std::vector<std::string> environment_of_mpirun();
/// The program that a process runs; "" if it is gone.
std::string program_of(pid_t pid);
/// Proportional set size: what it shares counts in parts. Its own explicit huge pages are counted. 0 if it is gone.
int64_t pss_bytes(pid_t pid);
/// Explicit huge pages that it shares with others, whole; 0 if it is gone.
int64_t shared_huge_bytes(pid_t pid);
/// The first file of that name in the folders of $PATH; "" if it is not found.
std::string find_in_path(const std::string& name);

}  // namespace ditrain::bench
