#include "ditrain/weights/npz_file.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/weights/npz.hpp"
#include "support/files.hpp"
#include "zip_bytes.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using namespace ditrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

const std::string kFolder = std::string(DITRAIN_GOLDEN_DIR) + "/npz_files/";

std::string_view view_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string npy(const std::string& dictionary, const std::string& data) {
  return "\x93NUMPY" + std::string{1, 0} + field16(dictionary.size()) + dictionary + data;
}
std::string header_of(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

void check_refused(const std::string& file, const std::string& message) {
  INFO(message);
  const auto open = [&] {
    const NpzFile opened("f.npz", file);
    for (const std::string& name : opened.names()) opened.read(name);
    if (opened.names().empty()) opened.read("a");
  };
  CHECK_THROWS_AS(open(), InputError);
  CHECK_THROWS_WITH(open(), Contains(message));
}

}  // namespace

TEST_CASE("files that numpy wrote give the same arrays, and hostile ones are refused") {
  const json expected = files::parse_json(get_file(kFolder + "expected.json"));
  int loaded = 0, refused = 0;
  for (const auto& [name, file] : expected.at("files").items()) {
    CAPTURE(name, file.at("why"));
    const std::string expect = file.at("expect");
    if (expect == "refuse") {
      CHECK_THROWS_AS(
          [&] {
            const NpzFile opened(kFolder + name);
            for (const std::string& array : opened.names()) opened.read(array);
          }(),
          InputError);
      ++refused;
      continue;
    }
    const NpzFile opened(kFolder + name);
    ++loaded;
    for (const auto& [array, want] : file.at("arrays").items()) {
      CAPTURE(array);
      REQUIRE(opened.contains(array));
      const NpyHeader header = opened.header(array);
      const std::vector<std::byte> bytes = opened.read(array);
      CHECK(header.dtype == want.at("dtype"));
      CHECK(header.shape == want.at("shape"));
      CHECK(files::sha256_of(view_of(bytes)) == want.at("sha256"));
      if (header.fortran_order || header.big_endian) continue;
      NpyStream stream(opened, array);
      std::vector<std::byte> streamed(bytes.size());
      for (size_t at = 0; at < streamed.size(); at += 3)
        stream.read(streamed.data() + at, std::min<size_t>(3, streamed.size() - at));
      stream.finish();
      CHECK(streamed == bytes);
    }
  }
  CHECK(loaded >= 12);
  CHECK(refused >= 14);
}

TEST_CASE("what our writer writes is read back, and numbers of any type become f64") {
  TemporaryFolder folder;
  NpzU8Writer writer(folder / "f.npz", "arr_0", {2, 3});
  const std::vector<uint8_t> data = {1, 2, 3, 4, 5, 255};
  writer.append(data.data(), data.size());
  writer.finish();
  const NpzFile file(folder / "f.npz");
  CHECK(file.names() == std::vector<std::string>{"arr_0"});
  CHECK(file.to_f64("arr_0") == std::vector<double>{1, 2, 3, 4, 5, 255});
  CHECK_THROWS_WITH(file.read("mu"), Contains("there is no array 'mu'; got 'arr_0'"));
  const NpzFile types(kFolder + "dtypes.npz");
  for (const char* name : {"f2", "f4", "f8", "i1", "i2", "i4", "i8"}) {
    CAPTURE(name);
    CHECK(types.to_f64(name) == std::vector<double>{-3, -2, -1, 0, 1, 2, 3, 4});
  }
}

