#include "ditrain/dist/replicas.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "ditrain/base/error.hpp"

namespace ditrain::dist {
namespace {

using Sums = std::vector<uint64_t>;

std::string bytes_of(const std::vector<Replica>& replicas) {
  std::string bytes;
  for (const Replica& r : replicas) bytes.append(reinterpret_cast<const char*>(&r.checksum), sizeof(r.checksum));
  return bytes;
}

Sums sums_of(const std::string& bytes) {
  Sums sums(bytes.size() / sizeof(uint64_t));
  std::memcpy(sums.data(), bytes.data(), sums.size() * sizeof(uint64_t));
  return sums;
}

/// What more than half of the ranks have, else what rank 0 has.
const Sums& measure(const std::vector<Sums>& all) {
  std::map<Sums, size_t> ranks_with;
  for (const Sums& sums : all)
    if (2 * ++ranks_with[sums] > all.size()) return sums;
  return all.front();
}

std::string differing_names(const Sums& sums, const Sums& right, const std::vector<Replica>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i)
    if (sums[i] != right[i]) list += (list.empty() ? "" : ", ") + names[i].name;
  return list;
}

/// "" if all ranks agree; else "rank 1 (node7): weights; rank 3 ..."
std::string differences(Communicator& communicator, const std::vector<Sums>& all, const std::vector<Replica>& names) {
  constexpr int kMostNamed = 8;
  const Sums& right = measure(all);
  std::string text;
  int found = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == right || ++found > kMostNamed) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " (" + communicator.host(int(rank)) +
            "): " + differing_names(all[rank], right, names);
  }
  if (found > kMostNamed) text += "; and " + std::to_string(found - kMostNamed) + " more";
  if (found > 0) text += all.front() == right ? ". The measure is rank 0" : ". The measure is what most ranks have";
  return text;
}

}  // namespace

void compare_replicas(Communicator& communicator, const std::vector<Replica>& mine, const std::string& when) {
  std::vector<Sums> all;
  for (const std::string& bytes : communicator.gather_strings(bytes_of(mine))) all.push_back(sums_of(bytes));
  std::string different = all.empty() ? "" : differences(communicator, all, mine);
  different = broadcast_text(communicator, std::move(different));
  if (different.empty()) return;
  throw RunError({.where = "replicas",
                  .what = when + " ranks do not hold the same numbers; no checkpoint is written",
                  .got = "differences on " + different,
                  .expected = "the same bits on all ranks",
                  .hint = "--resume auto, which goes on from the last checkpoint; if it is the same host again, its "
                          "memory or processor is suspect: leave it out"});
}

}  // namespace ditrain::dist
