#include "ditrain/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace ditrain {

std::string format_bytes(size_t bytes) {
  const double b = double(bytes);
  if (b >= 0x1p30) return fmt::format("{:.2f} GiB", b / 0x1p30);
  if (b >= 0x1p20) return fmt::format("{:.1f} MiB", b / 0x1p20);
  return fmt::format("{:.1f} KiB", b / 0x1p10);
}

std::string format_duration(double seconds) {
  const auto s = int64_t(std::max(0.0, seconds) + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> cells(std::string_view text, char separator) {
  std::vector<std::string> parts = split(text, separator);
  for (std::string& part : parts) {
    const size_t first = part.find_first_not_of(" \t\r"), last = part.find_last_not_of(" \t\r");
    part = first == part.npos ? "" : part.substr(first, last - first + 1);
  }
  return parts;
}

std::string replaced(std::string text, const std::vector<std::pair<std::string, std::string>>& pairs) {
  for (const auto& [from, to] : pairs)
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < length) return false;
    uint32_t code = lead & (0xFFu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3Fu);
    }
    const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += length;
  }
  return true;
}

std::string without_controls(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<uint8_t>(text[at]) : uint8_t{0}; };
    if (byte(i) < 0x20 || byte(i) == 0x7f)
      text[i] = '?';
    else if (byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0)  // U+0080 to U+009F
      text.replace(i, 2, "?");
  }
  return text;
}

std::string printable_lines(const std::string& text) {
  std::string lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) lines += begin < end && text[begin] != ' ' ? "\n  " : "\n";
    lines += without_controls(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace ditrain
