// Which instruction set the kernels of this process use. Candidates are tried fastest first; the first that this CPU
// (CPUID and OS state) can run and that DITRAIN_ISA (baseline, also called scalar, | avx2 | avx512; may only lower)
// allows wins, once. An unknown DITRAIN_ISA is an InputError of the first kernel called: call chosen_isa() early.
#pragma once
#include <string>

namespace ditrain::kernels {

std::string chosen_isa();       ///< "avx512", "avx2" or "baseline"
std::string dispatch_report();  ///< one line a family: the chosen kernel and why each better candidate was refused

}  // namespace ditrain::kernels
