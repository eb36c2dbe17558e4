#include "ditrain/base/error.hpp"

#include <algorithm>
#include <numeric>

#include "ditrain/base/text.hpp"

namespace ditrain {

std::string Problem::text() const {
  // Names of files, and what is in them, could move the cursor or look like lines of ours. Only texts of ours have
  // lines.
  std::string s = "[" + without_controls(where) + "] " + printable_lines(what);
  if (!got.empty()) s += "; got " + without_controls(got);
  if (!expected.empty()) s += (got.empty() ? "; expected " : ", expected ") + printable_lines(expected);
  if (!hint.empty()) s += "; try " + printable_lines(hint);
  return s;
}

void refuse(const std::string& where, const std::string& what, const std::string& got, const std::string& expected,
            const std::string& hint) {
  throw InputError({.where = where, .what = what, .got = got, .expected = expected, .hint = hint});
}

void check_failed(const char* file, int line, const char* condition, const std::string& why) {
  std::string_view path(file);
  path.remove_prefix(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  throw LogicFault({.where = std::string(path) + ":" + std::to_string(line),
                    .what = "internal check failed: " + std::string(condition) + " (" + why + ")",
                    .hint = "reporting this with the command line and the log"});
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substitution = diagonal + (word[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best;
}

}  // namespace ditrain
