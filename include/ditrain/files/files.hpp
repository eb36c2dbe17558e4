// Files and folders with every error checked. Data written here survives a crash once the call has returned (unless a
// comment says that it is not synced).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ditrain/base/error.hpp"

namespace ditrain::files {

/// The folder that holds a file; "." for a bare name.
std::string folder_of(const std::string& path);

/// A file that cannot be opened because of its path or rights: it is missing, may not be read, ...
struct OpenError : InputError {
  using InputError::InputError;
};

/// Whether an errno blames the path or its rights, rather than disk, network, memory or limits.
bool is_error_of_path(int error_number);
/// Throws the error for a file that the system did not open or read, by its errno: OpenError if path or rights are at
/// fault, RunError if disk, network, memory or limits are. Neither means that the content is wrong.
[[noreturn]] void fail_to_read(const std::string& path, const std::string& what, int error_number);
/// Opens a file to read, with additional flags, and returns the descriptor; repeats the call if a signal interrupts it.
/// Errors: as fail_to_read
int open_to_read(const std::string& path, int flags = 0);

/// A file being written from its beginning; no buffer of its own, so write large pieces.
/// Errors:   every function throws RunError naming path, bytes and the system's reason (disk full, ...).
class FileWriter {
 public:
  explicit FileWriter(std::string path);  ///< creates or empties the file
  ~FileWriter();                          ///< without finish(): closes, and removes the file if it is a regular one
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);                       ///< appends
  void extend(uint64_t bytes);                                      ///< appends zeros (a hole); regular files only
  void overwrite(uint64_t offset, const void* data, size_t bytes);  ///< inside what was written already
  /// Syncs and closes the file; nothing may follow. `synced` false: no fsync, for callers that sync the file later.
  void finish(bool synced = true);

 private:
  void write_all(uint64_t offset, const void* data, size_t bytes);

  std::string path_;
  int fd_ = -1;
  bool regular_ = false;
  uint64_t bytes_written_ = 0;
};

/// Replaces (or creates) `path`, or the file that it links to, in one step: a reader sees the old content or the new
/// one, never a part, also after a crash. Writes a hidden temporary in the same folder, fsync, rename, fsync of the
/// folder. RunError on failure, and the old file stays; InputError as PendingFile. `synced` false, for files that are
/// replaced again and again: no fsync, so that the file may be empty after a power cut.
void write_file_atomically(const std::string& path, std::string_view content, bool synced = true);

/// Appends `line` and a newline in one write (creating the file); not synced. RunError on failure; a line that
/// was written only in part is removed again from a regular file. One process at a time may append.
void append_line(const std::string& path, std::string_view line);

/// The whole content of a regular file (any bytes). InputError if it is not a regular file or has more than
/// `max_bytes`; else errors as fail_to_read.
std::string read_text_file(const std::string& path, size_t max_bytes);

/// Calls `use` with each line of a file, without its newline. Errors: as fail_to_read, and those of `use`
void read_lines(const std::string& path, const std::function<void(const std::string& line)>& use);

/// Checks that write_file_atomically can write `path`, by creating and removing a file beside it, for programs that
/// work long before they write. A file that is there and ends as data, weights or configs do (.tif, .safetensors,
/// .yaml) is no report, and replaced only if it ends in `own_ending`.
/// Errors: InputError with the reason
void check_output_file(const std::string& path, std::string_view own_ending = "");

/// 16 random digits that make a name unique over processes and nodes.
std::string unique_suffix();
/// A hidden path in the same folder which no other process makes, to be renamed to `path` once the file is whole.
std::string temporary_beside(const std::string& path);
/// A file that gets its name only when it is whole: write `temporary()`, sync it, then commit(). Several processes may
/// write files of one name; each has a temporary of its own, which goes with this object if it is not committed. Where
/// the name is a symlink, it stays, and its target is the file.
/// Errors: the constructor throws InputError for names below /dev (but /dev/shm) and /proc, as /dev/stdout
class PendingFile {
 public:
  explicit PendingFile(const std::string& path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::string& temporary() const { return temporary_; }
  /// Renames it and, if `synced`, makes the name durable. Errors: RunError; what had the name stays
  void commit(bool synced = true);

 private:
  std::string path_, temporary_;
};
/// Removes what killed writers left in the folder under such names; only where nobody else writes. Errors: RunError
void remove_stale_files(const std::string& folder);

/// Makes renames and new names in a folder durable. RunError on failure.
void fsync_directory(const std::string& path);

/// Bytes that may still be written to the disk of `folder`, or, while that is missing, of the nearest folder above it;
/// none if the system does not tell.
std::optional<double> free_bytes(const std::string& folder);

/// Creates a folder with its parents if missing, and makes the new names durable (except in a folder that this process
/// may write but not read, which cannot be synced).
/// Errors: InputError if that fails or the folder cannot be written to
void make_output_folder(const std::string& path);

}  // namespace ditrain::files
