// Maps the channels of one model's data to another's: by name, or the mean of all channels.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ditrain::checkpoint {

/// A channel of this model gets the values of the file's channel with the same name (B04 and b4 are equal), or the mean
/// over the file's channels. If names are unknown, equal numbers of channels are taken as the same channels.
class ChannelMap {
 public:
  /// Names are empty, or one for each channel.
  ChannelMap(int64_t from, const std::vector<std::string>& names_from, int64_t to,
             const std::vector<std::string>& names_to);

  int64_t from() const { return from_; }
  int64_t to() const { return int64_t(of_.size()); }
  /// Whether the map is the identity.
  bool same() const;
  /// The value for channel `i` here, from the values that the file has for its channels.
  float value(int64_t i, const std::function<float(int64_t channel)>& of_file) const;
  /// In words, for the log.
  std::string describe() const;

 private:
  int64_t from_;
  std::vector<int64_t> of_;          // by channel here: a channel of the file, or -1 for the mean
  std::vector<std::string> copied_;  // names
};

}  // namespace ditrain::checkpoint
