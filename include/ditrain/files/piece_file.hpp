// A file whose pieces several threads and processes write in any order, as a checkpoint is written beside the training:
// past the page cache where the file system can (O_DIRECT), so that writing costs the processor one copy and leaves
// the cache to others. What does not fill whole blocks at the ends of a piece goes through the cache.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ditrain/files/checksum.hpp"

namespace ditrain::files {

class PieceFile {
 public:
  static constexpr size_t kMaxPiece = size_t{4} << 20;  ///< bytes
  /// Aligned memory that each thread needs to write pieces.
  class Staging {
   public:
    Staging();
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;
    std::byte* data() const { return data_; }

   private:
    std::byte* data_;
  };

  /// Makes the file (emptying what is there): `begin`, then a hole up to `bytes`. Not synced: sync() of the same
  /// process does that. Errors: RunError
  static void create(const std::string& path, std::string_view begin, uint64_t bytes);

  /// Opens what create() made. `direct`: past the page cache, where that can be. Errors: RunError
  explicit PieceFile(std::string path, bool direct = true);
  ~PieceFile();
  PieceFile(const PieceFile&) = delete;
  PieceFile& operator=(const PieceFile&) = delete;

  const std::string& path() const { return path_; }
  /// Writes `bytes` <= kMaxPiece at `offset` and adds them to `sum`. Errors: RunError naming path, bytes and reason
  void write(uint64_t offset, const void* data, size_t bytes, Checksum& sum, const Staging& staging) const;
  /// Returns when all that this process has written is on the disk. Errors: RunError
  void sync() const;

 private:
  void write_through_cache(uint64_t offset, const std::byte* data, size_t bytes) const;
  void write_directly(uint64_t offset, const std::byte* data, size_t bytes) const;

  std::string path_;
  int cached_ = -1;
  int direct_ = -1;  // -1: not here
};

/// Reads ranges of a file, from several threads at once. Unlike with a mapped file, a failing disk is an ordinary
/// error.
class PieceReader {
 public:
  /// Errors: as files::fail_to_read
  explicit PieceReader(std::string path);
  ~PieceReader();
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;
  /// Errors: naming path, offset and reason; InputError where the file ends early, else as files::fail_to_read
  void read(uint64_t offset, void* to, size_t bytes) const;

 private:
  std::string path_;
  int fd_;
};

}  // namespace ditrain::files
