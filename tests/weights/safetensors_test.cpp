#include "ditrain/weights/safetensors.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "ditrain/base/dtype.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/weights/weight_list.hpp"
#include "files/file_size_limit.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using Catch::Contains;

namespace {

std::string length_field(uint64_t n) { return {reinterpret_cast<const char*>(&n), sizeof n}; }

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_field(header.size()) + header + std::string(data_bytes, '\1');
}

struct BadFile {
  const char* name;
  std::string content;
  const char* message;
};

// One tensor entry "a" of the given fields, and its data.
std::string one(const std::string& fields, size_t data_bytes) {
  return file_of("{\"a\":{" + fields + "}}", data_bytes);
}

std::string two(const std::string& first_offsets, const std::string& second_offsets, size_t data_bytes) {
  return file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first_offsets +
                     R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second_offsets + "}}",
                 data_bytes);
}

const std::string kU8 = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";

}  // namespace

TEST_CASE("bad safetensors files are refused, each with its own reason") {
  const std::vector<BadFile> bad_files = {
      {"empty", "", "too short for a safetensors file; got 0 bytes"},
      {"seven bytes", "1234567", "too short for a safetensors file; got 7 bytes"},
      {"length cap", length_field(100'000'001) + "{}", "header length is over the limit"},
      {"huge length", length_field(~uint64_t{0}) + "{}", "header length is over the limit"},
      {"length beyond the file", length_field(3) + "{}", "the header is longer than the file"},
      {"no header", length_field(0), "does not start with '{'"},
      {"leading space", file_of(" {}", 0), "does not start with '{'"},
      {"an array", file_of("[]", 0), "does not start with '{'"},
      {"bad UTF-8", file_of("{\"\xff\":1}", 0), "not UTF-8"},
      {"overlong UTF-8", file_of("{\"\xc0\xaf\":1}", 0), "not UTF-8"},
      {"overlong UTF-8 of three bytes", file_of("{\"\xe0\x80\xaf\":1}", 0), "not UTF-8"},
      {"overlong UTF-8 of four bytes", file_of("{\"\xf0\x80\x80\xaf\":1}", 0), "not UTF-8"},
      {"beyond Unicode", file_of("{\"\xf4\x90\x80\x80\":1}", 0), "not UTF-8"},
      {"surrogate", file_of("{\"\xed\xa0\x80\":1}", 0), "not UTF-8"},
      {"cut UTF-8", file_of("{\"\xe2\x82", 0), "not UTF-8"},
      {"not JSON", file_of("{nonsense}", 0), "not JSON; got an error at byte"},
      {"cut JSON", file_of("{\"a\":{", 0), "not JSON"},
      {"two values", file_of("{}{}", 0), "not JSON"},
      {"text behind a zero", file_of(std::string("{}\0{", 4), 0), "not JSON; got a zero at byte 2"},
      {"number out of range", one(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,4])", 4), "not JSON"},
      {"duplicate tensor", file_of("{\"a\":{" + kU8 + "},\"a\":{" + kU8 + "}}", 4), "duplicate key 'a' in the header"},
      {"escaped duplicate", file_of("{\"a\":{" + kU8 + "},\"\\u0061\":{" + kU8 + "}}", 4), "duplicate key 'a'"},
      {"duplicate __metadata__", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "duplicate key '__metadata__'"},
      {"duplicate inside __metadata__", file_of(R"({"__metadata__":{"k":"1","k":"1"}})", 0),
       "duplicate key 'k' in __metadata__"},
      {"duplicate dtype", one(R"("dtype":"U8",)" + kU8, 4), "duplicate key 'dtype' in tensor 'a'"},
      {"duplicate shape", one(R"("shape":[4],)" + kU8, 4), "duplicate key 'shape' in tensor 'a'"},
      {"duplicate offsets", one(R"("data_offsets":[0,4],)" + kU8, 4), "duplicate key 'data_offsets' in tensor 'a'"},
      {"unknown field", one(R"("stride":[1],)" + kU8, 4), "tensor 'a': unknown field; got stride"},
      {"entry is a number", file_of(R"({"a":5})", 0), "value of 'a' is not a JSON object"},
      {"entry is an array", file_of(R"({"a":[]})", 0), "value of 'a' is not a JSON object"},
      {"metadata is a string", file_of(R"({"__metadata__":"x"})", 0), "value of '__metadata__' is not a JSON object"},
      {"metadata number", file_of(R"({"__metadata__":{"k":1}})", 0), "__metadata__: value of 'k' is not a string"},
      {"metadata null", file_of(R"({"__metadata__":{"k":null}})", 0), "__metadata__: value of 'k' is not a string"},
      {"metadata object", file_of(R"({"__metadata__":{"k":{}}})", 0), "__metadata__: value of 'k' is not a string"},
      {"no dtype", one(R"("shape":[4],"data_offsets":[0,4])", 4), "field 'dtype' is missing"},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,4])", 4), "field 'shape' is missing"},
      {"no offsets", one(R"("dtype":"U8","shape":[4])", 4), "field 'data_offsets' is missing"},
      {"unknown dtype", one(R"("dtype":"F12","shape":[4],"data_offsets":[0,4])", 4), "unknown dtype; got F12"},
      {"lower-case dtype", one(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])", 4), "unknown dtype; got u8"},
      {"dtype is a number", one(R"("dtype":8,"shape":[4],"data_offsets":[0,4])", 4),
       "field 'dtype' has the wrong JSON type"},
      {"shape is a number", one(R"("dtype":"U8","shape":4,"data_offsets":[0,4])", 4),
       "field 'shape' has the wrong JSON type"},
      {"shape of strings", one(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])", 4),
       "field 'shape' holds something else than numbers"},
      {"nested shape", one(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])", 4),
       "field 'shape' holds something else than numbers"},
      {"negative dimension", one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])", 4), "negative dimension; got -4"},
      {"fractional dimension", one(R"("dtype":"U8","shape":[4.5],"data_offsets":[0,4])", 4),
       "dimension is not an integer of 64 bits; got 4.5"},
      {"dimension of 20 digits", one(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4])", 4),
       "dimension is not an integer of 64 bits"},
      {"dimension over 2^63", one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])", 4),
       "dimension is too large"},
      {"product over 2^64", one(R"("dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,4])", 4),
       "overflows 64 bits"},
      {"bytes over 2^64", one(R"("dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8])", 8),
       "overflows 64 bits"},
      {"half a byte", one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2), "its numbers end within a byte"},
      {"bits over 2^64", one(R"("dtype":"F4","shape":[9223372036854775807,8],"data_offsets":[0,8])", 8),
       "overflows 64 bits"},
      {"65 dimensions",
       [] {
         std::string ones = "1";
         for (int i = 0; i < 64; ++i) ones += ",1";
         return one("\"dtype\":\"U8\",\"shape\":[" + ones + "],\"data_offsets\":[0,1]", 1);
       }(),
       "too many dimensions"},
      {"fewer bytes than the shape", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4),
       "shape x dtype does not match data_offsets; got 4 bytes of data, expected 8 bytes for F32 [2]"},
      {"more bytes than the shape", one(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])", 4),
       "shape x dtype does not match data_offsets"},
      {"reversed offsets", one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])", 4), "end before they begin"},
      {"negative offset", one(R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])", 4), "negative data offset; got -4"},
      {"fractional offset", one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4.0])", 4),
       "data offset is not an integer of 64 bits"},
      {"one offset", one(R"("dtype":"U8","shape":[4],"data_offsets":[4])", 4), "must have exactly two numbers"},
      {"three offsets", one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,8])", 4), "must have exactly two numbers"},
      {"hole at the start", one(R"("dtype":"U8","shape":[4],"data_offsets":[4,8])", 8), "'a': a hole before its data"},
      {"hole between", two("[0,4]", "[5,9]", 9), "'b': a hole before its data; got begin 5, expected 4"},
      {"overlap", two("[0,4]", "[3,7]", 7), "'b': its data overlaps the previous tensor's; got begin 3, expected 4"},
      {"aliased", two("[0,4]", "[0,4]", 4), "overlaps"},
      {"truncated", two("[0,4]", "[4,8]", 7), "the data is truncated; got 7 bytes of data, expected 8"},
      {"trailing byte", two("[0,4]", "[4,8]", 9),
       "bytes trail behind the last tensor; got 9 bytes of data, expected 8"},
      {"data without tensors", file_of("{}", 1), "bytes trail behind the last tensor"},
  };
  TemporaryFolder folder;
  const std::string path = folder / "bad.safetensors";
  for (const BadFile& bad : bad_files) {
    INFO(bad.name);
    put_file(path, bad.content);
    CHECK_THROWS_AS(SafetensorsFile(path), InputError);
    CHECK_THROWS_WITH(SafetensorsFile(path), Contains("[" + path + "]") && Contains(bad.message));
  }
}

