// Words of configs and flags, and the values that they stand for: each is turned into its value once, where it is read,
// and nothing below compares strings. A value is an enum or a row of a table; its type says which words there are:
//
//   enum class Wire { kF32, kBF16 };
//   inline constexpr Word<Wire> kWires[] = {{"f32", Wire::kF32}, {"bf16", Wire::kBF16}};
//   constexpr std::span<const Word<Wire>> words_of(Wire) { return kWires; }     // beside the enum
//
//   struct Sampler { std::string_view name; ... };           // a registry, whose values are pointers to rows
//   std::span<const Sampler> rows_of(const Sampler*);
//
//   parse_word<Wire>("command line", "--wire", "bf16") == Wire::kBF16;   word_of(Wire::kBF16) == "bf16"
#pragma once
#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ditrain/base/dtype.hpp"

namespace ditrain {

template <class E>
struct Word {
  std::string_view word;
  E value;
};

inline constexpr Word<DType> kPrecisions[] = {{"f32", DType::kF32}, {"bf16", DType::kBF16}};
/// The types that users choose between.
constexpr std::span<const Word<DType>> words_of(DType) { return kPrecisions; }

/// "a, b or c"
std::string alternatives(const std::vector<std::string>& words);

/// Errors:   InputError "[where] what; got 'word', expected a, b or c; try NEAREST", always
[[noreturn]] void refuse_word(std::string_view where, std::string_view what, std::string_view word,
                              const std::vector<std::string>& words);

/// All words of a type, in their order.
template <class V>
std::vector<std::string> all_words() {
  std::vector<std::string> words;
  if constexpr (std::is_pointer_v<V>)
    for (const auto& row : rows_of(V{})) words.emplace_back(row.name);
  else
    for (const auto& row : words_of(V{})) words.emplace_back(row.word);
  return words;
}

/// Whether the type has the word; `value` becomes what it stands for.
template <class V>
bool find_word(std::string_view word, V& value) {
  if constexpr (std::is_pointer_v<V>) {
    for (const auto& row : rows_of(V{}))
      if (row.name == word) return value = &row, true;
  } else {
    for (const auto& row : words_of(V{}))
      if (row.word == word) return value = row.value, true;
  }
  return false;
}

/// Errors:   as refuse_word, for a word that the type does not have
template <class V>
V parse_word(std::string_view where, std::string_view what, std::string_view word) {
  V value{};
  if (!find_word(word, value)) refuse_word(where, what, word, all_words<V>());
  return value;
}

/// The word of a value; "" for one that has none.
template <class V>
std::string_view word_of(V value) {
  if constexpr (std::is_pointer_v<V>) {
    return value == nullptr ? std::string_view() : std::string_view(value->name);
  } else {
    for (const auto& row : words_of(value))
      if (row.value == value) return row.word;
    return {};
  }
}

}  // namespace ditrain

/// Enums print as their words: fmt::format("dist.wire: {}", config.dist.wire).
// clang-format 14 does not see where the requires clause ends.
// clang-format off
template <class E>
  requires(std::is_enum_v<E> && requires(E value) { words_of(value); })
struct fmt::formatter<E> : fmt::formatter<std::string_view> {
  auto format(E value, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(ditrain::word_of(value), context);
  }
};
// clang-format on
