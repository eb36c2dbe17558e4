#include "ditrain/base/pattern.hpp"

#include <regex.h>

#include "ditrain/base/error.hpp"

namespace ditrain {

struct Pattern::Compiled {
  regex_t expression{};
  Compiled(const std::string& text, int flags) {
    DITRAIN_CHECK(::regcomp(&expression, text.c_str(), flags) == 0, "'" + text + "' is no regular expression");
  }
  ~Compiled() { ::regfree(&expression); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
};

Pattern::Pattern(const std::string& expression, bool any_case)
    : compiled_(std::make_shared<Compiled>(expression, REG_EXTENDED | (any_case ? REG_ICASE : 0))) {}

Pattern::Match Pattern::find(const std::string& text, size_t begin) const {
  const regex_t& expression = compiled_->expression;
  std::vector<regmatch_t> found(expression.re_nsub + 1);
  found[0] = {.rm_so = regoff_t(begin), .rm_eo = regoff_t(text.size())};  // REG_STARTEND: the text may hold zeros
  if (begin > text.size() || ::regexec(&expression, text.c_str(), found.size(), found.data(),
                                       REG_STARTEND | (begin > 0 ? REG_NOTBOL : 0)) != 0)
    return {};
  Match match{.groups = {}, .end = size_t(found[0].rm_eo)};
  for (const regmatch_t& group : found)
    match.groups.push_back(group.rm_so < 0 ? "" : text.substr(size_t(group.rm_so), size_t(group.rm_eo - group.rm_so)));
  return match;
}

}  // namespace ditrain
