#include "ditrain/dist/placement.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace ditrain::dist {
namespace {

/// Host name and PUs, separated by blanks: host names have none.
std::string describe_place(const std::vector<int>& pus) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::string text = host[0] ? host : "unknown";
  for (const int pu : pus) text += ' ' + std::to_string(pu);
  return text;
}

struct Place {
  std::string host;
  std::set<int> pus;
};

Place read_place(const std::string& text) {
  std::istringstream words(text);
  Place place;
  words >> place.host;
  for (int pu; words >> pu;) place.pus.insert(pu);
  return place;
}

bool overlap(const Place& a, const Place& b) {
  return a.host == b.host && std::any_of(a.pus.begin(), a.pus.end(), [&b](int pu) { return b.pus.count(pu) > 0; });
}

}  // namespace

MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus) {
  std::vector<Place> places;
  for (const std::string& text : communicator.gather_strings(describe_place(pus))) places.push_back(read_place(text));
  std::vector<MaskSharing> sharing(size_t(communicator.world_size()));
  for (size_t i = 0; i < places.size(); ++i)
    for (size_t j = 0; j < places.size(); ++j) {
      if (i == j || !overlap(places[i], places[j])) continue;
      ++sharing[i].ranks;
      sharing[i].number += j < i ? 1 : 0;
    }
  communicator.broadcast(sharing.data(), sharing.size() * sizeof(MaskSharing), 0);
  return sharing[size_t(communicator.rank())];
}

}  // namespace ditrain::dist
