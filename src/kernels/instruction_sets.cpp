// The one table of instruction sets, and the choice among them. To add one: a row here (with its obstacle), a line in
// module.cmake, and what the CPU must have as a row of ditrain/platform/cpu_features.inc.
#include "instruction_sets.hpp"

#include <cstdlib>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/dispatch.hpp"

// ROW(name, obstacle on `cpu`, families)
#if defined(DITRAIN_KERNELS_X86)
#define DITRAIN_INSTRUCTION_SETS(ROW)                                       \
  ROW(amx_bf16, against_amx_bf16(cpu), DITRAIN_BF16_FAMILIES)               \
  ROW(avx512_bf16, against_avx512_bf16(cpu), DITRAIN_ALL_BUT_F32)           \
  ROW(avx512, against_avx512(cpu), DITRAIN_ALL_FAMILIES)                    \
  ROW(avx2, cpu.avx2_fma ? "" : lacks("avx2 or fma"), DITRAIN_ALL_FAMILIES) \
  ROW(baseline, "", DITRAIN_ALL_FAMILIES)
#elif defined(DITRAIN_KERNELS_SVE2)
#define DITRAIN_INSTRUCTION_SETS(ROW)                                               \
  ROW(sme_512_sve2_512, against_sme(cpu, 512, 512), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sme_512_sve2_256, against_sme(cpu, 512, 256), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sme_512_sve2_128, against_sme(cpu, 512, 128), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sme_256_sve2_256, against_sme(cpu, 256, 256), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sme_256_sve2_128, against_sme(cpu, 256, 128), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sme_128_sve2_128, against_sme(cpu, 128, 128), DITRAIN_PRODUCTS_AND_ATTENTION) \
  ROW(sve2_512, against_sve2(cpu, 512), DITRAIN_ALL_FAMILIES)                       \
  ROW(sve2_256, against_sve2(cpu, 256), DITRAIN_ALL_FAMILIES)                       \
  ROW(sve2_128, against_sve2(cpu, 128), DITRAIN_ALL_FAMILIES)                       \
  ROW(baseline, "", DITRAIN_ALL_FAMILIES)
#else
#define DITRAIN_INSTRUCTION_SETS(ROW) ROW(baseline, "", DITRAIN_ALL_FAMILIES)
#endif

// Attention makes its products on the matrix unit, too. A family that a set lacks is taken from one below it.
#define DITRAIN_BF16_FAMILIES(set) .bf16_products = &set::bf16_products, .bf16_attention = &set::attention
// Products and attention of f32 would be the code of avx512.
#define DITRAIN_ALL_BUT_F32(set) DITRAIN_BF16_FAMILIES(set), .elementwise = &set::elementwise
#define DITRAIN_PRODUCTS_AND_ATTENTION(set)                                                                   \
  .f32_products = &set::f32_products, .bf16_products = &set::bf16_products, .f32_attention = &set::attention, \
  .bf16_attention = &set::attention
#define DITRAIN_ALL_FAMILIES(set) DITRAIN_PRODUCTS_AND_ATTENTION(set), .elementwise = &set::elementwise

