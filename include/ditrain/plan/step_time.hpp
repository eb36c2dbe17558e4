// Predicts the time of a step before the run starts. The rates of the machine are measured on three small models of
// fixed sizes; the work of a step is counted from its config, without running it.
//
// Problem:      the rates of GEMMs, attention and element-wise passes depend on processor, memory and kernels; those of
//               GEMMs also on the model's width, because narrow GEMMs do less arithmetic per byte. Workers of a cluster
//               are slower together: they share caches and memory, exchange what they computed, and wait for each
//               other. In small models starting jobs and loading samples take a part of the time that one can see
// Abstractions: StepWork (counts), WorkerRates (seconds per count), StepTime (their products)
//
//   parallel::Team team(placement.team());
//   const MachineRates rates = measure_rates(team, config.train.precision);
//   const StepTime time = predict_step(plan, rates);
#pragma once
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

/// Counts of the work of a rank in one step.
struct StepWork {
  double gemm_flop = 0;            ///< FLOP of layers, including what activation checkpointing recomputes
  double gemm_flop_per_width = 0;  ///< gemm_flop / width of the model
  double attention_macs = 0;       ///< multiply-adds of the forward pass
  double attention_values = 0;     ///< query values that the forward pass reads
  double values = 0;      ///< tokens x width x blocks: the values that element-wise passes touch, up to a factor
  double inputs = 0;      ///< values of the samples, each of which gets noise
  double passes = 0;      ///< blocks x micro-batches
  double parameters = 0;  ///< parameters that this rank's optimiser updates
  /// FLOP of products in that update (Newton-Schulz iterations of Muon), and the sum of FLOP / shorter side over the
  /// matrices. With shards: those of all matrices / replicas, or of the costliest parameter, which one rank updates.
  double update_flop = 0, update_flop_per_width = 0;
  double summed = 0;  ///< parameters whose gradients are all-reduced
};
StepWork work_of(const RunPlan& plan);

/// Passes of AdamW over arrays of all parameters: it reads weight, gradient, two moments and EMA, and writes all but
/// the gradient.
inline constexpr double kPassesOfUpdate = 9;
/// Passes of a rank over a bucket that two ranks of a node sum in memory: it reads the other's half, writes it, reads
/// all.
inline constexpr double kPassesOfSum = 3;

/// Seconds per count of StepWork, of one worker.
struct WorkerRates {
  double gemm_s = 0, gemm_per_width_s = 0;
  double attention_mac_s = 0, attention_value_s = 0;
  double value_s = 0, input_s = 0;
  double parameter_s = 0;
  double update_factor = 1;  ///< time of products of an update / of layers' products of the same FLOP and width
  double pass_s = 0;         ///< starting and ending the jobs of a block; not divided by the workers
  double overhead = 1;       ///< factor on every rate but pass_s
};

struct MachineRates {
  WorkerRates alone;    ///< of a worker that is its cluster, while all other cores compute too
  WorkerRates in_team;  ///< of a worker in a cluster of several
  const WorkerRates& of(const RunPlan& plan) const;
};

/// Measures the rates with forward, backward and update of three small models, on the calling thread alone and on the
/// team, in about a second. It takes the median CPU time of several repeats on the calling thread, so that other
/// programs on the machine hardly matter.
/// Memory:   about 150 MB, and 15 MB per worker
MachineRates measure_rates(parallel::Team& team, DType precision);
/// Makes the rates those of so many workers (at least 1) per core, which take turns.
void share_cores(MachineRates& rates, double workers_per_core);

/// What loading samples costs the workers.
struct Loading {
  double sample_s = 0;       ///< CPU seconds per sample; 0: unknown
  int cores = 0;             ///< that loader threads have for themselves; 0: they share those of the workers
  std::string problem = {};  ///< of a sample that could not be read
};
/// The CPU time of loading a sample, without turning and mirroring it: the mean of some all over the data, in half a
/// second of CPU time and two seconds at most, but of one sample at least.
Loading measure_loading(const dataset::Dataset& data);

struct StepTime {
  double gemm_s = 0, attention_s = 0, values_s = 0, jobs_s = 0, update_s = 0, sums_s = 0, loading_s = 0;
  double update_products_s = 0;  ///< the part of update_s that is products
  double compute_s() const { return gemm_s + attention_s + values_s + jobs_s; }  ///< of forward and backward
  double total_s() const { return compute_s() + update_s + sums_s + loading_s; }
};

/// Predicts the time of a step on one rank. It ignores waiting for other nodes and copies between memory tiers.
/// Math:     each count x its rate x the overhead / workers of the rank. A loader thread that takes a core from one
///           worker holds all of them up, as they wait for each other: loading_s = samples x sample_s / min(loader
///           threads, workers). With n cores for themselves loader threads work during the step, and loading_s is what
///           samples x sample_s / min(loader threads, n) is longer than that
StepTime predict_step(const RunPlan& plan, const MachineRates& rates, const Loading& loading = {});

/// The text of a dry run about time and disk: the time of a step and of its parts, of all steps after `done`, of
/// samples and validation, the size of the checkpoints in `run_folder`, and changes that shorten the run. `bf16`: the
/// rates in bf16, if the machine supports it and the run does not use it; else null. For ranks on several nodes it says
/// that messages between them are not counted.
std::string describe_time(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16,
                          const std::string& run_folder, const Loading& loading = {}, int64_t done = 0);

/// Forward passes of single samples that one evaluation takes; what features and their distance take is counted in
/// such passes, too.
struct EvaluationPasses {
  double samples = 0, validation = 0, distance = 0;
};
EvaluationPasses evaluation_passes(const RunPlan& plan);

/// Seconds of a rank for one of them, a third of the step's compute per sample.
double forward_s(const RunPlan& plan, double step_s);

/// Seconds that a run needs in addition to its steps after `done`: sample grids, validation and Frechet distances.
/// (Checkpoints are written during training.) A forward pass is taken as a third of a step's compute.
double predict_evaluation(const RunPlan& plan, const StepTime& step, int64_t done = 0);

}  // namespace ditrain::plan
