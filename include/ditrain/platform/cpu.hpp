// What this processor can do, as a set of usable bits: a bit is set only if CPUID reports the feature, the operating
// system saves its registers and, for AMX, grants the process permission to use tiles. See kernels/dispatch.hpp for the
// choice.
#pragma once
#include <string>

namespace ditrain::platform {

/// Instruction sets that this process may execute. Without x86-64 all are false.
struct CpuFeatures {
  bool avx2_fma = false;     ///< AVX2 and FMA3
  bool avx512 = false;       ///< AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;  ///< avx512 and the bf16 dot products
  bool amx_bf16 = false;     ///< AMX tiles with bf16 products
};

/// Probes once and returns the same answer ever after; the first call asks Linux for permission to use AMX tiles.
const CpuFeatures& cpu_features();

/// The processor's name as /proc/cpuinfo gives it; the architecture's name (uname -m) where there is none.
std::string cpu_model_name();

}  // namespace ditrain::platform
