// How the gradients of a rank become the gradients of the global batch: the buckets of the all-reduce, the layers whose
// low-rank gradient factors ranks exchange instead, which rank keeps which part of the optimiser state, and when
// weights change.
//
// The gradient of a linear layer over a batch of B samples is dy^T x with B rows of dy [N] and x [K]: a matrix of rank
// B. While B (N + K) <= N K, ranks all-gather these rows instead of all-reducing the matrix, which moves fewer bytes.
// Each rank multiplies the rows of the global batch in the order of the samples, so that the result is bit-identical
// everywhere.
#pragma once
#include <string>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::plan {

/// A layer whose low-rank gradient factors ranks exchange. The factors lie where its weight's gradient begins.
struct FactorLayer {
  std::string weight, bias;         ///< names of the parameters
  int64_t outputs = 0, inputs = 0;  ///< N, K
  parallel::Range slice = {};       ///< weight and bias in the arena: a bucket of their own
  int64_t row_elements() const { return outputs + inputs; }
};

/// Weights that are updated together when their gradients are final: the weights of a bucket, or of a node of the tape
/// if updates happen in backward.
struct UpdateGroup {
  parallel::Range arena;                     ///< the bucket (or several), or the parameters of the node
  autograd::ArenaSlice mine;                 ///< the part that this rank updates: all, or its shard
  std::vector<autograd::ArenaSlice> pieces;  ///< `mine` split into units that move between tiers, in update order
  std::vector<autograd::ArenaSlice> taken;   ///< with shards: slices whose new weights other ranks send
  int64_t first_update = 0, first_take = 0;  ///< the numbers of the first of `pieces` and of the first of `taken`
};

/// The updates of a step in their order: the pieces of all groups, then the slices taken from other ranks, numbered
/// from 0. The trainer makes these updates, and AutoMem plans with them. Without AutoMem the trainer updates the `mine`
/// of a group in one call.
struct UpdateSchedule {
  std::vector<UpdateGroup> groups = {};
  int64_t size = 0;
};

struct GradientPlan {
  int replicas = 1;                       ///< ranks of a group: each has samples of its own, and they sum gradients
  int groups = 1;                         ///< groups of such ranks (dist.outer)
  dist::BucketGrid buckets{0, 1};         ///< dist.bucket_mib each, at least 1024 elements; and one per factor layer
  std::vector<FactorLayer> factors = {};  ///< none with one replica, without an engine or with dist.reproducible
  int64_t factor_rows = 0;                ///< rows of each factor layer: samples of the global batch
  bool whole_parameters = false;          ///< updates end where parameters do, see optim::Algorithm::whole_cost
  bool sharded = false;                   ///< optimiser state and EMA are divided over the replicas (ZeRO-1)
  /// Several replicas: the weights of a bucket change when its sum has arrived. If false, all weights change when the
  /// last bucket has arrived and the gradient norm is known.
  bool updates_early = false;
  /// One replica on one rank: the weights of a node change as soon as its last micro-batch has gone backward.
  bool updates_in_backward = false;
  /// Updates in backward with one micro-batch: the slices of the nodes. Memory holds the gradients of one node at a
  /// time.
  std::vector<autograd::ArenaSlice> gradient_slices = {};
  std::vector<autograd::ArenaSlice> node_slices = {};  ///< with updates_in_backward: slices of nodes with parameters
  int rank = 0;                                        ///< among the replicas of the group
  UpdateSchedule updates = {};                         ///< updates of this rank; empty before schedule_updates

  int64_t state_elements() const;       ///< elements of the EMA that this rank keeps
  int64_t most_state_elements() const;  ///< the same for the rank that keeps most
  /// ParameterStore::Homes::state_parts of this rank.
  std::vector<autograd::ArenaSlice> state_parts() const;
  int64_t gradient_elements() const;    ///< gradient elements in memory at a time
  size_t factor_scratch_bytes() const;  ///< scratch for the GEMM of one layer's factors
};

/// Plans the gradients of one rank. `layout` has the parameters of a replica, or of this rank's part of it, and need
/// not be allocated. `all_replicas` counts the replicas of all groups; `rank` is this one's number among them.
/// Errors:   InputError if no parameter of the model has one of the optimiser's states
GradientPlan plan_gradients(const config::Config& config, autograd::ParameterStore& layout, int all_replicas,
                            int rank = 0);

/// The updates of the plan's rank. With one replica, which sends nothing, neighbouring buckets are updated together, so
/// that there are at most a few thousand groups.
UpdateSchedule schedule_updates(const GradientPlan& plan, const autograd::ParameterStore& layout);

/// A line with the bytes that a rank moves in a step, without and with factors; "" without factors.
std::string describe_factors(const GradientPlan& plan, const config::Config& config);
/// The setting that would make ranks exchange factors; "" if they already do, or cannot.
std::string advice_on_factors(const config::Config& config);

}  // namespace ditrain::plan
