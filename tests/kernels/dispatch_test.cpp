#include "ditrain/kernels/dispatch.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/platform/cpu.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

std::vector<InstructionSet> runnable() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet& set : instruction_sets())
    if (set.obstacle.empty()) sets.push_back(set);
  return sets;
}

/// The first of `sets` from `from` on that has a family.
template <class Table>
const Table* first_with(const Table* Families::*family, const std::vector<InstructionSet>& sets, size_t from) {
  while (sets[from].kernels.*family == nullptr) ++from;
  return sets[from].kernels.*family;
}

}  // namespace

TEST_CASE("DITRAIN_ISA lowers the choice and says what it refused") {
  const std::vector<InstructionSet> sets = runnable();
  CHECK(choose_kernels(nullptr).isa == sets.front().name);
  CHECK(choose_kernels("").isa == sets.front().name);
  CHECK(choose_kernels("scalar").isa == sets.back().name);
  CHECK(std::string(sets.back().name) == "baseline");
  for (const InstructionSet& set : sets) CHECK(choose_kernels(set.name).isa == set.name);
  if (sets.size() > 1) {
    CHECK(choose_kernels("scalar").report.find(std::string(sets[sets.size() - 2].name) + ": DITRAIN_ISA=scalar") !=
          std::string::npos);
  }
}

TEST_CASE("every family comes from the first instruction set that is allowed, runs here and has it") {
  const std::vector<InstructionSet> sets = runnable();
  for (size_t i = 0; i < sets.size(); ++i) {
    CAPTURE(sets[i].name);
    const Families chosen = choose_kernels(sets[i].name).kernels;
    CHECK(chosen.f32_products == first_with(&Families::f32_products, sets, i));
    CHECK(chosen.bf16_products == first_with(&Families::bf16_products, sets, i));
    CHECK(chosen.f32_attention == first_with(&Families::f32_attention, sets, i));
    CHECK(chosen.bf16_attention == first_with(&Families::bf16_attention, sets, i));
    CHECK(chosen.elementwise == first_with(&Families::elementwise, sets, i));
  }
  if (only_kernels() != nullptr) CHECK(choose_kernels(nullptr).isa == only_kernels());
}

TEST_CASE("an instruction set with products alone takes the rest from the next one") {
  const std::vector<InstructionSet> sets = runnable();
  const Families& baseline = sets.back().kernels;
  const InstructionSet unit{"unit", "", {.bf16_products = baseline.bf16_products}};
  const KernelChoice choice = choose_kernels(nullptr, {unit, sets.back()});
  CHECK(choice.isa == "unit");
  CHECK(choice.kernels.f32_products == baseline.f32_products);
  CHECK(choice.kernels.f32_attention == baseline.f32_attention);
  CHECK(choice.kernels.bf16_attention == baseline.bf16_attention);
  CHECK(choice.kernels.elementwise == baseline.elementwise);
  const InstructionSet missing{"missing", "CPU lacks it", {.bf16_products = baseline.bf16_products}};
  const std::string report = choose_kernels(nullptr, {missing, sets.back()}).report;
  CHECK(report.find(" tiles (refused: missing: CPU lacks it)\nattention: baseline") != std::string::npos);
  CHECK(report.find("attention: baseline") < report.find("elementwise: baseline\n"));
}

TEST_CASE("DITRAIN_ISA takes the beginning of a name for the first instruction set of that name") {
  for (const InstructionSet& set : runnable()) {
    const std::string name = set.name, beginning = name.substr(0, name.find('_'));
    const std::string chosen = choose_kernels(beginning.c_str()).isa;
    CHECK((chosen == beginning || chosen.starts_with(beginning + "_")));
  }
}

TEST_CASE("an instruction set that the CPU lacks is never chosen") {
  for (const InstructionSet& set : instruction_sets()) {
    const KernelChoice choice = choose_kernels(set.name);
    CHECK((choice.isa == set.name) == set.obstacle.empty());
    if (!set.obstacle.empty()) CHECK(choice.report.find(set.obstacle) != std::string::npos);
  }
  const std::vector<InstructionSet> on_nothing = instruction_sets({});
  for (const InstructionSet& set : on_nothing) CHECK(set.obstacle.empty() == (set.name == std::string("baseline")));
}

TEST_CASE("an unknown DITRAIN_ISA is an input error that lists the known ones") {
  CHECK_THROWS_AS(choose_kernels("avx1024"), InputError);
  try {
    choose_kernels("sse9");
  } catch (const InputError& e) {
    CHECK(std::string(e.what()).find("sse9") != std::string::npos);
    for (const InstructionSet& set : instruction_sets())
      CHECK(std::string(e.what()).find(set.name) != std::string::npos);
  }
}

TEST_CASE("the report names every family and the chosen kernels") {
  const std::string report = dispatch_report();
  const Families& kernels = process_kernels().kernels;
  CHECK(report.find(std::string("gemm: ") + kernels.bf16_products->name + " ") == 0);
  CHECK(report.find(std::string("\nattention: ") + kernels.bf16_attention->name + " ") != std::string::npos);
  CHECK(report.find(std::string("\nelementwise: ") + kernels.elementwise->name) != std::string::npos);
  CHECK(chosen_isa() == process_kernels().isa);
}

