// Text from outside, and for a shell.
#pragma once
#include <string>
#include <string_view>

namespace ditrain {

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
