// Whole files of a test, and the folder that they are in.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "ditrain/base/temporary_folder.hpp"

inline void put_file(const std::string& path, std::string_view content) {
  std::filesystem::remove(path);  // ext4 syncs a file that is truncated and rewritten: milliseconds each
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string get_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void flip_bit(const std::string& path, uint64_t bit) {
  std::string content = get_file(path);
  content[bit / 8] = char(content[bit / 8] ^ (1 << bit % 8));
  put_file(path, content);
}
