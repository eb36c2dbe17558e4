#include "ditrain/memory/fast_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ditrain/base/text.hpp"

namespace ditrain::memory {
namespace {

constexpr size_t kPage = platform::kHugePageBytes;  // smaller pieces would keep huge pages from being had

std::vector<int> nodes_of(const std::vector<ClusterShare>& clusters) {
  std::set<int> nodes;
  for (const ClusterShare& c : clusters)
    if (c.node >= 0) nodes.insert(c.node);
  return {nodes.begin(), nodes.end()};
}

int workers_of(const std::vector<ClusterShare>& clusters) {
  int workers = 0;
  for (const ClusterShare& c : clusters) workers += c.workers;
  return workers;
}

}  // namespace

size_t cluster_of_page(size_t page, size_t page_bytes, size_t offset, size_t bytes,
                       const std::vector<ClusterShare>& clusters) {
  const size_t begin = std::max(page, offset), end = std::min(page + page_bytes, offset + bytes);
  const double middle = (double(begin - offset) + double(end - offset)) / 2 / double(bytes);
  const double workers = workers_of(clusters);
  double before = 0;
  size_t c = 0;
  while (c + 1 < clusters.size() && middle >= (before + clusters[c].workers) / workers) before += clusters[c++].workers;
  return c;
}

FastPool::FastPool(const Setup& setup) : FastPool(setup, System()) {}

FastPool::FastPool(const Setup& setup, System system)
    : setup_(setup),
      system_(std::move(system)),
      block_(setup.bytes, setup.pages),
      nodes_(nodes_of(setup.clusters)),
      bound_((block_.bytes() + kPage - 1) / kPage, kNew) {
  check_free_memory();
  const auto bind_all = [&] {
    if (nodes_.size() == 1) bind(0, bound_.size(), nodes_);
  };
  bind_all();
  if (nodes_.size() > 1) try_nodes();
  if (block_.take_pages()) bind_all();
  if (!block_.note().empty()) notes_.push_back(block_.note());
}

// What belongs where shows later. What the system refuses shows now, and explicit pages, which are taken now, lie on
// the right nodes as a whole.
void FastPool::try_nodes() {
  const auto refused = [&](const std::vector<int>& nodes, size_t bytes) {
    const auto placed = system_.place_on_nodes(data(), bytes, nodes, platform::policy_for(nodes));
    if (!placed) notes_.push_back(placed.reason);
    return !placed;
  };
  for (const int node : nodes_)
    if (refused({node}, std::min(kPage, bytes()))) return nodes_.clear();
  if (refused(nodes_, bytes())) nodes_.clear();
}

// Where a node is full the system takes pages of other nodes without a word.
void FastPool::check_free_memory() {
  const bool huge = block_.got() == platform::PagePolicy::kExplicit;
  double fits = 1;  // share of the pool for which every node has free memory
  for (const int node : nodes_) {
    double share = 0;
    for (const ClusterShare& c : setup_.clusters)
      if (c.node == node) share += double(c.workers) / workers_of(setup_.clusters);
    const double part = share * double(bytes());
    const double beside = huge ? 0 : double(setup_.beside_bytes) / double(nodes_.size());  // spread page by page
    const double wanted = part + beside;
    const auto found = setup_.free_memory.find(node);
    if (found == setup_.free_memory.end()) continue;
    const platform::NodeFreeMemory& available = found->second;
    const size_t free = huge ? available.free_huge_bytes : available.free_bytes;
    if (double(free) >= wanted) continue;
    fits = std::min(fits, std::max(0.0, double(huge ? free : free + available.cached_bytes) - beside) / part);
    const std::string what = fmt::format(
        "fast tier: NUMA node {} has {} free for this rank where {} are wanted, the rest comes from other nodes; ",
        node, format_bytes(free), format_bytes(size_t(wanted)));
    if (huge)
      notes_.push_back(what + fmt::format("echo {} > /sys/devices/system/node/node{}/hugepages/hugepages-2048kB/"
                                          "nr_hugepages (as root) provides them",
                                          size_t(wanted) / kPage + 1, node));
    else if (double(free + available.cached_bytes) >= wanted)
      notes_.push_back(what + "sysctl vm.drop_caches=1 (as root) frees " + format_bytes(available.cached_bytes) +
                       " of cached files");
    else
      notes_.push_back(what);
  }
  for (std::string& note : notes_)
    if (note.ends_with("; "))
      note += fmt::format("--set memory.fast_gib={:.2f} fits",
                          (double(setup_.beside_bytes) + 0.98 * fits * double(bytes())) / 0x1p30);
}

void FastPool::bind(size_t first, size_t last, std::vector<int> nodes) {
  const size_t end = std::min(last * kPage, bytes());
  const auto placed =
      system_.place_on_nodes(data() + first * kPage, end - first * kPage, nodes, platform::policy_for(nodes));
  if (!placed) {
    notes_.push_back(placed.reason);
    nodes_.clear();  // no further attempts
    return;
  }
  const auto mark = nodes.size() > 1 ? kSpread : int16_t(nodes.front());
  std::fill(bound_.begin() + std::ptrdiff_t(first), bound_.begin() + std::ptrdiff_t(last), mark);
}

Allocator& FastPool::beside(Allocator& home) { return beside_.emplace_back(home, in_use_); }

size_t FastPool::beside_bytes() const {
  size_t bytes = 0;
  for (const CountedMemory& memory : beside_) bytes += memory.bytes_in_use();
  return bytes;
}

void FastPool::place(size_t offset, size_t bytes, bool divided) {
  in_use_.add(bytes);
  const std::lock_guard lock(mutex_);
  if (nodes_.size() < 2) return;
  const size_t last = (offset + bytes + kPage - 1) / kPage;
  const auto node_of = [&](size_t page) {
    return setup_.clusters[cluster_of_page(page * kPage, kPage, offset, bytes, setup_.clusters)].node;
  };
  for (size_t page = offset / kPage; page < last && !nodes_.empty();) {
    if (bound_[page] != kNew) {
      ++page;
      continue;
    }
    const int node = divided ? node_of(page) : -1;
    size_t end = page + 1;
    while (end < last && bound_[end] == kNew && (!divided || node_of(end) == node)) ++end;
    if (divided && node >= 0)
      bind(page, end, {node});
    else
      bind(page, end, nodes_);
    page = end;
  }
}

std::vector<std::string> FastPool::notes() const {
  const std::lock_guard lock(mutex_);
  return notes_;
}

std::string FastPool::describe_places() const {
  const std::vector<int> found = system_.nodes_of_pages(data(), bytes(), kPage);
  if (found.empty()) return "";
  const std::lock_guard lock(mutex_);
  std::map<int, size_t> places;
  size_t used = 0, as_bound = 0;
  for (size_t p = 0; p < found.size(); ++p) {
    places[found[p]] += std::min(kPage, bytes() - p * kPage);
    if (found[p] < 0 || bound_[p] == kNew) continue;
    ++used;
    as_bound +=
        bound_[p] == kSpread ? size_t(std::count(nodes_.begin(), nodes_.end(), found[p])) : bound_[p] == found[p];
  }
  const std::string text = platform::format_places(places);
  return used == 0 ? text
                   : fmt::format("{}; {} of {} huge-page ranges are where they were bound", text, as_bound, used);
}

}  // namespace ditrain::memory
