#include "ditrain/kernels/dispatch.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/platform/cpu.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

TEST_CASE("DITRAIN_ISA lowers the choice and says what it refused") {
  std::vector<const KernelTable*> tables;
  for (const IsaCandidate& c : isa_candidates())
    if (c.obstacle.empty()) tables.push_back(c.table);
  CHECK(choose_isa(nullptr).table == tables.front());
  CHECK(choose_isa("").table == tables.front());
  CHECK(choose_isa("scalar").table == tables.back());
  CHECK(choose_isa("baseline").table == tables.back());
  CHECK(std::string(tables.back()->name) == "baseline");
  for (const KernelTable* table : tables) CHECK(choose_isa(table->name).table == table);
  if (tables.size() > 1) {
    CHECK(choose_isa("scalar").refused.find("DITRAIN_ISA=scalar") != std::string::npos);
    CHECK(choose_isa("scalar").refused.find(tables.front()->name) != std::string::npos);
  }
}

TEST_CASE("DITRAIN_ISA takes the name of a family for its first member") {
  const std::string fastest = choose_isa(nullptr).table->name;
  const std::string family = fastest.substr(0, fastest.find('_'));
  if (family == "sme" || family == "sve2") CHECK(choose_isa(family.c_str()).table->name == fastest);
  if (family == "sme") CHECK(std::string(choose_isa("sve2").table->name).rfind("sve2_", 0) == 0);
}

TEST_CASE("the kernels are the best of this CPU") {
  const platform::CpuFeatures& cpu = platform::cpu_features();
  const std::string chosen = choose_isa(nullptr).table->name;
#if defined(__aarch64__) && defined(__clang__) && __clang_major__ >= 19
  const auto bits = [](int n) { return n == 128 || n == 256 || n == 512; };
  const std::string sve2 = "sve2_" + std::to_string(cpu.sve_bits);
  if (cpu.sme && bits(cpu.sme_bits) && bits(cpu.sve_bits) && cpu.sme_bits >= cpu.sve_bits)
    CHECK(chosen == "sme_" + std::to_string(cpu.sme_bits) + "_" + sve2);
  else if (cpu.sve2 && bits(cpu.sve_bits))
    CHECK(chosen == sve2);
  else
    CHECK(chosen == "baseline");
#elif defined(__x86_64__)
  CHECK(chosen == (cpu.amx_bf16 && cpu.avx512_bf16 ? "amx_bf16"
                   : cpu.avx512_bf16               ? "avx512_bf16"
                   : cpu.avx512                    ? "avx512"
                   : cpu.avx2_fma                  ? "avx2"
                                                   : "baseline"));
#endif
  if (only_kernels() != nullptr) CHECK(chosen == only_kernels());
}

TEST_CASE("an instruction set that the CPU lacks is never chosen") {
  for (const IsaCandidate& c : isa_candidates()) {
    const IsaChoice choice = choose_isa(c.table->name);
    CHECK((choice.table == c.table) == c.obstacle.empty());
    if (!c.obstacle.empty()) CHECK(choice.refused.find(c.obstacle) != std::string::npos);
  }
}

TEST_CASE("an unknown DITRAIN_ISA is an input error that lists the known ones") {
  CHECK_THROWS_AS(choose_isa("avx1024"), InputError);
  try {
    choose_isa("sse9");
  } catch (const InputError& e) {
    CHECK(std::string(e.what()).find("sse9") != std::string::npos);
    for (const IsaCandidate& c : isa_candidates())
      CHECK(std::string(e.what()).find(c.table->name) != std::string::npos);
  }
}

TEST_CASE("the report names every family and the chosen kernels") {
  const std::string report = dispatch_report();
  CHECK(chosen_isa() == process_isa().table->name);
  for (const char* family : {"gemm: ", "attention: ", "elementwise: "}) {
    CHECK(report.find(family + chosen_isa()) != std::string::npos);
  }
}

#if defined(__x86_64__)
namespace {

const IsaCandidate& candidate(const std::vector<IsaCandidate>& list, const std::string& name) {
  return *std::find_if(list.begin(), list.end(), [&](const IsaCandidate& c) { return c.table->name == name; });
}

}  // namespace

TEST_CASE("a CPU without AMX and a system that grants no tiles are told apart") {
  platform::CpuFeatures cpu{.avx2_fma = true, .avx512 = true, .avx512_bf16 = true};
  CHECK(candidate(isa_candidates(cpu), "amx_bf16").obstacle == "CPU lacks amx_bf16");
  cpu.has_amx_bf16 = true;
  CHECK(candidate(isa_candidates(cpu), "amx_bf16").obstacle == "Linux grants no tiles");
  cpu.amx_bf16 = true;
  CHECK(candidate(isa_candidates(cpu), "amx_bf16").obstacle == "");
  cpu.avx512_bf16 = false;
  CHECK(candidate(isa_candidates(cpu), "amx_bf16").obstacle == "CPU lacks avx512_bf16");
}

TEST_CASE("the report says which products are made on a tile unit, and in which blocks") {
  const std::vector<IsaCandidate> list = isa_candidates();
  CHECK(report_of({candidate(list, "amx_bf16").table, ""}) ==
        "gemm: amx_bf16 14x32 tiles, 32x32 on the tile unit for bf16\n"
        "attention: amx_bf16 14x32 tiles, not on the tile unit\n"
        "elementwise: amx_bf16\n");
  CHECK(report_of({candidate(list, "avx2").table, "avx512: CPU lacks avx512"}) ==
        "gemm: avx2 6x16 tiles (refused: avx512: CPU lacks avx512)\n"
        "attention: avx2 6x16 tiles (refused: avx512: CPU lacks avx512)\n"
        "elementwise: avx2 (refused: avx512: CPU lacks avx512)\n");
}
#endif
