#include "ditrain/verify/formula.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"

namespace ditrain::verify {

uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ uint64_t{static_cast<unsigned char>(c)}) * 0x100000001b3;
  return h;
}

uint64_t splitmix64(uint64_t x) {
  uint64_t z = x + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

FormulaRange formula_range(std::string_view name, const Shape& shape, double gain) {
  if (name.ends_with("embedding_table.weight")) return {0, 1};
  if (name.ends_with("bias") || name.ends_with("running_mean")) return {0, 0.1};
  if (name.ends_with("running_var")) return {1, 0.5};
  DITRAIN_CHECK(name.ends_with("weight"), "no formula for " + std::string(name));
  if (shape.size() == 1) return {1, 0.25};
  const int64_t fan_in = num_elements(shape) / shape.at(0);
  return {0, std::sqrt(3.0 / double(fan_in)) * gain};
}

void fill_by_formula(std::string_view name, std::string_view suffix, const Shape& shape, int64_t begin, int64_t end,
                     float* out, double gain) {
  const FormulaRange range = formula_range(name, shape, gain);
  const FormulaSequence numbers(std::string(name) + std::string(suffix));
  for (int64_t i = begin; i < end; ++i)
    out[i - begin] = float(range.offset + range.bound * numbers.symmetric(uint64_t(i)));
}

std::vector<float> formula_input(const std::string& key, double bound, int64_t n) {
  const FormulaSequence numbers(key);
  std::vector<float> values;
  values.reserve(size_t(n));
  for (int64_t i = 0; i < n; ++i) values.push_back(float(numbers.symmetric(uint64_t(i)) * bound));
  return values;
}

std::vector<float> formula_image(const std::string& key, int64_t k, int64_t channels, int64_t h, int64_t w) {
  const FormulaSequence numbers(key);
  const double a = k % 2 == 0 ? 0.5 : 0.125;
  std::vector<float> values;
  for (int64_t i = 0; i < channels * h * w; ++i) {
    const int64_t c = i / (h * w), y = i / w % h, x = i % w;
    const double wave = double(((c + 1) * x + (3 - c) * y + 17 * k) % 64) / 64.0;
    values.push_back(float(a * numbers.unit(uint64_t(i)) + (1 - a) * wave));
  }
  return values;
}

}  // namespace ditrain::verify
