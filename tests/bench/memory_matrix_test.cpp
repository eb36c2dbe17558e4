// The table of domains x memory nodes: its layout on machines that are pretended, and one real node.
#include "ditrain/bench/memory_matrix.hpp"

#include <catch2/catch.hpp>

#include "../platform/synthetic.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

TEST_CASE("matrix: domains are the cores beside the same memory, cut by dies") {
  const auto lx2 = core_domains(platform::synthetic_machine(platform::kLx2TwoTiers));
  REQUIRE(lx2.size() == 16);
  CHECK(lx2[5].name == "die 1, domain 5 (PU 190-227)");
  CHECK(lx2[5].pus.size() == 38);
  const auto max = core_domains(platform::xeon_max(/*named=*/true));
  REQUIRE(max.size() == 8);
  CHECK(max[7].pus.size() == 14);  // one hardware thread of each core
}

TEST_CASE("matrix: a line per domain, a column per node, rows with the same numbers") {
  const platform::Topology machine =
      with_mask(platform::xeon_max(/*named=*/true), {0, 2, 4, 6, 28, 30, 196, 198});  // parts of domains 0, 1 and 7
  Harness harness(1, Effort::quick());
  bench_memory_matrix(harness, machine, [](const CoreDomain& d, const platform::MemoryNode& n) {
    return MatrixCell{double(d.pus.size()) * 10 + n.os, (100.0 + n.os) * 1e-9};
  });
  const Report& report = harness.report();
  REQUIRE(report.rows.size() == 3 * 16);
  CHECK(report.rows[16].name == "die 0, domain 1 (PU 28,30) x node 0");
  CHECK(report.rows[17].gb_s == 21);
  const std::string text = describe(report);
  CHECK_THAT(text, Contains("read, GB/s                    node 0 DRAM  node 1 HBM  node 2 DRAM") &&
                       Contains("\ndie 0, domain 0 (PU 0-6:2)           40.0        41.0         42.0") &&
                       Contains("\ndie 1, domain 7 (PU 196,198)         20.0        21.0         22.0") &&
                       Contains("latency, ns                   node 0 DRAM") &&
                       Contains("\ndie 0, domain 1 (PU 28,30)          100.0       101.0        102.0"));
  const auto rows = files::parse_json(to_json(report)).at("rows");
  CHECK(rows[17].at("node") == 1);
  CHECK(rows[17].at("memory") == "HBM");
  CHECK(rows[17].at("latency_s").get<double>() == Approx(101e-9));
}

TEST_CASE("matrix: this machine, every cell measured, and another machine's refused") {
  Harness harness(1, Effort::quick());
  const platform::Topology machine = platform::probe_topology();
  CHECK_THROWS_AS(bench_memory_matrix(harness, platform::synthetic_machine(platform::kLx2)), InputError);
  try {
    bench_memory_matrix(harness, machine);
  } catch (const InputError& e) {
    SKIP(e.what());  // a sandbox
  }
  const Report& report = harness.report();
  REQUIRE(report.rows.size() >= machine.memory.size());
  for (const Row& row : report.rows) CHECK((row.gb_s > 0 && std::isfinite(row.gb_s)));
}
