#include "ditrain/base/error.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "ditrain/base/dtype.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/base/text.hpp"

using namespace ditrain;

TEST_CASE("a problem reads as one sentence") {
  CHECK(
      Problem{.where = "config", .what = "bad batch", .got = "3", .expected = "a multiple of 2", .hint = "4"}.text() ==
      "[config] bad batch; got 3, expected a multiple of 2; try 4");
  CHECK(Problem{.where = "a", .what = "b", .expected = "c"}.text() == "[a] b; expected c");
}

TEST_CASE("what files name moves no cursor and forges no lines") {
  CHECK(Problem{.where = "a\x1b[2J\n.tif", .what = "bad\n2026 W loss", .got = "x\ny\x7f", .hint = "\n  --set a=b"}
            .text() == "[a?[2J?.tif] bad\n  2026 W loss; got x?y?; try \n  --set a=b");
  CHECK(printable_lines("one\n two\n\nthree\ta\n") == "one\n two\n\n  three?a\n");
  CHECK(without_controls("\xc3\xa9\n\t") == "\xc3\xa9??");
}

TEST_CASE("the log replaces control bytes") {
  const TemporaryFolder scratch;
  log::open_file(scratch / "log.txt");
  log::info_line("a\x1b[2J\nb");
  log::progress_line("c\nd");
  log::close_file();
  std::ifstream file(scratch / "log.txt");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK_THAT(text, Catch::Contains("a?[2J\n  b\n") && Catch::Contains("c?d\n"));
}

TEST_CASE("the nearest word is found, a far one is not") {
  CHECK(nearest_word("globl_batch", {"micro_batch", "global_batch", "steps"}) == "global_batch");
  CHECK(nearest_word("xyzzy", {"micro_batch", "global_batch"}).empty());
}

TEST_CASE("failed checks name the place") {
  CHECK_THROWS_WITH(DITRAIN_CHECK(1 == 2, "sum"), Catch::Contains("error_test.cpp") && Catch::Contains("1 == 2"));
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN and infinity") {
  CHECK(to_f32(to_bf16(1.0f)) == 1.0f);
  CHECK(to_bf16(1.00390625f).bits == 0x3f80);  // exactly half way: to even
  CHECK(to_bf16(1.01171875f).bits == 0x3f82);  // half way, odd below: up
  CHECK(to_f32(to_bf16(-INFINITY)) == -INFINITY);
  const float nan = to_f32(to_bf16(NAN));
  CHECK(nan != nan);
}
