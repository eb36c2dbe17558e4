// What a sample is learnt or drawn under, beside the time: declared and read by data sets, carried through batches,
// samplers and validation, taken by models. A part that a data set or a model does not have is ignored or empty.
#pragma once
#include <cstdint>
#include <vector>

namespace ditrain {

struct Condition {
  int64_t label = 0;                 ///< 0 without classes
  std::vector<double> numbers = {};  ///< NaN: not known; empty: none is known
  std::vector<float> image = {};     ///< [condition channels, H, W]; empty: no such channels
  /// [H, W] of a sample of data, 0: the pixel has no data, and the loss leaves it out; empty: all have.
  std::vector<uint8_t> valid = {};
};

/// The same image without label and numbers, as models learn by dropping them.
inline Condition without_label(const Condition& condition, int64_t null_class) {
  return {.label = null_class, .image = condition.image};
}

inline std::vector<Condition> conditions_of(const std::vector<int64_t>& labels) {
  std::vector<Condition> all;
  for (const int64_t label : labels) all.push_back({.label = label});
  return all;
}

}  // namespace ditrain
