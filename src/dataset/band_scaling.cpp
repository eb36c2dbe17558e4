#include "ditrain/dataset/band_scaling.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_statistics.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::dataset {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& got = "", const std::string& expected = "",
                         const std::string& hint = "") {
  throw InputError({.where = "data", .what = what, .got = got, .expected = expected, .hint = hint});
}

template <class T>
void put(std::vector<std::byte>& bytes, size_t i, double number) {
  const T value = T(number);
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

// The statistics of the bands of the config, in their order.
std::vector<BandStatistics> statistics_for(const Config& config, const TileShards& shards) {
  const std::string path = statistics_path(config.path);
  if (!std::filesystem::exists(path))
    refuse(fmt::format("data.scaling: {} reads {}, which is not there", config.scaling.text(), path), "", "",
           way_to_statistics(shards));
  const TileStatistics all = read_statistics(path);
  if (all.tiles != shards.size() || all.type != shards.type())
    refuse(fmt::format("{} is not of these tiles", path), fmt::format("{} tiles of {}", all.tiles, word_of(all.type)),
           fmt::format("{} tiles of {}", shards.size(), word_of(shards.type())), way_to_statistics(shards));
  if (!all.checksum.empty() && all.checksum != checksum_of(shards))
    refuse(fmt::format("{} is of other tiles: they have changed since", path), "checksum " + all.checksum,
           checksum_of(shards), way_to_statistics(shards));
  std::vector<std::string> have;
  for (const BandStatistics& band : all.bands) have.push_back(band.name);
  std::vector<BandStatistics> wanted;
  for (const int b : find_bands(have, config.bands, path)) wanted.push_back(all.bands[size_t(b)]);
  return wanted;
}

void ranges_from(const Config& config, const TileShards& shards, std::vector<double>& low, std::vector<double>& high) {
  const images::PixelType type = shards.type();
  Scaling scaling = config.scaling;
  if (scaling.from == ScalingFrom::kAuto)
    scaling.from = type == images::PixelType::kU8 ? ScalingFrom::kType : ScalingFrom::kPercentiles;
  const size_t n = config.bands.size();
  if (scaling.from == ScalingFrom::kType && !images::is_integer(type))
    refuse("data.scaling: type needs numbers of an integer type", std::string(word_of(type)), "u8, u16 or i16",
           "data.scaling: percentiles, or [LOW, HIGH]");
  if (scaling.from == ScalingFrom::kRange) low.assign(n, scaling.low), high.assign(n, scaling.high);
  if (scaling.from == ScalingFrom::kType)
    low.assign(n, images::number_range(type).first), high.assign(n, images::number_range(type).second);
  if (!low.empty()) return;
  for (const BandStatistics& band : statistics_for(config, shards)) {
    const bool percentiles = scaling.from == ScalingFrom::kPercentiles;
    low.push_back(percentiles ? band.percentile(kLowPercentile) : band.mean - kDeviations * band.deviation);
    high.push_back(percentiles ? band.percentile(kHighPercentile) : band.mean + kDeviations * band.deviation);
  }
}

void check_widths(const Config& config) {
  const size_t n = config.bands.size();
  if (config.scale_low.size() != n || config.scale_high.size() != n)
    refuse("data.scale_low and data.scale_high do not go with data.bands",
           fmt::format("{} and {} numbers", config.scale_low.size(), config.scale_high.size()),
           fmt::format("{}, one per band, or auto", n));
  for (const auto* list : {&config.number_scale, &config.number_offset})
    if (!list->empty() && list->size() != n)
      refuse("data.number_scale and data.number_offset do not go with data.bands",
             fmt::format("{} numbers", list->size()), fmt::format("{}, one per band, or auto", n));
  for (size_t b = 0; b < n; ++b)
    if (!(config.scale_high[b] > config.scale_low[b]))
      refuse(fmt::format("the range of band {} has no width: scaling would divide by zero", config.bands[b]),
             fmt::format("{} to {}", config.scale_low[b], config.scale_high[b]), "low below high",
             "another data.scaling, such as [0, 10000], or data.bands without it");
  for (size_t b = 0; b < n; ++b) {
    const double width = config.scale_high[b] - config.scale_low[b];
    if (!std::isfinite(width) || 2 / width > double(std::numeric_limits<float>::max()))
      refuse(fmt::format("the range of band {} is wider or narrower than numbers can be scaled by", config.bands[b]),
             fmt::format("{} to {}", config.scale_low[b], config.scale_high[b]), "",
             "another data.scaling, such as [0, 10000]");
  }
}

// "" if it does not exist; the code that opens the data reports that.
std::string first_shard(const std::string& path) {
  std::error_code unreadable;
  if (!std::filesystem::is_directory(path, unreadable)) return path;
  for (const std::string& name : list_folder(path).files)
    if (lower_extension(name) == "safetensors") return path + "/" + name;
  return "";
}

template <class T>
T fact(const weights::SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  try {
    if (found != file.metadata().end()) return files::parse_json(found->second).get<T>();
  } catch (const nlohmann::json::exception&) {
  }
  throw InputError({.where = file.path(),
                    .what = fmt::format("metadata `{}` of latents of tiles is missing or damaged", key),
                    .got = found == file.metadata().end() ? "nothing" : found->second,
                    .hint = "ditdata encode into a new folder"});
}

// What tells digital numbers of latents would be half of it: the shards have the rest.
void expect_no_bands(const Config& config, const std::string& path) {
  const std::pair<const char*, bool> keys[] = {{"data.bands", !config.bands.empty()},
                                               {"data.scale_low", !config.scale_low.empty()},
                                               {"data.scale_high", !config.scale_high.empty()},
                                               {"data.number_type", config.number_type.has_value()},
                                               {"data.number_scale", !config.number_scale.empty()},
                                               {"data.number_offset", !config.number_offset.empty()}};
  for (const auto& [key, given] : keys)
    if (given)
      refuse(fmt::format("{} is for latents of tiles, and {} does not say that it holds them", key, path), "", "",
             fmt::format("no {}, or ditdata encode --from TILES, which writes their bands into the shards", key));
}

void settle_latents(Config& config) {
  const std::string path = first_shard(config.path);
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return;
  const weights::SafetensorsFile file(path);
  if (!file.contains("latents") && !file.contains("mean")) {
    if (!file.contains("images")) return;  // whoever opens it says what is missing
    throw InputError({.where = path,
                      .what = "these are tiles, not latents",
                      .hint = fmt::format("data.kind: tiles, or ditdata encode --from {}", config.path)});
  }
  if (!file.metadata().contains("bands")) return expect_no_bands(config, path);
  Config said;
  said.bands = fact<std::vector<std::string>>(file, "bands");
  said.scale_low = fact<std::vector<double>>(file, "scale_low");
  said.scale_high = fact<std::vector<double>>(file, "scale_high");
  said.number_scale = fact<std::vector<double>>(file, "scale");
  said.number_offset = fact<std::vector<double>>(file, "offset");
  for (const images::PixelType type : kTileTypes)
    if (word_of(type) == fact<std::string>(file, "number_type")) said.number_type = type;
  if (!said.number_type)
    throw InputError({.where = path,
                      .what = "metadata `number_type` is no type of tiles",
                      .got = file.metadata().at("number_type")});
  check_distinct(said.bands, path);
  check_widths(said);
  const auto refuse_other = [&](const char* key, const std::string& got, const std::string& expected) {
    refuse(fmt::format("the latents in {} were made of tiles with another {} than the config has", path, key), got,
           expected, fmt::format("no {} in the config: the shards tell it", key));
  };
  const auto settle = [&](auto& given, const auto& found, bool open, const char* key) {
    if (!open && given != found) refuse_other(key, "", "");
    given = found;
  };
  if (!config.bands.empty() &&
      !std::equal(config.bands.begin(), config.bands.end(), said.bands.begin(), said.bands.end(),
                  [](const std::string& a, const std::string& b) { return canonical_band(a) == canonical_band(b); }))
    refuse_other("data.bands", fmt::format("{}", fmt::join(config.bands, ", ")),
                 fmt::format("{}", fmt::join(said.bands, ", ")));
  config.bands = said.bands;
  settle(config.scale_low, said.scale_low, config.scale_low.empty(), "data.scale_low");
  settle(config.scale_high, said.scale_high, config.scale_high.empty(), "data.scale_high");
  settle(config.number_type, said.number_type, !config.number_type, "data.number_type");
  if (config.number_scale.empty()) config.number_scale = said.number_scale;
  if (config.number_offset.empty()) config.number_offset = said.number_offset;
  check_widths(config);
}

}  // namespace

