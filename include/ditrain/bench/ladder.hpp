// What each optimisation gives, by the switches of the config (the paper's Figure 9; bench/paper.hpp sets it beside
// the paper's numbers).
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

/// One way to compute a step: config keys, as --set takes them.
struct Rung {
  const char* name;
  std::vector<std::string> sets;
  bool slow = false;   ///< plain loops: one step only, and left out where that would take more than two minutes
  bool tuned = false;  ///< differs from the rung before by a tuning file only: left out where none fits
};
/// From slowest to fastest: reference loops, own products, with fused operators, tuned.
const std::vector<Rung>& ladder_rungs();

struct LadderBench {
  std::vector<std::string> models = {"S", "B", "L", "XL"};
  int64_t batch = 2;
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< further config keys of every rung
};

/// For every model one row per rung: a whole training step as bench_steps measures it.
/// Details   as bench_steps, then speedup: over own products
/// A rung whose switches this build or machine refuses, or that lacks its tuning file, is left out, with a note that
/// says why.
/// Errors:   InputError if no rung of a model can run
void bench_ladder(Harness& harness, const LadderBench& bench);

}  // namespace ditrain::bench
