#include "ditrain/platform/affinity.hpp"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "ditrain/base/error.hpp"

namespace ditrain::platform {
namespace {

constexpr int kMaxPus = 1 << 16;  // Linux x86-64 is built for at most 8192 (CONFIG_NR_CPUS)

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using PuSet = std::unique_ptr<cpu_set_t, FreeSet>;

PuSet empty_set(int pus) {
  PuSet set(CPU_ALLOC(size_t(pus)));
  if (!set) throw RunError({.where = "affinity", .what = "out of memory"});
  CPU_ZERO_S(CPU_ALLOC_SIZE(size_t(pus)), set.get());
  return set;
}

}  // namespace

std::vector<int> affinity_mask() {
  // The kernel refuses (EINVAL) a set smaller than its own, whose size it does not tell: try larger ones.
  for (int pus = 1024; pus <= kMaxPus; pus *= 2) {
    const PuSet set = empty_set(pus);
    const size_t bytes = CPU_ALLOC_SIZE(size_t(pus));
    if (sched_getaffinity(0, bytes, set.get()) == 0) {
      std::vector<int> mask;
      for (int pu = 0; pu < pus; ++pu)
        if (CPU_ISSET_S(size_t(pu), bytes, set.get())) mask.push_back(pu);
      return mask;
    }
    if (errno != EINVAL) break;
  }
  throw RunError({.where = "affinity", .what = std::string("cannot read the affinity mask: ") + std::strerror(errno)});
}

BindResult set_affinity_mask(const std::vector<int>& pus) {
  const PuSet set = empty_set(kMaxPus);
  const size_t bytes = CPU_ALLOC_SIZE(size_t(kMaxPus));
  if (pus.empty()) return {false, "the set of hardware threads is empty"};
  for (const int pu : pus) {
    if (pu < 0 || pu >= kMaxPus) return {false, "there is no hardware thread " + std::to_string(pu)};
    CPU_SET_S(size_t(pu), bytes, set.get());
  }
  if (sched_setaffinity(0, bytes, set.get()) == 0) return {true, ""};
  const char* mend = "";
  if (errno == EINVAL) mend = "; the cpuset of the job or container must hold such a core (docker run --cpuset-cpus)";
  if (errno == EPERM) mend = "; a container's seccomp profile that allows it";
  return {false, std::string("sched_setaffinity: ") + std::strerror(errno) + mend};
}

BindResult bind_this_thread(int pu) { return set_affinity_mask({pu}); }

}  // namespace ditrain::platform
