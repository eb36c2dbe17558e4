#include "ditrain/memory/backing.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "disk_queue.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/platform/numa.hpp"
#include "stream_copy.hpp"

namespace ditrain::memory {
namespace {

class BulkPool final : public Backing {
 public:
  explicit BulkPool(const TierSetup& wanted) : block_(wanted.bytes, wanted.pages) {
    check_free_memory(wanted);
    place(wanted.nodes);
    if (block_.take_pages()) place(wanted.nodes);
    if (!block_.note().empty()) notes_.push_back(block_.note());
    // On fault: what nothing has written yet takes no memory.
    if (mlock2(block_.data(), block_.bytes(), MLOCK_ONFAULT) != 0)
      notes_.push_back("the bulk tier is not pinned (mlock: " + std::string(std::strerror(errno)) +
                       "): ulimit -l unlimited, or LimitMEMLOCK=infinity in the job's unit");
  }
  std::string name() const override { return "bulk"; }
  size_t bytes() const override { return block_.bytes(); }
  void read(size_t offset, std::byte* to, size_t bytes) override { stream_copy(to, block_.data() + offset, bytes); }
  void write(size_t offset, const std::byte* from, size_t bytes) override {
    stream_copy(block_.data() + offset, from, bytes);
  }
  std::byte* in_place(size_t offset) override { return block_.data() + offset; }
  std::vector<std::string> notes() const override { return notes_; }
  std::string describe() const override {
    const std::string places = platform::format_places(platform::bytes_on_nodes(block_.data(), block_.bytes()));
    return block_.describe() + (places.empty() ? "" : "; ") + places;
  }

 private:
  void check_free_memory(const TierSetup& wanted) {
    const bool huge = block_.got() == platform::PagePolicy::kExplicit;
    for (const int node : wanted.nodes) {
      const auto available = wanted.free_memory.find(node);
      if (available == wanted.free_memory.end()) continue;
      const size_t part = block_.bytes() / wanted.nodes.size();
      const size_t free =
          huge ? available->second.free_huge_bytes : available->second.free_bytes + available->second.cached_bytes;
      if (free >= part) continue;
      notes_.push_back("bulk tier: NUMA node " + std::to_string(node) + " has " + format_bytes(free) +
                       " free for this rank where " + format_bytes(part) +
                       " are wanted, the rest comes from other nodes; --set memory.bulk_gib=" +
                       std::to_string(free * wanted.nodes.size() >> 30) + " and memory.disk_gib for the rest");
    }
  }
  void place(const std::vector<int>& nodes) {
    if (nodes.empty()) return;
    const auto placed = platform::place_on_nodes(block_.data(), block_.bytes(), nodes, platform::policy_for(nodes));
    if (placed || std::count(notes_.begin(), notes_.end(), placed.reason) > 0) return;
    notes_.push_back(placed.reason);
  }
  platform::PageBlock block_;
  std::vector<std::string> notes_;
};

// None where the file system does not count its free space.
std::optional<size_t> free_disk_space(const std::string& folder) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0 || space.f_blocks == 0) return {};
  return size_t(space.f_bavail) * space.f_frsize;
}

// A file of tmpfs is RAM, which no plan of memory would count.
bool is_in_ram(const std::string& folder) {
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) return false;
  const auto is = [&](unsigned magic) { return unsigned(system.f_type) == magic; };
  return is(TMPFS_MAGIC) || is(RAMFS_MAGIC) || is(HUGETLBFS_MAGIC);
}

[[noreturn]] void refuse_disk(const TierSetup& wanted, int ranks, const std::string& why) {
  const std::optional<size_t> free = free_disk_space(wanted.folder);
  throw InputError({.where = "memory",
                    .what = "the disk tier cannot be made",
                    .got = wanted.folder + ": " + why + (free ? ", " + format_bytes(*free) + " free" : ""),
                    .expected = "a folder on a local disk with " + format_bytes(whole_blocks(wanted.bytes)) + " free" +
                                (ranks > 1 ? " for each of the " + std::to_string(ranks) + " ranks of a node" : ""),
                    .hint = "--set memory.disk_path=FOLDER, or memory.bulk_gib, which takes a part into memory"});
}

