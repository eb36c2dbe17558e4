#include "ditrain/files/checksum.hpp"

#include <catch2/catch.hpp>

#include "ditrain/files/files.hpp"
#include "support/files.hpp"
#include "support/no_more_files.hpp"

using namespace ditrain;
using namespace ditrain::files;

// Shards of latents hold it: it must stay what it was.
TEST_CASE("the checksum of parts is that of the size, and of all bytes or those at beginning, middle and end") {
  TemporaryFolder folder;
  for (const uint64_t size : {0, 1, 4096, 12288, 12289, 100'001}) {
    CAPTURE(size);
    std::string bytes;
    for (uint64_t i = 0; i < size; ++i) bytes += char(i * 7919 % 251);
    put_file(folder / "f", bytes);
    const std::string parts =
        size <= 12288 ? bytes : bytes.substr(0, 4096) + bytes.substr(size / 2, 4096) + bytes.substr(size - 4096);
    Checksum want;
    want.add(&size, sizeof size);
    want.add(parts.data(), parts.size());
    CHECK(checksum_of_parts(folder / "f") == want.value());
  }
}

TEST_CASE("the checksum of a file is that of its bytes, whatever the pieces in which they are read") {
  TemporaryFolder folder;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 22, (size_t{1} << 22) + 1}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = char(i * 7919 % 251);
    put_file(folder / "f", bytes);
    CHECK(checksum_of_file(folder / "f") == checksum_of(bytes));
  }
}

TEST_CASE("a file that cannot be read now has no checksum") {
  TemporaryFolder folder;
  put_file(folder / "f", "x");
  {
    const NoMoreFiles limit;
    CHECK_THROWS_AS(checksum_of_parts(folder / "f"), RunError);
    CHECK_THROWS_AS(checksum_of_file(folder / "f"), RunError);
  }
  CHECK_THROWS_AS(checksum_of_file(folder / "absent"), OpenError);
  CHECK_THROWS_AS(checksum_of_file(folder.path()), OpenError);
  CHECK_THROWS_AS(checksum_of_parts(folder / "absent"), OpenError);
  CHECK_THROWS_AS(checksum_of_parts(folder.path()), OpenError);
}
