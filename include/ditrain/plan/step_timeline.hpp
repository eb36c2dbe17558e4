// Computes when the parts of a step happen, and how much communication is exposed: backward makes buckets ready one
// after the other, the engine sums them meanwhile, then the weights are updated. The rules are those of
// train/gradient_sync and dist/engine. The durations are given; nothing is measured.
//
// The engine runs at most two operations at a time, in the order in which they were started. An operation uses the
// memory of the node, then the wire, then the memory again; memory and wire each serve one operation at a time. After
// backward the computing thread waits for the buckets in order. It updates each bucket that has arrived
// (`updates_early`), or all of them after the last one. With shards it sends the new weights of a bucket by a second
// operation, and waits for the new weights of all buckets at the end.
#pragma once
#include <optional>
#include <vector>

#include "ditrain/plan/network_time.hpp"
#include "ditrain/plan/step_time.hpp"

namespace ditrain::plan {

struct BucketTimes {
  double ready_s = 0;        ///< when its gradients are final on this rank, since the step began
  TransferTime sum = {};     ///< all-reduce of its gradients (or all-gather of their factors)
  double update_s = 0;       ///< update of the weights that this rank updates
  TransferTime gather = {};  ///< with shards: all-gather of its new weights
};

struct StepTimes {
  double compute_s = 0;  ///< from the beginning of the step to the end of backward
  std::vector<BucketTimes> buckets = {};
  bool overlap = true;  ///< false: the first operation begins when backward has ended
  bool updates_early = true;
  bool sharded = false;
};

struct Timeline {
  double total_s = 0;
  double update_s = 0;
  double exposed_s = 0;                ///< time in which the rank waited for communication
  double wire_s = 0;                   ///< time in which the wire was busy
  std::vector<double> arrived_s = {};  ///< when the sum of each bucket arrived; with shards, then its new weights
};
Timeline timeline_of(const StepTimes& times);

/// What an outer step (dist.outer) adds behind every `every`-th step: a pass that writes the outer gradient, sums of
/// its buckets over the ranks of all nodes, a pass that applies them when the last one has arrived. The rules are those
/// of train/outer_sync.
struct OuterStepTimes {
  double take_s = 0, apply_s = 0;
  std::vector<TransferTime> sums = {};
  double passes_s() const { return take_s + apply_s; }
};
/// Passes of f32 values of all parameters through memory, as kPassesOfUpdate counts them (optim/outer).
struct OuterPasses {
  double take, apply;
};
OuterPasses outer_passes(const optim::OuterConfig& config);
/// Bytes on the wire of a bucket of the outer gradient.
double outer_wire_bytes(double elements, const config::DistConfig& dist);
/// The timeline of one outer step, of which exposed_s and wire_s are meaningful. With `overlap` its sums run during the
/// `phase_s` seconds of the steps until the next outer step; without, the rank waits for them.
Timeline outer_timeline(const OuterStepTimes& outer, bool overlap, double phase_s);

/// Backward's share of the time of forward and backward: two thirds, more if blocks are recomputed.
double share_of_backward(const config::Config& config);
/// For each bucket, the share of the last backward pass that is over when the gradients of this bucket and of all
/// before it are final, because sums start in the order of the buckets. The time of a node of the tape is taken as
/// proportional to the multiply-adds of its GEMMs.
std::vector<double> ready_shares(const RunPlan& plan);
/// Seconds per step of the all-reduces of activations over the ranks that share a replica: two per block in forward,
/// two in backward, and two more where forward is recomputed.
double tensor_sums_s(const RunPlan& plan, const ClusterDescription& platform);
/// Share of those all-reduces that happen in backward, recomputation included.
double share_of_backward_sums(const config::Config& config);

/// An outer step, beyond the step that it follows.
struct OuterStepCost {
  double passes_s = 0;   ///< over the parameters
  double wire_s = 0;     ///< messages between nodes
  double exposed_s = 0;  ///< of the sums, what nothing hides
};

/// Where the time of a step on a cluster goes.
struct ClusterStep {
  double compute_s = 0;  ///< forward and backward, including recomputation
  double weights_s = 0;  ///< part of the passes: reading weights from other dies, adding gradients of micro-batches
  double tensor_s = 0;   ///< sums of activations over the ranks that share a replica
  double stall_s = 0;    ///< waiting for tensors that move between memory tiers
  double update_s = 0;
  double outer_s = 0;    ///< passes of outer steps over the parameters, spread over `every` steps
  double exposed_s = 0;  ///< communication of gradients and weights that is not hidden; outer steps' spread likewise
  double total_s = 0;
  double wire_s = 0;                        ///< time in which the link of a node is busy, with outer steps on average
  std::optional<OuterStepCost> outer = {};  ///< with dist.outer: of one outer step
};

/// Rates of a worker such that all cores of the die together reach `share` of its peak. All work of forward and
/// backward counts as GEMMs; an update is limited by memory bandwidth.
MachineRates rates_of(const Die& die, DType precision);

/// Predicts the step of a rank of `plan` on that cluster. Workers of a rank cover whole dies or a part of one; `cores`
/// counts all cores of the rank, including those set aside. `rates` are per worker (measured, or rates_of).
/// Math:     compute as in the other predict_step; buckets become ready during backward of the last micro-batch, at
///           ready_shares. With dist.outer gradients are summed in a node, and an outer step counts a share
/// Tiers:    with memory.automem the plan's points are simulated with the times of this cluster
ClusterStep predict_step(const RunPlan& plan, const MachineRates& rates, const ClusterDescription& platform, int cores);

}  // namespace ditrain::plan
