// A model as a plain function (x, t, conditions) -> out for any number of samples: the inference tape of the last batch
// size is kept and recorded anew when the size changes (for the last, shorter batch).
#pragma once
#include <cstdint>
#include <optional>

#include "step_modulations.hpp"

namespace ditrain::eval {

class ModelPass {
 public:
  ModelPass(ops::Context& ctx, nn::Model& model) : ctx_(ctx), model_(model) {}

  /// From now on all samples of a call are at one of these times and have one of these labels and numbers: as for
  /// StepModulations, which takes the part of the model over that depends on nothing else.
  void expect(const std::vector<double>& times, const std::vector<Condition>& conditions, size_t most_bytes);

  /// x [n, C, H, W]; t [n]; c [n]; out [n, O, H, W] is overwritten.
  void operator()(const float* x, const double* t, const Condition* c, int64_t n, float* out);

 private:
  ops::Context& ctx_;
  nn::Model& model_;
  std::optional<nn::ModelPass> pass_;
  std::optional<StepModulations> modulations_;
};

}  // namespace ditrain::eval
