// A model as a plain function (x, t, y) -> out for any number of samples: the inference tape of the last batch size is
// kept and recorded anew when the size changes (for the last, shorter batch).
#pragma once
#include <cstdint>
#include <optional>

#include "step_modulations.hpp"

namespace ditrain::eval {

class ModelPass {
 public:
  ModelPass(ops::Context& ctx, nn::Dit& model) : ctx_(ctx), model_(model) {}

  /// From now on all samples of a call are at one of these times and have one of these labels: as for StepModulations,
  /// which takes the part of the model over that depends on nothing else.
  void expect(const std::vector<double>& times, std::vector<int64_t> labels, size_t most_bytes);

  /// x [n, C, H, W]; t [n]; y [n], or null for a model without classes; out [n, O, H, W] is overwritten.
  void operator()(const float* x, const double* t, const int64_t* y, int64_t n, float* out);

 private:
  ops::Context& ctx_;
  nn::Dit& model_;
  std::optional<nn::DitPass> pass_;
  std::vector<int64_t> labels_;  // that are expected
  std::optional<StepModulations> modulations_;
};

}  // namespace ditrain::eval
