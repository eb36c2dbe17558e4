#include "ditrain/checkpoint/channel_map.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::checkpoint {
ChannelMap::ChannelMap(int64_t from, const std::vector<std::string>& names_from, int64_t to,
                       const std::vector<std::string>& names_to)
    : from_(from), of_(size_t(to), -1) {
  const bool known = int64_t(names_from.size()) == from && int64_t(names_to.size()) == to;
  for (size_t i = 0; i < of_.size(); ++i) {
    if (!known && from == to) of_[i] = int64_t(i);
    if (!known) continue;
    for (size_t j = 0; j < names_from.size() && of_[i] < 0; ++j)
      if (dataset::canonical_band(names_from[j]) == dataset::canonical_band(names_to[i]))
        of_[i] = int64_t(j), copied_.push_back(names_to[i]);
  }
}

bool ChannelMap::same() const {
  bool same = from_ == to();
  for (size_t i = 0; i < of_.size(); ++i) same = same && of_[i] == int64_t(i);
  return same;
}

float ChannelMap::value(int64_t i, const std::function<float(int64_t channel)>& of_file) const {
  if (of_[size_t(i)] >= 0) return of_file(of_[size_t(i)]);
  double sum = 0;
  for (int64_t j = 0; j < from_; ++j) sum += double(of_file(j));
  return float(sum / double(from_));
}

std::string ChannelMap::describe() const {
  const std::string mean = "the mean over the file's channels";
  const std::string others = copied_.size() < of_.size() ? ", and for others " + mean : "";
  return fmt::format(
      "{} channels in the file, {} here: patch embedding and final layer take {}; patch embedding is multiplied by "
      "{}/{}",
      from_, to(), copied_.empty() ? mean : fmt::format("those of {} by name{}", fmt::join(copied_, ", "), others),
      from_, to());
}

}  // namespace ditrain::checkpoint
