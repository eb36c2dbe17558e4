// CPUID and XGETBV, see cpu.hpp. Bit positions: Intel SDM volume 2A (CPUID) and volume 1 chapter 13 (XCR0). On Arm
// Linux says what programs may use (Documentation/arch/arm64/{elf_hwcaps,sve,sme}.rst).
#include "ditrain/platform/cpu.hpp"

#include <sys/utsname.h>

#include <cstdint>
#include <fstream>

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

#if defined(__x86_64__)

constexpr bool bit(uint32_t word, int i) { return (word >> i) & 1u; }

/// Register sets that the operating system saves (XCR0). Only where CPUID reports OSXSAVE.
uint64_t saved_registers() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

/// Linux gives a process its tile registers only on request (Documentation/arch/x86/xstate.rst).
bool request_amx_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

CpuFeatures probe() {
  constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kAmxState = 0x60000;
  CpuFeatures f;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;  // 27: OSXSAVE
  const bool fma = bit(c, 12);
  const uint64_t saved = saved_registers();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const uint32_t subleaves = a;
  f.avx2_fma = fma && bit(b, 5) && (saved & kAvxState) == kAvxState;
  f.avx512 =
      f.avx2_fma && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && (saved & kAvx512State) == kAvx512State;
  f.has_amx_bf16 = bit(d, 24) && bit(d, 22);  // AMX-TILE, AMX-BF16
  f.amx_bf16 = f.has_amx_bf16 && (saved & kAmxState) == kAmxState && request_amx_tiles();
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512_bf16 = f.avx512 && bit(a, 5);
  return f;
}

#elif defined(__aarch64__)

/// Bits in a vector register, from PR_SVE_GET_VL or PR_SME_GET_VL; 0 where there are none.
int vector_bits(int request) {
  constexpr int kLengthMask = 0xffff;  // of the answer; above it are flags
  const int answer = prctl(request, 0, 0, 0, 0);
  return answer < 0 ? 0 : (answer & kLengthMask) * 8;
}

// The numbers are Linux' own and stand here because the headers of older systems lack some of them.
CpuFeatures probe() {
  constexpr int kGetSveLength = 51, kGetSmeLength = 64;
  constexpr unsigned long kSve2 = 1ul << 1, kSveBf16 = 1ul << 12, kSme = 1ul << 23, kSmeBf16 = 1ul << 28,
                          kSmeF32 = 1ul << 29;
  const unsigned long usable = getauxval(AT_HWCAP2);
  const auto has = [usable](unsigned long bits) { return (usable & bits) == bits; };
  CpuFeatures f;
  f.sve2 = has(kSve2 | kSveBf16);
  f.sme = f.sve2 && has(kSme | kSmeBf16 | kSmeF32);
  if (f.sve2) f.sve_bits = vector_bits(kGetSveLength);
  if (f.sme) f.sme_bits = vector_bits(kGetSmeLength);
  return f;
}

#else

CpuFeatures probe() { return {}; }

#endif

}  // namespace

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
