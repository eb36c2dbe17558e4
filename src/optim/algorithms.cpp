// The optimisers, one row each: what they keep, and what updates.
#include "ditrain/base/error.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/optim/power_average.hpp"

namespace ditrain::optim {

Algorithm muon();  // muon.cpp

namespace {

Algorithm adamw() {
  return {.kind = Kind::kAdamW,
          .states = {{.name = "exp_avg", .title = "first moments"}, {.name = "exp_avg_sq", .title = "second moments"}},
          .update = adamw_ema_step};
}

}  // namespace

const Algorithm& algorithm_of(const Config& config) {
  static const Algorithm kAlgorithms[] = {adamw(), muon()};
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.kind == config.kind) return algorithm;
  throw LogicFault({.where = "optim", .what = "an optimiser without a row in optim/algorithms.cpp"});
}

std::vector<autograd::StateArray> state_arrays(const Config& config, const EmaConfig& ema) {
  std::vector<autograd::StateArray> all = algorithm_of(config).states;
  if (ema.snapshots_every > 0)
    for (const TrackedAverage& average : tracked_averages())
      all.push_back({.name = average.name, .title = "average of width " + average.width, .exponent = average.exponent});
  return all;
}

}  // namespace ditrain::optim
