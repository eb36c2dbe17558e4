#include "ditrain/dataset/tile_statistics.hpp"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::dataset {
namespace {

using nlohmann::ordered_json;

constexpr double kPercents[] = {0.5, 1, 2, 5, 25, 50, 75, 95, 98, 99, 99.5};
constexpr size_t kPercentiles = std::size(kPercents), kBins = 1 << 16;
constexpr size_t kMaxJsonBytes = size_t{16} << 20;

// Numbers as integers of the same order: their upper and lower 16 bits are the two levels of the histogram.
uint32_t key_of(uint8_t x) { return uint32_t(x) << 16; }
uint32_t key_of(uint16_t x) { return uint32_t(x) << 16; }
uint32_t key_of(int16_t x) { return uint32_t(x + 32768) << 16; }
uint32_t key_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
double number_of_key(images::PixelType type, uint32_t key) {
  if (type == images::PixelType::kI16) return double(int(key >> 16) - 32768);
  if (type != images::PixelType::kF32) return double(key >> 16);
  return double(std::bit_cast<float>(key >> 31 != 0 ? key & 0x7fffffffu : ~key));
}

// Calls use(number) for every pixel of a band that is not missing; how many are.
template <class F>
int64_t visit(const TileShard& shard, int64_t band, F use) {
  int64_t missing = 0;
  for (int64_t tile = 0; tile < shard.count; ++tile)
    for_pixels(shard, tile, band, [&](int64_t, auto x, bool is_gone) { is_gone ? void(++missing) : use(x); });
  return missing;
}

// What is known of a band so far.
struct Band {
  BandStatistics s;
  std::vector<int64_t> upper = std::vector<int64_t>(kBins);
  double first = 0, sum = 0, squares = 0;  // f32: around the first number, so that no digits cancel
  std::array<std::pair<size_t, int64_t>, kPercentiles> place = {};  // of percentiles: bin of `upper`, pixels before it
  std::array<int64_t, kPercentiles> rank = {};
  std::map<size_t, std::vector<int64_t>> lower = {};  // f32: of the bins of `upper` that hold percentiles
};

// Calls look(shard, band) for all: every shard is read once, and its pages are given back.
template <class F>
void for_all(const TileShards& shards, std::vector<Band>& bands, F look) {
  for (const TileShard& shard : shards.shards()) {
    tbb::parallel_for(size_t{0}, bands.size(), [&](size_t b) { look(shard, int64_t(b), bands[b]); });
    shard.file.release_pages();
  }
}

void count(const TileShard& shard, int64_t number, Band& band) {
  BandStatistics& s = band.s;
  if (shard.type != images::PixelType::kF32) {
    s.missing += visit(shard, number, [&](auto x) { ++band.upper[key_of(x) >> 16]; });
    return;
  }
  s.missing += visit(shard, number, [&](auto x) {
    const auto value = double(x);
    if (s.valid++ == 0) band.first = value;
    band.sum += value - band.first, band.squares += (value - band.first) * (value - band.first);
    s.min = std::min(s.min, value), s.max = std::max(s.max, value);
    ++band.upper[key_of(x) >> 16];
  });
}

void count_lower(const TileShard& shard, int64_t number, Band& band) {
  visit(shard, number, [&](auto x) {
    const uint32_t key = key_of(x);
    if (const auto found = band.lower.find(key >> 16); found != band.lower.end()) ++found->second[key & 0xffff];
  });
}

// The bin that holds the pixel of this rank (from 1), and how many pixels are in bins before it.
std::pair<size_t, int64_t> bin_of_rank(const std::vector<int64_t>& bins, int64_t rank) {
  int64_t before = 0;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (before + bins[i] >= rank) return {i, before};
    before += bins[i];
  }
  return {bins.size() - 1, before};
}

// Integers: everything follows from the histogram.
void find_integer_moments(images::PixelType type, Band& band) {
  BandStatistics& s = band.s;
  const auto number = [&](size_t bin) { return number_of_key(type, uint32_t(bin) << 16); };
  double sum = 0, squares = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    if (band.upper[bin] == 0) continue;
    s.min = std::min(s.min, number(bin)), s.max = std::max(s.max, number(bin));
    s.valid += band.upper[bin], sum += double(band.upper[bin]) * number(bin);
  }
  s.mean = sum / double(s.valid);
  for (size_t bin = 0; bin < kBins; ++bin)
    squares += double(band.upper[bin]) * (number(bin) - s.mean) * (number(bin) - s.mean);
  s.deviation = std::sqrt(squares / double(s.valid));
}

void find_moments(images::PixelType type, Band& band) {
  if (type != images::PixelType::kF32) return find_integer_moments(type, band);
  const double n = double(band.s.valid), mean = band.sum / n;
  band.s.mean = band.first + mean;
  band.s.deviation = std::sqrt(std::max(0.0, band.squares / n - mean * mean));
}

void find_places(images::PixelType type, Band& band) {
  for (size_t i = 0; i < kPercentiles; ++i) {
    band.rank[i] = std::max<int64_t>(1, int64_t(std::ceil(kPercents[i] / 100 * double(band.s.valid))));
    band.place[i] = bin_of_rank(band.upper, band.rank[i]);
    if (type == images::PixelType::kF32) band.lower[band.place[i].first].resize(kBins);
  }
}

