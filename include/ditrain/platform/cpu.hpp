// What this process may use of the processor, as a set of bits. On x86 a bit is set only if CPUID reports the feature,
// the operating system saves its registers and, for AMX, grants the process permission to use tiles (only has_amx_bf16
// is CPUID alone); on Arm, if Linux lists the feature for programs. The bits are the rows of cpu_features.inc.
// kernels/dispatch.hpp chooses the kernels.
#pragma once
#include <cstdint>
#include <string>

namespace ditrain::platform {

/// Instruction sets that this process may execute; those of other processors are false.
struct CpuFeatures {
#define DITRAIN_X86_FEATURE(name, usable) bool name = false;
#define DITRAIN_ARM_FEATURE(name, usable) bool name = false;
#include "ditrain/platform/cpu_features.inc"
  int sve_bits = 0;  ///< vector length of the calling thread and the threads it starts; 0 without sve2
  int sme_bits = 0;  ///< vector length in streaming mode, which the matrix unit uses; 0 without sme
};

/// Probes on the first call, which also asks Linux for permission to use AMX tiles; later calls return the same result.
const CpuFeatures& cpu_features();

/// Whether VDPBF16PS of an x86 processor has half the rate of f32 multiply-adds, by its maker ("GenuineIntel") and the
/// signature that CPUID gives its model: Intel's from Sapphire Rapids to Granite Rapids, which share one core. On a
/// Granite Rapids its loop made 222 to 246 GFLOP/s, that of f32 435 to 491. AMD's have twice the rate of f32.
bool has_slow_bf16(const std::string& vendor, uint32_t signature);

/// The processor's name from /proc/cpuinfo, or on Arm the numbers of maker and part ("CPU implementer 0x41, part
/// 0xd4f"); if the file has neither, the name of the architecture (uname -m).
std::string cpu_model_name(const std::string& cpuinfo = "/proc/cpuinfo");

}  // namespace ditrain::platform
