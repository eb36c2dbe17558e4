#include "ditrain/platform/launcher.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

namespace ditrain::platform {
namespace {

// The launchers of Open MPI 4 and 5, PRRTE, MPICH and its relatives, and Slurm.
constexpr std::array<std::string_view, 11> kLaunchers = {"mpirun", "mpiexec",         "mpiexec.hydra", "orterun",
                                                         "orted",  "prterun",         "prted",         "prte",
                                                         "srun",   "hydra_pmi_proxy", "slurmstepd"};

struct Process {
  std::string name;
  pid_t parent = 0;
};

// PID (NAME) STATE PARENT ...; the name may hold anything, and is cut to 15 characters.
Process look_at(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t begin = text.find('('), end = text.rfind(')');
  if (begin == text.npos || end == text.npos || end + 4 >= text.size()) return {};
  return {text.substr(begin + 1, end - begin - 1), pid_t(std::atoi(text.c_str() + end + 4))};
}

[[noreturn]] void end_now(const std::string& program, const std::string& launcher, pid_t pid) {
  const std::string message = program + ": error: [launcher] " + launcher + " (process " + std::to_string(pid) +
                              ") has ended, so this rank ends too\n";
  (void)!::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(1);
}

#ifndef SYS_pidfd_open  // headers before Linux 5.3; the number is the same on all processors
#define SYS_pidfd_open 434
#endif
// Returns when the process has ended.
void wait_for_end(pid_t pid) {
  const int process = int(::syscall(SYS_pidfd_open, pid, 0));
  if (process < 0 && errno != ESRCH) {  // an old kernel: look twice a second
    while (::kill(pid, 0) == 0 || errno == EPERM) ::usleep(500'000);
    return;
  }
  pollfd ended{process, POLLIN, 0};
  while (process >= 0 && ::poll(&ended, 1, -1) < 0 && errno == EINTR) {
  }
}

}  // namespace

pid_t find_launcher() {
  for (pid_t pid = ::getppid(); pid > 1;) {
    const Process process = look_at(pid);
    if (std::find(kLaunchers.begin(), kLaunchers.end(), process.name) != kLaunchers.end()) return pid;
    pid = process.parent;
  }
  return 0;
}

void end_with_launcher(pid_t launcher, const char* program) {
  if (launcher == 0) return;
  std::thread([launcher, name = look_at(launcher).name, program = std::string(program)] {
    wait_for_end(launcher);
    end_now(program, name, launcher);
  }).detach();
}

}  // namespace ditrain::platform
