#include "ditrain/kernels/dispatch.hpp"

#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/cpu.hpp"
#include "kernel_table.hpp"

namespace ditrain::kernels {

namespace avx512_bf16 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace baseline {
extern const KernelTable table;
}

namespace {

#ifdef DITRAIN_KERNELS_X86
// __builtin_cpu_supports asks CPUID and, for the wide registers, XCR0 (what the operating system saves).
std::string missing_for_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
  return "";
}

std::string missing_for_avx512_bf16() {
  const std::string missing = missing_for_avx512();
  return missing.empty() && !platform::cpu_features().avx512_bf16 ? "avx512_bf16" : missing;
}

std::string missing_for_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "avx2";
  if (!__builtin_cpu_supports("fma")) return "fma";
  return "";
}
#endif

// Position in the list below which candidates are wanted; names of the full list, so that "avx512" is a known word on
// every machine.
int speed_rank(const std::string& name) {
  if (name == "avx512_bf16") return 3;
  if (name == "avx512") return 2;
  if (name == "avx2") return 1;
  if (name == "baseline" || name == "scalar") return 0;
  throw InputError({.where = "DITRAIN_ISA",
                    .what = "unknown instruction set",
                    .got = "'" + name + "'",
                    .expected = "scalar, baseline, avx2, avx512 or avx512_bf16",
                    .hint = "unset it to use the fastest"});
}

}  // namespace

std::vector<IsaCandidate> isa_candidates() {
  std::vector<IsaCandidate> list;
#ifdef DITRAIN_KERNELS_X86
  list.push_back({&avx512_bf16::table, missing_for_avx512_bf16()});
  list.push_back({&avx512::table, missing_for_avx512()});
  list.push_back({&avx2::table, missing_for_avx2()});
#endif
  list.push_back({&baseline::table, ""});
  return list;
}

IsaChoice choose_isa(const char* wanted) {
  const bool limited = wanted != nullptr && *wanted != '\0';
  const int highest = limited ? speed_rank(wanted) : speed_rank("avx512_bf16");
  std::string refused;
  for (const IsaCandidate& candidate : isa_candidates()) {
    const std::string name = candidate.table->name;
    std::string why;
    if (!candidate.missing.empty())
      why = "CPU lacks " + candidate.missing;
    else if (speed_rank(name) > highest)
      why = std::string("DITRAIN_ISA=") + wanted;
    if (why.empty()) return {candidate.table, refused};
    refused += (refused.empty() ? "" : "; ") + name + ": " + why;
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
