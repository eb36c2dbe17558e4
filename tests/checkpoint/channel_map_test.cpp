#include "ditrain/checkpoint/channel_map.hpp"

#include <catch2/catch.hpp>

#include "ditrain/checkpoint/adapt.hpp"
#include "ditrain/dataset/kinds.hpp"

using Catch::Contains;
using ditrain::checkpoint::ChannelMap;

namespace {

// Channel j of the file has the value 10^j.
std::vector<float> values(const ChannelMap& map) {
  std::vector<float> all;
  for (int64_t i = 0; i < map.to(); ++i)
    all.push_back(map.value(i, [](int64_t j) { return j == 0 ? 1.f : j == 1 ? 10.f : 100.f; }));
  return all;
}

}  // namespace

TEST_CASE("channels without names are the same, or the mean") {
  CHECK(ChannelMap(3, {}, 3, {}).same());
  CHECK(values(ChannelMap(3, {}, 3, {})) == std::vector<float>{1, 10, 100});
  const ChannelMap more(3, {}, 4, {"B2", "B3", "B4", "B8"});
  CHECK_FALSE(more.same());
  CHECK(values(more) == std::vector<float>(4, 37));
  CHECK_THAT(more.describe(),
             Contains("3 channels in the file, 4 here") && Contains("take the mean") && Contains("multiplied by 3/4"));
}

TEST_CASE("bands name the channels of a model of tiles, not those of latents that were made of as many") {
  ditrain::config::Config config;
  config.data.bands = {"B2", "B3", "B4", "B8"}, config.model.in_channels = 4;
  config.data.kind = ditrain::dataset::find_kind("tiles");
  CHECK(ditrain::checkpoint::band_names(config) == config.data.bands);
  config.data.kind = ditrain::dataset::find_kind("latents");
  CHECK(ditrain::checkpoint::band_names(config).empty());
}

TEST_CASE("channels are copied by name, in any order and spelling") {
  const std::vector<std::string> theirs = {"B04", "B03", "B02"};
  CHECK(ChannelMap(3, theirs, 3, {"b4", "B3", "B2"}).same());
  CHECK(values(ChannelMap(3, theirs, 3, {"B2", "B3", "B4"})) == std::vector<float>{100, 10, 1});
  const ChannelMap more(3, theirs, 4, {"B8", "B4", "B20", "B2"});
  CHECK(values(more) == std::vector<float>{37, 1, 37, 100});
  CHECK_THAT(more.describe(), Contains("those of B4, B2 by name, and for others the mean"));
  CHECK(values(ChannelMap(3, theirs, 1, {"B03"})) == std::vector<float>{10});
}
