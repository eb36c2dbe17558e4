// A model as a plain function (x, t, conditions) -> out for any number of samples: the inference tape of the last batch
// size is kept and recorded anew when the size changes (for the last, shorter batch).
#pragma once
#include <cstdint>
#include <optional>
#include <utility>

#include "ditrain/base/error.hpp"
#include "step_modulations.hpp"

namespace ditrain::eval {

class ModelPass {
 public:
  ModelPass(ops::Context& ctx, nn::Model& model, DType precision = DType::kF32, nn::Routes routes = {})
      : ctx_(ctx), model_(model), precision_(precision), routes_(std::move(routes)) {
    DITRAIN_CHECK(precision == DType::kF32 || model.parameters().values_bf16.defined(), "bf16 without such weights");
  }

  /// From now on all samples of a call are at one of these times and have one of these labels and numbers: as for
  /// StepModulations, which takes the part of the model over that depends on nothing else.
  void expect(const std::vector<double>& times, const std::vector<Condition>& conditions, size_t most_bytes);

  /// With routes, those of sample i in call k from now on are drawn by RandomKey(seed, Stream::kRoute, first_index + i,
  /// calls + k).
  void draw_routes_from(uint64_t seed, int64_t first_index, uint64_t calls = 0) {
    seed_ = seed, first_index_ = first_index, calls_ = calls;
  }

  /// x [n, C, H, W]; t [n]; c [n]; out [n, O, H, W] is overwritten.
  void operator()(const float* x, const double* t, const Condition* c, int64_t n, float* out);

 private:
  void draw_routes(int64_t n);

  ops::Context& ctx_;
  nn::Model& model_;
  DType precision_;
  nn::Routes routes_;
  uint64_t seed_ = 0, calls_ = 0;
  int64_t first_index_ = 0;
  std::optional<nn::ModelPass> pass_;
  std::optional<StepModulations> modulations_;
};

}  // namespace ditrain::eval
