#include "ditrain/files/json_problem.hpp"

#include <string_view>

namespace ditrain::files {

// "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error while parsing value - WHAT".
std::string json_problem(const std::exception& error) {
  std::string text = error.what();
  if (const size_t tag = text.find("] "); text.starts_with("[json.exception.") && tag != text.npos)
    text.erase(0, tag + 2);
  constexpr std::string_view kParseError = "parse error at ";
  if (!text.starts_with(kParseError)) return text;
  const size_t colon = text.find(": "), dash = text.find(" - ");
  const std::string place = text.substr(kParseError.size(), colon - kParseError.size());
  return "not JSON at " + place + ": " + text.substr(dash == text.npos ? colon + 2 : dash + 3);
}

}  // namespace ditrain::files
