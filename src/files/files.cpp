#include "ditrain/files/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "ditrain/base/error.hpp"

namespace ditrain::files {
namespace {

namespace fs = std::filesystem;

// One call of write() moves at most 2 GiB; smaller pieces also keep a signal's delay short.
constexpr size_t kWritePiece = size_t{64} << 20;

std::string reason(int error_number) { return std::strerror(error_number); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

constexpr std::string_view kTemporary = ".tmp_";
constexpr size_t kSuffixDigits = 16;

bool is_temporary(const std::string& name) {
  const size_t at = name.rfind(kTemporary), digits = at + kTemporary.size();
  return name.starts_with('.') && at != name.npos && at >= 2 && name.size() - digits == kSuffixDigits &&
         name.find_first_not_of("0123456789abcdef", digits) == name.npos;
}

// A file there would be lost with the machine, or replace a device for all who use it.
bool is_of_system(const std::string& path) {
  std::error_code error;
  const std::string folder = (fs::weakly_canonical(fs::absolute(folder_of(path), error), error) / "").string();
  return folder.starts_with("/proc/") || (folder.starts_with("/dev/") && !folder.starts_with("/dev/shm/"));
}

// The file that a path means: a link is not replaced by what is written to it.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux
  std::string target = path;
  for (int i = 0; i < kMostLinks; ++i) {
    if (is_of_system(target))
      throw InputError({.where = path,
                        .what = "cannot write this file",
                        .got = "a name below /dev or /proc",
                        .hint = "the name of a file in another folder"});
    std::error_code no_link;
    const fs::path next = fs::read_symlink(target, no_link);
    if (no_link) return target;
    target = (fs::path(target).parent_path() / next).string();
  }
  throw InputError({.where = path, .what = "cannot write this file", .got = reason(ELOOP)});
}

}  // namespace

std::string folder_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

bool is_error_of_path(int error_number) {
  constexpr int kErrors[] = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG, ENXIO};
  return std::find(std::begin(kErrors), std::end(kErrors), error_number) != std::end(kErrors);
}

void fail_to_read(const std::string& path, const std::string& what, int error_number) {
  const Problem problem{.where = path, .what = what, .got = reason(error_number)};
  if (is_error_of_path(error_number)) throw OpenError(problem);
  throw RunError(problem);
}

int open_to_read(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_to_read(path, "cannot open the file", errno);
  return fd;
}

std::string unique_suffix() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Hidden, so that folder readers skip it.
std::string temporary_beside(const std::string& path) {
  const fs::path target(path);
  return (target.parent_path() / fmt::format(".{}{}{}", target.filename().string(), kTemporary, unique_suffix()))
      .string();
}

PendingFile::PendingFile(const std::string& path) : path_(behind_links(path)), temporary_(temporary_beside(path_)) {}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void PendingFile::commit(bool synced) {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw RunError({.where = path_, .what = "cannot replace the file", .got = reason(errno)});
  temporary_.clear();
  if (synced) fsync_directory(folder_of(path_));
}

void remove_stale_files(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (!is_temporary(it->path().filename().string())) continue;
    if (std::error_code gone; fs::is_regular_file(it->symlink_status(gone))) fs::remove(it->path(), error);
    if (error) break;
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw RunError({.where = folder, .what = "cannot clear it of unfinished files", .got = error.message()});
}

FileWriter::FileWriter(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw RunError({.where = path_, .what = "cannot create the file", .got = reason(errno)});
  struct stat info {};
  regular_ = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (regular_) ::unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  write_all(bytes_written_, data, bytes);
  bytes_written_ += bytes;
}

void FileWriter::extend(uint64_t bytes) {
  DITRAIN_CHECK(fd_ >= 0, "extend after finish");
  if (::ftruncate(fd_, static_cast<off_t>(bytes_written_ + bytes)) != 0) {
    throw RunError({.where = path_,
                    .what = fmt::format("reserving {} bytes at offset {} failed", bytes, bytes_written_),
                    .got = reason(errno)});
  }
  bytes_written_ += bytes;
}

void FileWriter::overwrite(uint64_t offset, const void* data, size_t bytes) {
  DITRAIN_CHECK(offset <= bytes_written_ && bytes <= bytes_written_ - offset, "overwrite outside the file");
  write_all(offset, data, bytes);
}

void FileWriter::write_all(uint64_t offset, const void* data, size_t bytes) {
  DITRAIN_CHECK(fd_ >= 0, "write after finish");
  const char* p = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, kWritePiece);
    const ssize_t n = ::pwrite(fd_, p + done, piece, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw RunError({.where = path_,
                      .what = fmt::format("writing {} bytes at offset {} failed", piece, offset + done),
                      .got = n < 0 ? reason(errno) : "nothing written"});
    }
    done += static_cast<size_t>(n);
  }
}

void FileWriter::finish(bool synced) {
  DITRAIN_CHECK(fd_ >= 0, "finish after finish");
  // Only regular files are synced: pipes and devices refuse.
  if (synced && regular_ && ::fsync(fd_) != 0) {
    throw RunError(
        {.where = path_, .what = fmt::format("syncing {} bytes to disk failed", bytes_written_), .got = reason(errno)});
  }
  // close() may report a late write error (network file systems, quota) and frees the descriptor in any case.
  const int result = ::close(fd_);
  const int error_number = errno;
  fd_ = -1;
  if (result == 0) return;
  if (regular_) ::unlink(path_.c_str());
  throw RunError({.where = path_,
                  .what = fmt::format("closing after {} bytes failed", bytes_written_),
                  .got = reason(error_number)});
}

