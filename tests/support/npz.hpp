// For tests: arrays of bytes and images of noise, as npz.
#pragma once
#include <string>
#include <vector>

#include "ditrain/weights/npz.hpp"
#include "formula.hpp"

namespace ditrain::test {

inline void write_npz(const std::string& path, const std::vector<int64_t>& shape, const std::vector<uint8_t>& data,
                      const std::string& name = "arr_0") {
  weights::NpzU8Writer writer(path, name, shape);
  writer.append(data.data(), data.size());
  writer.finish();
}

/// `n` images of 4 x 4 x 3 with this mean, at most `spread` away from it; another key gives other noise.
inline void write_noise(const std::string& path, int64_t n, double mean, double spread, const std::string& key) {
  const Formula formula(key);
  std::vector<uint8_t> data;
  for (int64_t i = 0; i < n * 48; ++i) data.push_back(uint8_t(mean + spread * formula.symmetric(uint64_t(i))));
  write_npz(path, {n, 4, 4, 3}, data);
}

}  // namespace ditrain::test