TEST_CASE("a hostile tensor name cannot flood or steer the terminal") {
  TemporaryFolder folder;
  put_file(folder / "bad", file_of("{\"\\u001b[2J" + std::string(500, 'x') + "\":5}", 0));
  try {
    SafetensorsFile file(folder / "bad");
    FAIL("accepted");
  } catch (const InputError& e) {
    CHECK(std::string(e.what()).find('\x1b') == std::string::npos);
    CHECK(std::string(e.what()).size() < 300);
  }
}

TEST_CASE("what is not a readable regular file is refused") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile(folder / "absent"), Contains("cannot open the file; got No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(folder.path()), Contains("not a regular file"));
  CHECK_THROWS_WITH(SafetensorsFile("/dev/null"), Contains("not a regular file"));
}

TEST_CASE("valid corner cases are read: unaligned data, any order, 0-dim, zero-size, UTF-8, padding") {
  TemporaryFolder folder;
  // 8 + header length is odd, so no element is aligned; the entries are not in the order of their data.
  std::string header = R"({"z":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                       R"("zero":{"dtype":"F32","shape":[3,0,9223372036854775807],"data_offsets":[8,8]},)"
                       R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                       "\"\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[16,17]},"
                       R"("__metadata__":{"who":"me"}})";
  header += header.size() % 2 == 0 ? " " : "  ";
  const double scalar = 2.5;
  const float z[2] = {-1.5f, std::numeric_limits<float>::quiet_NaN()};
  std::string data(17, '\7');
  std::memcpy(data.data(), &scalar, 8);
  std::memcpy(data.data() + 8, z, 8);
  put_file(folder / "f", length_field(header.size()) + header + data);

  const SafetensorsFile file(folder / "f");
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "scalar");
  CHECK(file.tensors()[1].name == "zero");
  CHECK(file.tensors()[2].name == "z");
  CHECK(file.tensors()[3].name == "\xc3\xa9");
  CHECK(reinterpret_cast<uintptr_t>(file.tensor("z").data) % 4 != 0);
  CHECK(file.tensor("scalar").num_elements() == 1);
  CHECK(to_f64(file.tensor("scalar")) == std::vector<double>{2.5});
  CHECK(to_f32(file.tensor("zero")).empty());
  const std::vector<float> read = to_f32(file.tensor("z"));
  CHECK(read[0] == -1.5f);
  CHECK(std::isnan(read[1]));
  CHECK(file.metadata() == std::map<std::string, std::string>{{"who", "me"}});
  CHECK(!file.contains("y"));

  put_file(folder / "none", file_of("{}", 0));
  CHECK(SafetensorsFile(folder / "none").tensors().empty());
}

