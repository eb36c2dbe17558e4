#include "ditrain/dist/node_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::dist {
namespace {

std::string why(const std::string& what) { return what + ": " + std::strerror(errno); }

/// A file descriptor that closes itself.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

/// How other processes of the node open what the leader made, and what they find there: elsewhere, in a container with
/// processes of its own, the same path may lead to another file.
struct Address {
  int64_t pid = 0, fd = -1, device = 0, inode = 0;
};

bool leads_to(const Address& a, int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && int64_t(found.st_dev) == a.device && int64_t(found.st_ino) == a.inode;
}

Address address_of(int fd) {
  struct stat made;
  if (fd < 0 || fstat(fd, &made) != 0) return {};
  return {getpid(), fd, int64_t(made.st_dev), int64_t(made.st_ino)};
}

/// The addresses of all ranks, on all ranks.
std::vector<Address> exchange(Communicator& communicator, const Address& own) {
  constexpr int64_t kNumbers = 4;
  const double values[kNumbers] = {double(own.pid), double(own.fd), double(own.device), double(own.inode)};
  std::vector<double> all = communicator.gather(values, kNumbers);
  all.resize(kNumbers * size_t(communicator.world_size()));
  communicator.broadcast(all.data(), all.size() * sizeof(double), 0);
  std::vector<Address> addresses;
  for (const double* a = all.data(); a != all.data() + all.size(); a += kNumbers)
    addresses.push_back({int64_t(a[0]), int64_t(a[1]), int64_t(a[2]), int64_t(a[3])});
  return addresses;
}

int leader_of(const Communicator& communicator) {
  const std::vector<int> nodes = communicator.nodes();
  int rank = 0;
  while (nodes[size_t(rank)] != nodes[size_t(communicator.rank())]) ++rank;
  return rank;
}

/// "" or why not.
std::string create(Descriptor& file, size_t bytes) {
  file.fd = memfd_create("ditrain-node", MFD_CLOEXEC);
  if (file.fd < 0) return why("memfd_create");
  if (ftruncate(file.fd, off_t(bytes)) != 0) return why("ftruncate to " + std::to_string(bytes) + " bytes");
  return "";
}

}  // namespace

NodeMemory::NodeMemory(Communicator& communicator, size_t bytes, bool may_share) : bytes_(bytes) {
  DITRAIN_CHECK(bytes > 0, "no bytes");
  // Huge pages may serve parts that begin at their borders.
  const size_t page = bytes >= platform::kHugePageBytes ? platform::kHugePageBytes : size_t(sysconf(_SC_PAGESIZE));
  stride_ = (bytes + page - 1) / page * page;
  const bool anybody_shares = communicator.num_nodes() < communicator.world_size();  // attach() is collective
  const std::string problem = !anybody_shares ? "" : may_share ? attach(communicator) : "not wanted";
  // All or none: a run with ranks of both kinds would sum in two ways.
  refused_ = communicator.allreduce_or(problem.empty() ? 0 : 1) != 0;
  if (!refused_ && base_ != nullptr) return;
  if (base_ != nullptr) munmap(base_, stride_ * size_t(num_parts_));
  if (refused_ && communicator.local_size() > 1)
    note_ = "ranks of this node share no memory for gradients (" +
            (problem.empty() ? "another node refused" : problem) + "): they send messages, which is slower";
  num_parts_ = 1, own_part_ = 0;
  base_ = static_cast<std::byte*>(platform::map_pages(stride_));
}

std::string NodeMemory::attach(Communicator& communicator) {
  const size_t all = stride_ * size_t(communicator.local_size());
  const int leader = leader_of(communicator);
  Descriptor file;
  std::string problem;
  if (communicator.rank() == leader) problem = create(file, all);
  const std::vector<Address> addresses = exchange(communicator, address_of(problem.empty() ? file.fd : -1));
  const Address& theirs = addresses[size_t(leader)];
  if (problem.empty() && theirs.fd < 0) problem = "the first rank of the node could not make it";
  if (problem.empty() && communicator.rank() != leader) {
    const std::string path = "/proc/" + std::to_string(theirs.pid) + "/fd/" + std::to_string(theirs.fd);
    file.fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file.fd < 0)
      problem = why(path);
    else if (!leads_to(theirs, file.fd))
      problem = path + " is another file here";
  }
  void* mapped = MAP_FAILED;
  if (problem.empty()) {
    mapped = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (mapped == MAP_FAILED) problem = why("mmap of " + std::to_string(all) + " bytes");
  }
  communicator.barrier();  // the leader's descriptor stays open until all have opened it
  if (!problem.empty()) return problem;
  madvise(mapped, all, MADV_HUGEPAGE);  // heeded where shmem_enabled says "advise"
  base_ = static_cast<std::byte*>(mapped);
  num_parts_ = communicator.local_size(), own_part_ = communicator.local_rank();
  return "";
}

NodeMemory::~NodeMemory() {
  if (shared())
    munmap(base_, stride_ * size_t(num_parts_));
  else
    platform::unmap_pages(base_, stride_);
}

void* NodeMemory::allocate_block(size_t bytes) {
  DITRAIN_CHECK(!taken_ && bytes <= bytes_, std::to_string(bytes) + " bytes of a part of " + std::to_string(bytes_));
  taken_ = true;
  return part(own_part_);
}

}  // namespace ditrain::dist
