#include "ditrain/base/bytes.hpp"

#include <catch2/catch.hpp>

using ditrain::format_bytes;

TEST_CASE("bytes are told in the unit that leaves a number of few digits") {
  CHECK(format_bytes(512) == "0.5 KiB");
  CHECK(format_bytes((size_t{1} << 20) - 1) == "1024.0 KiB");
  CHECK(format_bytes(size_t{24} << 20) == "24.0 MiB");
  CHECK(format_bytes(size_t{27} << 29) == "13.50 GiB");
}
