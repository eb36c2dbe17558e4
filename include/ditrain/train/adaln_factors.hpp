// Gradients of adaLN layers without sums of matrices (dist.adaln). The gradient of such a layer over a batch of B
// samples is dy^T x with B rows of dy [N] and x [K]: of rank B. While B (N + K) <= N K, ranks gather these rows in the
// place of the matrix, which moves fewer bytes, and each multiplies those of all samples of the global batch: the same
// bits everywhere, in the order of the samples.
//
//   backward of a micro-batch -> its rows in the place of the gradient -> bucket: rows of all ranks -> multiply()
//
// The rows lie in the place of the gradient: row s there is [dy_s, x_s] of sample s of the global batch. The squares of
// such a gradient, which sums bring along, take a pass of their own over it when it has just been made.
#pragma once
#include <string>
#include <vector>

#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/nn/layers.hpp"
#include "ditrain/train/config.hpp"

namespace ditrain::train {

/// Whether kernels.gemm gives the same bits with any number of threads: other libraries choose as they go along.
bool products_are_equal_on_all_ranks(const Config& config);

class AdalnFactors final : public nn::WeightGradientSink {
 public:
  /// Chooses the layers of the store: none with one replica, without an engine, with dist.reproducible, or where the
  /// products of ranks may differ.
  AdalnFactors(const Config& config, autograd::ParameterStore& store, int replicas);
  AdalnFactors(const AdalnFactors&) = delete;
  AdalnFactors& operator=(const AdalnFactors&) = delete;

  /// Writes the rows of this micro-batch, if the layer is one of the chosen.
  bool take(ops::Context& ctx, const autograd::Parameter& w, const Tensor& x, const Tensor& dy,
            autograd::Gradients gradients) const override;
  void start_at(int64_t sample) { first_ = sample; }  ///< the first of the micro-batch that comes
  std::vector<parallel::Range> slices() const;        ///< of the arena: weight and bias of each layer, a bucket each
  size_t scratch_bytes() const;                       ///< what multiply() needs
  /// "": no layer is chosen. Else a line with the bytes that a rank moves in a step, without and with factors.
  std::string describe() const;

  void allocate();                                     ///< scratch
  void declare(dist::GradientBuckets& buckets) const;  ///< that their buckets are gathered
  bool hold(const parallel::Range& bucket) const { return layer_of(bucket) != nullptr; }
  /// Makes the gradients of weight and bias from the rows of all ranks, in their place.
  void multiply(ops::Context& ctx, const parallel::Range& bucket);

 private:
  struct Layer {
    autograd::Parameter *w, *b;
    int64_t outputs() const { return w->shape[0]; }
    int64_t inputs() const { return w->shape[1]; }
    int64_t row() const { return outputs() + inputs(); }  // elements of [dy_s, x_s]
    parallel::Range slice() const { return {w->slice.begin, b->slice.end}; }
  };
  const Layer* layer_of(const parallel::Range& bucket) const;
  Tensor rows_of(const Layer& layer) const { return layer.w->grad.slice(0, {samples_, layer.row()}); }

  int64_t samples_ = 0, first_ = 0;  // of the global batch, and of it the first that the pass has
  int replicas_;
  double wire_bytes_;  // of an element of a matrix
  std::vector<Layer> layers_;
  int64_t dy_elements_ = 0, x_elements_ = 0;
  Tensor dy_, x_;
};

}  // namespace ditrain::train
