#include "ditrain/dist/node_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/numa.hpp"

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

}  // namespace

NodeMemory::NodeMemory(Communicator& communicator, size_t bytes, bool may_share, platform::PagePolicy pages)
    : bytes_(bytes) {
  DITRAIN_CHECK(bytes > 0, "no bytes");
  // Huge pages may serve parts that begin at their borders.
  const size_t page = bytes >= platform::kHugePageBytes ? platform::kHugePageBytes : size_t(sysconf(_SC_PAGESIZE));
  stride_ = (bytes + page - 1) / page * page;
  const bool anybody_shares = communicator.num_nodes() < communicator.world_size();  // attach() is collective
  const std::string problem = !anybody_shares ? "" : may_share ? attach(communicator, pages) : "not wanted";
  // All or none: a run with ranks of both kinds would sum in two ways.
  refused_ = communicator.allreduce_or(problem.empty() ? 0 : 1) != 0;
  if (!refused_ && base_ != nullptr) return;
  if (base_ != nullptr) munmap(base_, stride_ * size_t(communicator.local_size()));
  if (refused_ && communicator.local_size() > 1)
    note_ = "ranks of this node share no memory for gradients (" +
            (problem.empty() ? "another node refused" : problem) + "): they send messages, which is slower";
  num_parts_ = 1, own_part_ = 0;
  own_ = platform::PageBlock(stride_, bytes >= platform::kHugePageBytes ? pages : platform::PagePolicy::kTransparent);
  own_.take_pages();
  base_ = own_.data(), got_ = own_.got(), page_note_ = own_.note();
}

std::string NodeMemory::attach(Communicator& communicator, platform::PagePolicy policy) {
  const size_t all = stride_ * size_t(communicator.local_size());
  const int leader = leader_of(communicator);
  Descriptor file;
  std::string problem;
  if (communicator.rank() == leader) {
    const platform::SharedFile made = platform::make_shared_file(all, policy);
    file.fd = made.fd, problem = made.problem, page_note_ = made.note;
  }
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
  std::byte* mapped = nullptr;
  if (problem.empty()) {
    mapped = platform::map_shared_file(file.fd, all, policy, got_);
    if (mapped == nullptr) problem = why("mmap of " + std::to_string(all) + " bytes");
  }
  if (mapped != nullptr && got_ == platform::PagePolicy::kExplicit)
    problem = platform::take_explicit_pages(mapped + stride_ * size_t(communicator.local_rank()), stride_);
  communicator.barrier();  // the leader's descriptor stays open until all have opened it
  base_ = mapped;
  if (!problem.empty()) return problem;
  num_parts_ = communicator.local_size(), own_part_ = communicator.local_rank();
  return "";
}

NodeMemory::~NodeMemory() {
  if (shared()) munmap(base_, stride_ * size_t(num_parts_));
}

std::string NodeMemory::describe_pages() const {
  const std::string places = platform::format_places(platform::bytes_on_nodes(part(own_part_), stride_));
  return platform::describe_pages(base_, stride_ * size_t(num_parts_), got_) + (places.empty() ? "" : "; ") + places;
}

void* NodeMemory::allocate_block(size_t bytes) {
  DITRAIN_CHECK(!taken_ && bytes <= bytes_, std::to_string(bytes) + " bytes of a part of " + std::to_string(bytes_));
  taken_ = true;
  return part(own_part_);
}

}  // namespace ditrain::dist
