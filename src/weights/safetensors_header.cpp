#include "safetensors_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::weights {
namespace {

using nlohmann::json;

constexpr size_t kMaxDimensions = 64;
constexpr uint64_t kMaxDimension = std::numeric_limits<int64_t>::max();

// Event parser: sees every key, so that duplicates are not lost, and never builds a tree from hostile text.
class HeaderParser : public nlohmann::json_sax<json> {
 public:
  explicit HeaderParser(const std::string& where) : where_(where) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(size_t) override {
    if (at_ == At::kStart) return go(At::kRoot);
    if (at_ != At::kRoot) wrong_type();
    if (root_key_ == "__metadata__") return go(At::kMetadata);
    header_.entries.push_back({.name = root_key_});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return go(At::kEntry);
  }

  bool key(std::string& key) override {
    switch (at_) {
      case At::kRoot:
        if (!root_keys_.insert(key).second) fail_duplicate(key, "the header");
        root_key_ = key;
        return true;
      case At::kMetadata:
        if (header_.metadata.count(key) != 0) fail_duplicate(key, "__metadata__");
        field_ = key;
        return true;
      default:
        return entry_key(key);
    }
  }

  bool end_object() override {
    if (at_ == At::kRoot) return go(At::kEnd);
    if (at_ == At::kEntry) {
      const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
      if (missing) fail({.where = where_, .what = in_tensor(fmt::format("field '{}' is missing", missing))});
    }
    return go(At::kRoot);
  }

  bool start_array(size_t) override {
    if (at_ == At::kEntry && field_ == "shape") return go(At::kShape);
    if (at_ == At::kEntry && field_ == "data_offsets") {
      num_offsets_ = 0;
      return go(At::kOffsets);
    }
    wrong_type();
  }

  bool end_array() override {
    if (at_ == At::kOffsets && num_offsets_ != 2) fail_offsets_count();
    return go(At::kEntry);
  }

  bool string(std::string& value) override {
    if (at_ == At::kMetadata) return header_.metadata.emplace(field_, value).second;
    if (at_ != At::kEntry || field_ != "dtype") wrong_type();
    if (safetensors_dtype_bits(value) == 0) {
      fail({.where = where_,
            .what = in_tensor("unknown dtype"),
            .got = printable(value),
            .expected =
                "BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, I32, U32, F32, F64, I64 or U64, or a type "
                "that is only kept"});
    }
    entry().dtype = value;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::kShape) {
      if (value > kMaxDimension) fail_shape("dimension is too large", std::to_string(value));
      if (entry().shape.size() == kMaxDimensions) fail_shape("too many dimensions", "more than 64");
      entry().shape.push_back(static_cast<int64_t>(value));
    } else if (at_ == At::kOffsets) {
      if (num_offsets_ == 2) fail_offsets_count();
      (num_offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      wrong_type();
    }
    return true;
  }

  // nlohmann reports only numbers with a minus sign here.
  bool number_integer(number_integer_t value) override {
    if (at_ == At::kShape) fail_shape("negative dimension", std::to_string(value));
    if (at_ != At::kOffsets) wrong_type();
    fail({.where = where_, .what = in_tensor("negative data offset"), .got = std::to_string(value)});
  }

  // Fractions, and integers beyond 64 bits.
  bool number_float(number_float_t, const std::string& text) override {
    if (at_ == At::kShape) fail_shape("dimension is not an integer of 64 bits", printable(text));
    if (at_ != At::kOffsets) wrong_type();
    fail({.where = where_, .what = in_tensor("data offset is not an integer of 64 bits"), .got = printable(text)});
  }

  bool null() override {
    if (at_ == At::kRoot && root_key_ == "__metadata__") return true;  // none: some writers say so
    wrong_type();
  }
  bool boolean(bool) override { wrong_type(); }
  bool binary(binary_t&) override { wrong_type(); }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    fail({.where = where_, .what = "the header is not JSON", .got = fmt::format("an error at byte {}", position)});
  }

 private:
  enum class At { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets, kEnd };

  bool go(At at) {
    at_ = at;
    return true;
  }

  bool entry_key(const std::string& key) {
    bool* seen = key == "dtype" ? &has_dtype_ : key == "shape" ? &has_shape_ : &has_offsets_;
    if (seen == &has_offsets_ && key != "data_offsets") {
      fail({.where = where_,
            .what = in_tensor("unknown field"),
            .got = printable(key),
            .expected = "dtype, shape and data_offsets"});
    }
    if (std::exchange(*seen, true)) fail_duplicate(key, fmt::format("tensor '{}'", printable(root_key_)));
    field_ = key;
    return true;
  }

