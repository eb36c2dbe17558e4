// How the gradients of a rank become those of the global batch: the buckets of the all-reduce, the layers whose
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

/// Weights that change together when their gradients are final: those of a bucket, or of a node where updates happen in
/// backward.
struct UpdateGroup {
  parallel::Range arena;                     ///< the bucket (or several), or the parameters of the node
  autograd::ArenaSlice mine;                 ///< the part that this rank updates: all, or its shard
  std::vector<autograd::ArenaSlice> pieces;  ///< `mine` split into what moves as one, in update order
  std::vector<autograd::ArenaSlice> taken;   ///< with shards: slices whose new weights ranks send
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
  int replicas = 1;                       ///< ranks with samples of their own, which sum gradients: of a group
  int groups = 1;                         ///< of them (dist.outer)
  dist::BucketGrid buckets{0, 1};         ///< dist.bucket_mib each, at least 1024 elements; and one per factor layer
  std::vector<FactorLayer> factors = {};  ///< none with one replica, without an engine or with dist.reproducible
  int64_t factor_rows = 0;                ///< rows of each factor layer: samples of the global batch
  bool whole_parameters = false;          ///< updates end where parameters do, see optim::Algorithm::whole_cost
  bool sharded = false;                   ///< optimiser state and EMA are divided over the replicas (ZeRO-1)
  /// Several replicas: the weights of a bucket change when it has arrived. If false, all change when the last bucket
  /// has arrived and the norm is known.
  bool updates_early = false;
  /// One replica on one rank: the weights of a node change as soon as its last micro-batch has gone backward.
  bool updates_in_backward = false;
  /// Updates in backward with one micro-batch: the slices of the nodes. Memory holds the gradients of one node at a
  /// time.
  std::vector<autograd::ArenaSlice> gradient_slices = {};
  std::vector<autograd::ArenaSlice> node_slices = {};  ///< with updates_in_backward: of the nodes with parameters
  int rank = 0;                                        ///< among the replicas of the group
  UpdateSchedule updates = {};                         ///< of this rank, where schedule_updates has made it

  int64_t state_elements() const;       ///< elements of the EMA that this rank keeps
  int64_t most_state_elements() const;  ///< that any rank keeps
  /// ParameterStore::Homes::state_parts of this rank.
  std::vector<autograd::ArenaSlice> state_parts() const;
  int64_t gradient_elements() const;    ///< gradients that memory holds
  size_t factor_scratch_bytes() const;  ///< to multiply one layer's factors
};

/// `layout` has the parameters of a replica, or of this rank's part of it, and need not be allocated. `rank` is the
/// number among the replicas, which are those of all groups.
GradientPlan plan_gradients(const config::Config& config, autograd::ParameterStore& layout, int all_replicas,
                            int rank = 0);

/// The updates of the plan's rank. On one replica, where nothing travels, neighbouring buckets change together, so that
/// there are at most some thousand groups.
UpdateSchedule schedule_updates(const GradientPlan& plan, const autograd::ParameterStore& layout);

/// A line with the bytes that a rank moves in a step, without and with factors; "" without factors.
std::string describe_factors(const GradientPlan& plan, const config::Config& config);
/// The setting with which ranks would exchange factors; "" if they do already, or cannot.
std::string advice_on_factors(const config::Config& config);

}  // namespace ditrain::plan
