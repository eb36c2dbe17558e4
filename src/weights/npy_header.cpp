// Source:   numpy's documented format, numpy/lib/format.py.
#include "npy_header.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "byte_reader.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

constexpr size_t kMaxArrayDimensions = 32;  // numpy's own limit before version 2

// {'descr': '<f8', 'fortran_order': False, 'shape': (3, 5), } with the keys in any order and spaces anywhere.
class DictionaryParser {
 public:
  DictionaryParser(const std::string& where, std::string_view text) : where_(where), text_(text) {}

  NpyHeader run() {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted("a key");
      if (!keys_.insert(key).second) fail("the key '" + printable(key) + "' is there twice");
      expect(':');
      value_of(key);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (at_ != text_.size()) fail("something follows the dictionary");
    for (const char* key : {"descr", "fortran_order", "shape"})
      if (!keys_.contains(key)) fail(fmt::format("the key '{}' is missing", key));
    return header_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError({.where = where_,
                      .what = "the .npy header is not one of an array of numbers: " + what,
                      .got = "'" + printable(text_) + "'"});
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("no '{}' at byte {}", c, at_));
  }
  std::string quoted(const char* what) {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(fmt::format("{} at byte {} is no text", what, at_));
    const size_t end = text_.find(quote, at_ + 1);
    if (end == text_.npos) fail("a text does not end");
    const std::string_view text = text_.substr(at_ + 1, end - at_ - 1);
    if (text.find('\\') != text.npos) fail("a text has a backslash");
    at_ = end + 1;
    return std::string(text);
  }
  bool accept_word(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void value_of(const std::string& key) {
    if (key == "descr") return read_descr();
    if (key == "shape") return read_shape();
    if (key != "fortran_order") fail("the key '" + printable(key) + "' is unknown");
    header_.fortran_order = accept_word("True");
    if (!header_.fortran_order && !accept_word("False")) fail("fortran_order is neither True nor False");
  }

  void read_descr() {
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '[') fail("records (a structured dtype) are not read");
    const std::string descr = quoted("the type");
    static const std::set<std::string> kTypes = {"b1", "i1", "i2", "i4", "i8", "u1",
                                                 "u2", "u4", "u8", "f2", "f4", "f8"};
    if (descr.starts_with("|O") || descr == "O") fail("objects are not read: only a pickle could");
    if (descr.size() != 3 || std::string_view("<>|=").find(descr[0]) == std::string_view::npos ||
        !kTypes.contains(descr.substr(1)))
      fail("the type '" + printable(descr) + "' is not a number that can be read");
    header_.dtype = descr.substr(1);
    header_.element_bytes = static_cast<size_t>(descr[2] - '0');
    header_.big_endian = descr[0] == '>' && header_.element_bytes > 1;
    if (descr[0] == '|' && header_.element_bytes > 1) fail("the type '" + descr + "' has no byte order");
  }

  void read_shape() {
    expect('(');
    while (!accept(')')) {
      if (header_.shape.size() == kMaxArrayDimensions) fail("there are too many dimensions");
      header_.shape.push_back(dimension());
      if (!accept(',')) {
        expect(')');
        if (header_.shape.size() == 1) fail("the shape is a number, not a tuple");
        break;
      }
    }
  }
  int64_t dimension() {
    skip_spaces();
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[at_] - '0'}, &value))
        fail("a dimension is beyond 64 bits");
    if (at_ == begin) fail(fmt::format("no size of 0 or more at byte {} of the shape", at_));
    accept('L');  // as Python 2 wrote long integers
    return value;
  }

  const std::string& where_;
  std::string_view text_;
  size_t at_ = 0;
  std::set<std::string> keys_;
  NpyHeader header_;
};

}  // namespace

NpyPreamble parse_npy_preamble(const std::string& where, std::string_view begin) {
  ByteReader reader(where, ".npy header", begin);
  if (reader.take(6) != std::string_view("\x93NUMPY")) throw InputError({.where = where, .what = "not a .npy array"});
  const uint8_t major = reader.u8(), minor = reader.u8();
  if (major < 1 || major > 3 || minor != 0) {
    throw InputError({.where = where,
                      .what = "the .npy has an unknown version",
                      .got = fmt::format("{}.{}", major, minor),
                      .expected = "1.0, 2.0 or 3.0"});
  }
  const size_t bytes = major == 1 ? reader.u16() : reader.u32();
  if (bytes > kMaxNpyHeaderBytes) {
    throw InputError({.where = where,
                      .what = "the .npy header is too long",
                      .got = fmt::format("{} bytes", bytes),
                      .expected = fmt::format("at most {}", kMaxNpyHeaderBytes)});
  }
  return {reader.at(), bytes};
}

NpyHeader parse_npy_dictionary(const std::string& where, std::string_view text) {
  NpyHeader header = DictionaryParser(where, text).run();
  uint64_t bytes = header.element_bytes;
  bool empty = false, overflow = false;
  for (const int64_t d : header.shape) {
    empty |= d == 0;
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(d, 1)), &bytes);
  }
  if (overflow || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw InputError({.where = where, .what = "the shape of the array is beyond 64 bits"});
  header.bytes = empty ? 0 : bytes;
  return header;
}

}  // namespace ditrain::weights
