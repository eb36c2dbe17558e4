// Text from outside, for readers, and for a shell.
#pragma once
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ditrain {

std::string format_bytes(size_t bytes);  ///< "13.50 GiB", "24.0 MiB" or "0.5 KiB"
/// "12 s", "3 min 12 s" or "5 h 3 min".
std::string format_duration(double seconds);

/// What stands between the separators: one more than there are of these, so "" has one part, which is empty.
std::vector<std::string> split(std::string_view text, char separator);
/// The same parts without the blanks around them.
std::vector<std::string> cells(std::string_view text, char separator);

/// The text with one word for another wherever it stands, pair {from, to} after pair.
std::string replaced(std::string text, const std::vector<std::pair<std::string, std::string>>& pairs);

/// Whether the whole text is one number (without blanks, without +); `value` becomes it, and stays otherwise.
template <class T>
bool parse_whole(std::string_view text, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  return value = parsed, true;
}

/// Well-formed UTF-8: shortest forms only, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

/// Text from outside made fit for a terminal or a log: control bytes become '?'.
std::string without_controls(std::string text);
/// The same for each line of the text; those after the first are indented, if they are not, so that none looks like a
/// line of its own.
std::string printable_lines(const std::string& text);

/// The word as a shell takes it as one: in quotes where it has to be.
inline std::string quoted_word(const std::string& word) {
  if (!word.empty() && word.find_first_of(" '\"$&|;<>()[]{}*?!#~`\\") == word.npos) return word;
  std::string safe;
  for (const char c : word) safe += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + safe + "'";
}

}  // namespace ditrain
