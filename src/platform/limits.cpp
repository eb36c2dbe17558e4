#include "ditrain/platform/limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::platform {
namespace {

/// First line of a file without its newline; none if the file does not exist.
std::optional<std::string> read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return {};
  return line;
}

/// Value of "key:  123" or "key:  123 kB" of a file such as /proc/meminfo, as it stands there.
std::optional<size_t> read_number(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    size_t value = 0;
    if (words >> name >> value && name == key + ":") return value;
  }
  return {};
}
/// Reads a number in kB and returns bytes.
std::optional<size_t> read_kib(const std::string& path, const std::string& key) {
  const auto kib = read_number(path, key);
  return kib ? std::optional(*kib << 10) : std::nullopt;
}

/// Folders below `root` that hold the settings of this process' cgroup for one controller: the cgroup's own first, then
/// its ancestors. In a container only some of them may exist. v2 and v1 hierarchies may be mounted side by side.
struct CgroupFolders {
  std::vector<std::string> v2, v1;
};

void add_with_ancestors(std::vector<std::string>& folders, const std::string& mount, std::string path) {
  while (!path.empty() && path != "/") {
    folders.push_back(mount + path);
    path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  }
  folders.push_back(mount);
}

bool lists(const std::string& controllers, const std::string& controller) {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

/// /proc/self/cgroup has lines "ID:CONTROLLERS:PATH"; v2 is the line "0::PATH" (man 7 cgroups).
CgroupFolders cgroup_folders(const std::string& root, const std::string& controller) {
  CgroupFolders out;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      add_with_ancestors(out.v2, "/sys/fs/cgroup", path);
      add_with_ancestors(out.v2, "/sys/fs/cgroup/unified", path);
    } else if (lists(controllers, controller)) {
      add_with_ancestors(out.v1, "/sys/fs/cgroup/" + controllers, path);
      if (controllers != controller) add_with_ancestors(out.v1, "/sys/fs/cgroup/" + controller, path);
    }
  }
  return out;
}

void lower(MemoryLimit& limit, size_t bytes, const std::string& source) {
  if (bytes < limit.bytes) limit = {bytes, source};
}

void lower_by_file(MemoryLimit& limit, const std::string& root, const std::string& file) {
  const auto line = read_line(root + file);
  uint64_t bytes = 0;
  if (line && parse_whole(*line, bytes)) lower(limit, bytes, "cgroup " + file);  // "max" is not a number: no limit
}

void lower_by_rlimit(MemoryLimit& limit, int resource, const std::string& name, int processes) {
  rlimit soft{};
  if (getrlimit(__rlimit_resource_t(resource), &soft) != 0 || soft.rlim_cur == RLIM_INFINITY) return;
  if (soft.rlim_cur > std::numeric_limits<size_t>::max() / size_t(processes)) return;
  lower(limit, size_t(soft.rlim_cur) * size_t(processes), processes == 1 ? name : name + " of each rank");
}

/// v2: "150000 100000" or "max 100000" [microseconds of quota, period].
double quota_v2(const std::string& file) {
  std::ifstream in(file);
  double quota = 0, period = 0;
  return in >> quota >> period && quota > 0 && period > 0 ? quota / period : INFINITY;
}

/// v1: quota and period in two files; quota -1 means no limit.
double quota_v1(const std::string& folder) {
  std::ifstream quota_in(folder + "/cpu.cfs_quota_us"), period_in(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_in >> quota && period_in >> period && quota > 0 && period > 0 ? quota / period : INFINITY;
}

/// A positive whole number from the environment. OMP_NUM_THREADS may be a list for nested levels: its first counts.
std::optional<int> positive_variable(const EnvLookup& lookup, const char* name) {
  const char* value = lookup ? lookup(name) : std::getenv(name);
  if (!value) return {};
  const std::string_view text(value);
  int number = 0;
  return parse_whole(text.substr(0, text.find(',')), number) && number > 0 ? std::optional(number) : std::nullopt;
}

int whole_share(double cores, int sharers) {
  return int(std::clamp(std::floor(cores / std::max(1, sharers)), 1.0, 1e6));
}

std::string shared_name(const std::string& name, int sharers) {
  return sharers > 1 ? name + " shared by " + std::to_string(sharers) + " ranks" : name;
}

const FreeMemory kFreeAtStart = free_memory();

}  // namespace

