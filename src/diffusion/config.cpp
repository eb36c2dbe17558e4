// From the user's words to Rules.
#include "ditrain/diffusion/config.hpp"

#include <string_view>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "words.hpp"

namespace ditrain::diffusion {

namespace {

struct PredictionRow {
  std::string_view name;
  Prediction value;
};
constexpr PredictionRow kPredictions[] = {{"epsilon", Prediction::kEpsilon}, {"x0", Prediction::kX0}};

// Variance for a model with and without variance channels; what a model cannot do is the other kind's value.
struct VarianceRow {
  std::string_view name;
  Variance learned, fixed;
};
constexpr VarianceRow kVariances[] = {
    {"auto", Variance::kLearnedRange, Variance::kFixedLarge},
    {"learned_range", Variance::kLearnedRange, Variance::kLearnedRange},
    {"fixed_large", Variance::kFixedLarge, Variance::kFixedLarge},
    {"fixed_small", Variance::kFixedSmall, Variance::kFixedSmall},
};

}  // namespace

void Config::validate() const {
  make_schedule(schedule, num_steps);
  find_word<PredictionRow>("prediction", prediction, kPredictions);
  find_word<VarianceRow>("variance", variance, kVariances);
  find_objective(loss);
}

int64_t Rules::output_channels(int64_t channels) const {
  return variance == Variance::kLearnedRange ? 2 * channels : channels;
}

Rules make_rules(const Config& config, bool learn_sigma) {
  config.validate();
  const VarianceRow& row = find_word<VarianceRow>("variance", config.variance, kVariances);
  const Variance variance = learn_sigma ? row.learned : row.fixed;
  if ((variance == Variance::kLearnedRange) != learn_sigma) {
    throw InputError({.where = "diffusion",
                      .what = "variance does not fit the model",
                      .got = config.variance + " with learn_sigma " + (learn_sigma ? "on" : "off"),
                      .expected = learn_sigma ? "learned_range" : "fixed_large or fixed_small",
                      .hint = "variance: auto"});
  }
  return {.prediction = find_word<PredictionRow>("prediction", config.prediction, kPredictions).value,
          .variance = variance,
          .objective = &find_objective(config.loss)};
}

}  // namespace ditrain::diffusion
