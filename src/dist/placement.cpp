#include "ditrain/dist/placement.hpp"

#include <algorithm>
#include <set>
#include <sstream>

namespace ditrain::dist {
namespace {

/// PUs, separated by blanks.
std::string write_mask(const std::vector<int>& pus) {
  std::string text;
  for (const int pu : pus) text += std::to_string(pu) + ' ';
  return text;
}

std::set<int> read_mask(const std::string& text) {
  std::istringstream words(text);
  std::set<int> mask;
  for (int pu; words >> pu;) mask.insert(pu);
  return mask;
}

bool overlap(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&b](int pu) { return b.count(pu) > 0; });
}

}  // namespace

MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus) {
  const std::vector<int> nodes = communicator.nodes();
  std::vector<std::set<int>> masks;
  for (const std::string& text : communicator.gather_strings(write_mask(pus))) masks.push_back(read_mask(text));
  std::vector<MaskSharing> sharing(size_t(communicator.world_size()));
  for (size_t i = 0; i < masks.size(); ++i)
    for (size_t j = 0; j < masks.size(); ++j) {
      if (i == j || nodes[i] != nodes[j] || !overlap(masks[i], masks[j])) continue;
      ++sharing[i].ranks;
      sharing[i].number += j < i ? 1 : 0;
    }
  communicator.broadcast(sharing.data(), sharing.size() * sizeof(MaskSharing), 0);
  return sharing[size_t(communicator.rank())];
}

}  // namespace ditrain::dist