MemoryLimit memory_limit(int ranks_on_node, const std::string& root) {
  DITRAIN_CHECK(ranks_on_node >= 1, "ranks_on_node = " + std::to_string(ranks_on_node));
  const auto ram = read_kib(root + "/proc/meminfo", "MemTotal");
  if (!ram) throw RunError({.where = "memory", .what = "cannot read MemTotal from " + root + "/proc/meminfo"});
  // Hugetlb is reserved pages of all sizes (since Linux 4.19), their numbers are of the default size.
  const size_t size = read_kib(root + "/proc/meminfo", "Hugepagesize").value_or(0);
  const size_t pages = read_number(root + "/proc/meminfo", "HugePages_Total").value_or(0);
  const size_t reserved = read_kib(root + "/proc/meminfo", "Hugetlb").value_or(size * pages);
  MemoryLimit limit{*ram - std::min(*ram, reserved),
                    reserved == 0 ? "physical RAM" : "physical RAM without reserved huge pages (vm.nr_hugepages)"};
  const CgroupFolders folders = cgroup_folders(root, "memory");
  for (const std::string& folder : folders.v2)
    for (const char* file : {"/memory.max", "/memory.high"})  // above the second, Linux slows programs down to a crawl
      lower_by_file(limit, root, folder + file);
  for (const std::string& folder : folders.v1) lower_by_file(limit, root, folder + "/memory.limit_in_bytes");
  lower_by_rlimit(limit, RLIMIT_AS, "RLIMIT_AS", ranks_on_node);
  lower_by_rlimit(limit, RLIMIT_DATA, "RLIMIT_DATA", ranks_on_node);
  return limit;
}

MemoryLimit process_memory_limit() {
  MemoryLimit limit{std::numeric_limits<size_t>::max(), ""};
  lower_by_rlimit(limit, RLIMIT_AS, "RLIMIT_AS", 1);
  lower_by_rlimit(limit, RLIMIT_DATA, "RLIMIT_DATA", 1);
  return limit;
}

MemoryLimit explicit_huge_left(const std::string& root) {
  MemoryLimit left{std::numeric_limits<size_t>::max(), ""};
  const CgroupFolders folders = cgroup_folders(root, "hugetlb");
  const auto consider = [&](const std::string& limit_file, const std::string& usage_file) {
    MemoryLimit limit{std::numeric_limits<size_t>::max(), ""}, used = limit;
    lower_by_file(limit, root, limit_file);
    if (limit.source.empty()) return;
    lower_by_file(used, root, usage_file);
    const size_t in_use = used.source.empty() ? 0 : used.bytes;
    lower(left, limit.bytes - std::min(limit.bytes, in_use), limit.source);
  };
  for (const std::string& folder : folders.v2) consider(folder + "/hugetlb.2MB.max", folder + "/hugetlb.2MB.current");
  for (const std::string& folder : folders.v1)
    consider(folder + "/hugetlb.2MB.limit_in_bytes", folder + "/hugetlb.2MB.usage_in_bytes");
  return left;
}

FreeMemory free_memory(const std::string& root) {
  // Not of /proc/meminfo, whose numbers are of the default size, be it 1 GiB. Other programs may still take those of
  // the free pages that are reserved.
  const std::string folder = root + "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const auto pages = [&](const char* name) {
    uint64_t number = 0;
    parse_whole(read_line(folder + name).value_or(""), number);
    return number;
  };
  const uint64_t free = pages("free_hugepages"), left = free - std::min(free, pages("resv_hugepages"));
  return {read_kib(root + "/proc/meminfo", "MemAvailable").value_or(std::numeric_limits<size_t>::max()),
          std::min(size_t(left) * kHugePageBytes, explicit_huge_left(root).bytes)};
}

const FreeMemory& free_memory_at_start() { return kFreeAtStart; }

double cpu_quota(const std::string& root) {
  double cores = INFINITY;
  const CgroupFolders folders = cgroup_folders(root, "cpu");
  for (const std::string& folder : folders.v2) cores = std::min(cores, quota_v2(root + folder + "/cpu.max"));
  for (const std::string& folder : folders.v1) cores = std::min(cores, quota_v1(root + folder));
  return cores;
}

size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  size_t total = 0, resident = 0;
  return in >> total >> resident ? resident * size_t(sysconf(_SC_PAGESIZE)) + explicit_huge_bytes() : 0;
}

size_t explicit_huge_bytes() { return read_kib("/proc/self/status", "HugetlbPages").value_or(0); }

bool restart_peak_resident_bytes() {
  std::ofstream out("/proc/self/clear_refs");
  return bool(out << "5" << std::flush);  // man 5 proc: resets VmHWM
}

size_t peak_resident_bytes() {
  // VmHWM first: ru_maxrss also remembers the program that was replaced by exec.
  // Explicit huge pages are taken once and kept.
  if (const auto peak = read_kib("/proc/self/status", "VmHWM")) return *peak + explicit_huge_bytes();
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? size_t(usage.ru_maxrss) << 10 : 0;
}

ThreadCount default_threads(const Topology& topology, const Sharing& sharing, const std::string& root,
                            const EnvLookup& lookup) {
  const int on_mask = sharing.smt ? int(topology.allowed_pus.size()) : topology.allowed_cores;
  ThreadCount least{whole_share(on_mask, sharing.ranks_on_mask), shared_name("affinity mask", sharing.ranks_on_mask)};
  const auto consider = [&least](int threads, const std::string& name) {
    if (threads < least.threads) least = {threads, name};
  };
  if (topology.is_this_machine)
    consider(whole_share(cpu_quota(root), sharing.ranks_on_quota),
             shared_name("cgroup cpu quota", sharing.ranks_on_quota));
  for (const char* name : {"SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"})
    if (const auto threads = positive_variable(lookup, name)) consider(*threads, name);
  return least;
}

}  // namespace ditrain::platform
