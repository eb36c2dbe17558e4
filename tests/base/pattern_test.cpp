#include "ditrain/base/pattern.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using ditrain::Pattern;
using Groups = std::vector<std::string>;

TEST_CASE("a pattern finds its first match, and groups in it") {
  const Pattern number("b([0-9]{1,2})(a)?");
  CHECK(number.find("T33_b12_b8a").groups == Groups{"b12", "12", ""});
  CHECK(number.find("T33_b12_b8a").end == 7);
  CHECK(number.find("T33_b12_b8a", 7).groups == Groups{"b8a", "8", "a"});
  CHECK_FALSE(number.find("T33_b12_b8a", 9));
  CHECK_FALSE(number.find("T33_b12_b8a", 99));
  CHECK_FALSE(number.is_in("B12"));
  CHECK(Pattern("b[0-9]+", /*any_case=*/true).is_in("B12"));
}

TEST_CASE("the ends of a pattern are those of the whole text, whatever it holds") {
  const Pattern whole("^a.*b$");
  CHECK(whole.is_in("a\nb"));
  CHECK(Pattern("^a[^x]b$").is_in(std::string("a\0b", 3)));
  CHECK_FALSE(whole.is_in("a b\n"));
  CHECK_FALSE(Pattern("^b").find("ab", 1));
  CHECK(Pattern("a*").find("").groups == Groups{""});
  CHECK(Pattern("(x|y)*z").is_in(std::string(1 << 20, 'x') + "z"));  // no recursion
}

TEST_CASE("what is no expression is refused") { CHECK_THROWS_AS(Pattern("a("), ditrain::Error); }
