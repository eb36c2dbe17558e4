// The JSON header of a safetensors file: parsing and validation, separate from files so that it works on any bytes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ditrain::weights {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's reference implementation

struct HeaderEntry {
  std::string name = {}, dtype = {};
  std::vector<int64_t> shape = {};
  uint64_t begin = 0, end = 0;  // bytes, relative to the start of the data
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the data
  std::map<std::string, std::string> metadata;
};

/// Parses and validates a header of a file whose data section has `data_bytes` bytes.
/// Errors:   InputError with `where` as given, one text for each rule (see SafetensorsFile).
SafetensorsHeader parse_safetensors_header(const std::string& where, std::string_view json, uint64_t data_bytes);

/// A name from a file made fit for a message: control bytes replaced, cut at 100 bytes.
std::string printable(std::string_view name);

}  // namespace ditrain::weights
