// When the parts of a step happen: backward makes buckets ready one after the other, the engine sums them beside it,
// weights change behind. What of the communication is exposed comes out. The rules are those of train/gradient_sync and
// dist/engine; times are given, nothing is measured.
//
// The engine has two operations under way, which begin in the order in which they were started. An operation uses the
// memory of the node, then the wire, then the memory of the node again; each of the two serves one operation at a time.
// The thread that computes waits for the buckets in their order, after backward. It updates each that arrives
// (`updates_early`), or all behind the last one. With shards it sends the new weights of a bucket by a second
// operation, and waits for those of all buckets at the end.
#pragma once
#include <optional>
#include <vector>

#include "ditrain/plan/network_time.hpp"
#include "ditrain/plan/step_time.hpp"

namespace ditrain::plan {

struct BucketTimes {
  double ready_s = 0;        ///< since the step began: its gradients are final on this rank
  TransferTime sum = {};     ///< of its gradients (or their factors)
  double update_s = 0;       ///< of the weights that this rank updates
  TransferTime gather = {};  ///< with shards: of its new weights
};

struct StepTimes {
  double compute_s = 0;  ///< until backward has ended
  std::vector<BucketTimes> buckets = {};
  bool overlap = true;  ///< false: the first operation begins when backward has ended
  bool updates_early = true;
  bool sharded = false;
};

struct Timeline {
  double total_s = 0;
  double update_s = 0;
  double exposed_s = 0;                ///< in which the rank waited for others
  double wire_s = 0;                   ///< the wire was busy
  std::vector<double> arrived_s = {};  ///< sum of each bucket, then with shards new weights of each
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
/// `phase_s`: of the steps between two outer ones, beside which the sums travel if `overlap`; else they begin when the
/// gradient is written. exposed_s and wire_s count.
Timeline outer_timeline(const OuterStepTimes& outer, bool overlap, double phase_s);

/// Share of forward and backward that backward takes: two thirds, more with blocks whose forward pass runs again.
double share_of_backward(const config::Config& config);
/// How much of the last backward pass is over when the gradients of each bucket, and of all before it, are final: sums
/// start in the order of the buckets. Nodes of the tape take time as the multiply-adds of their products.
std::vector<double> ready_shares(const RunPlan& plan);
/// Seconds per step of the sums of activations over the ranks that share a replica: two per block in forward and two in
/// backward, and again where forward runs again.
double tensor_sums_s(const RunPlan& plan, const Platform& platform);
/// Share of those sums that backward, with what it computes again, makes.
double share_of_backward_sums(const config::Config& config);

/// An outer step, beyond the step that it follows.
struct OuterStepCost {
  double passes_s = 0;   ///< over the parameters
  double wire_s = 0;     ///< messages between nodes
  double exposed_s = 0;  ///< of the sums, what nothing hides
};

/// Where the time of a step on a cluster goes.
struct ClusterStep {
  double compute_s = 0;  ///< forward and backward, with what they recompute
  double weights_s = 0;  ///< part of a pass: weights read from other dies, gradients of micro-batches added
  double tensor_s = 0;   ///< sums of activations over the ranks that share a replica
  double stall_s = 0;    ///< waiting for tensors that move between memory tiers
  double update_s = 0;
  double outer_s = 0;    ///< passes of outer steps over the parameters, spread over `every` steps
  double exposed_s = 0;  ///< communication of gradients and weights that nothing hides; outer steps' spread likewise
  double total_s = 0;
  double wire_s = 0;                        ///< the link of a node is busy, with outer steps on average
  std::optional<OuterStepCost> outer = {};  ///< with dist.outer: of one outer step
};

/// Rates of a worker on a die, so that all of its cores reach `share` of its peak: in forward and backward all work
/// counts as GEMMs, and an update is bound by memory.
MachineRates rates_of(const Die& die, DType precision);

/// The step of a rank of `plan` on that cluster. Workers of a rank cover whole dies or a part of one; `cores` is the
/// number that the rank has, with those set aside. `rates` are those of a worker (measured, or rates_of).
/// Math:     compute as predict_step; buckets become ready while the last micro-batch goes backward, by
///           ready_shares. With dist.outer gradients are summed in a node, and an outer step counts a share
/// Tiers:    with memory.automem the points of the plan are simulated at the times of this cluster
ClusterStep predict_step(const RunPlan& plan, const MachineRates& rates, const Platform& platform, int cores);

}  // namespace ditrain::plan