TEST_CASE("a view outlives the file object as long as a copy of it lives") {
  TemporaryFolder folder;
  const float value = 3.0f;
  write_safetensors(folder / "f", {{"a", "F32", {1}, &value}});
  auto file = std::make_unique<SafetensorsFile>(folder / "f");
  const SafetensorsFile copy = *file;
  file.reset();
  CHECK(to_f32(copy.tensor("a")) == std::vector<float>{3.0f});
}

TEST_CASE("written files are sorted, padded, carry the format and read back") {
  TemporaryFolder folder;
  const std::vector<float> w = {1.0f, -2.0f, 3.0f, INFINITY, 5.0f, 6.0f};
  const std::vector<double> d = {0.1};
  const std::vector<int64_t> n = {-7, int64_t{1} << 62};
  const std::vector<uint8_t> u = {1, 2, 255};
  write_safetensors(folder / "f",
                    {{"u", "U8", {3}, u.data()},
                     {"w", "F32", {2, 3}, w.data()},
                     {"none", "F32", {0, 4}, nullptr},
                     {"n", "I64", {2}, n.data()},
                     {"d", "F64", {}, d.data()}},
                    {{"step", "12"}, {"host", "bad \xff byte"}});
  const std::string bytes = get_file(folder / "f");
  CHECK(static_cast<uint8_t>(bytes[0]) % 8 == 0);
  CHECK(bytes[8] == '{');

  const SafetensorsFile file(folder / "f");
  std::vector<std::string> names;
  for (const TensorView& t : file.tensors()) names.push_back(t.name);
  CHECK(names == std::vector<std::string>{"d", "n", "none", "w", "u"});
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.metadata().at("step") == "12");
  CHECK(file.metadata().at("host") == "bad \xef\xbf\xbd byte");
  CHECK(file.tensor("w").shape == std::vector<int64_t>{2, 3});
  CHECK(to_f32(file.tensor("w")) == w);
  CHECK(to_f64(file.tensor("d")) == d);
  CHECK(to_i64(file.tensor("n")) == n);
  CHECK(to_i64(file.tensor("u")) == std::vector<int64_t>{1, 2, 255});
  CHECK(to_f64(file.tensor("u")) == std::vector<double>{1, 2, 255});
}