namespace ditrain::kernels {

// The tables that src/kernels/isa makes.
#define DITRAIN_DECLARE(set, obstacle, families)           \
  namespace set {                                          \
  extern const ProductKernels f32_products, bf16_products; \
  extern const AttentionKernels attention;                 \
  extern const ElementwiseKernels elementwise;             \
  }
DITRAIN_INSTRUCTION_SETS(DITRAIN_DECLARE)

namespace {

using platform::CpuFeatures;

// Obstacles, see InstructionSet.
[[maybe_unused]] std::string lacks(const std::string& feature) { return "CPU lacks " + feature; }

#ifdef DITRAIN_KERNELS_X86
std::string against_avx512(const CpuFeatures& cpu) { return cpu.avx512 ? "" : lacks("avx512 (F, BW, DQ and VL)"); }

std::string against_avx512_bf16(const CpuFeatures& cpu) {
  const std::string obstacle = against_avx512(cpu);
  return obstacle.empty() && !cpu.avx512_bf16 ? lacks("avx512_bf16") : obstacle;
}

std::string against_amx_bf16(const CpuFeatures& cpu) {
  const std::string obstacle = against_avx512_bf16(cpu);
  if (!obstacle.empty() || cpu.amx_bf16) return obstacle;
  return cpu.has_amx_bf16 ? "the system grants no tiles" : lacks("amx_bf16");
}
#endif

#ifdef DITRAIN_KERNELS_SVE2
std::string against_sve2(const CpuFeatures& cpu, int bits) {
  if (!cpu.sve2) return lacks("sve2 with bf16");
  if (cpu.sve_bits == bits) return "";
  return lacks("vectors of " + std::to_string(bits) + " bits (its have " + std::to_string(cpu.sve_bits) + ")");
}

std::string against_sme(const CpuFeatures& cpu, int bits, int sve_bits) {
  if (!cpu.sme) return lacks("sme");
  if (cpu.sme_bits == bits) return against_sve2(cpu, sve_bits);
  return lacks("streaming vectors of " + std::to_string(bits) + " bits (its have " + std::to_string(cpu.sme_bits) +
               ")");
}
#endif

/// Where in the list the first allowed one stands: the one called `wanted`, or else the first whose name begins with it
/// ("sve2" stands for "sve2_512").
size_t first_allowed(const std::vector<InstructionSet>& list, const std::string& wanted) {
  const std::string name = wanted == "scalar" ? "baseline" : wanted;
  for (size_t i = 0; i < list.size(); ++i)
    if (name == list[i].name) return i;
  for (size_t i = 0; i < list.size(); ++i)
    if (std::string(list[i].name).starts_with(name + "_")) return i;
  std::string known = "scalar";
  for (const InstructionSet& set : list) known += std::string(", ") + set.name;
  throw InputError({.where = "DITRAIN_ISA",
                    .what = "unknown instruction set",
                    .got = "'" + wanted + "'",
                    .expected = "one of " + known,
                    .hint = "unset it to use the fastest"});
}

/// The first candidate of a family that is not refused; ` (refused: ...)` says why the ones before it were, or is
/// empty.
template <class Table>
std::string choose(const Table* Families::*family, bool multiplies_bf16, const std::vector<InstructionSet>& list,
                   KernelChoice& choice) {
  std::string refused;
  for (const InstructionSet& set : list) {
    if (set.kernels.*family == nullptr) continue;
    const std::string& obstacle = set.obstacle.empty() && multiplies_bf16 ? set.slow_bf16 : set.obstacle;
    if (obstacle.empty()) {
      choice.kernels.*family = set.kernels.*family;
      return refused.empty() ? "" : " (refused: " + refused + ")";
    }
    refused += (refused.empty() ? "" : "; ") + std::string(set.name) + ": " + obstacle;
  }
  check_failed(__FILE__, __LINE__, "baseline runs everywhere", "the baseline kernels were refused");
}

template <class Table>
std::string with_tiles(const Table& x) {
  return std::string(x.name) + " " + std::to_string(x.tile_rows) + "x" + std::to_string(x.tile_cols) + " tiles";
}

template <class Table>
std::string with_tiles(const Table& bf16, const Table& f32) {
  if (std::string(f32.name) == bf16.name) return with_tiles(f32);
  return with_tiles(bf16) + " for bf16, " + with_tiles(f32) + " for f32";
}

}  // namespace

std::vector<InstructionSet> instruction_sets([[maybe_unused]] const CpuFeatures& cpu) {
#define DITRAIN_ROW(set, obstacle, families) {#set, obstacle, {families(set)}},
  std::vector<InstructionSet> sets = {DITRAIN_INSTRUCTION_SETS(DITRAIN_ROW)};
#ifdef DITRAIN_KERNELS_X86
  for (InstructionSet& set : sets)
    if (cpu.slow_bf16 && std::string(set.name) == "avx512_bf16")
      set.slow_bf16 = "bf16 at half the rate of f32 on this processor";
#endif
  return sets;
}

KernelChoice choose_kernels(const char* wanted, const std::vector<InstructionSet>& list) {
  std::vector<InstructionSet> candidates = list;
  const size_t first = wanted != nullptr && *wanted != '\0' ? first_allowed(list, wanted) : 0;
  for (size_t i = 0; i < first; ++i)
    if (candidates[i].obstacle.empty()) candidates[i].obstacle = std::string("DITRAIN_ISA=") + wanted;
  if (wanted != nullptr && std::string(wanted) == list[first].name) candidates[first].slow_bf16.clear();
  KernelChoice choice;
  for (const InstructionSet& set : candidates)
    if (set.obstacle.empty() && choice.isa.empty()) choice.isa = set.name;
  choose(&Families::f32_products, false, candidates, choice);
  choose(&Families::f32_attention, false, candidates, choice);
  const std::string why_products = choose(&Families::bf16_products, true, candidates, choice),
                    why_attention = choose(&Families::bf16_attention, true, candidates, choice),
                    why_elementwise = choose(&Families::elementwise, false, candidates, choice);
  const Families& chosen = choice.kernels;
  choice.report = "gemm: " + with_tiles(*chosen.bf16_products, *chosen.f32_products) + why_products +
                  "\nattention: " + with_tiles(*chosen.bf16_attention, *chosen.f32_attention) + why_attention +
                  "\nelementwise: " + chosen.elementwise->name + why_elementwise + "\n";
  return choice;
}

const KernelChoice& process_kernels() {
  static const KernelChoice choice = choose_kernels(std::getenv("DITRAIN_ISA"));
  return choice;
}

std::string chosen_isa() { return process_kernels().isa; }
std::string dispatch_report() { return process_kernels().report; }

std::string kernels_in(const std::string& report) {
  std::string kernels;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);)
    kernels += (kernels.empty() ? "" : "; ") + line.substr(0, line.find(" (refused: "));
  return kernels;
}

}  // namespace ditrain::kernels