TEST_CASE("bad arrays are refused, each with its own reason") {
  const auto in_zip = [](const std::string& npy) { return make_zip({stored("a.npy", npy)}); };
  const std::string good = header_of("<f4", "(2, 2)"), data(16, '\1');
  CHECK(NpzFile("f", npy(good, data)).read("").size() == 16);
  CHECK(NpzFile("f", in_zip(npy(good, data))).read("a").size() == 16);
  CHECK(NpzFile("f", npy(header_of("<f4", "(2L, 2L)"), data)).header("").shape == std::vector<int64_t>{2, 2});
  const std::vector<std::pair<std::string, const char*>> bad = {
      {npy(good, data + "x"), "more or fewer bytes than its shape says; got 17, expected 16"},
      {npy(good, data.substr(1)), "got 15, expected 16"},
      {npy(header_of("|O", "(2, 2)"), data), "objects are not read"},
      {npy(header_of("<U8", "(2, 2)"), data), "the type '<U8' is not a number that can be read"},
      {npy(header_of("<f3", "(2, 2)"), data), "is not a number that can be read"},
      {npy(header_of("|f4", "(2, 2)"), data), "has no byte order"},
      {npy(header_of("<f4", "(4)"), data), "the shape is a number, not a tuple"},
      {npy(header_of("<f4", "4"), data), "no '(' at"},
      {npy(header_of("<f4", "(-2, 2)"), data), "no size of 0 or more"},
      {npy(header_of("<f4", "(99999999999999999999, 2)"), data), "a dimension is beyond 64 bits"},
      {npy(header_of("<f4", "(4294967296, 4294967296, 4294967296)"), data), "the shape of the array is beyond 64 bits"},
      {npy(header_of("<f4", "(2, 2)", "Perhaps"), data), "neither True nor False"},
      {npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2), }", data), "records"},
      {npy("{'fortran_order': False, 'shape': (2, 2), }", data), "the key 'descr' is missing"},
      {npy("{'descr': '<f4', 'descr': '<f4', }", data), "is there twice"},
      {npy("{'other': '<f4', }", data), "the key 'other' is unknown"},
      {npy("__import__('os').system('true')", data), "no '{' at byte 0"},
      {npy(good + "x", data), "something follows the dictionary"},
      {"\x93NUMPY" + std::string{9, 0} + field16(4) + "abcd", "unknown version; got 9.0"},
      {"\x93NUMPY" + std::string{2, 0} + field32(1u << 31), "header is too long"},
      {"\x93NUMPY" + std::string{1, 0} + field16(50), "header is longer than the file"},
      {"\x93NUMPY", "is cut off"},
  };
  for (const auto& [array, message] : bad) {
    check_refused(array, message);
    check_refused(in_zip(array), message);
    check_refused(make_zip({packed("a.npy", array)}), message);
  }
  check_refused(in_zip("hello"), "'a'] ");
  check_refused("hello", "not a file of numpy");
  check_refused(make_zip({stored("readme.txt", "x")}), "there is no array 'a'; got no arrays");
  // Four bytes announced, 256 MiB of zeros behind them.
  const std::string bomb = npy(header_of("<f4", "(1,)"), std::string(size_t{256} << 20, '\0'));
  check_refused(make_zip({packed("a.npy", bomb)}), "more or fewer bytes than its shape says");
  const std::string columns = npy(header_of("<f4", "(2, 2)", "True"), data);
  const NpzFile fortran("f", columns);
  CHECK_THROWS_WITH(NpyStream(fortran, ""), Contains("got Fortran's order"));
}

TEST_CASE("a file of numpy that is cut or changed anywhere gives arrays or an InputError") {
  int64_t read_whole = 0, refused = 0;
  for (const char* name : {"compressed.npz", "single.npy", "zip64.npz"}) {
    const std::string whole = get_file(kFolder + name);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0xff : 0x04));
      for (const std::string& bytes : {whole.substr(0, at), damaged}) {
        try {
          const NpzFile file("f", bytes);
          for (const std::string& array : file.names()) file.to_f64(array);
          ++read_whole;
        } catch (const InputError&) {
          ++refused;
        }
      }
    }
  }
  CAPTURE(read_whole, refused);
  CHECK(refused > read_whole);  // every cut, and most changes
}
