// How long a step takes, before anything of the run has been started. The rates of the machine are measured on two
// small blocks of fixed sizes; the work of a step is counted from its config. Nothing of the config that is predicted
// runs.
//
// Problem:      the rates of GEMMs, attention and passes over values depend on processor, memory and kernels, and GEMMs
//               also on the width: those of narrow models do less between two looks at memory
// Abstractions: StepWork (counts), MachineRates (seconds per count), StepTime (their products)
//
//   parallel::Team team(placement.team());
//   const MachineRates rates = measure_rates(team, config.train.precision);
//   const StepTime time = predict_step(plan, rates);
#pragma once
#include "ditrain/parallel/team.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

/// What a rank does in one step.
struct StepWork {
  double gemm_flop = 0;            ///< of layers; with what activation checkpointing computes again
  double gemm_flop_per_width = 0;  ///< each divided by the width of the model
  double attention_macs = 0;       ///< multiply-adds of the forward pass
  double attention_values = 0;     ///< values of queries that the forward pass reads
  double values = 0;               ///< tokens x width x blocks: what passes outside GEMMs touch, up to a factor
  double parameters = 0;           ///< that the optimiser of this rank updates
  double summed = 0;               ///< parameters whose gradients ranks add up
};
StepWork work_of(const RunPlan& plan);

/// Passes over an array of all parameters that AdamW makes: it reads weight, gradient, two moments and average, and
/// writes all but the gradient.
inline constexpr double kPassesOfUpdate = 9;
/// Passes of a rank over what two ranks of a node add up in memory: it reads the other's half, writes it, reads all.
inline constexpr double kPassesOfSum = 3;

/// Seconds per count of StepWork, of one worker.
struct MachineRates {
  double gemm_s = 0, gemm_per_width_s = 0;
  double attention_mac_s = 0, attention_value_s = 0;
  double value_s = 0;
  double parameter_s = 0;
  double overhead = 1;  ///< time of a step by that of its jobs, and what a core loses while all of them compute
};

/// Measures them with forward, backward and update of two small blocks on the calling thread, and the peak of the
/// team's cores at once; some tenths of a second. What counts is the time that the thread had a core, of several
/// repeats the shortest: other programs on the machine hardly matter.
/// Memory:   about 150 MB
MachineRates measure_rates(parallel::Team& team, DType precision);

struct StepTime {
  double gemm_s = 0, attention_s = 0, values_s = 0, update_s = 0, sums_s = 0;
  double compute_s() const { return gemm_s + attention_s + values_s; }  ///< of forward and backward
  double total_s() const { return compute_s() + update_s + sums_s; }
};

/// The time of a step of a rank. It counts neither waiting for data nor for other nodes, and tiers of memory as free.
/// Math:     each count times its rate and the overhead, divided by the workers of the rank
StepTime predict_step(const RunPlan& plan, const MachineRates& rates);

/// What a dry run says of time and disk: the time of a step and where it goes, of all steps, of samples and validation,
/// the size of the checkpoints in `run_folder`, and changes that shorten the run. `bf16`: the rates in that precision,
/// if the machine has it and the run does not use it.
std::string describe_time(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16,
                          const std::string& run_folder);

/// Seconds of everything else that a run does: sample grids, validation and distances; checkpoints are written beside
/// the training. A forward pass takes a third of a step's compute.
double predict_evaluation(const RunPlan& plan, const StepTime& step);

}  // namespace ditrain::plan
