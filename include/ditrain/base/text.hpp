// Text from outside, and for a shell.
#pragma once
#include <string>
#include <string_view>

namespace ditrain {

/// Well-formed UTF-8: shortest forms only, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

/// The word as a shell takes it as one: in quotes where it has to be.
inline std::string quoted_word(const std::string& word) {
  if (!word.empty() && word.find_first_of(" '\"$&|;<>()[]{}*?!#~`\\") == word.npos) return word;
  std::string safe;
  for (const char c : word) safe += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + safe + "'";
}

}  // namespace ditrain
