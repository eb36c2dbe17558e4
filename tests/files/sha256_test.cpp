#include "ditrain/files/sha256.hpp"

#include <catch2/catch.hpp>

#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::files;

// The examples of NIST's "Secure Hashing" page and of FIPS 180-4.
TEST_CASE("SHA-256 of the standard's examples") {
  CHECK(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_of(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the bytes are cut, nor on the file they are in") {
  std::string text;
  for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>(i * 7));
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{55}, size_t{56}, size_t{63}, size_t{64}, size_t{65}, size_t{300}}) {
    const std::string whole = sha256_of(text.substr(0, n));
    for (size_t piece = 1; piece < 70; piece += 3) {
      CAPTURE(n, piece);
      Sha256 sum;
      for (size_t at = 0; at < n; at += piece) sum.add(std::string_view(text).substr(at, std::min(piece, n - at)));
      CHECK(sum.hex() == whole);
    }
  }
  TemporaryFolder folder;
  put_file(folder / "f", text);
  CHECK(sha256_of_file(folder / "f") == sha256_of(text));
}
