#include "ditrain/dist/replicas.hpp"

#include <cstring>
#include <map>

#include "ditrain/base/error.hpp"

namespace ditrain::dist {
namespace {

/// What a rank brings: the number of its part, then checksums.
using Sums = std::vector<uint64_t>;

std::string bytes_of(const std::vector<Replica>& replicas, int part) {
  Sums sums = {uint64_t(part)};
  for (const Replica& r : replicas) sums.push_back(r.checksum);
  return std::string(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t));
}

Sums sums_of(const std::string& bytes) {
  Sums sums(bytes.size() / sizeof(uint64_t));
  std::memcpy(sums.data(), bytes.data(), sums.size() * sizeof(uint64_t));
  return sums;
}

struct Measure {
  Sums right;
  size_t first_rank = 0;
  bool by_majority = false;
};

/// What the ranks with that part are compared with.
Measure measure(const std::vector<Sums>& all, uint64_t part) {
  std::map<Sums, size_t> ranks_with;
  size_t ranks = 0;
  Measure m;
  for (size_t rank = all.size(); rank-- > 0;) {
    if (all[rank].front() != part) continue;
    ++ranks, ++ranks_with[all[rank]];
    m.first_rank = rank;
  }
  m.right = all[m.first_rank];
  for (const auto& [sums, count] : ranks_with)
    if (2 * count > ranks) m.right = sums, m.by_majority = true;
  return m;
}

std::string differing_names(const Sums& sums, const Sums& right, const std::vector<Replica>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i)
    if (sums[i + 1] != right[i + 1]) list += (list.empty() ? "" : ", ") + names[i].name;
  return list;
}

/// "" if all ranks agree; else "rank 1 (node7): weights, unlike rank 0; rank 3 ..."
std::string differences(Communicator& communicator, const std::vector<Sums>& all, const std::vector<Replica>& names) {
  constexpr int kMostNamed = 8;
  std::string text;
  int found = 0;
  std::map<uint64_t, Measure> measures;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const uint64_t part = all[rank].front();
    const auto [it, is_new] = measures.try_emplace(part);
    if (is_new) it->second = measure(all, part);
    const Measure& m = it->second;
    if (all[rank] == m.right || ++found > kMostNamed) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " (" + communicator.host(int(rank)) +
            "): " + differing_names(all[rank], m.right, names) + ", unlike " +
            (m.by_majority ? "most ranks" : "rank " + std::to_string(m.first_rank));
  }
  if (found > kMostNamed) text += "; and " + std::to_string(found - kMostNamed) + " more";
  return text;
}

}  // namespace

void compare_replicas(Communicator& communicator, const std::vector<Replica>& mine, const std::string& when, int part,
                      const std::string& hint) {
  std::vector<Sums> all;
  for (const std::string& bytes : communicator.gather_strings(bytes_of(mine, part))) all.push_back(sums_of(bytes));
  std::string different = all.empty() ? "" : differences(communicator, all, mine);
  different = broadcast_text(communicator, std::move(different));
  if (different.empty()) return;
  throw RunError({.where = "replicas",
                  .what = when + " ranks do not hold the same numbers; no checkpoint is written",
                  .got = "differences on " + different,
                  .expected = "the same bits on all ranks",
                  .hint = hint});
}

}  // namespace ditrain::dist
