// What this processor can do, as a set of usable bits: a bit is set only if CPUID reports the feature, the operating
// system saves its registers and, for AMX, grants the process permission to use tiles (has_amx_bf16 is CPUID alone); on
// Arm, if Linux lists it for programs. The bits are rows of cpu_features.inc. See kernels/dispatch.hpp for the choice.
#pragma once
#include <cstdint>
#include <string>

namespace ditrain::platform {

/// Instruction sets that this process may execute; those of other processors are false.
struct CpuFeatures {
#define DITRAIN_X86_FEATURE(name, usable) bool name = false;
#define DITRAIN_ARM_FEATURE(name, usable) bool name = false;
#include "ditrain/platform/cpu_features.inc"
  int sve_bits = 0;  ///< length of a vector of the calling thread and those it starts; 0 without sve2
  int sme_bits = 0;  ///< the same of a vector in streaming mode, the matrix unit's; 0 without sme
};

/// Probes once and returns the same answer ever after; the first call asks Linux for permission to use AMX tiles.
const CpuFeatures& cpu_features();

/// Whether VDPBF16PS of an x86 processor has half the rate of f32 multiply-adds, by its maker ("GenuineIntel") and the
/// signature that CPUID gives its model: Intel's from Sapphire Rapids to Granite Rapids, which share one core. On a
/// Granite Rapids its loop made 222 to 246 GFLOP/s, that of f32 435 to 491. AMD's have twice the rate of f32.
bool has_slow_bf16(const std::string& vendor, uint32_t signature);

/// The processor's name as /proc/cpuinfo gives it, on Arm the numbers of its maker and part ("CPU implementer 0x41,
/// part 0xd4f"); without either the architecture's name (uname -m).
std::string cpu_model_name(const std::string& cpuinfo = "/proc/cpuinfo");

}  // namespace ditrain::platform
