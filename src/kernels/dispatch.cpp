#include "ditrain/kernels/dispatch.hpp"

#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/cpu.hpp"
#include "kernel_table.hpp"

namespace ditrain::kernels {

namespace amx_bf16 {
extern const KernelTable table;
}
namespace amx_model {
extern const KernelTable table;
}
namespace avx512_bf16 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace sme_512_sve2_512 {
extern const KernelTable table;
}
namespace sme_512_sve2_256 {
extern const KernelTable table;
}
namespace sme_512_sve2_128 {
extern const KernelTable table;
}
namespace sme_256_sve2_256 {
extern const KernelTable table;
}
namespace sme_256_sve2_128 {
extern const KernelTable table;
}
namespace sme_128_sve2_128 {
extern const KernelTable table;
}
namespace sve2_512 {
extern const KernelTable table;
}
namespace sve2_256 {
extern const KernelTable table;
}
namespace sve2_128 {
extern const KernelTable table;
}
namespace baseline {
extern const KernelTable table;
}

namespace {

#ifdef DITRAIN_KERNELS_X86
std::string missing_for_avx512() { return platform::cpu_features().avx512 ? "" : "avx512 (F, BW, DQ and VL)"; }

std::string missing_for_avx512_bf16() {
  const std::string missing = missing_for_avx512();
  return missing.empty() && !platform::cpu_features().avx512_bf16 ? "avx512_bf16" : missing;
}

std::string missing_for_amx_bf16() {
  const std::string missing = missing_for_avx512_bf16();
  return missing.empty() && !platform::cpu_features().amx_bf16 ? "amx_bf16 (or Linux grants no tiles)" : missing;
}

std::string missing_for_avx2() { return platform::cpu_features().avx2_fma ? "" : "avx2 or fma"; }
#endif

#ifdef DITRAIN_KERNELS_SVE2
std::string missing_for_sve2(int bits) {
  const platform::CpuFeatures& cpu = platform::cpu_features();
  if (!cpu.sve2) return "sve2 with bf16";
  if (cpu.sve_bits == bits) return "";
  return "vectors of " + std::to_string(bits) + " bits (its have " + std::to_string(cpu.sve_bits) + ")";
}

std::string missing_for_sme(int bits, int sve_bits) {
  const platform::CpuFeatures& cpu = platform::cpu_features();
  if (!cpu.sme) return "sme";
  if (cpu.sme_bits == bits) return missing_for_sve2(sve_bits);
  return "streaming vectors of " + std::to_string(bits) + " bits (its have " + std::to_string(cpu.sme_bits) + ")";
}
#endif

/// Where in the list the first allowed candidate stands: the one called `wanted`, or else the first of that family
/// ("sve2" is the family of "sve2_512").
size_t first_allowed(const std::vector<IsaCandidate>& list, const std::string& wanted) {
  const std::string name = wanted == "scalar" ? "baseline" : wanted;
  for (size_t i = 0; i < list.size(); ++i)
    if (name == list[i].table->name) return i;
  for (size_t i = 0; i < list.size(); ++i)
    if (std::string(list[i].table->name).rfind(name + "_", 0) == 0) return i;
  std::string known = "scalar";
  for (const IsaCandidate& candidate : list) known += std::string(", ") + candidate.table->name;
  throw InputError({.where = "DITRAIN_ISA",
                    .what = "unknown instruction set",
                    .got = "'" + wanted + "'",
                    .expected = "one of " + known,
                    .hint = "unset it to use the fastest"});
}

}  // namespace

std::vector<IsaCandidate> isa_candidates() {
  std::vector<IsaCandidate> list;
#ifdef DITRAIN_KERNELS_X86
  list.push_back({&amx_bf16::table, missing_for_amx_bf16()});
  list.push_back({&avx512_bf16::table, missing_for_avx512_bf16()});
  list.push_back({&avx512::table, missing_for_avx512()});
  list.push_back({&avx2::table, missing_for_avx2()});
#endif
#ifdef DITRAIN_KERNELS_SVE2
  list.push_back({&sme_512_sve2_512::table, missing_for_sme(512, 512)});
  list.push_back({&sme_512_sve2_256::table, missing_for_sme(512, 256)});
  list.push_back({&sme_512_sve2_128::table, missing_for_sme(512, 128)});
  list.push_back({&sme_256_sve2_256::table, missing_for_sme(256, 256)});
  list.push_back({&sme_256_sve2_128::table, missing_for_sme(256, 128)});
  list.push_back({&sme_128_sve2_128::table, missing_for_sme(128, 128)});
  list.push_back({&sve2_512::table, missing_for_sve2(512)});
  list.push_back({&sve2_256::table, missing_for_sve2(256)});
  list.push_back({&sve2_128::table, missing_for_sve2(128)});
#endif
  list.push_back({&baseline::table, ""});
  return list;
}

std::vector<IsaCandidate> model_tables() {
  std::vector<IsaCandidate> list;
#ifdef DITRAIN_KERNELS_X86
  list.push_back({&amx_model::table, missing_for_avx512_bf16()});
#endif
  return list;
}

IsaChoice choose_isa(const char* wanted) {
  const std::vector<IsaCandidate> list = isa_candidates();
  const size_t first = wanted != nullptr && *wanted != '\0' ? first_allowed(list, wanted) : 0;
  std::string refused;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string why;
    if (!list[i].missing.empty())
      why = "CPU lacks " + list[i].missing;
    else if (i < first)
      why = std::string("DITRAIN_ISA=") + wanted;
    if (why.empty()) return {list[i].table, refused};
    refused += (refused.empty() ? "" : "; ") + std::string(list[i].table->name) + ": " + why;
  }
  check_failed(__FILE__, __LINE__, "baseline runs everywhere", "the baseline kernels were refused");
}

const IsaChoice& process_isa() {
  static const IsaChoice choice = choose_isa(std::getenv("DITRAIN_ISA"));
  return choice;
}

std::string chosen_isa() { return process_isa().table->name; }

std::string dispatch_report() {
  const IsaChoice& choice = process_isa();
  const KernelTable& table = *choice.table;
  const std::string refused = choice.refused.empty() ? "" : " (refused: " + choice.refused + ")";
  const std::string tile = std::to_string(table.tile_rows) + "x" + std::to_string(table.tile_cols);
  std::string report;
  for (const char* family : {"gemm", "attention", "elementwise"}) {
    const std::string detail = std::string(family) == "elementwise" ? "" : " " + tile + " tiles";
    report += std::string(family) + ": " + table.name + detail + refused + "\n";
  }
  return report;
}

}  // namespace ditrain::kernels
