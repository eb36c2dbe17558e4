// Files mapped into memory, for reading. If another process shortens such a file (or its disk fails), reading the
// missing pages raises SIGBUS. If the address belongs to a file mapped here, the program ends with exit code 1 and a
// message that names the file. Any other SIGBUS is handled as before.
#pragma once
#include <cstddef>
#include <string>

namespace ditrain::files {

/// A regular file, mapped read-only.
/// Errors:   InputError, where = path: not a regular file; RunError: cannot be mapped; else as files::fail_to_read
/// Threads:  files may be mapped, read and unmapped by several threads
/// Limits:   beyond 65536 files at a time, a SIGBUS has no message
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }  ///< null if the file is empty
  size_t bytes() const { return bytes_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t place_ = 0;  // in the table that the signal handler reads
};

}  // namespace ditrain::files
