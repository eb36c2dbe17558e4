#include "ditrain/kernels/dispatch.hpp"

#include "ditrain/base/error.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

TEST_CASE("DITRAIN_ISA lowers the choice and says what it refused") {
  const std::vector<const KernelTable*> tables = usable_tables();
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

TEST_CASE("an instruction set that the CPU lacks is never chosen") {
  for (const IsaCandidate& c : isa_candidates()) {
    const IsaChoice choice = choose_isa(c.table->name);
    CHECK((choice.table == c.table) == c.missing.empty());
    if (!c.missing.empty()) CHECK(choice.refused.find(c.missing) != std::string::npos);
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