TEST_CASE("tensors of types that are not read leave the others of the file readable") {
  TemporaryFolder folder;
  for (const auto& [dtype, count, bytes] : {std::tuple{"C64", 1, 8},
                                            {"F8_E8M0", 8, 8},
                                            {"F8_E4M3FNUZ", 8, 8},
                                            {"F8_E5M2FNUZ", 8, 8},
                                            {"F4", 16, 8},
                                            {"F6_E2M3", 4, 3},
                                            {"F6_E3M2", 8, 6}}) {
    CAPTURE(dtype);
    const std::string header =
        fmt::format(R"({{"__metadata__":null,"odd":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}},)"
                    R"("u":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})",
                    dtype, count, bytes, bytes, bytes + 4);
    put_file(folder / "f", file_of(header, size_t(bytes + 4)));
    const SafetensorsFile file(folder / "f");
    CHECK(file.metadata().empty());
    CHECK(to_i64(file.tensor("u")) == std::vector<int64_t>{1, 1, 1, 1});
    CHECK_THROWS_WITH(to_f32(file.tensor("odd")), Contains(dtype));
    CHECK(list_weights(folder / "f").size() == 2);
  }
}

TEST_CASE("an unknown name is answered with the nearest one") {
  TemporaryFolder folder;
  const float x = 0;
  write_safetensors(folder / "f", {{"blocks.0.attn.qkv.weight", "F32", {1}, &x}, {"pos_embed", "F32", {1}, &x}});
  const SafetensorsFile file(folder / "f");
  CHECK_THROWS_WITH(file.tensor("blocks.0.attn.qkv.wieght"), Contains(folder / "f") &&
                                                                 Contains("no tensor 'blocks.0.attn.qkv.wieght'") &&
                                                                 Contains("try 'blocks.0.attn.qkv.weight'"));
}

TEST_CASE("f32 is written as bf16 piece by piece, rounded to nearest even") {
  TemporaryFolder folder;
  std::vector<float> x((size_t{1} << 18) + 3);  // one piece and a rest
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f + static_cast<float>(i) * 1e-3f;
  write_safetensors(folder / "f", {{"x", "BF16", {static_cast<int64_t>(x.size())}, x.data(), true}});
  const SafetensorsFile file(folder / "f");
  const std::vector<float> read = to_f32(file.tensor("x"));
  REQUIRE(read.size() == x.size());
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) wrong += read[i] != ditrain::to_f32(to_bf16(x[i]));
  CHECK(wrong == 0);
}

TEST_CASE("every number type is converted to the value it stands for") {
  TemporaryFolder folder;
  const std::vector<uint16_t> f16 = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x3555};
  const std::vector<int32_t> i32 = {-5, 2147483647};
  const std::vector<int16_t> i16 = {-32768};
  const std::vector<uint16_t> u16 = {65535};
  const std::vector<int8_t> i8 = {-128};
  const std::vector<uint32_t> u32 = {4294967295u};
  const std::vector<uint64_t> u64 = {9223372036854775807u}, u64_large = {9223372036854775808u};
  const std::vector<uint8_t> boolean = {0, 1}, f8 = {1};
  write_safetensors(folder / "f", {{"f16", "F16", {10}, f16.data()},
                                   {"i32", "I32", {2}, i32.data()},
                                   {"i16", "I16", {1}, i16.data()},
                                   {"u16", "U16", {1}, u16.data()},
                                   {"i8", "I8", {1}, i8.data()},
                                   {"u32", "U32", {1}, u32.data()},
                                   {"u64", "U64", {1}, u64.data()},
                                   {"u64_large", "U64", {1}, u64_large.data()},
                                   {"bool", "BOOL", {2}, boolean.data()},
                                   {"f8", "F8_E4M3", {1}, f8.data()}});
  const SafetensorsFile file(folder / "f");
  const std::vector<float> h = to_f32(file.tensor("f16"));
  CHECK(h[0] == 1.0f);
  CHECK(h[1] == -2.0f);
  CHECK(h[2] == 65504.0f);
  CHECK(h[3] == std::ldexp(1.0f, -24));
  CHECK(h[4] == std::ldexp(1023.0f, -24));
  CHECK((h[5] == 0.0f && std::signbit(h[5])));
  CHECK(h[6] == INFINITY);
  CHECK(h[7] == -INFINITY);
  CHECK(std::isnan(h[8]));
  CHECK(h[9] == 0.333251953125f);
  CHECK(to_i64(file.tensor("i32")) == std::vector<int64_t>{-5, 2147483647});
  CHECK(to_i64(file.tensor("i16")) == std::vector<int64_t>{-32768});
  CHECK(to_i64(file.tensor("u16")) == std::vector<int64_t>{65535});
  CHECK(to_i64(file.tensor("i8")) == std::vector<int64_t>{-128});
  CHECK(to_i64(file.tensor("u32")) == std::vector<int64_t>{4294967295});
  CHECK(to_i64(file.tensor("u64")) == std::vector<int64_t>{std::numeric_limits<int64_t>::max()});
  CHECK(to_i64(file.tensor("bool")) == std::vector<int64_t>{0, 1});
  CHECK_THROWS_WITH(to_i64(file.tensor("u64_large")), Contains("values up to 2^63 - 1"));
  CHECK_THROWS_WITH(to_i64(file.tensor("f16")), Contains("[tensor 'f16']") && Contains("got F16"));
  CHECK_THROWS_WITH(to_f32(file.tensor("i32")), Contains("got I32, expected F32, F64, BF16 or F16"));
  CHECK_THROWS_WITH(to_f64(file.tensor("f8")), Contains("got F8_E4M3"));
}

