// Weights by formula: reference fixtures need not store weights, because both sides compute them from the name of a
// parameter and the key suffix of the fixture. 64-bit FNV-1a of the name gives a start value, from which SplitMix64
// continues; integer arithmetic is modulo 2^64, and values are exact in f32 or rounded once.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/tensor/tensor.hpp"

namespace ditrain::verify {

uint64_t fnv1a64(std::string_view text);
uint64_t splitmix64(uint64_t x);

/// A sequence of numbers that belongs to a key.
class FormulaSequence {
 public:
  explicit FormulaSequence(std::string_view key) : start_(fnv1a64(key)) {}
  uint64_t hash(uint64_t i) const { return splitmix64(start_ + i * kGolden); }
  double unit(uint64_t i) const { return double(hash(i) >> 40) * 0x1p-24; }  ///< in [0, 1)
  double symmetric(uint64_t i) const { return 2 * unit(i) - 1; }             ///< in [-1, 1)

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  uint64_t start_;
};

/// Value i of a parameter is f32(offset + bound * symmetric(i)).
struct FormulaRange {
  double offset = 0, bound = 0;
};
/// The range for a parameter of that name and shape.
/// Math:     embedding tables: 0, 1; biases: 0, 0.1; weights of one dimension (norm scales): 1, 0.25;
///           running means: 0, 0.1; running variances: 1, 0.5;
///           other weights: 0, sqrt(3 / fan_in) gain, fan_in = product of all dimensions but the first
/// Errors:   LogicFault for a name that ends in none of these
FormulaRange formula_range(std::string_view name, const Shape& shape, double gain = 1);

/// Entries [begin, end) of the parameter; its key is name + suffix.
void fill_by_formula(std::string_view name, std::string_view suffix, const Shape& shape, int64_t begin, int64_t end,
                     float* out, double gain = 1);

/// f32(bound * symmetric(i)) for i < n.
std::vector<float> formula_input(const std::string& key, double bound, int64_t n);

/// An image [channels, h, w], values in [0, 1): noise and a wave; `k` is the image's number, with which keys end too.
std::vector<float> formula_image(const std::string& key, int64_t k, int64_t channels, int64_t h, int64_t w);

}  // namespace ditrain::verify
