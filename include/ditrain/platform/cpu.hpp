// What this processor can do, as a set of usable bits: a bit is set only if CPUID reports the feature, the operating
// system saves its registers and, for AMX, grants the process permission to use tiles (has_amx_bf16 is CPUID alone); on
// Arm, if Linux lists it for programs. See kernels/dispatch.hpp for the choice.
#pragma once
#include <string>

namespace ditrain::platform {

/// Instruction sets that this process may execute; those of other processors are false.
struct CpuFeatures {
  bool avx2_fma = false;      ///< AVX2 and FMA3
  bool avx512 = false;        ///< AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;   ///< avx512 and the bf16 dot products
  bool amx_bf16 = false;      ///< AMX tiles with bf16 products
  bool has_amx_bf16 = false;  ///< the CPU reports them, whether or not Linux grants the tiles
  bool sve2 = false;          ///< SVE2 with bf16 products
  bool sme = false;           ///< sve2, and the matrix unit with f32 and bf16 products
  int sve_bits = 0;           ///< length of a vector of the calling thread and those it starts; 0 without sve2
  int sme_bits = 0;           ///< the same of a vector in streaming mode, the matrix unit's; 0 without sme
};

/// Probes once and returns the same answer ever after; the first call asks Linux for permission to use AMX tiles.
const CpuFeatures& cpu_features();

/// The processor's name as /proc/cpuinfo gives it, on Arm the numbers of its maker and part ("CPU implementer 0x41, part
/// 0xd4f"); the architecture's name (uname -m) where there is none.
std::string cpu_model_name(const std::string& cpuinfo = "/proc/cpuinfo");

}  // namespace ditrain::platform
