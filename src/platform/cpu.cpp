// CPUID, XGETBV and prctl, for the rows of cpu_features.inc.
#include "ditrain/platform/cpu.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace ditrain::platform {
namespace {

[[maybe_unused]] constexpr uint64_t mask_of(std::initializer_list<int> bits) {
  uint64_t mask = 0;
  for (const int bit : bits) mask |= uint64_t{1} << bit;
  return mask;
}

#if defined(__x86_64__)

class X86 {
 public:
  enum Register { kEax, kEbx, kEcx, kEdx };

  X86() {
    constexpr int kOsxsave = 27;
    uint32_t low = 0, high = 0;
    if (!has(1, 0, kEcx, {kOsxsave})) return;  // then no register set counts as saved
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    saved_ = uint64_t{high} << 32 | low;
  }
  /// All these bits are set; CPUID answers 0 for what it does not know.
  bool has(uint32_t leaf, uint32_t subleaf, Register from, std::initializer_list<int> bits) const {
    uint32_t r[4] = {};
    return __get_cpuid_count(leaf, subleaf, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]) &&
           (r[from] & mask_of(bits)) == mask_of(bits);
  }
  std::string vendor() const {
    uint32_t highest = 0, words[3] = {};
    char text[sizeof(words)] = {};
    if (__get_cpuid(0, &highest, &words[0], &words[2], &words[1])) std::memcpy(text, words, sizeof(words));
    return {text, sizeof(text)};
  }
  uint32_t signature() const {
    uint32_t r[4] = {};
    return __get_cpuid(1, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]) ? r[kEax] : 0;
  }
  bool saves(uint64_t registers) const { return (saved_ & registers) == registers; }
  /// Linux gives a process its tile registers only on request (Documentation/arch/x86/xstate.rst).
  bool grants_amx_tiles() const {
    constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
    return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  }

 private:
  uint64_t saved_ = 0;
};

CpuFeatures probe() {
  const X86 x;
  CpuFeatures f;
#define DITRAIN_X86_FEATURE(name, usable) f.name = usable;
#include "ditrain/platform/cpu_features.inc"
  return f;
}

#elif defined(__aarch64__)

struct Arm {
  uint64_t usable = getauxval(AT_HWCAP2);
  bool has(std::initializer_list<int> bits) const { return (usable & mask_of(bits)) == mask_of(bits); }
};

/// Bits in a vector register, from PR_SVE_GET_VL or PR_SME_GET_VL; 0 without such vectors.
int vector_bits(int request) {
  constexpr int kLengthMask = 0xffff;  // of the answer; above it are flags
  const int answer = prctl(request, 0, 0, 0, 0);
  return answer < 0 ? 0 : (answer & kLengthMask) * 8;
}

// Numbers of Linux (Documentation/arch/arm64/{sve,sme}.rst) stand here because the headers of older systems lack some.
CpuFeatures probe() {
  constexpr int kGetSveLength = 51, kGetSmeLength = 64;
  const Arm arm;
  CpuFeatures f;
#define DITRAIN_ARM_FEATURE(name, usable) f.name = usable;
#include "ditrain/platform/cpu_features.inc"
  if (f.sve2) f.sve_bits = vector_bits(kGetSveLength);
  if (f.sme) f.sme_bits = vector_bits(kGetSmeLength);
  return f;
}

#else

CpuFeatures probe() { return {}; }

#endif

}  // namespace

bool has_slow_bf16(const std::string& vendor, uint32_t signature) {
  constexpr uint32_t kSapphireRapids = 0x8f, kEmeraldRapids = 0xcf, kGraniteRapids = 0xad, kGraniteRapidsD = 0xae;
  constexpr uint32_t kSlow[] = {kSapphireRapids, kEmeraldRapids, kGraniteRapids, kGraniteRapidsD};
  const uint32_t family = signature >> 8 & 0xf, model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
  return vendor == "GenuineIntel" && family == 6 &&
         std::find(std::begin(kSlow), std::end(kSlow), model) != std::end(kSlow);
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = probe();
  return features;
}

std::string cpu_model_name(const std::string& cpuinfo) {
  std::ifstream in(cpuinfo);
  std::string arm;  // has no name, but numbers of its maker and of its model
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const size_t colon = line.find(':');
    const size_t start = colon == line.npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (start == line.npos) continue;
    const std::string value = line.substr(start);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) arm = "CPU implementer " + value;
    if (line.starts_with("CPU part")) arm += (arm.empty() ? "CPU part " : ", part ") + value;
  }
  if (!arm.empty()) return arm;
  utsname system{};
  return uname(&system) == 0 ? system.machine : "unknown";
}

}  // namespace ditrain::platform
