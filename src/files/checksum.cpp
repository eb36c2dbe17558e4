#include "ditrain/files/checksum.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/piece_file.hpp"

namespace ditrain::files {

void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Checksum::Checksum() : state_(XXH3_createState()) {
  DITRAIN_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK, "no memory for a checksum");
}

void Checksum::add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }

uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

namespace {

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail_to_read(path, "cannot find out the size of the file", error.value());
  return size;
}

}  // namespace

uint64_t checksum_of_file(const std::string& path) {
  constexpr uint64_t kPiece = uint64_t{1} << 22;
  const uint64_t size = size_of(path);
  const PieceReader file(path);
  Checksum sum;
  std::vector<char> piece(size_t(std::min(size, kPiece)));
  for (uint64_t from = 0; from < size; from += kPiece) {
    const auto bytes = size_t(std::min(size - from, kPiece));
    file.read(from, piece.data(), bytes);
    sum.add(piece.data(), bytes);
  }
  return sum.value();
}

uint64_t checksum_of_parts(const std::string& path) {
  constexpr uint64_t kPart = 4096;
  const uint64_t size = size_of(path);
  const PieceReader file(path);
  Checksum sum;
  sum.add(&size, sizeof size);
  std::vector<char> part(size_t(std::min(size, 3 * kPart)));
  const auto add = [&](uint64_t from, size_t bytes) {
    file.read(from, part.data(), bytes);
    sum.add(part.data(), bytes);
  };
  if (size <= 3 * kPart)
    add(0, part.size());
  else
    for (const uint64_t from : {uint64_t{0}, size / 2, size - kPart}) add(from, size_t(kPart));
  return sum.value();
}

std::string to_hex(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

uint64_t from_hex(std::string_view digits, const std::string& where) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 16 || error != std::errc{} || end != digits.data() + digits.size() || to_hex(value) != digits)
    throw InputError(
        {.where = where, .what = "not a checksum", .got = std::string(digits), .expected = "16 digits of 0-9a-f"});
  return value;
}

}  // namespace ditrain::files