void write_file_atomically(const std::string& path, std::string_view content, bool synced) {
  PendingFile pending(path);
  FileWriter file(pending.temporary());
  file.write(content.data(), content.size());
  file.finish(synced);
  pending.commit(synced);
}

void check_output_file(const std::string& path, std::string_view own_ending) {
  const auto refuse = [&](const std::string& got, const std::string& hint) {
    throw InputError({.where = path, .what = "cannot write this file", .got = got, .hint = hint});
  };
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error) && !fs::is_directory(path, error))
    refuse("a pipe or a device", "a regular file");
  const std::string target = behind_links(path), folder = folder_of(target);
  if (!fs::exists(folder, error)) refuse("no folder " + folder, "mkdir -p " + folder);
  if (!fs::is_directory(folder, error)) refuse(folder + ", which is not a folder", "a path in another folder");
  if (fs::is_directory(path, error)) refuse("a folder", "the name of a file in it");
  // A slip of the hand would replace data, weights or a config.
  constexpr std::string_view kInputs[] = {".yaml", ".yml",  ".safetensors", ".pt",  ".npz",
                                          ".tif",  ".tiff", ".jp2",         ".vrt", ".csv"};
  const std::string ending = fs::path(path).extension().string();
  if (ending != own_ending && fs::exists(path, error) && std::count(std::begin(kInputs), std::end(kInputs), ending) > 0)
    refuse("a file that is there, and whose name is that of another kind", "another name");
  try {
    const FileWriter trial(
        temporary_beside(target));  // permissions alone do not tell: the file system may be read-only
  } catch (const RunError& problem) {
    refuse(problem.what(), "a path in another folder");
  }
}

void append_line(const std::string& path, std::string_view line) {
  const FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (fd < 0) throw RunError({.where = path, .what = "cannot open the file to append", .got = reason(errno)});
  const std::string text = std::string(line) + "\n";
  struct stat before {};
  const bool regular = ::fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
  const ssize_t n = ::write(fd, text.data(), text.size());
  const int error_number = errno;
  if (n == static_cast<ssize_t>(text.size())) return;
  // Half a line would be joined to the next one.
  const bool stays = n > 0 && regular && ::ftruncate(fd, before.st_size) != 0;
  throw RunError({.where = path,
                  .what = fmt::format("appending {} bytes failed", text.size()),
                  .got = n < 0 ? reason(error_number)
                               : fmt::format("only {} written{}", n, stays ? ", which stay in the file" : "")});
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for ever.
  const FileDescriptor fd(open_to_read(path, O_NONBLOCK));
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_to_read(path, "cannot read the file", errno);
  if (!S_ISREG(info.st_mode)) throw InputError({.where = path, .what = "not a regular file"});
  // The size is a hint only (0 under /proc, and the file may grow): one byte more tells whether that was all.
  const auto size_hint = static_cast<size_t>(info.st_size);
  std::string content(size_hint <= max_bytes ? size_hint + 1 : 0, '\0');
  for (size_t have = 0; size_hint <= max_bytes && have <= max_bytes;) {
    if (have == content.size()) content.resize(std::min(2 * have, max_bytes) + 1);
    const ssize_t n = ::read(fd, content.data() + have, content.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_read(path, "cannot read the file", errno);
    if (n == 0) {
      content.resize(have);
      return content;
    }
    have += static_cast<size_t>(n);
  }
  throw InputError(
      {.where = path, .what = "the file is too large", .expected = fmt::format("at most {} bytes", max_bytes)});
}

void read_lines(const std::string& path, const std::function<void(const std::string& line)>& use) {
  const FileDescriptor fd(open_to_read(path));
  std::string line;
  std::array<char, 1 << 16> piece;
  for (;;) {
    const ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_read(path, "cannot read the file", errno);
    if (n == 0) break;
    for (const char c : std::string_view(piece.data(), size_t(n))) {
      if (c != '\n') {
        line += c;
        continue;
      }
      use(line);
      line.clear();
    }
  }
  if (!line.empty()) use(line);
}

void fsync_directory(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd < 0) throw RunError({.where = path, .what = "cannot open the folder", .got = reason(errno)});
  // Some network file systems cannot sync a folder and say EINVAL; their renames are durable by other means.
  if (::fsync(fd) != 0 && errno != EINVAL)
    throw RunError({.where = path, .what = "syncing the folder failed", .got = reason(errno)});
}

std::optional<double> free_bytes(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!path.empty() && path != path.root_path() && !fs::exists(path, error)) path = path.parent_path();
  const fs::space_info space = fs::space(path, error);
  return error || space.capacity == 0 ? std::nullopt : std::optional(double(space.available));
}

void make_output_folder(const std::string& path) {
  std::error_code error;
  std::vector<std::string> parents;  // of what is missing: a new name lasts once the folder that holds it is synced
  for (fs::path at = fs::weakly_canonical(fs::absolute(path), error); !at.empty() && !fs::exists(at, error);
       at = at.parent_path())
    parents.push_back(at.parent_path().string());
  fs::create_directories(path, error);
  if (error) throw InputError({.where = path, .what = "cannot create the folder", .got = error.message()});
  for (const std::string& parent : parents)
    // A folder that may be written but not read cannot be opened to be synced.
    if (::faccessat(AT_FDCWD, parent.c_str(), R_OK, AT_EACCESS) == 0 || errno != EACCES) fsync_directory(parent);
  if (::access(path.c_str(), W_OK | X_OK) != 0)
    throw InputError({.where = path, .what = "cannot write into the folder", .got = reason(errno)});
}

}  // namespace ditrain::files
