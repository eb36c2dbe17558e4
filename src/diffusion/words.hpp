// Looking up a word of a config in a table of rows that have a name.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/base/error.hpp"

namespace ditrain::diffusion {

/// The row of that name. Errors: InputError that names the key, all names and the nearest.
template <class Row>
const Row& find_word(std::string_view key, std::string_view word, std::span<const Row> rows) {
  std::vector<std::string> names;
  std::string list;
  for (const Row& row : rows) {
    if (row.name == word) return row;
    names.emplace_back(row.name);
    list += (list.empty() ? "" : " | ") + names.back();
  }
  throw InputError({.where = "diffusion",
                    .what = "unknown " + std::string(key),
                    .got = "\"" + std::string(word) + "\"",
                    .expected = list,
                    .hint = nearest_word(word, names)});
}

}  // namespace ditrain::diffusion
