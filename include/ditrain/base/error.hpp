// Errors. Wrong input from outside (flags, configs, files, shapes) is an InputError: programs print it and exit with 2.
// Failures while running (disk, network, memory) are RunErrors: exit 1. Our own bugs are DITRAIN_CHECKs (LogicFault,
// exit 1).
// Text: "[where] what; got ..., expected ...; try ...".
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ditrain {

inline constexpr int kExitDone = 0, kExitFailed = 1, kExitBadInput = 2, kExitStoppedEarly = 75;

/// The parts of a message; leave out what does not apply: InputError({.where = "config", .what = "...", .got = "..."}).
struct Problem {
  std::string where, what, got = {}, expected = {}, hint = {};
  std::string text() const;
};

class Error : public std::runtime_error {
 public:
  Error(const Problem& problem, int exit_code) : std::runtime_error(problem.text()), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct InputError : Error {
  explicit InputError(const Problem& p) : Error(p, kExitBadInput) {}
};
struct ShapeError : InputError {
  using InputError::InputError;
};
struct RunError : Error {
  explicit RunError(const Problem& p) : Error(p, kExitFailed) {}
};
struct LogicFault : Error {
  explicit LogicFault(const Problem& p) : Error(p, kExitFailed) {}
};

/// Throws an InputError of these parts.
[[noreturn]] void refuse(const std::string& where, const std::string& what, const std::string& got = "",
                         const std::string& expected = "", const std::string& hint = "");

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& why);

/// The candidate nearest to `word` by edit distance, or "" if none is near (for "unknown key; did you mean ...").
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace ditrain

#define DITRAIN_CHECK(condition, why) \
  ((condition) ? void(0) : ::ditrain::check_failed(__FILE__, __LINE__, #condition, (why)))
#ifdef DITRAIN_DEBUG
#define DITRAIN_DCHECK(condition, why) DITRAIN_CHECK(condition, why)
#else
#define DITRAIN_DCHECK(condition, why) void(0)
#endif
