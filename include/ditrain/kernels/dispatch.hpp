// Which kernels this process uses. Instruction sets are tried fastest first, family by family (products and attention,
// each in f32 and in bf16, element-wise work): the first that has kernels of the family, that this CPU (CPUID and OS
// state; on Arm also the lengths of its vectors) can run and that DITRAIN_ISA allows wins, once. So amx_bf16, which has
// products and attention of bf16 alone, stands beside the rest of avx512_bf16. On processors that make the products of
// avx512_bf16 at half the rate of f32 (platform::has_slow_bf16) bf16 has those of avx512, unless DITRAIN_ISA is
// avx512_bf16.
// DITRAIN_ISA may only lower, all families at once: a name of the table in src/kernels/instruction_sets.cpp (avx2,
// sve2_512, ...), the beginning of one for its first (sve2 for sve2_512), or scalar for the baseline. Another name is
// an InputError of the first kernel called, which lists them all: call chosen_isa() early.
#pragma once
#include <string>

namespace ditrain::kernels {

std::string chosen_isa();  ///< the best instruction set that runs here and is allowed; some families may lack it
std::string kernels_in(const std::string& report);  ///< its kernels alone: equal where the same ones compute
std::string dispatch_report();  ///< one line per family: the chosen kernels and why each better candidate was refused

}  // namespace ditrain::kernels
