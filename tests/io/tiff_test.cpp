#include "ditrain/io/tiff.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <map>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/io/files.hpp"

using namespace ditrain;

namespace {

template <class T>
T at(const std::string& file, size_t offset) {
  T v;
  REQUIRE(offset + sizeof v <= file.size());
  std::memcpy(&v, file.data() + offset, sizeof v);
  return v;
}

// The tags of the first directory with all their values.
std::map<int, std::vector<uint32_t>> tags(const std::string& file) {
  const size_t directory = at<uint32_t>(file, 4);
  std::map<int, std::vector<uint32_t>> all;
  int last = 0;
  for (int i = 0; i < at<uint16_t>(file, directory); ++i) {
    const size_t entry = directory + 2 + 12 * size_t(i);
    const int tag = at<uint16_t>(file, entry), type = at<uint16_t>(file, entry + 2);
    REQUIRE(tag > last);  // the format wants them in order
    last = tag;
    const uint32_t count = at<uint32_t>(file, entry + 4);
    const size_t bytes = type == 3 ? 2 : 4;
    const size_t values = count * bytes <= 4 ? entry + 8 : at<uint32_t>(file, entry + 8);
    for (uint32_t k = 0; k < count; ++k)
      all[tag].push_back(bytes == 2 ? at<uint16_t>(file, values + 2 * k) : at<uint32_t>(file, values + 4 * k));
  }
  return all;
}

}  // namespace

TEST_CASE("a TIFF holds every value of every band") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("ditrain_tiff_" + std::to_string(getpid()) + ".tif")).string();
  for (const int64_t channels : {1, 2, 3, 13}) {
    const int64_t height = 3, width = 5;
    std::vector<float> chw(size_t(channels * height * width));
    for (size_t i = 0; i < chw.size(); ++i) chw[i] = 0.25f * float(i) - 7;
    io::write_tiff_f32(path, chw.data(), channels, height, width);
    const std::string file = io::read_text_file(path, 1 << 20);
    REQUIRE(file.substr(0, 4) == std::string("II\x2a\0", 4));
    const auto all = tags(file);
    CHECK(all.at(256) == std::vector<uint32_t>{5});
    CHECK(all.at(257) == std::vector<uint32_t>{3});
    CHECK(all.at(258) == std::vector<uint32_t>(size_t(channels), 32));
    CHECK(all.at(277) == std::vector<uint32_t>{uint32_t(channels)});
    CHECK(all.at(279) == std::vector<uint32_t>{uint32_t(chw.size() * 4)});
    CHECK(all.at(339) == std::vector<uint32_t>(size_t(channels), 3));
    CHECK(all.count(338) == (channels > 1 ? 1u : 0u));
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < height * width; ++p)
        REQUIRE(at<float>(file, all.at(273)[0] + size_t(p * channels + c) * 4) == chw[size_t(c * height * width + p)]);
  }
  std::filesystem::remove(path);
  CHECK_THROWS_AS(io::write_tiff_f32(path, nullptr, 0, 1, 1), LogicFault);
}
