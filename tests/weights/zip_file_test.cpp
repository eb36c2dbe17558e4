#include "ditrain/weights/zip_file.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "support/files.hpp"
#include "zip_bytes.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using namespace ditrain::test;
using Catch::Contains;

namespace {

std::string text(size_t n) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i) bytes.push_back(static_cast<char>(i * i >> 3));
  return bytes;
}

void read_all(const std::string& zip) {
  const ZipFile file("z", zip);
  for (const ZipFile::Entry& entry : file.entries()) file.read(entry, uint64_t{1} << 30);
}

}  // namespace

TEST_CASE("stored and deflated entries are read, whole, in pieces and in place") {
  const std::string a = text(1000), b = text(70'000);
  const std::string zip = make_zip({stored("a", a), packed("dir/b", b), stored("none", ""), packed("empty", "")});
  const ZipFile file("z", zip);
  REQUIRE(file.entries().size() == 4);
  CHECK(file.find("c") == nullptr);
  CHECK(file.read(*file.find("a"), 1000) == a);
  CHECK(file.view(*file.find("a")) == a);
  CHECK(file.read(*file.find("dir/b"), 70'000) == b);
  CHECK(file.read(*file.find("none"), 0).empty());
  CHECK(file.read(*file.find("empty"), 0).empty());
  CHECK_THROWS_WITH(file.read(*file.find("a"), 999), Contains("zip entry 'a' is too large; got 1000 bytes"));
  ZipStream stream(file, *file.find("dir/b"));
  std::string pieces;
  for (size_t n = 1; stream.left() > 0; n = std::min<size_t>(2 * n, stream.left())) {
    std::string piece(n, '\0');
    stream.read(piece.data(), n);
    pieces += piece;
  }
  stream.finish();
  CHECK(pieces == b);
}

TEST_CASE("a zip that lies is refused, each with its own reason") {
  const auto lie = [](ZipPart part, auto change) {
    change(part);
    return make_zip({part, stored("next", "more bytes")});
  };
  const std::string b = text(5000);
  struct Bad {
    std::string zip;
    const char* message;
  };
  ZipPart second = stored("b", "zzz");
  second.offset = 0;
  const std::string good = make_zip({stored("a", "aaaa"), packed("b", b)});
  const std::vector<Bad> bad = {
      {"", "its directory is missing"},
      {good.substr(0, good.size() / 2), "its directory is missing"},
      {good + "x", "its directory is missing"},
      {"x" + good, "directory is not where its end says"},
      {make_zip({stored("a", "1"), stored("a", "2")}), "zip entry 'a' is there twice"},
      {make_zip({stored("a", "aaa"), second}), "described differently"},
      {lie(stored("a", b), [](ZipPart& p) { p.crc ^= 1; }), "its checksum does not fit"},
      {lie(packed("a", b), [](ZipPart& p) { p.crc ^= 1; }), "its checksum does not fit"},
      {lie(packed("a", b), [](ZipPart& p) { p.bytes -= 1; }), "unpacks to more than it says"},
      {lie(packed("a", b), [](ZipPart& p) { p.bytes += 1; }), "does not unpack to what it says"},
      {lie(packed("a", b), [](ZipPart& p) { p.packed[3] ^= 0x55; }), "is damaged"},
      {lie(packed("a", b), [](ZipPart& p) { p.packed += "tail"; }), "does not unpack to what it says"},
      {lie(packed("a", b), [](ZipPart& p) { p.bytes = 4'000'000'000; }), "more bytes than its data can unpack to"},
      {lie(stored("a", b), [](ZipPart& p) { p.bytes -= 1; }), "is stored, but has two sizes"},
      {lie(stored("a", b), [](ZipPart& p) { p.flags = 1; }), "is encrypted"},
      {lie(stored("a", b), [](ZipPart& p) { p.method = 12; }), "compressed in a way that is not read; got method 12"},
      {lie(stored("a", b), [](ZipPart& p) { p.offset = 3; }), "no header where the directory says"},
      {lie(stored("a", b), [](ZipPart& p) { p.offset = 1 << 30; }), "begins behind the end of the file"},
  };
  for (const Bad& one : bad) {
    INFO(one.message);
    CHECK_THROWS_AS(read_all(one.zip), InputError);
    CHECK_THROWS_WITH(read_all(one.zip), Contains(one.message));
  }
}

TEST_CASE("entries that overlap are refused: a bomb needs no recursion") {
  // The second entry lies inside the first one's data.
  const std::string inner = make_zip({stored("b", "inner bytes")});
  const std::string local = inner.substr(0, inner.find("PK\1\2"));
  std::string zip = make_zip({stored("a", "12" + local + "34"), stored("b", "inner bytes")});
  const size_t entry = zip.rfind("PK\1\2");
  zip.replace(entry + 42, 4, field32(30 + 1 + 2));  // the offset of b in the directory
  CHECK_THROWS_WITH(read_all(zip), Contains("zip entry 'b' overlaps another one; got 'a'"));
}

TEST_CASE("a zip cut anywhere, or with any byte changed, gives its entries or an InputError") {
  const std::string zip = make_zip({stored("a", text(40)), packed("b", text(300))});
  for (size_t n = 0; n < zip.size(); ++n) CHECK_THROWS_AS(read_all(zip.substr(0, n)), InputError);
  int refused = 0;
  for (size_t at = 0; at < zip.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = zip;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        read_all(damaged);
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 2 * int(zip.size()));
}
