#include "ditrain/files/piece_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::files {
namespace {

constexpr size_t kBlock = 4096;                     // what O_DIRECT wants of offsets, sizes and addresses
constexpr size_t kInCache = size_t{128} << 10;      // copied and summed while it is in the L2 cache
constexpr size_t kWorthDirect = size_t{256} << 10;  // shorter pieces go through the cache

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  const int error_number = errno;
  throw RunError({.where = path, .what = what, .got = std::strerror(error_number)});
}

// False with errno set if it fails.
bool write_all(int fd, uint64_t offset, const std::byte* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pwrite(fd, data + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

PieceFile::Staging::Staging() : data_(static_cast<std::byte*>(std::aligned_alloc(kBlock, kMaxPiece))) {
  if (data_ == nullptr) throw RunError({.where = "checkpoint", .what = "no memory for a piece of a file"});
}

PieceFile::Staging::~Staging() { std::free(data_); }

void PieceFile::create(const std::string& path, std::string_view begin, uint64_t bytes) {
  DITRAIN_CHECK(begin.size() <= bytes, "a file shorter than its beginning");
  FileWriter file(path);
  file.write(begin.data(), begin.size());
  file.extend(bytes - begin.size());
  file.finish(/*synced=*/false);
}

PieceFile::PieceFile(std::string path, bool direct) : path_(std::move(path)) {
  cached_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (cached_ < 0) fail(path_, "cannot open the file to write");
  if (direct) direct_ = ::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
}

PieceFile::~PieceFile() {
  if (direct_ >= 0) ::close(direct_);
  ::close(cached_);
}

void PieceFile::write(uint64_t offset, const void* data, size_t bytes, Checksum& sum, const Staging& staging) const {
  DITRAIN_CHECK(bytes <= kMaxPiece, "a piece that is too large");
  const auto* from = static_cast<const std::byte*>(data);
  // Blocks that are wholly of this piece; those at its ends may be partly another writer's.
  const uint64_t begin = (offset + kBlock - 1) / kBlock * kBlock, end = (offset + bytes) / kBlock * kBlock;
  const bool direct = direct_ >= 0 && bytes >= kWorthDirect;
  if (!direct) {
    for (size_t done = 0; done < bytes; done += kInCache) {
      const size_t n = std::min(kInCache, bytes - done);
      sum.add(from + done, n);
      write_through_cache(offset + done, from + done, n);
    }
    return;
  }
  const size_t head = begin - offset;
  sum.add(from, head);
  write_through_cache(offset, from, head);
  const size_t body = end - begin;
  for (size_t done = 0; done < body; done += kInCache) {
    const size_t n = std::min(kInCache, body - done);
    std::memcpy(staging.data() + done, from + head + done, n);
    sum.add(staging.data() + done, n);
  }
  write_directly(begin, staging.data(), body);
  const size_t tail = bytes - head - body;
  sum.add(from + head + body, tail);
  write_through_cache(end, from + head + body, tail);
}

void PieceFile::write_through_cache(uint64_t offset, const std::byte* data, size_t bytes) const {
  if (!write_all(cached_, offset, data, bytes))
    fail(path_, fmt::format("writing {} bytes at offset {} failed", bytes, offset));
}

// A file system that opens files so and then refuses to write (EINVAL) gets them through the cache.
void PieceFile::write_directly(uint64_t offset, const std::byte* data, size_t bytes) const {
  if (write_all(direct_, offset, data, bytes)) return;
  if (errno != EINVAL) fail(path_, fmt::format("writing {} bytes at offset {} failed", bytes, offset));
  write_through_cache(offset, data, bytes);
}

void PieceFile::sync() const {
  if (::fsync(cached_) != 0) fail(path_, "syncing to disk failed");
}

PieceReader::PieceReader(std::string path) : path_(std::move(path)), fd_(open_to_read(path_)) {}

PieceReader::~PieceReader() { ::close(fd_); }

void PieceReader::read(uint64_t offset, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<std::byte*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error_number = errno;
      const std::string what = fmt::format("reading {} bytes at offset {} failed", bytes, offset);
      if (n < 0) fail_to_read(path_, what, error_number);
      throw InputError({.where = path_, .what = what, .got = "the end of the file"});
    }
    done += static_cast<size_t>(n);
  }
}

}  // namespace ditrain::files
