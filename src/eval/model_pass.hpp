// A model as a plain function (x, t, y) -> out for any number of samples: the inference tape of the last batch size is
// kept and recorded anew when the size changes (for the last, shorter batch).
#pragma once
#include <cstdint>
#include <optional>

#include "ditrain/nn/dit.hpp"

namespace ditrain::eval {

class ModelPass {
 public:
  ModelPass(ops::Context& ctx, nn::Dit& model) : ctx_(ctx), model_(model) {}

  /// x [n, C, H, W]; t [n]; y [n], or null for a model without classes; out [n, O, H, W] is overwritten.
  void operator()(const float* x, const double* t, const int64_t* y, int64_t n, float* out);

 private:
  ops::Context& ctx_;
  nn::Dit& model_;
  std::optional<nn::DitPass> pass_;
};

}  // namespace ditrain::eval
