// Folders and files that the tests of this module make and remove.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/files.hpp"

namespace ditrain::dataset {

/// A folder for data.
class ScratchFolder : public TemporaryFolder {
 public:
  /// The path of `name` inside; its folder is made.
  std::string at(const std::string& name) const {
    const std::filesystem::path full = std::filesystem::path(path()) / name;
    std::filesystem::create_directories(full.parent_path());
    return full.string();
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(at(name), std::ios::binary) << bytes;
  }
  /// A PNG of one grey value.
  void write_grey(const std::string& name, uint8_t value, int64_t height = 8, int64_t width = 8) const {
    images::write_png(at(name), {width, height, 3, std::vector<uint8_t>(size_t(height * width * 3), value)});
  }
};

struct Sample {
  std::vector<float> chw;
  int64_t label = -1;
  bool operator==(const Sample&) const = default;
};

inline Sample load(const Dataset& data, int64_t index, bool flip = false) {
  Sample s{std::vector<float>(size_t(data.shape().elements()), -99.0f)};
  Condition condition;
  data.load(index, flip, s.chw.data(), &condition);
  s.label = condition.label;
  return s;
}

}  // namespace ditrain::dataset
