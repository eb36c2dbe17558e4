#include "ditrain/base/words.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain {

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

void refuse_word(std::string_view where, std::string_view what, std::string_view word,
                 const std::vector<std::string>& words) {
  throw InputError({.where = std::string(where),
                    .what = std::string(what),
                    .got = "'" + std::string(word) + "'",
                    .expected = alternatives(words),
                    .hint = nearest_word(word, words)});
}

}  // namespace ditrain
