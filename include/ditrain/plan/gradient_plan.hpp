// How the gradients of a rank become those of the global batch: the buckets in which they travel, the layers of which
// ranks exchange factors instead, which rank keeps which part of the optimiser's state, and when weights change.
//
// The gradient of a linear layer over a batch of B samples is dy^T x with B rows of dy [N] and x [K]: of rank B. While
// B (N + K) <= N K, ranks gather these rows in the place of the matrix, which moves fewer bytes, and each multiplies
// those of all samples of the global batch: the same bits everywhere, in the order of the samples.
#pragma once
#include <string>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::plan {

/// A layer of which ranks exchange factors; they begin in the place of its weight's gradient.
struct FactorLayer {
  std::string weight, bias;         ///< names of the parameters
  int64_t outputs = 0, inputs = 0;  ///< N, K
  parallel::Range slice = {};       ///< of the arena: weight and bias, a bucket of their own
  int64_t row_elements() const { return outputs + inputs; }
};

/// What changes when its gradients are final: the weights of a bucket, or those of a node where updates happen in
/// backward.
struct UpdateGroup {
  parallel::Range arena;                     ///< the bucket, or the parameters of the node
  optim::UpdateSlice mine;                   ///< what this rank updates of it: all, or its shard
  std::vector<optim::UpdateSlice> pieces;    ///< of `mine`, cut into what moves as one, in the order of the updates
  std::vector<autograd::ArenaSlice> taken;   ///< with shards: of the bucket, whose new weights come from all ranks
  int64_t first_update = 0, first_take = 0;  ///< the numbers of the first of `pieces` and of the first of `taken`
};

/// The updates of a step in their order: the pieces of all groups, then what is taken. Their numbers count from 0. The
/// trainer makes these updates, and AutoMem plans with them; without AutoMem the pieces of a group are one.
struct UpdateSchedule {
  std::vector<UpdateGroup> groups = {};
  int64_t size = 0;
};

struct GradientPlan {
  int replicas = 1;                       ///< ranks with samples of their own, which sum gradients
  dist::BucketGrid buckets{0, 1};         ///< of dist.bucket_mib, at least 1024 elements; one for each factor layer
  std::vector<FactorLayer> factors = {};  ///< none with one replica, without an engine, with dist.reproducible, or
                                          ///< where the products of ranks may differ in bits
  int64_t factor_rows = 0;                ///< of each factor layer: samples of the global batch
  bool sharded = false;                   ///< moments and EMA are divided over the replicas (dist.shard_optimizer)
  /// Several replicas: the weights of a bucket change when it has arrived; else all of them when the last one has, with
  /// its norm.
  bool updates_early = false;
  /// One replica on one rank: the weights of a node change as soon as its last micro-batch has gone backward.
  bool updates_in_backward = false;
  /// With one micro-batch, too: the slices of the nodes, of whose gradients there is memory for one at a time.
  std::vector<autograd::ArenaSlice> gradient_slices = {};
  int rank = 0;                 ///< among the replicas: whose updates these are
  UpdateSchedule updates = {};  ///< of this rank

  int64_t state_elements() const;  ///< of each moment and of the EMA that the rank keeps; rank 0 has most
  /// Of these elements, where they are shards: the slices that move as one, in the order in which they lie there.
  std::vector<autograd::ArenaSlice> state_slices() const;
  int64_t gradient_elements() const;    ///< that there is memory for
  size_t factor_scratch_bytes() const;  ///< to multiply one layer's factors
};

/// `layout`: the parameters of a replica, or of this rank's part of it; nothing has to be allocated. `rank`: among the
/// replicas.
GradientPlan plan_gradients(const config::Config& config, autograd::ParameterStore& layout, int replicas, int rank = 0);

/// "": no factors. Else a line with the bytes that a rank moves in a step, without and with factors.
std::string describe_factors(const GradientPlan& plan, const config::Config& config);
/// The setting with which ranks would exchange factors; "": they do, or cannot.
std::string advice_on_factors(const config::Config& config);

}  // namespace ditrain::plan
