#include "ditrain/files/piece_file.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <thread>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "file_size_limit.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::files;
using Catch::Contains;

namespace {

std::string random_bytes(size_t n) {
  std::string bytes(n, '\0');
  std::mt19937_64 random(n);
  for (char& c : bytes) c = char(random());
  return bytes;
}

}  // namespace

TEST_CASE("tensors that are written in pieces, in any order, by several threads, make the same file") {
  const bool direct = GENERATE(true, false);
  TemporaryFolder folder;
  // Larger than a piece, odd, and small enough to go through the cache.
  const std::string a = random_bytes(11'000'004), b = random_bytes(700'012), c = random_bytes(8);
  const std::vector<weights::TensorToWrite> all = {{"b", "F32", {int64_t(b.size() / 4)}, b.data()},
                                                   {"a", "F32", {int64_t(a.size() / 4)}, a.data()},
                                                   {"c", "I64", {1}, c.data()},
                                                   {"d", "F32", {0}, nullptr}};
  weights::write_safetensors(folder / "whole", all, {{"by", "test"}});
  const weights::SafetensorsLayout layout = weights::lay_out_safetensors(all, {{"by", "test"}});
  PieceFile::create(folder / "pieces", layout.begin, layout.bytes);
  const PieceFile file(folder / "pieces", direct);
  struct Piece {
    uint64_t offset;
    const char* data;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  for (const weights::TensorToWrite& t : all) {
    const auto place = layout.places.at(t.name);
    for (uint64_t done = 0; done < place.bytes;) {
      const uint64_t n = std::min<uint64_t>(place.bytes - done, done % 3 == 0 ? PieceFile::kMaxPiece : 1'000'001);
      pieces.push_back({place.offset + done, static_cast<const char*>(t.data) + done, n});
      done += n;
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(1));
  const auto write_every_second = [&](size_t first) {
    const PieceFile::Staging staging;
    for (size_t i = first; i < pieces.size(); i += 2) {
      Checksum sum;
      file.write(pieces[i].offset, pieces[i].data, pieces[i].bytes, sum, staging);
      if (sum.value() != checksum_of({pieces[i].data, pieces[i].bytes})) throw std::runtime_error("wrong sum");
    }
  };
  std::thread other([&] { write_every_second(1); });
  write_every_second(0);
  other.join();
  file.sync();
  CHECK(get_file(folder / "pieces") == get_file(folder / "whole"));
}

TEST_CASE("pieces that do not fit are errors that say where") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(PieceFile(folder / "absent"), Contains("absent") && Contains("No such file"));
  PieceFile::create(folder / "f", "begin", 1'000'000);
  CHECK(get_file(folder / "f").substr(0, 6) == std::string("begin\0", 6));
  const FileSizeLimit limit(100'000);
  CHECK_THROWS_WITH(PieceFile::create(folder / "large", "", 200'000), Contains("File too large"));
  const PieceFile file(folder / "f");
  const PieceFile::Staging staging;
  const std::string bytes = random_bytes(500'000);
  Checksum sum;
  CHECK_THROWS_WITH(file.write(50'000, bytes.data(), bytes.size(), sum, staging),
                    Contains("at offset") && Contains("File too large"));
}

TEST_CASE("a checksum does not depend on how the bytes come, and its digits are read strictly") {
  const std::string bytes = random_bytes(100'003);
  Checksum sum;
  for (size_t done = 0; done < bytes.size(); done += 777)
    sum.add(bytes.data() + done, std::min<size_t>(777, bytes.size() - done));
  CHECK(sum.value() == checksum_of(bytes));
  CHECK(checksum_of("") == 0x2d06800538d394c2);  // of XXH3's specification
  CHECK(from_hex(to_hex(sum.value()), "here") == sum.value());
  for (const char* wrong : {"", "1", "2D06800538d394c2", "2d06800538d394c", "2d06800538d394c2 ", "+d06800538d394c2"})
    CHECK_THROWS_WITH(from_hex(wrong, "here"), Contains("[here]"));
}