class DiskFile final : public Backing {
 public:
  explicit DiskFile(const TierSetup& wanted) : wanted_(wanted), bytes_(whole_blocks(wanted.bytes)) {
    check_disk(wanted);
    if (is_in_ram(wanted.folder)) notes_.push_back("the disk tier is RAM, which DITRAIN_DISK_IN_RAM allows for tests");
    open_file();
    reserve_space();
    for (const DiskQueue& queue : queues_)
      if (!queue.refusal().empty()) {
        notes_.push_back("the disk tier uses pread and pwrite: io_uring: " + queue.refusal());
        break;
      }
  }
  ~DiskFile() override { ::close(fd_); }

  std::string name() const override { return "disk"; }
  size_t bytes() const override { return bytes_; }
  void read(size_t offset, std::byte* to, size_t bytes) override { transfer(DiskOperation::kRead, offset, to, bytes); }
  void write(size_t offset, const std::byte* from, size_t bytes) override {
    transfer(DiskOperation::kWrite, offset, const_cast<std::byte*>(from), bytes);
  }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  void open_file() {
    const std::string& folder = wanted_.folder;
    fd_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd_ >= 0) return;
    fd_ = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd_ < 0) {  // a file system without nameless files
      std::string name = folder + "/.ditrain-tier-XXXXXX";
      fd_ = ::mkostemp(name.data(), O_CLOEXEC);
      if (fd_ < 0) refuse(std::strerror(errno));
      ::unlink(name.c_str());
      if (::fcntl(fd_, F_SETFL, O_DIRECT) == 0) return;
    }
    cached_ = true;
    notes_.push_back("the disk tier goes through the page cache: the file system of " + folder +
                     " has no O_DIRECT; memory.disk_path: a folder on a local disk");
  }
  // A full disk shows now. posix_fallocate would do it by writes of one byte where the file system cannot, and O_DIRECT
  // refuses these: there check_disk has asked for the free space.
  void reserve_space() {
    int result = 0;
    do result = ::fallocate(fd_, 0, 0, off_t(bytes_));
    while (result != 0 && errno == EINTR);
    if (result == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) refuse(std::strerror(errno));
    if (::ftruncate(fd_, off_t(bytes_)) != 0) refuse(std::strerror(errno));
  }
  [[noreturn]] void refuse(const std::string& why) {
    if (fd_ >= 0) ::close(fd_);
    refuse_disk(wanted_, 1, why);
  }
  void transfer(DiskOperation operation, size_t offset, std::byte* data, size_t bytes) {
    std::string problem = queues_[size_t(operation)].transfer(fd_, operation, offset, data, bytes);
    // What the system writes later, and cannot, is told to who syncs, but not to who reads it again.
    if (cached_ && operation == DiskOperation::kWrite && problem.empty() && ::fdatasync(fd_) != 0)
      problem = std::strerror(errno);
    if (!problem.empty())
      throw RunError({.where = "memory",
                      .what = "the disk tier in " + wanted_.folder + " cannot be " +
                              (operation == DiskOperation::kRead ? "read" : "written") + ": " + problem,
                      .hint = "another disk (memory.disk_path), then --resume auto: checkpoints are intact"});
  }

  const TierSetup wanted_;
  const size_t bytes_;
  int fd_ = -1;
  bool cached_ = false;              // by the system: no O_DIRECT
  std::array<DiskQueue, 2> queues_;  // by operation: reads do not wait for writes
  std::vector<std::string> notes_;
};

}  // namespace

std::unique_ptr<Backing> make_bulk_memory(const TierSetup& wanted) { return std::make_unique<BulkPool>(wanted); }

std::unique_ptr<Backing> make_disk(const TierSetup& wanted) { return std::make_unique<DiskFile>(wanted); }

void check_disk(const TierSetup& wanted, int ranks) {
  const char* folder = wanted.folder.c_str();
  struct stat found {};
  const auto refuse = [&](const std::string& why) { refuse_disk(wanted, ranks, why); };
  if (::stat(folder, &found) != 0) refuse(std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) refuse(std::strerror(ENOTDIR));
  if (::access(folder, W_OK | X_OK) != 0) refuse(std::strerror(errno));
  if (is_in_ram(wanted.folder) && std::getenv("DITRAIN_DISK_IN_RAM") == nullptr)
    refuse("its files are RAM (tmpfs), not a disk");
  const std::optional<size_t> free = free_disk_space(wanted.folder);
  if (free && *free / size_t(ranks) < whole_blocks(wanted.bytes)) refuse("not enough free space");
}

}  // namespace ditrain::memory
