// Gradients of adaLN layers from all-gathered low-rank factors: plan/gradient_plan.hpp says for which layers, and why.
//
//   backward of a micro-batch -> its rows, in the memory of the gradient -> bucket: rows of all ranks -> arrived()
//
// The rows use the memory of the gradient: row s there is [dy_s, x_s] of sample s of the global batch. An all-reduce
// also gives the sum of squares of a gradient; here it takes a separate pass, right after the gradient has been
// computed.
#pragma once
#include <utility>
#include <vector>

#include "ditrain/nn/layers.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class LowRankExchange final : public SyncPolicy, public nn::WeightGradientSink {
 public:
  /// squares: whether take_squares will be called. (It is not if ranks share a replica, whose norm is computed
  /// otherwise.)
  LowRankExchange(const plan::GradientPlan& plan, autograd::ParameterStore& store, ops::Context& ctx, bool squares);
  LowRankExchange(const LowRankExchange&) = delete;
  LowRankExchange& operator=(const LowRankExchange&) = delete;

  /// Writes the rows of this micro-batch, if the layer is one of the plan's.
  bool take(ops::Context& ctx, const autograd::Parameter& w, const Tensor& x, const Tensor& dy,
            autograd::Gradients gradients) const override;
  void start_at(int64_t sample) { first_ = sample; }  ///< the first sample of the next micro-batch

  /// Allocates scratch. From now on the buckets of its layers are gathered.
  void allocate(dist::GradientBuckets& buckets);
  /// Computes the gradients of weight and bias from the rows of all ranks, in place.
  void arrived(int64_t k, PhaseLog& log) override;
  /// Sum of squares of the gradients made since the last call.
  double take_squares() { return std::exchange(squares_, 0); }

 private:
  const plan::FactorLayer* layer_of(int64_t bucket) const;
  void multiply(const plan::FactorLayer& layer);
  Tensor rows_of(const autograd::Parameter& w, const plan::FactorLayer& layer) const {
    return w.grad.slice(0, {plan_.factor_rows, layer.row_elements()});
  }

  const plan::GradientPlan& plan_;
  autograd::ParameterStore& store_;
  ops::Context& ctx_;
  const bool takes_squares_;
  std::vector<const autograd::Parameter*> weights_;  // of the plan's layers
  int64_t first_ = 0;                                // number in the global batch of the pass's first sample
  Tensor dy_, x_;
  double squares_ = 0;
};

}  // namespace ditrain::train
