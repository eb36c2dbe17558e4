#include "ditrain/platform/cpu.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

using namespace ditrain::platform;

namespace {

/// The kernel lists a flag only if it also enabled the registers that go with it.
bool kernel_lists(const std::string& flag) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;)
      if (word == flag) return true;
    return false;
  }
  return false;
}

}  // namespace

TEST_CASE("usable CPU features agree with the kernel's list") {
  const CpuFeatures& f = cpu_features();
  CHECK(f.avx2_fma == (kernel_lists("avx2") && kernel_lists("fma")));
  CHECK(f.avx512 ==
        (kernel_lists("avx512f") && kernel_lists("avx512bw") && kernel_lists("avx512dq") && kernel_lists("avx512vl")));
  CHECK(f.avx512_bf16 == (f.avx512 && kernel_lists("avx512_bf16")));
  CHECK((!f.amx_bf16 || kernel_lists("amx_bf16")));
  CHECK(&cpu_features() == &f);
}

TEST_CASE("the processor has a name without stray blanks") {
  const std::string name = cpu_model_name();
  REQUIRE(!name.empty());
  CHECK(name.front() != ' ');
  CHECK(name.find('\n') == name.npos);
}