  HeaderEntry& entry() { return header_.entries.back(); }
  std::string in_tensor(const std::string& what) const {
    return fmt::format("tensor '{}': {}", printable(root_key_), what);
  }

  [[noreturn]] static void fail(const Problem& problem) { throw InputError(problem); }
  [[noreturn]] void fail_duplicate(const std::string& key, const std::string& place) const {
    fail({.where = where_, .what = fmt::format("duplicate key '{}' in {}", printable(key), place)});
  }
  [[noreturn]] void fail_shape(const std::string& what, const std::string& got) const {
    fail({.where = where_, .what = in_tensor(what), .got = got});
  }
  [[noreturn]] void fail_offsets_count() const {
    fail({.where = where_, .what = in_tensor("data_offsets must have exactly two numbers")});
  }
  [[noreturn]] void wrong_type() const {
    switch (at_) {
      case At::kMetadata:
        fail({.where = where_, .what = fmt::format("__metadata__: value of '{}' is not a string", printable(field_))});
      case At::kEntry:
        fail({.where = where_, .what = in_tensor(fmt::format("field '{}' has the wrong JSON type", field_))});
      case At::kShape:
      case At::kOffsets:
        fail({.where = where_, .what = in_tensor(fmt::format("field '{}' holds something else than numbers", field_))});
      default:
        fail({.where = where_, .what = fmt::format("value of '{}' is not a JSON object", printable(root_key_))});
    }
  }

  const std::string& where_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> root_keys_;
  std::string root_key_, field_;
  At at_ = At::kStart;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
};

void check_size(const std::string& where, const HeaderEntry& e) {
  const auto fail = [&](const std::string& what, const std::string& got = "", const std::string& expected = "") {
    throw InputError({.where = where,
                      .what = fmt::format("tensor '{}': {}", printable(e.name), what),
                      .got = got,
                      .expected = expected});
  };
  if (e.end < e.begin) fail("data_offsets end before they begin", fmt::format("[{}, {}]", e.begin, e.end));
  const uint64_t bits = safetensors_dtype_bits(e.dtype);
  uint64_t bytes = bits % 8 == 0 ? bits / 8 : bits;  // for the latter, eighths until all are counted
  for (const int64_t dimension : e.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes) || bytes > kMaxDimension)
      fail("shape x dtype overflows 64 bits", fmt::format("[{}]", fmt::join(e.shape, ", ")));
  }
  if (bits % 8 != 0) {
    if (bytes % 8 != 0)
      fail("its numbers end within a byte", fmt::format("{} [{}]", e.dtype, fmt::join(e.shape, ", ")));
    bytes /= 8;
  }
  if (bytes != e.end - e.begin) {
    fail("shape x dtype does not match data_offsets", fmt::format("{} bytes of data", e.end - e.begin),
         fmt::format("{} bytes for {} [{}]", bytes, e.dtype, fmt::join(e.shape, ", ")));
  }
}

// The data must be covered from 0 to its end without holes and overlaps.
void check_layout(const std::string& where, const std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const HeaderEntry& e : entries) {
    if (e.begin != position) {
      const char* kind = e.begin > position ? "a hole before its data" : "its data overlaps the previous tensor's";
      throw InputError({.where = where,
                        .what = fmt::format("tensor '{}': {}", printable(e.name), kind),
                        .got = fmt::format("begin {}", e.begin),
                        .expected = std::to_string(position)});
    }
    position = e.end;
  }
  if (position == data_bytes) return;
  throw InputError({.where = where,
                    .what = position > data_bytes ? "the data is truncated" : "bytes trail behind the last tensor",
                    .got = fmt::format("{} bytes of data", data_bytes),
                    .expected = std::to_string(position),
                    .hint = "copy the file again, or remove it and make it again"});
}

}  // namespace

std::string printable(std::string_view name) {
  const std::string text = without_controls(std::string(name.substr(0, 100)));
  return name.size() > 100 ? text + "..." : text;
}

SafetensorsHeader parse_safetensors_header(const std::string& where, std::string_view text, uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') throw InputError({.where = where, .what = "the header does not start with '{'"});
  if (!is_utf8(text)) throw InputError({.where = where, .what = "the header is not UTF-8"});
  // The JSON parser takes a zero byte for the end of its input and would not look at what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw InputError({.where = where, .what = "the header is not JSON", .got = fmt::format("a zero at byte {}", zero)});
  }
  HeaderParser parser(where);
  json::sax_parse(text, &parser);
  SafetensorsHeader header = parser.take();
  for (const HeaderEntry& e : header.entries) check_size(where, e);
  std::sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(where, header.entries, data_bytes);
  return header;
}

}  // namespace ditrain::weights
