// Which kernels this process uses. The choice is made once, for each family of kernels (GEMMs and attention, each in
// f32 and in bf16, element-wise work): instruction sets are tried from the fastest down, and the first wins that has
// kernels of the family, that this CPU can run (CPUID and OS state; on Arm also the vector lengths) and that
// DITRAIN_ISA allows. So amx_bf16, which has only GEMMs and attention of bf16, is used together with the
// element-wise work of avx512_bf16, and both with the GEMMs and attention in f32 of avx512. Where the products of
// avx512_bf16 have half the rate of f32 (platform::has_slow_bf16), bf16 takes the kernels of avx512 instead, unless
// DITRAIN_ISA is avx512_bf16.
// The environment variable DITRAIN_ISA can only lower the choice, for all families at once. Its value is a name of the
// table in src/kernels/instruction_sets.cpp (avx2, sve2_512, ...), the beginning of a name (sve2 means the first that
// fits, sve2_512), or scalar for the baseline. For any other name the first kernel called throws an InputError that
// lists all names: call chosen_isa() early.
#pragma once
#include <string>

namespace ditrain::kernels {

std::string chosen_isa();  ///< the best instruction set that runs here and is allowed; some families may lack it
std::string kernels_in(const std::string& report);  ///< only the kernels in a dispatch_report(), for comparisons
std::string dispatch_report();  ///< one line per family: the chosen kernels and why each better candidate was refused

}  // namespace ditrain::kernels
