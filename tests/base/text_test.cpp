#include "ditrain/base/text.hpp"

#include <catch2/catch.hpp>

using ditrain::format_bytes;

TEST_CASE("bytes are told in the unit that leaves a number of few digits") {
  CHECK(format_bytes(512) == "0.5 KiB");
  CHECK(format_bytes((size_t{1} << 20) - 1) == "1024.0 KiB");
  CHECK(format_bytes(size_t{24} << 20) == "24.0 MiB");
  CHECK(format_bytes(size_t{27} << 29) == "13.50 GiB");
}

TEST_CASE("parts between separators, also empty ones") {
  using Parts = std::vector<std::string>;
  CHECK(ditrain::split("1,2", ',') == Parts{"1", "2"});
  CHECK(ditrain::split(",2,", ',') == Parts{"", "2", ""});
  CHECK(ditrain::split("", ',') == Parts{""});
  CHECK(ditrain::cells(" Red,\tNear infrared ,", ',') == Parts{"Red", "Near infrared", ""});
}

TEST_CASE("words are replaced wherever they stand") {
  CHECK(ditrain::replaced("aXbX", {{"X", "XX"}, {"a", ""}}) == "XXbXX");
  CHECK(ditrain::replaced("ab", {{"x", "y"}}) == "ab");
}

TEST_CASE("a number is the whole text") {
  int64_t value = 7;
  for (const char* text : {"", "x", "1x", " 1", "1 ", "+1", "9223372036854775808"})
    CHECK_FALSE(ditrain::parse_whole(text, value));
  CHECK(value == 7);
  CHECK((ditrain::parse_whole("-12", value) && value == -12));
  double number = 0;
  CHECK((ditrain::parse_whole("1e3", number) && number == 1000));
}
