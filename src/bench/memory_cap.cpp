#include "memory_cap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "ditrain/base/text.hpp"

namespace ditrain::bench {
namespace {

bool write_text(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == ssize_t(text.size());
  return close(fd) == 0 && written;
}

/// The cgroup of this process in the hierarchy of v2 ("") or of a controller of v1.
std::string own_group(const std::string& controller) {
  std::ifstream in("/proc/self/cgroup");  // ID:CONTROLLERS:PATH
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second != line.npos && line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

}  // namespace

MemoryCap::MemoryCap(size_t bytes, int processes) : bytes_(bytes), each_(bytes / size_t(processes)) {
  if (bytes == 0) return;
  // A group of v2 that holds processes cannot have children with controllers: a sibling may do.
  const std::string v2 = "/sys/fs/cgroup" + own_group(""), v1 = "/sys/fs/cgroup/memory" + own_group("memory");
  make_group(v2, "memory.max", "memory.events") || make_group(v2 + "/..", "memory.max", "memory.events") ||
      make_group(v1, "memory.limit_in_bytes", "memory.oom_control");
}

bool MemoryCap::make_group(const std::string& parent, const char* limit_file, const char* events_file) {
  const std::string folder = fmt::format("{}/ditbench-{}", parent, getpid());
  if (mkdir(folder.c_str(), 0755) != 0) return false;
  if (!write_text(folder + "/" + limit_file, std::to_string(bytes_))) {
    rmdir(folder.c_str());
    return false;
  }
  write_text(folder + "/memory.swap.max", "0");  // not every system has swap, or counts it
  group_ = folder, events_ = folder + "/" + events_file, members_ = folder + "/cgroup.procs";
  return true;
}

MemoryCap::~MemoryCap() {
  // The last process is gone, but the kernel may still be at it.
  for (int i = 0; i < 100 && !group_.empty() && rmdir(group_.c_str()) != 0 && errno == EBUSY; ++i) usleep(10000);
}

bool MemoryCap::enter() const noexcept {
  if (bytes_ == 0) return true;
  if (group_.empty()) {
    const rlimit limit{each_, each_};
    return setrlimit(RLIMIT_DATA, &limit) == 0;
  }
  const int fd = open(members_.c_str(), O_WRONLY | O_CLOEXEC);
  return fd >= 0 && write(fd, "0", 1) == 1;  // 0: who writes it
}

int64_t MemoryCap::kills() const {
  std::ifstream in(events_);
  std::string key;
  for (int64_t value = 0; in >> key >> value;)
    if (key == "oom_kill") return value;
  return 0;
}

std::string MemoryCap::description() const {
  if (bytes_ == 0) return "";
  if (!group_.empty()) return "memory limit: " + format_bytes(bytes_) + " for all ranks together, by a cgroup";
  return "memory limit: " + format_bytes(each_) +
         " of private memory per rank, by RLIMIT_DATA (no cgroup can be made here)";
}

}  // namespace ditrain::bench
