// Gradients of adaLN layers without sums of matrices (dist.adaln): which layers, and why, is in plan/gradient_plan.hpp.
//
//   backward of a micro-batch -> its rows in the place of the gradient -> bucket: rows of all ranks -> arrived()
//
// See FactorRows in nn/layers.hpp for the place. The squares of such a gradient, which sums bring along, take a pass of
// their own over it when it has just been made.
#pragma once
#include <utility>

#include "ditrain/nn/layers.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class AdalnFactors final : public SyncPolicy {
 public:
  AdalnFactors(const plan::GradientPlan& plan, autograd::ParameterStore& store, ops::Context& ctx);
  AdalnFactors(const AdalnFactors&) = delete;
  AdalnFactors& operator=(const AdalnFactors&) = delete;

  const nn::FactorRows& rows() const { return rows_; }     ///< what passes over the model are told
  void start_at(int64_t sample) { rows_.first = sample; }  ///< the first of the micro-batch that comes

  /// Scratch; and the buckets of its layers are gathered from now on.
  void allocate(dist::GradientBuckets& buckets);
  /// Makes the gradients of weight and bias from the rows of all ranks, in their place.
  void arrived(int64_t k, PhaseLog& log) override;
  /// Sum of squares of the gradients made since the last call.
  double take_squares() { return std::exchange(squares_, 0); }

 private:
  const plan::FactorLayer* layer_of(int64_t bucket) const;
  void multiply(const plan::FactorLayer& layer);

  const plan::GradientPlan& plan_;
  autograd::ParameterStore& store_;
  ops::Context& ctx_;
  nn::FactorRows rows_;
  Tensor dy_, x_;
  double squares_ = 0;
};

}  // namespace ditrain::train
