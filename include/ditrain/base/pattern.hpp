// Regular expressions for names and metadata.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ditrain {

/// An extended regular expression of POSIX, as the C library has them: std::regex costs each file that includes it
/// seconds of compile time, and recurses once per character. Where several matches begin, the longest is taken; `.` is
/// any byte but zero; `^` and `$` are the ends of the whole text. Safe to use from several threads.
class Pattern {
 public:
  struct Match {
    std::vector<std::string> groups;  ///< the whole match, then that of each group, "" of one that took no part
    size_t end = 0;                   ///< where in the text the match ends
    explicit operator bool() const { return !groups.empty(); }
  };

  /// Errors:   Error: not an expression
  explicit Pattern(const std::string& expression, bool any_case = false);

  /// The first match that begins at `begin` or after it; none: its groups are empty. `^` matches at 0 alone.
  Match find(const std::string& text, size_t begin = 0) const;
  /// Whether there is a match.
  bool is_in(const std::string& text) const { return bool(find(text)); }

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace ditrain
