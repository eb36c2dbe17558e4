// Which instruction set the kernels of this process use. Candidates are tried fastest first; the first that this CPU
// (CPUID and OS state; on Arm also the lengths of its vectors) can run and that DITRAIN_ISA allows wins, once.
// DITRAIN_ISA may only lower: a name of the list, or that of a family for its first member (sve2 for sve2_512).
//   x86:  amx_bf16 | avx512_bf16 | avx512 | avx2 | baseline
//   Arm:  sme_512_sve2_512 and others: products on a matrix unit with vectors of 512 bits, the rest on vectors of 512;
//         sve2_512 | sve2_256 | sve2_128; baseline (NEON). A build by another compiler than clang has the baseline only
//   scalar is another name of the baseline.
// Another name is an InputError of the first kernel called: call chosen_isa() early.
#pragma once
#include <string>

namespace ditrain::kernels {

std::string chosen_isa();       ///< a name of the list
std::string dispatch_report();  ///< one line a family: the chosen kernel and why each better candidate was refused

}  // namespace ditrain::kernels
