// The initial values of a parameter, a part of its declaration.
#pragma once
#include <functional>
#include <vector>

#include "ditrain/base/random.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::autograd {

struct Initial {
  enum class Kind { kConstant, kXavierUniform, kUniform, kNormal, kTable };
  Kind kind = Kind::kConstant;
  double size = 0;  ///< the constant, the bound of kUniform, or the standard deviation of kNormal
  std::function<std::vector<float>()> table = {};  ///< kTable: all values

  static Initial constant(double value) { return {.size = value}; }
  /// U(-a, a), a = xavier_bound() of the whole weight, taken as a matrix [N, K], K = product of all dimensions but the
  /// first.
  static Initial xavier_uniform() { return {.kind = Kind::kXavierUniform}; }
  static Initial uniform(double bound) { return {.kind = Kind::kUniform, .size = bound}; }  ///< U(-bound, bound)
  static Initial normal(double deviation) { return {.kind = Kind::kNormal, .size = deviation}; }
  static Initial from_table(std::function<std::vector<float>()> values) {
    return {.kind = Kind::kTable, .table = std::move(values)};
  }

  /// Writes the values of a tensor of that shape, bit-identical for every instruction set.
  void fill(const Shape& shape, const RandomKey& key, float* values) const;
};

/// sqrt(6 / (K + N)) of a weight [N, ...].
double xavier_bound(const Shape& shape);

}  // namespace ditrain::autograd