std::string Scaling::text() const {
  return from == ScalingFrom::kRange ? fmt::format("[{}, {}]", low, high) : std::string(word_of(from));
}

double BandScaling::number(int64_t channel, double x) const {
  const auto c = size_t(channel);
  DITRAIN_CHECK(!std::isnan(x), "no digital number stands for NaN");
  const double value = low[c] + (x + 1) / 2 * (high[c] - low[c]);
  if (!images::is_integer(type)) return value;
  const auto [least, greatest] = images::number_range(type);
  return std::clamp(std::nearbyint(value), least, greatest);
}

std::vector<std::byte> BandScaling::numbers(const float* values, int64_t pixels) const {
  std::vector<std::byte> bytes(size_t(channels() * pixels * images::pixel_bytes(type)));
  for (int64_t c = 0; c < channels(); ++c)
    for (int64_t p = 0; p < pixels; ++p) {
      const auto i = size_t(c * pixels + p);
      const double x = number(c, values[i]);
      images::with_tile_number(type, [&](auto number) { put<decltype(number)>(bytes, i, x); });
    }
  return bytes;
}

std::string BandScaling::describe() const {
  std::string text;
  for (size_t b = 0; b < names.size(); ++b)
    text += fmt::format("{}{} {:.6g}..{:.6g}", b == 0 ? "" : ", ", names[b], low[b], high[b]);
  return text;
}

