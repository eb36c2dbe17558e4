// Shards of tiles that tests write themselves.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "dataset_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::dataset {

/// u16 tiles [n, bands, side, side] whose numbers are 100 (band + 1) + tile + row * side + column.
struct TestTiles {
  int64_t n = 4, side = 4;
  std::vector<std::string> bands = {"B2", "B3", "B4"};
  std::vector<int64_t> labels = {};
  std::map<std::string, std::string> metadata = {};
  std::vector<double> known = {};   // [n, kNumMetadata]
  std::vector<double> places = {};  // [n, 6], geotransforms
  std::vector<uint16_t> numbers() const {
    std::vector<uint16_t> all;
    for (int64_t t = 0; t < n; ++t)
      for (size_t b = 0; b < bands.size(); ++b)
        for (int64_t p = 0; p < side * side; ++p) all.push_back(uint16_t(100 * (int64_t(b) + 1) + t + p));
    return all;
  }
  void write(const std::string& path) const { write(path, numbers(), "U16"); }
  template <class T>
  void write(const std::string& path, const std::vector<T>& numbers, const std::string& type,
             const std::vector<uint8_t>& valid = {}) const {
    std::string names;
    for (const std::string& band : bands) names += (names.empty() ? "[\"" : ",\"") + band + "\"";
    auto all = metadata;
    all.insert({"bands", names + "]"});
    std::vector<weights::TensorToWrite> tensors = {
        {"images", type, {n, int64_t(bands.size()), side, side}, numbers.data()}};
    if (!labels.empty()) tensors.push_back({"labels", "I64", {n}, labels.data()});
    if (!known.empty()) tensors.push_back({"metadata", "F64", {n, int64_t(known.size()) / n}, known.data()});
    if (!places.empty()) tensors.push_back({"geotransform", "F64", {n, 6}, places.data()});
    if (!valid.empty()) tensors.push_back({"valid", "U8", {n, side, side}, valid.data()});
    weights::write_safetensors(path, tensors, all);
  }
};

template <class F>
void refused(F call, const std::string& text) {
  try {
    call();
  } catch (const InputError& e) {
    INFO(e.what());
    CHECK(std::string(e.what()).find(text) != std::string::npos);
    return;
  }
  FAIL_CHECK("nothing was refused: " << text);
}

}  // namespace ditrain::dataset
