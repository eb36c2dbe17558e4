#include "ditrain/bench/ladder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/nn/model.hpp"
#include "own_keys.hpp"
#include "stop.hpp"

namespace ditrain::bench {
namespace {

// Plain loops of the reference reach about 2.5 GFLOP/s per thread (S/2 on one core of an EPYC).
constexpr double kSlowFlopPerSecond = 2.5e9, kSlowLimit_s = 120;

constexpr const char* kBaseline = "own products";  // over which speed-ups are

double step_flop(const StepBench& step, int64_t batch) {
  nn::ModelConfig model;
  model.name = model_name(step.model);
  nn::apply_name(model);
  return 6 * nn::forward_macs(model) * double(batch);
}

// What kernels.tuned: auto gives here; "" if it is a tuning file.
std::string no_tuning(Harness& harness) {
  harness.apply({});
  const std::string& products = harness.products();
  const size_t at = products.find("derived from caches");
  return at == std::string::npos ? "" : products.substr(at);
}

// The rows of one model that could be measured.
void measure_rungs(Harness& harness, const LadderBench& bench, const std::string& model, std::vector<Row>& rows) {
  for (const Rung& rung : ladder_rungs()) {
    StepBench step{.model = model, .batches = {bench.batch}, .precision = bench.precision, .sets = rung.sets};
    step.sets.insert(step.sets.end(), bench.sets.begin(), bench.sets.end());
    step.once = rung.slow;
    const std::string name = model + " " + rung.name;
    const double slow_s = step_flop(step, bench.batch) / (kSlowFlopPerSecond * harness.num_threads());
    if (rung.slow && slow_s > kSlowLimit_s) {
      harness.note(fmt::format("{}: left out; a step would take some {:.0f} s", name, slow_s));
      continue;
    }
    if (const std::string why = rung.tuned ? no_tuning(harness) : ""; !why.empty()) {
      harness.note(fmt::format("{}: left out; it would be the rung before, with blocks {}", name, why));
      continue;
    }
    try {
      rows.push_back(measure_step(harness, step, bench.batch, name));
    } catch (const InputError& refused) {
      harness.note(name + ": left out; " + refused.what());
    }
  }
}

// False if the rung is missing over which speed-ups are.
bool add_rows(Harness& harness, const std::string& model, std::vector<Row>& rows) {
  const auto base =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == model + " " + kBaseline; });
  const bool has_base = base != rows.end();
  const double baseline = has_base ? base->time.median_s : std::numeric_limits<double>::quiet_NaN();
  for (Row& row : rows) {
    for (Field& f : row.details) f.in_table = f.name == "batch" || f.name == "images_per_second";
    row.details.push_back({"speedup", baseline / row.time.median_s});
    harness.add(std::move(row));
  }
  return has_base;
}

void add_figure9(Harness& harness, const LadderBench& bench, const std::string& model) {
  std::vector<Row> rows;
  try {
    measure_rungs(harness, bench, model, rows);
  } catch (...) {
    add_rows(harness, model, rows);
    throw;
  }
  if (!add_rows(harness, model, rows))
    refuse("ditbench", rows.empty() ? "ladder: no rung can run" : "ladder: the rung of our GEMMs cannot run",
           harness.report_so_far().notes.back());
}

}  // namespace

const std::vector<Rung>& ladder_rungs() {
  static const std::vector<Rung> rungs = {
      {.name = "reference loops",
       .sets = {"kernels.gemm=ref", "kernels.fuse=false", "kernels.tuned=off"},
       .slow = true},
      {.name = kBaseline, .sets = {"kernels.gemm=own", "kernels.fuse=false", "kernels.tuned=off"}},
      {.name = "+ fused operators", .sets = {"kernels.gemm=own", "kernels.fuse=true", "kernels.tuned=off"}},
      {.name = "+ tuning", .sets = {"kernels.gemm=own", "kernels.fuse=true", "kernels.tuned=auto"}, .tuned = true},
  };
  return rungs;
}

void bench_ladder(Harness& harness, const LadderBench& bench) {
  expect_not_set(bench.sets, {{"kernels.gemm", "no such key: rungs set it themselves"},
                              {"kernels.fuse", "no such key: rungs set it themselves"},
                              {"kernels.tuned", "DITRAIN_TUNING=FILE in the environment, for the last rung"}});
  config::Config known;  // a bad key is no reason to leave rungs out
  for (const std::string& set : bench.sets) config::apply_set(known, set);
  for (const std::string& model : bench.models) add_figure9(harness, bench, model);
}

}  // namespace ditrain::bench
