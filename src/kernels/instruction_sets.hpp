// Which instruction sets this build has kernels for, and the rule that chooses among them, family by family. The table
// of instruction sets is in instruction_sets.cpp. Internal to the module and to its tests.
#pragma once
#include <string>
#include <vector>

#include "ditrain/platform/cpu.hpp"
#include "kernel_table.hpp"
#include "operator_table.hpp"

namespace ditrain::kernels {

/// One table per family; null: this instruction set brings none, the next one of the list that does is taken.
struct Families {
  const ProductKernels* f32_products = nullptr;
  const ProductKernels* bf16_products = nullptr;
  const AttentionKernels* f32_attention = nullptr;
  const AttentionKernels* bf16_attention = nullptr;
  const ElementwiseKernels* elementwise = nullptr;

  const ProductKernels& products(DType arithmetic) const {
    return arithmetic == DType::kF32 ? *f32_products : *bf16_products;
  }
  const AttentionKernels& attention(DType type) const { return type == DType::kF32 ? *f32_attention : *bf16_attention; }
};

/// An instruction set that this build has kernels for.
struct InstructionSet {
  const char* name;
  std::string obstacle;  ///< why this machine cannot run them, e.g. "CPU lacks avx512_bf16"; empty: it can
  Families kernels;
  std::string slow_bf16 = {};  ///< why its products of bf16 and its attention are left to the next; empty: they are not
};
/// Fastest first; the last one ("baseline") has all families and always runs.
std::vector<InstructionSet> instruction_sets(const platform::CpuFeatures& cpu = platform::cpu_features());

/// A complete set of kernels.
struct KernelChoice {
  std::string isa;   ///< the best instruction set that is allowed and runs here
  Families kernels;  ///< its own and, for families that it lacks, those of the next ones
  std::string report;
};
/// The first of `list` without obstacle from the one that `wanted` names on (value of DITRAIN_ISA, see dispatch.hpp, or
/// null: the first); a family that is slow there only if `wanted` is just that name. An unknown name throws InputError.
KernelChoice choose_kernels(const char* wanted, const std::vector<InstructionSet>& list = instruction_sets());
const KernelChoice& process_kernels();  ///< chosen on first use from the environment, then fixed

}  // namespace ditrain::kernels
