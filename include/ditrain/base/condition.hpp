// The condition of a sample: what the model is given beside the noisy data and the time. Data sets declare and read it,
// batches, samplers and validation carry it, models take it. Parts that a data set lacks are empty; parts that a model
// lacks are ignored.
#pragma once
#include <cstdint>
#include <vector>

namespace ditrain {

struct Condition {
  int64_t label = 0;                 ///< 0 without classes
  std::vector<double> numbers = {};  ///< by number of kMetadata; NaN: unknown; empty: all unknown
  std::vector<float> image = {};     ///< [condition channels, H, W]; empty: no such channels
  /// [H, W], for samples of training data; 0: the pixel has no data, and the loss ignores it; empty: all are valid.
  std::vector<uint8_t> valid = {};
};

/// The condition with the null class and without numbers, as in training samples whose label is dropped.
inline Condition without_label(const Condition& condition, int64_t null_class) {
  return {.label = null_class, .image = condition.image};
}

inline std::vector<Condition> conditions_of(const std::vector<int64_t>& labels) {
  std::vector<Condition> all;
  for (const int64_t label : labels) all.push_back({.label = label});
  return all;
}

}  // namespace ditrain
