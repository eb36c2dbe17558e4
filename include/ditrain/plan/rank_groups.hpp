// The groups of ranks that share replicas and sum gradients (parallel.strategy). With cftp and dp every rank has a
// whole replica and samples of its own. With dp_tp, parallel.tensor_ranks ranks share a replica and its samples; ranks
// that have the same part of their replicas sum its gradients. With dist.outer only ranks of one node sum gradients in
// every step.
#pragma once
#include <memory>

#include "ditrain/config/replicas.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::plan {

/// The ranks that share a replica with this one.
class TensorGroup {
 public:
  explicit TensorGroup(std::unique_ptr<dist::Communicator> communicator) : communicator_(std::move(communicator)) {}

  dist::Communicator& communicator() const { return *communicator_; }
  /// data[i] becomes the sum over the group. Errors: RunError naming ranks after the communicator's timeout
  void sum(float* data, int64_t n);
  /// Seconds spent in sum() so far.
  double summing_s() const { return summing_s_; }
  /// L2 norm of the gradients of the whole replica: split parameters count on all ranks, the others once. Bit-identical
  /// on all ranks. Collective in the group.
  double gradient_norm(ops::Context& ctx, autograd::ParameterStore& parameters) const;

 private:
  std::unique_ptr<dist::Communicator> communicator_;
  double summing_s_ = 0;
};

class RankGroups {
 public:
  /// Collective. Consecutive ranks of a node are a group. The config is settled and has passed validate_for_ranks.
  /// Errors: InputError, on all ranks, if ranks that share a replica lie differently on the nodes
  RankGroups(const config::Config& config, dist::Communicator& world);

  /// The ranks that hold the same part of their replicas as this one; all ranks, unless replicas are shared.
  dist::Communicator& data() const { return data_ ? *data_ : world_; }
  /// Those ranks of data() that sum gradients in every step: all, unless there are outer steps.
  dist::Communicator& summing() const { return summing_ ? *summing_ : data(); }
  int group() const { return group_; }  ///< number of this rank's summing() group, from 0
  /// nullptr: the rank has its replica alone.
  TensorGroup* tensor() const { return tensor_.get(); }
  nn::TensorParallel tensor_parallel() const;

 private:
  dist::Communicator& world_;
  std::unique_ptr<dist::Communicator> data_, summing_;
  int group_ = 0;
  std::unique_ptr<TensorGroup> tensor_;
};

}  // namespace ditrain::plan
