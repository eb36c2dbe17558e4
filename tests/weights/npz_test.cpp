#include "ditrain/weights/npz.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/files/crc32.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using Catch::Contains;

namespace {

template <class T>
T field(const std::string& bytes, size_t offset) {
  T value;
  REQUIRE(offset + sizeof(T) <= bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

TEST_CASE("an npz is a stored zip with one npy, all sizes and checksums right") {
  TemporaryFolder folder;
  std::vector<uint8_t> data(2 * 3 * 5);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 9);
  NpzU8Writer writer(folder / "f.npz", "arr_0", {2, 3, 5});
  writer.append(data.data(), 11);
  writer.append(data.data() + 11, data.size() - 11);
  writer.finish();
  const std::string zip = get_file(folder / "f.npz");

  // Local header: signature, version, flags, method, time, date, crc, sizes, lengths, name.
  CHECK(field<uint32_t>(zip, 0) == 0x04034b50);
  CHECK(field<uint16_t>(zip, 6) == 0);
  CHECK(field<uint16_t>(zip, 8) == 0);
  const size_t member_bytes = field<uint32_t>(zip, 18);
  CHECK(field<uint32_t>(zip, 22) == member_bytes);
  CHECK(field<uint16_t>(zip, 26) == 9);
  CHECK(field<uint16_t>(zip, 28) == 0);
  CHECK(zip.substr(30, 9) == "arr_0.npy");
  const std::string member = zip.substr(39, member_bytes);
  CHECK(field<uint32_t>(zip, 14) == files::crc32(0, member.data(), member.size()));

  // npy: magic, version 1.0, header length, header, data from a multiple of 64.
  CHECK(member.substr(0, 8) == std::string("\x93NUMPY\1\0", 8));
  const size_t header_bytes = field<uint16_t>(member, 8);
  CHECK((10 + header_bytes) % 64 == 0);
  CHECK(member.substr(10).starts_with("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3, 5, ), }"));
  CHECK(member[9 + header_bytes] == '\n');
  CHECK(member.substr(10 + header_bytes) == std::string(data.begin(), data.end()));

  // Directory entry and end record.
  const size_t directory = 39 + member_bytes;
  CHECK(field<uint32_t>(zip, directory) == 0x02014b50);
  CHECK(zip.substr(directory + 8, 24) == zip.substr(6, 24));  // flags ... length of the extra field
  CHECK(field<uint32_t>(zip, directory + 42) == 0);
  CHECK(zip.substr(directory + 46, 9) == "arr_0.npy");
  const size_t end = directory + 46 + 9;
  CHECK(zip.size() == end + 22);
  CHECK(field<uint32_t>(zip, end) == 0x06054b50);
  CHECK(field<uint16_t>(zip, end + 10) == 1);
  CHECK(field<uint32_t>(zip, end + 12) == 46 + 9);
  CHECK(field<uint32_t>(zip, end + 16) == directory);
}

TEST_CASE("from 4 GiB on the zip64 fields carry the sizes") {
  const uint64_t bytes = 5'000'000'000;
  const std::string local = zip_local_header("arr_0.npy", bytes, 7);
  CHECK(field<uint16_t>(local, 4) == 45);
  CHECK(field<uint32_t>(local, 18) == 0xFFFFFFFFu);
  CHECK(field<uint32_t>(local, 22) == 0xFFFFFFFFu);
  CHECK(field<uint16_t>(local, 28) == 20);
  CHECK(local.size() == 30 + 9 + 20);
  CHECK(field<uint16_t>(local, 39) == 1);
  CHECK(field<uint64_t>(local, 43) == bytes);
  CHECK(field<uint64_t>(local, 51) == bytes);

  const std::string directory = zip_directory("arr_0.npy", bytes, 7);
  const uint64_t offset = local.size() + bytes;
  const size_t entry_bytes = 46 + 9 + 20;
  CHECK(field<uint32_t>(directory, 20) == 0xFFFFFFFFu);
  CHECK(field<uint64_t>(directory, 46 + 9 + 4) == bytes);
  CHECK(field<uint32_t>(directory, entry_bytes) == 0x06064b50);  // zip64 end record
  CHECK(field<uint64_t>(directory, entry_bytes + 4) == 56 - 12);
  CHECK(field<uint64_t>(directory, entry_bytes + 32) == 1);
  CHECK(field<uint64_t>(directory, entry_bytes + 40) == entry_bytes);
  CHECK(field<uint64_t>(directory, entry_bytes + 48) == offset);
  CHECK(field<uint32_t>(directory, entry_bytes + 56) == 0x07064b50);  // its locator
  CHECK(field<uint64_t>(directory, entry_bytes + 64) == offset + entry_bytes);
  CHECK(field<uint32_t>(directory, entry_bytes + 76) == 0x06054b50);
  CHECK(field<uint32_t>(directory, entry_bytes + 92) == 0xFFFFFFFFu);
  CHECK(directory.size() == entry_bytes + 56 + 20 + 22);
}

TEST_CASE("an npz of the wrong amount of data is not written") {
  TemporaryFolder folder;
  const std::vector<uint8_t> data(10);
  {
    NpzU8Writer writer(folder / "f.npz", "arr_0", {3, 3});
    CHECK_THROWS_AS(writer.append(data.data(), 10), LogicFault);
    writer.append(data.data(), 8);
    CHECK_THROWS_AS(writer.finish(), LogicFault);
  }
  CHECK(!std::filesystem::exists(folder / "f.npz"));
  const auto write = [](const std::string& path, const std::vector<int64_t>& shape,
                        const std::vector<uint8_t>& values) {
    NpzU8Writer writer(path, "arr_0", shape);
    writer.append(values.data(), values.size());
    writer.finish();
  };
  CHECK_THROWS_WITH(write("/dev/full", {1}, {0}), Contains("No space left on device"));
  write(folder / "none.npz", {0, 4, 4, 3}, {});
  CHECK(get_file(folder / "none.npz").find("'shape': (0, 4, 4, 3, )") != std::string::npos);
}
