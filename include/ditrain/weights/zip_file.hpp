// Reads zip archives as PyTorch and numpy write them: stored and deflated entries, zip64. Archives are treated as
// hostile: one directory at the end of the file describes every byte that is read, entries may not overlap or share a
// name, no entry unpacks to more or less than it says, and checksums are compared. Nothing is unpacked to disk. Writing
// is in weights/npz.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ditrain::weights {

class ZipFile {
 public:
  struct Entry {
    std::string name;
    bool deflated = false;
    uint32_t crc = 0;
    uint64_t offset = 0;        ///< of the packed bytes in the file
    uint64_t packed_bytes = 0;  ///< in the file
    uint64_t bytes = 0;         ///< when unpacked
  };

  /// Errors:   InputError, where = path: not a zip, cut off, encrypted, in several parts, another compression than
  ///           deflate, duplicate names, overlapping entries, sizes that cannot be
  explicit ZipFile(const std::string& path);
  /// An archive in memory, which has to outlive this.
  ZipFile(std::string where, std::string_view bytes);

  const std::string& where() const { return where_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(const std::string& name) const;  ///< null if it does not exist

  /// The unpacked bytes.
  /// Memory:   grows with what really unpacks, not with what the entry says
  /// Errors:   InputError: damaged data or checksum, more or fewer bytes than the entry says, more than `max_bytes`
  std::string read(const Entry& entry, uint64_t max_bytes) const;
  /// The bytes of a stored entry, in place. Errors: as read(); LogicFault for a deflated one
  std::string_view view(const Entry& entry) const;

 private:
  friend class ZipStream;
  void read_directory();

  std::string where_;
  std::shared_ptr<const void> mapping_;
  std::string_view bytes_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
};

/// The unpacked bytes of one entry, from the first to the last, in pieces: for entries larger than memory.
class ZipStream {
 public:
  ZipStream(const ZipFile& file, const ZipFile::Entry& entry);  ///< both have to outlive this
  ~ZipStream();
  ZipStream(const ZipStream&) = delete;
  ZipStream& operator=(const ZipStream&) = delete;

  /// The next `bytes` bytes. Errors: InputError: damaged, or the entry has fewer
  void read(void* to, size_t bytes);
  uint64_t left() const { return left_; }  ///< bytes not read yet, by what the entry says
  /// Call after the last byte. Errors: InputError if the data goes on, or if its checksum is another
  void finish();

 private:
  struct Inflater;
  const ZipFile& file_;
  const ZipFile::Entry& entry_;
  std::string_view packed_;
  std::unique_ptr<Inflater> inflater_;
  uint64_t left_;
  uint32_t crc_ = 0;
};

}  // namespace ditrain::weights
