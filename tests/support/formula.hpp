// For tests: numbers by formula, as the fixtures of tests/golden describe them (FNV-1a of a key, then SplitMix64), and
// the images made of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ditrain::test {

class Formula {
 public:
  explicit Formula(const std::string& key) {
    for (const char c : key) start_ = (start_ ^ uint8_t(c)) * 0x100000001b3;
  }
  double unit(uint64_t i) const {  // in [0, 1)
    uint64_t z = start_ + (i + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return double((z ^ (z >> 31)) >> 40) * 0x1p-24;
  }
  double symmetric(uint64_t i) const { return 2 * unit(i) - 1; }  // in [-1, 1)

 private:
  uint64_t start_ = 0xcbf29ce484222325;
};

/// image(name, k) of shape [3, h, w], values in [0, 1).
inline std::vector<float> formula_image(const std::string& name, int64_t k, int64_t h, int64_t w) {
  const Formula u(name + "." + std::to_string(k));
  const double a = k % 2 == 0 ? 0.5 : 0.125;
  std::vector<float> image;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < h; ++y)
      for (int64_t x = 0; x < w; ++x)
        image.push_back(
            float(a * u.unit(image.size()) + (1 - a) * (double(((c + 1) * x + (3 - c) * y + 17 * k) % 64) / 64.0)));
  return image;
}

}  // namespace ditrain::test
