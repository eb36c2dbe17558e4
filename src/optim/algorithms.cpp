// The optimisers, one row each: what they keep, and what updates.
#include "ditrain/base/error.hpp"
#include "ditrain/optim/optimizer.hpp"

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

}  // namespace ditrain::optim