void find_percentiles(images::PixelType type, Band& band) {
  for (size_t i = 0; i < kPercentiles; ++i) {
    const auto [bin, before] = band.place[i];
    const uint32_t low =
        type == images::PixelType::kF32 ? uint32_t(bin_of_rank(band.lower[bin], band.rank[i] - before).first) : 0;
    band.s.percentiles[kPercents[i]] = number_of_key(type, uint32_t(bin) << 16 | low);
  }
}

}  // namespace

double BandStatistics::percentile(double p) const {
  const auto found = percentiles.find(p);
  if (found != percentiles.end()) return found->second;
  throw InputError({.where = "statistics", .what = fmt::format("band {} has no percentile {}", name, p)});
}

std::string checksum_of(const TileShards& shards) {
  files::Checksum sum;
  add_to(sum, shards);
  return files::to_hex(sum.value());
}

TileStatistics statistics_of(const TileShards& shards, int threads) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, size_t(threads));
  std::vector<Band> bands(shards.bands().size());
  for (size_t b = 0; b < bands.size(); ++b)
    bands[b].s = {.name = shards.bands()[b].name, .min = HUGE_VAL, .max = -HUGE_VAL};
  for_all(shards, bands, count);
  for (Band& band : bands) {
    find_moments(shards.type(), band);
    if (band.s.valid == 0)
      throw InputError({.where = shards.path(), .what = fmt::format("band {} has no valid pixel at all", band.s.name)});
    find_places(shards.type(), band);
  }
  if (shards.type() == images::PixelType::kF32) for_all(shards, bands, count_lower);
  TileStatistics all{.tiles = shards.size(), .type = shards.type(), .bands = {}, .checksum = checksum_of(shards)};
  for (Band& band : bands) {
    find_percentiles(shards.type(), band);
    all.bands.push_back(std::move(band.s));
  }
  return all;
}

std::string statistics_path(const std::string& shards) {
  std::error_code ec;
  const std::filesystem::path path(shards);
  return ((std::filesystem::is_regular_file(path, ec) ? path.parent_path() : path) / "stats.json").string();
}

bool is_one_of_several(const std::string& shards) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(shards, ec)) return false;
  const std::vector<std::string> files = list_folder(files::folder_of(shards)).files;
  return std::count_if(files.begin(), files.end(),
                       [](const std::string& name) { return file_kind(name) == FileKind::kShard; }) > 1;
}

std::string way_to_statistics(const TileShards& shards) {
  if (is_one_of_several(shards.path()))
    return fmt::format("the whole folder {}, data.scaling: [LOW, HIGH], or a folder for this file alone",
                       files::folder_of(shards.path()));
  const std::string unfinished = shards.describe_unfinished();
  return unfinished.empty() ? "ditdata stats " + quoted_word(shards.path()) : "ditdata make again: " + unfinished;
}

void write_statistics(const std::string& path, const TileStatistics& all) {
  ordered_json out = {{"tiles", all.tiles}, {"type", word_of(all.type)}};
  if (!all.checksum.empty()) out["checksum"] = all.checksum;
  for (const BandStatistics& s : all.bands) {
    out["bands"].push_back(s.name);
    out["valid"].push_back(s.valid), out["missing"].push_back(s.missing);
    out["mean"].push_back(s.mean), out["std"].push_back(s.deviation);
    out["min"].push_back(s.min), out["max"].push_back(s.max);
  }
  for (const double p : kPercents) {
    ordered_json& list = out["percentiles"][fmt::format("{}", p)];
    for (const BandStatistics& s : all.bands) list.push_back(s.percentile(p));
  }
  files::write_file_atomically(path, files::json_text(out, 1) + "\n");
}

TileStatistics read_statistics(const std::string& path) {
  const std::string text = files::read_text_file(path, kMaxJsonBytes);
  try {
    const auto in = files::parse_json(text);
    TileStatistics all;
    all.tiles = in.at("tiles");
    if (!find_word(in.at("type").get<std::string>(), all.type))
      throw InputError({.where = path, .what = "unknown type", .got = in.at("type").get<std::string>()});
    if (in.contains("checksum")) all.checksum = in.at("checksum");
    const size_t n = in.at("bands").size();
    for (size_t b = 0; b < n; ++b) {
      BandStatistics s{.name = in.at("bands").at(b)};
      s.valid = in.at("valid").at(b), s.missing = in.at("missing").at(b);
      s.mean = in.at("mean").at(b), s.deviation = in.at("std").at(b);
      s.min = in.at("min").at(b), s.max = in.at("max").at(b);
      for (const auto& [percent, list] : in.at("percentiles").items())
        s.percentiles[std::strtod(percent.c_str(), nullptr)] = list.at(b);
      all.bands.push_back(s);
    }
    return all;
  } catch (const nlohmann::json::exception& e) {
    throw InputError({.where = path,
                      .what = "these are no statistics of tiles: " + files::json_problem(e),
                      .hint = "ditdata stats on the folder of the tiles"});
  }
}

}  // namespace ditrain::dataset
