#include "ditrain/base/words.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using namespace ditrain;

namespace {

enum class Colour { kRed, kGreen };
constexpr Word<Colour> kColours[] = {{"red", Colour::kRed}, {"green", Colour::kGreen}};
constexpr std::span<const Word<Colour>> words_of(Colour) { return kColours; }

struct Shade {
  std::string_view name;
  int depth;
};
constexpr Shade kShades[] = {{"light", 1}, {"dark", 2}};
std::span<const Shade> rows_of(const Shade*) { return kShades; }

}  // namespace

TEST_CASE("words of enums and of tables become values, and values words") {
  CHECK(parse_word<Colour>("config", "colour", "green") == Colour::kGreen);
  CHECK(word_of(Colour::kRed) == "red");
  CHECK(parse_word<const Shade*>("config", "shade", "dark")->depth == 2);
  CHECK(word_of(&kShades[0]) == "light");
  CHECK(parse_word<DType>("config", "train.precision", "bf16") == DType::kBF16);
  CHECK(word_of(DType::kI64).empty());
}

TEST_CASE("an unknown word is refused with all words and the nearest") {
  CHECK_THROWS_WITH(parse_word<Colour>("config", "colour: bad value", "gren"),
                    "[config] colour: bad value; got 'gren', expected red or green; try green");
  CHECK_THROWS_AS(parse_word<const Shade*>("config", "shade", ""), InputError);
  CHECK(alternatives({"a", "b", "c"}) == "a, b or c");
}
