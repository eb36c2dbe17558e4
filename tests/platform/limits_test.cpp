#include "ditrain/platform/limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/platform/pages.hpp"

using namespace ditrain;
using namespace ditrain::platform;
namespace fs = std::filesystem;

namespace {

constexpr size_t kGiB = size_t{1} << 30;

/// A folder that plays "/" and is removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    write("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\n");  // 64 GiB
  }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories(fs::path(path() + file).parent_path());
    std::ofstream(path() + file) << text;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

/// Lowers a soft rlimit for its own life.
class ScopedRlimit {
 public:
  ScopedRlimit(int resource, size_t bytes) : resource_(__rlimit_resource_t(resource)) {
    getrlimit(resource_, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = bytes;
    REQUIRE(setrlimit(resource_, &lowered) == 0);
  }
  ~ScopedRlimit() { setrlimit(resource_, &before_); }
  ScopedRlimit(const ScopedRlimit&) = delete;
  ScopedRlimit& operator=(const ScopedRlimit&) = delete;

 private:
  __rlimit_resource_t resource_;
  rlimit before_{};
};

EnvLookup env_of(std::map<std::string, std::string> variables) {
  return [variables](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

Topology with_cores(int cores) {
  Topology t;
  t.allowed_cores = cores;
  return t;
}

}  // namespace

TEST_CASE("explicit huge pages: the least that the cgroup and its ancestors leave") {
  const FakeRoot root;
  CHECK(explicit_huge_left(root.path()).source.empty());
  root.write("/proc/self/cgroup", "0::/job/step\n3:hugetlb:/old\n");
  root.write("/sys/fs/cgroup/job/step/hugetlb.2MB.max", "max\n");
  CHECK(explicit_huge_left(root.path()).bytes == SIZE_MAX);
  root.write("/sys/fs/cgroup/job/hugetlb.2MB.max", std::to_string(4 * kGiB) + "\n");
  CHECK(explicit_huge_left(root.path()).bytes == 4 * kGiB);
  root.write("/sys/fs/cgroup/job/hugetlb.2MB.current", std::to_string(kGiB) + "\n");
  CHECK(explicit_huge_left(root.path()).bytes == 3 * kGiB);
  CHECK(explicit_huge_left(root.path()).source == "cgroup /sys/fs/cgroup/job/hugetlb.2MB.max");
  root.write("/sys/fs/cgroup/hugetlb/old/hugetlb.2MB.limit_in_bytes", std::to_string(kGiB) + "\n");
  root.write("/sys/fs/cgroup/hugetlb/old/hugetlb.2MB.usage_in_bytes", std::to_string(2 * kGiB) + "\n");
  CHECK(explicit_huge_left(root.path()).bytes == 0);
}

TEST_CASE("memory limit: RAM rules when nothing is smaller") {
  const FakeRoot root;
  CHECK(memory_limit(1, root.path()).bytes == 64 * kGiB);
  CHECK(memory_limit(1, root.path()).source == "physical RAM");
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/memory.max", "max\n");
  CHECK(memory_limit(1, root.path()).source == "physical RAM");
}

TEST_CASE("memory limit: the bytes from which on a cgroup slows programs down are a limit, too") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/memory.max", std::to_string(8 * kGiB) + "\n");
  root.write("/sys/fs/cgroup/job/memory.high", std::to_string(6 * kGiB) + "\n");
  CHECK(memory_limit(1, root.path()).bytes == 6 * kGiB);
  CHECK(memory_limit(1, root.path()).source == "cgroup /sys/fs/cgroup/job/memory.high");
}

TEST_CASE("memory limit: what is reserved as huge pages is apart") {
  const FakeRoot root;
  root.write("/proc/meminfo",
             "MemTotal:       67108864 kB\nMemAvailable:   10485760 kB\nHugePages_Total:    4096\n"
             "HugePages_Free:     1024\nHugepagesize:       2048 kB\n");
  CHECK(memory_limit(1, root.path()).bytes == 56 * kGiB);
  CHECK(memory_limit(1, root.path()).source == "physical RAM without reserved huge pages (vm.nr_hugepages)");
  // Eight pages of 1 GiB, which a run cannot use, are the default; others beside them are in their sum.
  root.write("/proc/meminfo",
             "MemTotal:       67108864 kB\nHugePages_Total:    8\nHugePages_Free:     8\nHugepagesize:    1048576 kB\n"
             "Hugetlb:        10485760 kB\n");
  CHECK(memory_limit(1, root.path()).bytes == 54 * kGiB);
  CHECK(free_memory(root.path()).explicit_huge == 0);
  CHECK(free_memory(root.path()).available == SIZE_MAX);  // kernels before 3.14
}

TEST_CASE("free memory: available memory, and huge pages that are free, not reserved, and allowed by the cgroup") {
  const FakeRoot root;
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  root.write("/proc/meminfo", "MemAvailable:   10485760 kB\nHugePages_Free:     4\nHugepagesize:       1048576 kB\n");
  CHECK(free_memory(root.path()).available == 10 * kGiB);
  CHECK(free_memory(root.path()).explicit_huge == 0);
  root.write(folder + "free_hugepages", "1024\n");
  CHECK(free_memory(root.path()).explicit_huge == 2 * kGiB);
  root.write(folder + "resv_hugepages", "256\n");
  CHECK(free_memory(root.path()).explicit_huge == 3 * kGiB / 2);
  root.write("/proc/self/cgroup", "0::/job\n");
  root.write("/sys/fs/cgroup/job/hugetlb.2MB.max", std::to_string(kGiB) + "\n");
  CHECK(free_memory(root.path()).explicit_huge == kGiB);
  CHECK(free_memory_at_start().available > kGiB / 16);
}

TEST_CASE("memory limit: the smallest cgroup v2 limit on the way up rules") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/memory.max", "34359738368\n");
  root.write("/sys/fs/cgroup/job/memory.max", "8589934592\n");
  const MemoryLimit limit = memory_limit(1, root.path());
  CHECK(limit.bytes == 8 * kGiB);
  CHECK(limit.source == "cgroup /sys/fs/cgroup/job/memory.max");
}

