// Measures the speedup of each optimisation, switched on and off by config keys (the paper's Figure 9; bench/paper.hpp
// compares with the paper's numbers).
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

/// One set of switches for a training step.
struct Rung {
  const char* name;
  std::vector<std::string> sets;  ///< config keys, as --set takes them
  bool slow = false;              ///< plain loops: one step only, left out if that would take more than two minutes
  bool tuned = false;             ///< differs from the previous rung by a tuning file only; left out if none fits
};
/// The rungs from slowest to fastest: reference loops, our own GEMMs, fused operators, tuned.
const std::vector<Rung>& ladder_rungs();

struct LadderBench {
  std::vector<std::string> models = {"S", "B", "L", "XL"};
  int64_t batch = 2;
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< further config keys of every rung
};

/// One row per model and rung: a whole training step as bench_steps measures it.
/// Details   as bench_steps, then speedup over the rung of our own GEMMs
/// A rung whose switches this build or machine refuses, or that lacks its tuning file, is left out; a note says why.
/// Errors:   InputError if no rung of a model can run, and for sets of the keys in which rungs differ
void bench_ladder(Harness& harness, const LadderBench& bench);

}  // namespace ditrain::bench