TEST_CASE("a range of rows is a view, bounds checked") {
  TemporaryFolder folder;
  const std::vector<float> x = {0, 1, 2, 3, 4, 5};
  write_safetensors(folder / "f", {{"x", "F32", {3, 2}, x.data()}, {"s", "F32", {}, x.data()}});
  const SafetensorsFile file(folder / "f");
  const TensorView rows = row_range(file.tensor("x"), 1, 2);
  CHECK(rows.shape == std::vector<int64_t>{2, 2});
  CHECK(to_f32(rows) == std::vector<float>{2, 3, 4, 5});
  CHECK(to_f32(row_range(file.tensor("x"), 3, 0)).empty());
  CHECK_THROWS_WITH(row_range(file.tensor("x"), 2, 2), Contains("rows out of range"));
  CHECK_THROWS_AS(row_range(file.tensor("x"), -1, 1), InputError);
  CHECK_THROWS_AS(row_range(file.tensor("x"), 1, std::numeric_limits<int64_t>::max()), InputError);
  CHECK_THROWS_AS(row_range(file.tensor("s"), 0, 1), InputError);
}

TEST_CASE("a full disk is reported with path, bytes and reason, and no part of a file stays") {
  TemporaryFolder folder;
  const std::vector<float> x(100'000, 1.0f);
  const auto write = [&](const std::string& path) { write_safetensors(path, {{"x", "F32", {100'000}, x.data()}}); };
  CHECK_THROWS_AS(write("/dev/full"), RunError);
  CHECK_THROWS_WITH(write("/dev/full"), Contains("[/dev/full] writing 104 bytes at offset 0 failed") &&
                                            Contains("No space left on device"));
  CHECK(std::filesystem::exists("/dev/full"));
  CHECK_THROWS_WITH(write(folder / "absent/f"), Contains("cannot create the file; got No such file"));
  {
    const FileSizeLimit limit(100'000);
    CHECK_THROWS_WITH(write(folder / "f"), Contains("bytes at offset 100000 failed; got File too large"));
  }
  CHECK(!std::filesystem::exists(folder / "f"));
  write(folder / "f");
  CHECK(SafetensorsFile(folder / "f").tensor("x").num_elements() == 100'000);
}

TEST_CASE("tensors that make no valid file are our own bug") {
  TemporaryFolder folder;
  const float x = 0;
  const auto write = [&](std::vector<TensorToWrite> tensors) { write_safetensors(folder / "f", std::move(tensors)); };
  CHECK_THROWS_AS(write({{"x", "F32", {1}, &x}, {"x", "F32", {1}, &x}}), LogicFault);
  CHECK_THROWS_AS(write({{"x", "F33", {1}, &x}}), LogicFault);
  CHECK_THROWS_AS(write({{"x", "F32", {-1}, &x}}), LogicFault);
  CHECK_THROWS_AS(write({{"x", "F32", {1}, nullptr}}), LogicFault);
  CHECK_THROWS_AS(write({{"__metadata__", "F32", {1}, &x}}), LogicFault);
  CHECK_THROWS_AS(write({{"x", "F16", {1}, &x, true}}), LogicFault);
  CHECK(!std::filesystem::exists(folder / "f"));
}