TEST_CASE("memory limit: in a container the limit stands at the mount itself") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/not/visible/here\n");
  root.write("/sys/fs/cgroup/memory.max", "4294967296\n");
  CHECK(memory_limit(1, root.path()).bytes == 4 * kGiB);
}

TEST_CASE("memory limit: cgroup v1, where a huge number stands for none") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "5:devices:/\n4:hugetlb,memory:/slurm/job_1\n0::/\n");
  root.write("/sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(memory_limit(1, root.path()).source == "physical RAM");
  root.write("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "2147483648\n");
  CHECK(memory_limit(1, root.path()).bytes == 2 * kGiB);
}

TEST_CASE("memory limit: an rlimit holds for each rank") {
  const FakeRoot root;
  const ScopedRlimit lowered(RLIMIT_DATA, 40 * kGiB);
  CHECK(memory_limit(1, root.path()).bytes == 40 * kGiB);
  CHECK(memory_limit(1, root.path()).source == "RLIMIT_DATA");
  CHECK(memory_limit(2, root.path()).source == "physical RAM");
  CHECK(process_memory_limit().bytes == 40 * kGiB);
  CHECK(process_memory_limit().source == "RLIMIT_DATA");
}

TEST_CASE("memory limit: damaged files limit nothing, missing RAM is an error") {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "no colons\n0:only one\n::\n0::/a\n");
  root.write("/sys/fs/cgroup/a/memory.max", "12monkeys\n");
  CHECK(memory_limit(1, root.path()).source == "physical RAM");
  root.write("/proc/meminfo", "nothing\n");
  CHECK_THROWS_AS(memory_limit(1, root.path()), RunError);
}

TEST_CASE("memory limit of this machine is sane") {
  const MemoryLimit limit = memory_limit();
  CHECK(limit.bytes > resident_bytes());
  CHECK(!limit.source.empty());
}

TEST_CASE("cpu quota: v2, v1 and none") {
  const FakeRoot root;
  CHECK(std::isinf(cpu_quota(root.path())));
  root.write("/proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  CHECK(std::isinf(cpu_quota(root.path())));
  root.write("/sys/fs/cgroup/job/cpu.max", "350000 100000\n");
  CHECK(cpu_quota(root.path()) == Approx(3.5));
  root.write("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root.path()) == Approx(3.5));
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(cpu_quota(root.path()) == Approx(0.5));
}

TEST_CASE("threads: the least one rules and is named") {
  const FakeRoot root;
  const auto threads = [&](int cores, std::map<std::string, std::string> variables, Sharing sharing = {}) {
    const ThreadCount count = default_threads(with_cores(cores), sharing, root.path(), env_of(std::move(variables)));
    return std::to_string(count.threads) + " " + count.ruled_by;
  };
  CHECK(threads(8, {}) == "8 affinity mask");
  CHECK(threads(8, {{"OMP_NUM_THREADS", "6,2"}}) == "6 OMP_NUM_THREADS");
  CHECK(threads(8, {{"OMP_NUM_THREADS", "6"}, {"SLURM_CPUS_PER_TASK", "3"}}) == "3 SLURM_CPUS_PER_TASK");
  CHECK(threads(8, {{"OMP_NUM_THREADS", "16"}}) == "8 affinity mask");
  for (const char* bad : {"", "0", "-3", "many", "4x", "99999999999999"})
    CHECK(threads(8, {{"OMP_NUM_THREADS", bad}}) == "8 affinity mask");
  CHECK(threads(8, {}, {.ranks_on_mask = 3}) == "2 affinity mask shared by 3 ranks");
  CHECK(threads(2, {}, {.ranks_on_mask = 4}) == "1 affinity mask shared by 4 ranks");

  Topology two_per_core = with_cores(4);
  two_per_core.allowed_pus = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto count = [&](const Topology& t, bool smt) {
    return default_threads(t, {.smt = smt}, root.path(), env_of({})).threads;
  };
  CHECK((count(two_per_core, false) == 4 && count(two_per_core, true) == 8));

  root.write("/proc/self/cgroup", "0::/\n");
  root.write("/sys/fs/cgroup/cpu.max", "550000 100000\n");
  CHECK(threads(8, {}) == "5 cgroup cpu quota");
  Topology another = with_cores(8);
  another.is_this_machine = false;
  CHECK(count(another, false) == 8);
  CHECK(threads(8, {}, {.ranks_on_quota = 2}) == "2 cgroup cpu quota shared by 2 ranks");
  root.write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  CHECK(threads(8, {}) == "1 cgroup cpu quota");
}

TEST_CASE("resident bytes grow when memory is touched, and the peak remembers") {
  const size_t before = resident_bytes();
  CHECK(before > 0);
  const size_t bytes = size_t{64} << 20;
  void* pages = map_pages(bytes);
  std::memset(pages, 1, bytes);
  CHECK(resident_bytes() >= before + bytes / 2);
  unmap_pages(pages, bytes);
  CHECK(resident_bytes() < before + bytes / 2);
  CHECK(peak_resident_bytes() >= before + bytes / 2);
  if (restart_peak_resident_bytes()) CHECK(peak_resident_bytes() < before + bytes / 2);  // not every kernel can
}