bool has_scaling(const Config& config) {
  return (config.kind->of_bands || !config.kind->pixels) && !config.scale_low.empty() && !config.bands.empty();
}

BandScaling scaling_of(const Config& config) {
  check_widths(config);
  if (!config.number_type) refuse("data.number_type is not settled", "auto");
  return {config.bands,        config.scale_low,    config.scale_high,
          *config.number_type, config.number_scale, config.number_offset};
}

ColourBands colours_of(const Config& settled) {
  std::vector<std::string> all = settled.bands;
  try {
    if (settled.kind->of_bands && holds_tiles(settled.path)) all = TileShards(settled.path).band_names();
  } catch (const Error&) {  // samples need no data: it may be gone
  }
  return find_common_colours(settled.bands, all).first;
}

ConditionBands condition_of(const Config& config) {
  ConditionBands all{.path = "", .bands = config.condition};
  const auto is_path = [](const std::string& text) {
    return text.find('/') != text.npos || text.ends_with(".safetensors");
  };
  if (!all.bands.empty() && is_path(all.bands.front()))
    all.path = all.bands.front(), all.bands.erase(all.bands.begin());
  if (!all.bands.empty() && all.bands.back() == kValidChannel) all.valid = true, all.bands.pop_back();
  return all;
}

std::vector<std::string> condition_names(const Config& config) {
  ConditionBands condition = condition_of(config);
  if (condition.valid) condition.bands.emplace_back(kValidChannel);
  return condition.bands;
}

void fill_condition(float* plane, int64_t pixels) {
  double sum = 0;
  int64_t n = 0;
  for (int64_t p = 0; p < pixels; ++p)
    if (!std::isnan(plane[p])) sum += double(plane[p]), ++n;
  if (n == pixels) return;
  const float mean = n == 0 ? 0.0f : float(sum / double(n));
  for (int64_t p = 0; p < pixels; ++p)
    if (std::isnan(plane[p])) plane[p] = mean;
}

namespace {

// The bands of the condition as if they were predicted, after f(bands).
template <class F>
Config with_given_bands(const Config& config, const F& f) {
  const ConditionBands condition = condition_of(config);
  Config given = config;
  given.condition.clear(), given.number_type.reset(), given.number_scale.clear(), given.number_offset.clear();
  if (!condition.path.empty()) given.path = condition.path;
  given.bands = condition.bands, given.scale_low = config.condition_low, given.scale_high = config.condition_high;
  try {
    f(given);
  } catch (const InputError& error) {  // it knows the keys of tiles that are predicted
    std::error_code unreadable;
    const std::string& first = config.condition.front();
    const bool meant = condition.path.empty() && std::filesystem::is_directory(first, unreadable);
    throw InputError({.where = "data.condition",
                      .what = replaced(error.what(), {{"data.scale_", "data.condition_"},
                                                      {"go with data.bands", "go with data.condition"}}),
                      .hint = meant ? "./" + first + ", if the folder of that name is meant" : ""});
  }
  return given;
}

// Bands and ranges of the condition are settled as those of tiles that are predicted.
void settle_condition(Config& config) {
  if (config.condition.empty()) return;
  const ConditionBands condition = condition_of(config);
  if (condition.path.empty() && condition.bands.empty())
    refuse("data.condition names no bands", fmt::format("[{}]", fmt::join(config.condition, ", ")),
           "bands of data.path, or a folder of tiles and its bands");
  const Config given = with_given_bands(config, settle_tiles);
  config.condition = given.bands;
  if (!condition.path.empty()) config.condition.insert(config.condition.begin(), condition.path);
  if (condition.valid) config.condition.emplace_back(kValidChannel);
  config.condition_low = given.scale_low, config.condition_high = given.scale_high;
}

// The bands that are predicted: all that are not given, unless the config names them.
void settle_bands(Config& config, const std::vector<std::string>& have) {
  const ConditionBands condition = condition_of(config);
  const auto is_given = [&](const std::string& name) {
    return condition.path.empty() &&
           std::any_of(condition.bands.begin(), condition.bands.end(),
                       [&](const std::string& given) { return canonical_band(given) == canonical_band(name); });
  };
  for (const std::string& name : config.bands)
    if (is_given(name))
      refuse("a band is predicted and given at once", name, "data.bands and data.condition without a band in common");
  if (!config.bands.empty()) return;
  std::copy_if(have.begin(), have.end(), std::back_inserter(config.bands),
               [&](const std::string& name) { return !is_given(name); });
  if (config.bands.empty()) refuse("data.condition names all bands: none is left to predict");
}

}  // namespace

