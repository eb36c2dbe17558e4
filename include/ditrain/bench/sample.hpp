// Times the steps of a sampler with classifier-free guidance, compared with the FMA peak of the same cores.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct SampleBench {
  std::string model = "DiT-S/2";
  std::vector<int64_t> batches = {8};  ///< images; with guidance the model runs on twice as many
  int64_t steps = 2;                   ///< sampler steps per call
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v", as --set of ditrain
};

/// Times eval::generate: noise, the modulations of all steps, guided steps of the process's default sampler. One row
/// per batch size; the images have different classes.
/// share     2 x forward MACs x 2 x batch x steps / median, as a share of the FMA peak
/// Details   batch, steps, step_s (seconds per step), mfu (the share), where the time of the median call went as for
///           bench_steps, memory_bytes (of the call, without the weights)
/// Errors:   InputError for a config that cannot run, and for sets of keys that the bench decides itself (steps, scale
///           and model of the guidance, batch)
void bench_sampling(Harness& harness, const SampleBench& bench);

}  // namespace ditrain::bench
