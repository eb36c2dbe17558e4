#include "ditrain/dist/placement.hpp"

#include <algorithm>
#include <set>
#include <sstream>

namespace ditrain::dist {
namespace {

/// Separated by blanks.
std::string write_numbers(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += std::to_string(number) + ' ';
  return text;
}

std::set<int> read_numbers(const std::string& text) {
  std::istringstream words(text);
  std::set<int> numbers;
  for (int number; words >> number;) numbers.insert(number);
  return numbers;
}

bool overlap(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&b](int pu) { return b.count(pu) > 0; });
}

}  // namespace

MaskSharing share_mask(Communicator& communicator, const std::vector<int>& pus) {
  const std::vector<int> nodes = communicator.nodes();
  std::vector<std::set<int>> masks;
  for (const std::string& text : communicator.gather_strings(write_numbers(pus))) masks.push_back(read_numbers(text));
  std::vector<MaskSharing> sharing(size_t(communicator.world_size()));
  for (size_t i = 0; i < masks.size(); ++i)
    for (size_t j = 0; j < masks.size(); ++j) {
      if (i == j || nodes[i] != nodes[j] || !overlap(masks[i], masks[j])) continue;
      ++sharing[i].ranks;
      sharing[i].number += j < i ? 1 : 0;
      sharing[i].equal = sharing[i].equal && masks[i] == masks[j];
    }
  communicator.broadcast(sharing.data(), sharing.size() * sizeof(MaskSharing), 0);
  return sharing[size_t(communicator.rank())];
}

std::map<int, int> count_sharers(Communicator& communicator, const std::vector<int>& mine) {
  std::string all;
  for (const std::string& text : communicator.gather_strings(write_numbers(mine))) all += text + '\n';
  std::istringstream lines(broadcast_text(communicator, all));
  const std::vector<int> nodes = communicator.nodes();
  std::map<int, int> sharers;
  for (const int number : mine) sharers[number] = 0;
  std::string line;
  for (size_t rank = 0; std::getline(lines, line); ++rank) {
    if (nodes[rank] != nodes[size_t(communicator.rank())]) continue;
    for (const int number : read_numbers(line))
      if (const auto it = sharers.find(number); it != sharers.end()) ++it->second;
  }
  return sharers;
}

}  // namespace ditrain::dist