void settle_tiles(Config& config) {
  if (config.path.empty()) return;
  if (!config.kind->pixels) settle_latents(config);
  if (!config.kind->of_bands) return;
  settle_condition(config);
  const TileShards shards(config.path);
  const std::vector<std::string> have = shards.band_names();
  settle_bands(config, have);
  std::vector<std::string> found;
  std::vector<double> scale, offset;
  const bool needs_scale = config.number_scale.empty() || config.number_offset.empty();
  for (const int b : find_bands(have, config.bands, "data.bands")) {
    const TileBand& band = needs_scale ? shards.common_band(b) : shards.bands()[size_t(b)];
    found.push_back(band.name), scale.push_back(band.scale), offset.push_back(band.offset);
  }
  config.bands = found;  // as the shards write them
  if (config.number_scale.empty()) config.number_scale = scale;
  if (config.number_offset.empty()) config.number_offset = offset;
  if (config.number_type.value_or(shards.type()) != shards.type())
    refuse("the tiles have another type than data.number_type", std::string(word_of(shards.type())),
           std::string(word_of(*config.number_type)), "data.number_type: auto");
  config.number_type = shards.type();
  std::vector<double> low, high;
  if (config.scale_low.empty() || config.scale_high.empty()) ranges_from(config, shards, low, high);
  if (config.scale_low.empty()) config.scale_low = low;
  if (config.scale_high.empty()) config.scale_high = high;
  check_widths(config);
}

void check_channels(const Config& config, int64_t channels, int64_t condition_channels) {
  const auto n = int64_t(config.bands.size());
  if (config.kind->of_bands && n > 0 && n != channels)
    throw ShapeError({.where = "data",
                      .what = "the model has another number of channels than data.bands",
                      .got = fmt::format("model.in_channels {}", channels),
                      .expected = std::to_string(n),
                      .hint = fmt::format("model.in_channels: {}", n)});
  if (has_scaling(config)) check_widths(config);
  const ConditionBands condition = condition_of(config);
  if (condition.channels() != condition_channels)
    throw ShapeError({.where = "data",
                      .what = "the model is given another number of channels than data.condition has",
                      .got = fmt::format("model.condition_channels {}", condition_channels),
                      .expected = fmt::format("{} ([{}])", condition.channels(), fmt::join(config.condition, ", "))});
  if (condition_channels == 0) return;
  if (config.condition_low.empty() || config.condition_high.empty())
    refuse("the ranges of the bands that the model is given are not known",
           fmt::format("data.condition [{}]", fmt::join(config.condition, ", ")),
           fmt::format("data.condition_low and data.condition_high of {} numbers", condition.bands.size()));
  with_given_bands(config, check_widths);
}

std::map<std::string, std::string> tile_facts(const Config& settled) {
  const TileShards shards(settled.path);
  std::vector<TileBand> bands;
  for (const int b : find_bands(shards.band_names(), settled.bands, "data.bands"))
    bands.push_back(shards.common_band(b));
  std::map<std::string, std::string> facts = metadata_of(bands);
  facts["number_type"] = files::json_text(nlohmann::json(word_of(*settled.number_type)));
  facts["scale_low"] = files::json_text(nlohmann::json(settled.scale_low));
  facts["scale_high"] = files::json_text(nlohmann::json(settled.scale_high));
  return facts;
}

}  // namespace ditrain::dataset
