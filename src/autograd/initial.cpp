#include "ditrain/autograd/initial.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/random.hpp"

namespace ditrain::autograd {
namespace {

void fill_uniform(float* p, int64_t n, const RandomKey& key, double bound) {
  kernels::fill_uniform(key, 0, p, n);
  for (int64_t i = 0; i < n; ++i) p[i] = float(bound * (2.0 * p[i] - 1.0));
}

void fill_normal(float* p, int64_t n, const RandomKey& key, float deviation) {
  key.fill_normal(p, n);  // the vectorised ones differ in last bits between instruction sets; weights should not
  for (int64_t i = 0; i < n; ++i) p[i] *= deviation;
}

}  // namespace

double xavier_bound(const Shape& shape) {
  const int64_t outputs = shape[0], inputs = num_elements(shape) / outputs;
  return std::sqrt(6.0 / double(inputs + outputs));
}

void Initial::fill(const Shape& shape, const RandomKey& key, float* values) const {
  const int64_t n = num_elements(shape);
  switch (kind) {
    case Kind::kConstant:
      std::fill_n(values, n, float(size));
      return;
    case Kind::kXavierUniform:
      return fill_uniform(values, n, key, xavier_bound(shape));
    case Kind::kUniform:
      return fill_uniform(values, n, key, size);
    case Kind::kNormal:
      return fill_normal(values, n, key, float(size));
    case Kind::kTable: {
      const std::vector<float> all = table();
      DITRAIN_CHECK(int64_t(all.size()) == n, "a table of another size");
      std::copy(all.begin(), all.end(), values);
    }
  }
}

}  // namespace ditrain::autograd
