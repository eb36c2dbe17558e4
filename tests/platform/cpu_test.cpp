#include "ditrain/platform/cpu.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "ditrain/base/temporary_folder.hpp"

using namespace ditrain;
using namespace ditrain::platform;

namespace {

#if defined(__aarch64__)
const std::string kListName = "Features";
#else
const std::string kListName = "flags";
#endif

/// The line of /proc/cpuinfo with what programs may use; empty where there is none: qemu shows the list of its host.
std::string kernel_list() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(kListName, 0) == 0) return line;
  return "";
}

/// The kernel lists a flag only if it also enabled the registers that go with it.
bool kernel_lists(const std::string& flag) {
  std::istringstream words(kernel_list());
  for (std::string word; words >> word;)
    if (word == flag) return true;
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
  CHECK((!f.amx_bf16 || f.has_amx_bf16));
  CHECK((!kernel_lists("amx_bf16") || f.has_amx_bf16));
  CHECK(&cpu_features() == &f);
}

TEST_CASE("processors whose AVX512-BF16 is slow are known by maker and model") {
  for (const uint32_t signature : {0x806f8u, 0xc06f2u, 0xa06d1u, 0xa06e1u}) {  // Sapphire, Emerald, Granite Rapids (D)
    CHECK(has_slow_bf16("GenuineIntel", signature));
    CHECK_FALSE(has_slow_bf16("AuthenticAMD", signature));
  }
  CHECK_FALSE(has_slow_bf16("GenuineIntel", 0x5065b));   // Cooper Lake
  CHECK_FALSE(has_slow_bf16("AuthenticAMD", 0xa10f11));  // Zen 4
  CHECK_FALSE(has_slow_bf16("AuthenticAMD", 0xb00f21));  // Zen 5
  CHECK_FALSE(has_slow_bf16("", 0));
  CHECK((!cpu_features().slow_bf16 || cpu_features().avx512_bf16));
}

TEST_CASE("what Arm's vectors can do agrees with itself and with the kernel's list") {
  const CpuFeatures& f = cpu_features();
  if (!kernel_list().empty()) {
    CHECK(f.sve2 == (kernel_lists("sve2") && kernel_lists("svebf16")));
    CHECK(f.sme == (f.sve2 && kernel_lists("sme")));
  }
  CHECK((!f.sme || f.sve2));
  CHECK((f.sve_bits > 0) == f.sve2);
  CHECK((f.sme_bits > 0) == f.sme);
  CHECK(f.sve_bits % 128 == 0);
  CHECK(f.sme_bits % 128 == 0);
}

TEST_CASE("the processor has a name without stray blanks") {
  const std::string name = cpu_model_name();
  REQUIRE(!name.empty());
  CHECK(name.front() != ' ');
  CHECK(name.find('\n') == name.npos);

  const TemporaryFolder folder;
  const auto name_in = [file = folder / "cpuinfo"](const std::string& text) {
    std::ofstream(file) << text;
    return cpu_model_name(file);
  };
  CHECK(name_in("processor\t: 0\nmodel name\t:  Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n") ==
        "Some CPU @ 2 GHz");
  CHECK(name_in("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\nCPU part\t: 0xd80\n") ==
        "CPU implementer 0x41, part 0xd4f");
  CHECK_FALSE(name_in("model name\t:\n").empty());
  CHECK(name_in("") == name_in("no colon\n"));
}
