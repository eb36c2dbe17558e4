#include "child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"

namespace ditrain::bench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLastWords = 1500;  // of a run that failed
constexpr double kGrace_s = 5;       // for mpirun to notice that its ranks are gone and to clean up

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

// Between fork and exec: system calls only, for other threads may have held locks.
[[noreturn]] void become(char* const* command, char* const* environment, const Child::Options& options, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(126);  // it died before that
  const int null = open("/dev/null", O_RDONLY), out = open(options.output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (null < 0 || out < 0 || (options.cap != nullptr && !options.cap->enter())) _exit(126);
  dup2(null, STDIN_FILENO), dup2(out, STDOUT_FILENO), dup2(out, STDERR_FILENO);
  execve(command[0], command, environment);
  _exit(127);
}

// The parent of a process, from the fourth field of /proc/PID/stat; the second, a name, may hold blanks.
pid_t parent_of(const std::string& stat) {
  std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string state;
  pid_t parent = 0;
  return rest >> state >> parent ? parent : 0;
}

std::multimap<pid_t, pid_t> children_of_all() {
  std::multimap<pid_t, pid_t> children;
  std::error_code ignored;
  for (fs::directory_iterator entry("/proc", ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream in(entry->path() / "stat");
    std::string stat;
    if (std::getline(in, stat)) children.emplace(parent_of(stat), pid_t(std::stol(name)));
  }
  return children;
}

}  // namespace

Child::Child(const std::vector<std::string>& command, const Options& options) : output_(options.output) {
  std::vector<std::string> environment = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const auto command_pointers = pointers(command), environment_pointers = pointers(environment);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0)
    throw RunError({.where = "ditbench", .what = "cannot start " + command[0] + ": " + std::strerror(errno)});
  if (pid_ == 0) become(command_pointers.data(), environment_pointers.data(), options, parent);
}

bool Child::wait(bool block) {
  int status = 0;
  if (ended_) return true;
  pid_t got = 0;
  do got = waitpid(pid_, &status, block ? 0 : WNOHANG);
  while (got < 0 && errno == EINTR);
  if (got < 0) return ended_ = true;  // its exit code is lost: signals of children are ignored
  if (got != pid_) return false;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended_ = true;
}

bool Child::running() { return !wait(false); }

std::string Child::said() const {
  std::ostringstream text;
  text << std::ifstream(output_, std::ios::binary).rdbuf();
  return text.str();
}

void Child::fail(const std::string& what) const {
  const std::string said = this->said();
  throw RunError({.where = "ditbench",
                  .what = fmt::format("{} ended with exit code {}:\n{}", what, exit_code_,
                                      said.substr(said.size() - std::min(said.size(), kLastWords)))});
}

std::vector<pid_t> Child::processes() const {
  const std::multimap<pid_t, pid_t> children = children_of_all();
  std::vector<pid_t> all = {pid_};
  for (size_t i = 0; i < all.size(); ++i)
    for (auto [it, end] = children.equal_range(all[i]); it != end; ++it) all.push_back(it->second);
  return all;
}

void Child::stop(double seconds) {
  if (!running()) return;
  kill(pid_, SIGUSR2);  // not SIGTERM, which a batch system may have sent too: the second one would kill it
  for (const double last = now_s() + seconds; running() && now_s() < last;) usleep(10000);
  end();
}

void Child::end() {
  if (!running()) return;
  const std::vector<pid_t> all = processes();
  for (size_t i = 1; i < all.size(); ++i) kill(all[i], SIGKILL);
  const double last = now_s() + (all.size() > 1 ? kGrace_s : 0);
  while (running() && now_s() < last) usleep(10000);
  if (running()) kill(-pid_, SIGKILL), kill(pid_, SIGKILL);
  wait(true);
}

std::string program_beside(const char* name, const char* bench) {
  const std::string path = (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
  if (access(path.c_str(), X_OK) != 0)
    refuse("ditbench", fmt::format("{} starts {}, which is missing: {}", bench, name, path));
  return path;
}

std::vector<std::string> environment_of_mpirun() {
  if (geteuid() != 0) return {};
  return {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};  // else it refuses root
}

std::string program_of(pid_t pid) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone).string();
}

int64_t pss_bytes(pid_t pid) {
  int64_t sum = 0;
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string line; std::getline(in, line);)
    for (const char* field : {"Pss:", "Private_Hugetlb:"})  // explicit huge pages are not in PSS
      if (line.starts_with(field)) sum += std::atoll(line.c_str() + std::strlen(field)) * 1024;
  return sum;
}

int64_t shared_huge_bytes(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/smaps_rollup");
  constexpr std::string_view kField = "Shared_Hugetlb:";
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(kField)) return std::atoll(line.c_str() + kField.size()) * 1024;
  return 0;
}

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  return "";
}

}  // namespace ditrain::bench