#if defined(__x86_64__)
namespace {

/// The instruction sets of these names on that CPU.
std::vector<InstructionSet> sets_on(const platform::CpuFeatures& cpu, const std::vector<std::string>& names) {
  std::vector<InstructionSet> sets;
  for (const InstructionSet& set : instruction_sets(cpu))
    if (std::find(names.begin(), names.end(), set.name) != names.end()) sets.push_back(set);
  return sets;
}
std::string obstacle(const platform::CpuFeatures& cpu, const std::string& name) {
  return sets_on(cpu, {name}).front().obstacle;
}

}  // namespace

TEST_CASE("each missing feature of a CPU is named, and tiles that Linux does not grant") {
  platform::CpuFeatures cpu{
      .avx2_fma = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true, .has_amx_bf16 = true};
  CHECK(obstacle(cpu, "amx_bf16") == "");
  cpu.amx_bf16 = false;
  CHECK(obstacle(cpu, "amx_bf16") == "the system grants no tiles");
  cpu.has_amx_bf16 = false;
  CHECK(obstacle(cpu, "amx_bf16") == "CPU lacks amx_bf16");
  CHECK(obstacle(cpu, "avx512_bf16") == "");
  cpu.amx_bf16 = cpu.has_amx_bf16 = true, cpu.avx512_bf16 = false;
  CHECK(obstacle(cpu, "amx_bf16") == "CPU lacks avx512_bf16");
  CHECK(obstacle(cpu, "avx512") == "");
  cpu.avx512 = false;
  CHECK(obstacle(cpu, "avx512_bf16") == "CPU lacks avx512 (F, BW, DQ and VL)");
  CHECK(obstacle(cpu, "avx2") == "");
  cpu.avx2_fma = false;
  CHECK(obstacle(cpu, "avx2") == "CPU lacks avx2 or fma");
}

TEST_CASE("the report says which products are made on a tile unit, and in which blocks") {
  const std::vector<std::string> names = {"amx_bf16", "avx512_bf16", "avx512", "avx2"};
  const platform::CpuFeatures all{
      .avx2_fma = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true, .has_amx_bf16 = true};
  CHECK(choose_kernels(nullptr, sets_on(all, names)).report ==
        "gemm: amx_bf16 32x32 tiles for bf16, avx512 14x32 tiles for f32\n"
        "attention: amx_bf16 32x32 tiles for bf16, avx512 14x32 tiles for f32\n"
        "elementwise: avx512_bf16\n");
  const KernelChoice lowered = choose_kernels("avx512_bf16", sets_on(all, names));
  CHECK(lowered.report ==
        "gemm: avx512_bf16 14x32 tiles for bf16, avx512 14x32 tiles for f32 (refused: amx_bf16: "
        "DITRAIN_ISA=avx512_bf16)\n"
        "attention: avx512_bf16 14x32 tiles for bf16, avx512 14x32 tiles for f32 (refused: amx_bf16: "
        "DITRAIN_ISA=avx512_bf16)\n"
        "elementwise: avx512_bf16\n");
  const std::string refused =
      "avx512_bf16: CPU lacks avx512 (F, BW, DQ and VL); avx512: CPU lacks avx512 (F, BW, DQ and VL))\n";
  CHECK(choose_kernels(nullptr, sets_on({.avx2_fma = true}, names)).report ==
        "gemm: avx2 6x16 tiles (refused: amx_bf16: CPU lacks avx512 (F, BW, DQ and VL); " + refused +
            "attention: avx2 6x16 tiles (refused: amx_bf16: CPU lacks avx512 (F, BW, DQ and VL); " + refused +
            "elementwise: avx2 (refused: " + refused);
}

TEST_CASE("where AVX512-BF16 has half the rate of f32, products of bf16 and attention are those of AVX-512") {
  platform::CpuFeatures cpu{.avx2_fma = true, .avx512 = true, .avx512_bf16 = true, .slow_bf16 = true};
  const std::vector<std::string> names = {"amx_bf16", "avx512_bf16", "avx512"};
  const std::string slow = "avx512_bf16: bf16 at half the rate of f32 on this processor)\n";
  const KernelChoice choice = choose_kernels(nullptr, sets_on(cpu, names));
  CHECK(choice.isa == "avx512_bf16");
  CHECK(choice.report == "gemm: avx512 14x32 tiles (refused: amx_bf16: CPU lacks amx_bf16; " + slow +
                             "attention: avx512 14x32 tiles (refused: amx_bf16: CPU lacks amx_bf16; " + slow +
                             "elementwise: avx512_bf16\n");
  CHECK(kernels_in(choice.report) ==
        "gemm: avx512 14x32 tiles; attention: avx512 14x32 tiles; elementwise: avx512_bf16");
  CHECK(choose_kernels("avx512", sets_on(cpu, names)).report.find("gemm: avx512 14x32 tiles (refused") == 0);
  // By its name it is what other processors of a cluster have, too.
  const std::string by_name = kernels_in(choose_kernels("avx512_bf16", sets_on(cpu, names)).report);
  cpu.slow_bf16 = false;
  CHECK(by_name == kernels_in(choose_kernels(nullptr, sets_on(cpu, names)).report));
  cpu.slow_bf16 = cpu.amx_bf16 = cpu.has_amx_bf16 = true;
  CHECK(choose_kernels(nullptr, sets_on(cpu, names)).kernels.bf16_products->name == std::string("amx_bf16"));
}
#endif
