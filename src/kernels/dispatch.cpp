#include "ditrain/kernels/dispatch.hpp"

#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/cpu.hpp"
#include "kernel_table.hpp"

namespace ditrain::kernels {

namespace amx_bf16 {
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

using platform::CpuFeatures;

// Obstacles, see IsaCandidate.
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
  return cpu.has_amx_bf16 ? "Linux grants no tiles" : lacks("amx_bf16");
}

std::string against_avx2(const CpuFeatures& cpu) { return cpu.avx2_fma ? "" : lacks("avx2 or fma"); }
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

std::vector<IsaCandidate> isa_candidates([[maybe_unused]] const CpuFeatures& cpu) {
  std::vector<IsaCandidate> list;
#ifdef DITRAIN_KERNELS_X86
  list.push_back({&amx_bf16::table, against_amx_bf16(cpu)});
  list.push_back({&avx512_bf16::table, against_avx512_bf16(cpu)});
  list.push_back({&avx512::table, against_avx512(cpu)});
  list.push_back({&avx2::table, against_avx2(cpu)});
#endif
#ifdef DITRAIN_KERNELS_SVE2
  list.push_back({&sme_512_sve2_512::table, against_sme(cpu, 512, 512)});
  list.push_back({&sme_512_sve2_256::table, against_sme(cpu, 512, 256)});
  list.push_back({&sme_512_sve2_128::table, against_sme(cpu, 512, 128)});
  list.push_back({&sme_256_sve2_256::table, against_sme(cpu, 256, 256)});
  list.push_back({&sme_256_sve2_128::table, against_sme(cpu, 256, 128)});
  list.push_back({&sme_128_sve2_128::table, against_sme(cpu, 128, 128)});
  list.push_back({&sve2_512::table, against_sve2(cpu, 512)});
  list.push_back({&sve2_256::table, against_sve2(cpu, 256)});
  list.push_back({&sve2_128::table, against_sve2(cpu, 128)});
#endif
  list.push_back({&baseline::table, ""});
  return list;
}

IsaChoice choose_isa(const char* wanted) {
  const std::vector<IsaCandidate> list = isa_candidates();
  const size_t first = wanted != nullptr && *wanted != '\0' ? first_allowed(list, wanted) : 0;
  std::string refused;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string why = list[i].obstacle;
    if (why.empty() && i < first) why = std::string("DITRAIN_ISA=") + wanted;
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

std::string report_of(const IsaChoice& choice) {
  const KernelTable& table = *choice.table;
  const std::string refused = choice.refused.empty() ? "" : " (refused: " + choice.refused + ")";
  const auto blocks = [&](int64_t rows) { return std::to_string(rows) + "x" + std::to_string(table.tile_cols); };
  const std::string tiles = " " + blocks(table.tile_rows) + " tiles";
  const bool has_unit = table.bf16_rows != table.tile_rows;
  const std::string of_bf16 = has_unit ? ", " + blocks(table.bf16_rows) + " on the tile unit for bf16" : "";
  const auto line = [&](const std::string& family, const std::string& detail) {
    return family + ": " + table.name + detail + refused + "\n";
  };
  return line("gemm", tiles + of_bf16) + line("attention", tiles + (has_unit ? ", not on the tile unit" : "")) +
         line("elementwise", "");
}

std::string dispatch_report() { return report_of(process_isa()); }

}  // namespace ditrain::kernels
