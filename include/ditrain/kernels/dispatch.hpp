// Which instruction set the kernels of this process use. Candidates are tried fastest first; the first that this CPU
// (CPUID and OS state) can run and that DITRAIN_ISA (baseline, also called scalar, | avx2 | avx512; may only lower)
// allows wins, once. An unknown DITRAIN_ISA is an InputError of the first kernel called: call chosen_isa() early.
#pragma once
#include <cstddef>
#include <string>

namespace ditrain::kernels {

std::string chosen_isa();       ///< "avx512", "avx2" or "baseline"
std::string dispatch_report();  ///< one line a family: the chosen kernel and why each better candidate was refused

/// Peak loop: 24 independent accumulators (14 where there are 16 registers: x86 without AVX-512) of the widest FMA of
/// the chosen ISA (multiply and add on baseline x86); returns flop (2 per FMA lane) done in `seconds` by the calling
/// thread, divided by the time taken [FLOP/s].
double measure_fma_peak_f32(double seconds);
/// Plain read loop over `bytes` of memory at p, repeated for `seconds` (at least once) [bytes/s] of the calling thread.
double measure_read_bandwidth(const float* p, size_t bytes, double seconds);

}  // namespace ditrain::kernels
