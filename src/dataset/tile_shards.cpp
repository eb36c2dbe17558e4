#include "ditrain/dataset/tile_shards.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::dataset {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json list_of(const weights::SafetensorsFile& file, const char* key, size_t entries) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return json();
  try {
    json list = files::parse_json(found->second);
    if (!list.is_array() || (entries > 0 && list.size() != entries))
      refuse(file.path(), fmt::format("metadata `{}` does not go with `images`", key),
             fmt::format("{} entries", list.size()), entries == 0 ? "a list" : fmt::format("a list of {}", entries));
    return list;
  } catch (const json::exception& e) {
    refuse(file.path(), fmt::format("metadata `{}`: {}", key, files::json_problem(e)));
  }
}

std::vector<std::string> texts_of(const weights::SafetensorsFile& file, const char* key) {
  std::vector<std::string> texts;
  for (const json& item : list_of(file, key, 0)) {
    if (!item.is_string())
      refuse(file.path(), fmt::format("metadata `{}` is no list of texts", key), files::json_text(item));
    texts.push_back(item);
  }
  return texts;
}

// The number of a band, or `missing`.
double number_of(const weights::SafetensorsFile& file, const char* key, const json& list, size_t band, double missing) {
  if (!list.is_array() || list[band].is_null()) return missing;
  if (!list[band].is_number())
    refuse(file.path(), fmt::format("metadata `{}` is no list of numbers", key), files::json_text(list[band]));
  return list[band];
}

std::vector<TileBand> bands_of(const weights::SafetensorsFile& file, images::PixelType type, int64_t channels) {
  const auto n = size_t(channels);
  const json names = list_of(file, "bands", n), scale = list_of(file, "scale", n), offset = list_of(file, "offset", n),
             nodata = list_of(file, "nodata", n);
  std::vector<TileBand> bands(n);
  std::vector<std::string> all;
  for (size_t b = 0; b < n; ++b) {
    if (names.is_array() && !names[b].is_string())
      refuse(file.path(), "metadata `bands` is no list of names", files::json_text(names[b]));
    bands[b].name = names.is_array() ? names[b].get<std::string>() : fmt::format("band{}", b + 1);
    bands[b].scale = number_of(file, "scale", scale, b, 1);
    bands[b].offset = number_of(file, "offset", offset, b, 0);
    const double missing = number_of(file, "nodata", nodata, b, NAN);
    if (!std::isnan(missing)) bands[b].nodata = type == images::PixelType::kF32 ? double(float(missing)) : missing;
    all.push_back(bands[b].name);
  }
  check_distinct(all, file.path());
  return bands;
}

// What ditdata make counted, a number or the first one of a list; -1: the shard does not tell.
int64_t count_of(const TileShard& shard, const char* key) {
  const auto found = shard.file.metadata().find(key);
  if (found == shard.file.metadata().end()) return -1;
  try {
    json number = files::parse_json(found->second);
    if (number.is_array()) number = json(number.at(0));
    constexpr uint64_t kMost = uint64_t{1} << 40;  // so that sums over shards fit
    return number.is_number_unsigned() ? int64_t(std::min(number.get<uint64_t>(), kMost)) : -1;
  } catch (const json::exception&) {
    return -1;
  }
}

images::PixelType type_of(const weights::SafetensorsFile& file, const std::string& dtype) {
  for (const images::PixelType type : kTileTypes)
    if (images::safetensors_name(type) == dtype) return type;
  refuse(file.path(), "`images` has a type that tiles cannot have", dtype, "U8, U16, I16 or F32");
}

void check_shape(const weights::SafetensorsFile& file, const char* name, const std::vector<int64_t>& want) {
  const std::vector<int64_t>& shape = file.tensor(name).shape;
  if (shape != want)
    refuse(file.path(), fmt::format("`{}` does not go with `images`", name),
           fmt::format("[{}]", fmt::join(shape, ", ")), fmt::format("[{}]", fmt::join(want, ", ")));
}

TileShard open_shard(const std::string& path, int64_t first) {
  TileShard s{.file = weights::SafetensorsFile(path), .first = first, .bands = {}, .labels = {}};
  const weights::TensorView& images = s.file.tensor("images");
  if (images.shape.size() != 4 ||
      std::any_of(images.shape.begin() + 1, images.shape.end(), [](int64_t n) { return n < 1; }))
    refuse(path, "`images` does not hold tiles", fmt::format("[{}]", fmt::join(images.shape, ", ")), "[N, C, H, W]");
  s.type = type_of(s.file, images.dtype);
  s.count = images.shape[0], s.channels = images.shape[1], s.height = images.shape[2], s.width = images.shape[3];
  if (s.channels > kMaxChannels || s.height > kMaxSide || s.width > kMaxSide)
    refuse(path, "`images` does not hold tiles", fmt::format("[{}]", fmt::join(images.shape, ", ")),
           fmt::format("up to {} channels and sides up to {}", kMaxChannels, kMaxSide));
  s.bands = bands_of(s.file, s.type, s.channels);
  s.classes = texts_of(s.file, "classes"), s.source = texts_of(s.file, "source");
  if (const auto crs = s.file.metadata().find("crs"); crs != s.file.metadata().end()) s.crs = crs->second;
  if (s.file.contains("geotransform")) check_shape(s.file, "geotransform", {s.count, 6});
  s.has_valid = s.file.contains("valid");
  if (s.has_valid) {
    check_shape(s.file, "valid", {s.count, s.height, s.width});
    if (s.file.tensor("valid").dtype != "U8") refuse(path, "type of `valid`", s.file.tensor("valid").dtype, "U8");
  }
  if (s.file.contains("metadata")) {
    check_shape(s.file, "metadata", {s.count, int64_t(kNumMetadata)});
    if (s.file.tensor("metadata").dtype != "F64")
      refuse(path, "type of `metadata`", s.file.tensor("metadata").dtype, "F64");
    s.numbers = weights::to_f64(s.file.tensor("metadata"));
    for (size_t i = 0; i < s.numbers.size(); ++i)
      check_metadata(i % kNumMetadata, s.numbers[i], fmt::format("{}, tile {}", path, i / kNumMetadata));
  }
  if (!s.file.contains("labels")) return s;
  check_shape(s.file, "labels", {s.count});
  s.labels = weights::to_i64(s.file.tensor("labels"));
  if (std::all_of(s.labels.begin(), s.labels.end(), [](int64_t label) { return label == -1; })) s.labels.clear();
  const int64_t most = s.classes.empty() ? kMaxClasses : int64_t(s.classes.size());
  for (const int64_t label : s.labels)
    if (label < 0 || label >= most)
      refuse(path, "label out of range", std::to_string(label), fmt::format("0 to {}", most - 1));
  return s;
}

// What a name says: its words in lower case without the number of the band, which stands beside them ("b8a"; "": none).
struct BandWords {
  std::vector<std::string> words;
  std::string number = {};
};
BandWords words_of_name(const std::string& name) {
  std::string text;
  for (const char c : name) text += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  for (char& c : text)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9')) c = ' ';
  BandWords all;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const size_t digits = word.find_first_not_of("0123456789", 1);
    const bool is_number =
        word.size() > 1 && word[0] == 'b' && digits != 1 && (digits == word.npos || word.substr(digits) == "a");
    is_number ? void(all.number = canonical_band(word)) : all.words.push_back(word);
  }
  return all;
}

// 2: the words are that colour, 1: they say it among others, 0: they are of another band.
int rank_of_colour(const std::vector<std::string>& words, const std::string& colour) {
  const auto has = [&](std::initializer_list<const char*> any) {
    return std::any_of(any.begin(), any.end(),
                       [&](const char* w) { return std::count(words.begin(), words.end(), w); });
  };
  const std::string text = fmt::format("{}", fmt::join(words, " "));
  if (has({"edge", "coastal", "deep", "dark", "short", "shortwave", "mid", "middle", "far", "long", "longwave",
           "thermal"}))
    return 0;
  if (colour != "nir") return text == colour ? 2 : has({colour.c_str()}) && !has({"near", "infra"}) ? 1 : 0;
  if (text == "nir" || text == "near infrared" || text == "near infra red" || text == "infrared") return 2;
  const bool with_number = std::any_of(words.begin(), words.end(), [](const std::string& w) {
    return w.starts_with("nir") && w.find_first_not_of("0123456789", 3) == w.npos;
  });
  return with_number || (has({"near"}) && has({"infrared", "infra"})) ? 1 : 0;
}

// The numbers of the colours, red first, if the set of numbers is that of one sensor or of sensors that agree. B4 and
// B8 are red and near infrared of Sentinel-2, near infrared and panchromatic of Landsat 7, red and panchromatic of
// Landsat 8: B8A and B12 are Sentinel-2's alone. Of B2, B3, B4, B8 the first three are blue, green and red of
// Sentinel-2 and Landsat 8, and B8 could be either's. Four bands B1 to B4 are Gaofen-2's and those of older Landsats.
std::array<const char*, 4> numbers_of_colours(const std::set<std::string>& numbers) {
  const auto beyond = [](const std::string& n) { return std::atoi(n.c_str() + 1) > 12; };
  const bool sentinel2 =
      !std::any_of(numbers.begin(), numbers.end(), beyond) && (numbers.contains("b8a") || numbers.contains("b12"));
  if (sentinel2) return {"b4", "b3", "b2", "b8"};
  if (numbers == std::set<std::string>{"b2", "b3", "b4", "b8"}) return {"b4", "b3", "b2", nullptr};
  if (numbers == std::set<std::string>{"b1", "b2", "b3", "b4"}) return {"b3", "b2", "b1", "b4"};
  return {};
}

// The colours among these bands of a sensor, whose numbers `all` names tell.
ColourBands find_colours(const std::vector<std::string>& names, const std::vector<std::string>& all) {
  std::set<std::string> numbers;
  for (const std::string& name : all)
    if (const std::string number = words_of_name(name).number; !number.empty()) numbers.insert(number);
  const std::array<const char*, 4> by_number = numbers_of_colours(numbers);
  ColourBands found;
  const std::array<std::pair<const char*, int*>, 4> colours = {
      {{"red", &found.red}, {"green", &found.green}, {"blue", &found.blue}, {"nir", &found.nir}}};
  for (size_t c = 0; c < colours.size(); ++c) {
    const auto [colour, band] = colours[c];
    int best = 0;
    for (size_t b = 0; b < names.size(); ++b)
      if (const int rank = rank_of_colour(words_of_name(names[b]).words, colour); rank > best)
        best = rank, *band = int(b);
    for (size_t b = 0; b < names.size() && best == 0 && by_number[c] != nullptr; ++b)
      if (words_of_name(names[b]).number == by_number[c]) *band = int(b);
  }
  return found;
}

}  // namespace

std::map<std::string, std::string> metadata_of(const std::vector<TileBand>& bands) {
  json names = json::array(), scale = json::array(), offset = json::array(), nodata = json::array();
  for (const TileBand& band : bands) {
    names.push_back(band.name), scale.push_back(band.scale), offset.push_back(band.offset);
    nodata.push_back(band.nodata ? json(*band.nodata) : json());
  }
  std::map<std::string, std::string> all;
  for (const auto& [key, list] : {std::pair{"bands", names}, {"scale", scale}, {"offset", offset}, {"nodata", nodata}})
    all[key] = files::json_text(list);
  return all;
}

const std::byte* TileShard::plane(int64_t tile, int64_t band) const {
  const int64_t bytes = height * width * images::pixel_bytes(type);
  return file.tensor("images").data + (tile * channels + band) * bytes;
}

const uint8_t* TileShard::valid(int64_t tile) const {
  if (!has_valid) return nullptr;
  return reinterpret_cast<const uint8_t*>(file.tensor("valid").data) + tile * height * width;
}

void expect_made_so(const std::string& path, const std::map<std::string, std::string>& metadata,
                    const std::map<std::string, std::string>& expected, const std::string& what,
                    const std::string& inputs) {
  for (const auto& [key, value] : expected) {
    const auto found = metadata.find(key);
    const std::string got = found == metadata.end() ? "nothing" : found->second;
    if (got == value) continue;
    if (key == "scenes")  // their checksum
      refuse(path, what + " made of other scenes: files came, went or changed since", "", "",
             "another folder, for all of them");
    refuse(path, what + " made in another way: " + key, got, value,
           "the same flags and " + inputs + " as before, or another folder");
  }
}

template <class T>
void fill_missing(const TileShard& shard, int64_t tile, int64_t band, T* plane) {
  const int64_t n = shard.height * shard.width;
  double sum = 0;
  int64_t missing = 0;
  for (int64_t p = 0; p < n; ++p) {
    if (std::isnan(plane[p]))
      ++missing;
    else
      sum += double(plane[p]);
  }
  if (missing == n)
    refuse(fmt::format("{}, tile {}", shard.file.path(), tile),
           "no pixel of band " + shard.bands[size_t(band)].name + " is valid", "", "",
           "tiles that ditdata make keeps have valid pixels in each band");
  const T mean = T(sum / double(n - missing));
  for (int64_t p = 0; missing > 0 && p < n; ++p)
    if (std::isnan(plane[p])) plane[p] = mean;
}
template void fill_missing(const TileShard&, int64_t, int64_t, float*);
template void fill_missing(const TileShard&, int64_t, int64_t, double*);

std::vector<double> filled_plane(const TileShard& shard, int64_t tile, int64_t band) {
  std::vector<double> plane(size_t(shard.height * shard.width));
  for_pixels(shard, tile, band, [&](int64_t p, auto x, bool is_gone) { plane[size_t(p)] = is_gone ? NAN : double(x); });
  fill_missing(shard, tile, band, plane.data());
  return plane;
}

TileShards::TileShards(const std::string& path) : path_(path) {
  std::error_code ec;
  std::vector<std::string> paths;
  Listing listing;
  if (fs::is_regular_file(path, ec)) {
    paths = {path};
  } else {
    listing = list_folder(path);
    for (const std::string& name : listing.files)
      lower_extension(name) == "safetensors" ? paths.push_back(path + "/" + name) : other_files_.push_back(name);
  }
  if (paths.empty()) {
    const std::string hint = way_to_data(path, "tiles");
    refuse("data", "no tiles in '" + path + "'", describe(listing), ".safetensors files with `images`",
           hint.empty() ? "ditdata make --from SCENES --out " + path : hint);
  }
  for (const std::string& file : paths) {
    shards_.push_back(open_shard(file, size_));
    check_like_first(shards_.back());
    size_ += shards_.back().count;
    for (const int64_t label : shards_.back().labels) num_classes_ = std::max(num_classes_, label + 1);
  }
  num_classes_ = std::max(num_classes_, int64_t(classes().size()));
  if (size_ == 0) refuse("data", "no tiles in '" + path + "'", "tensors of 0 tiles");
}

const TileBand& TileShards::common_band(int64_t number) const {
  const TileBand& first = bands()[size_t(number)];
  for (const TileShard& shard : shards_) {
    const TileBand& other = shard.bands[size_t(number)];
    if (other.scale != first.scale || other.offset != first.offset)
      refuse(shard.file.path(), fmt::format("band {} has another scale than in the first shard", other.name),
             fmt::format("{} and offset {}", other.scale, other.offset),
             fmt::format("{} and offset {}", first.scale, first.offset),
             "a folder for the tiles of each scale, or data.number_scale and data.number_offset for all");
  }
  return first;
}

std::vector<std::string> TileShards::band_names() const {
  std::vector<std::string> names;
  for (const TileBand& band : bands()) names.push_back(band.name);
  return names;
}

const TileShard& TileShards::shard_of(int64_t tile) const {
  const auto after = std::upper_bound(shards_.begin(), shards_.end(), tile,
                                      [](int64_t i, const TileShard& shard) { return i < shard.first; });
  return *std::prev(after);
}

int64_t TileShards::dropped() const {
  int64_t all = 0;
  for (const TileShard& shard : shards_) all += std::max<int64_t>(0, count_of(shard, "dropped"));
  return all;
}

std::string TileShards::describe_unfinished() const {
  std::error_code ec;
  if (fs::is_regular_file(path_, ec)) return "";
  const int64_t next = count_of(shards_.back(), "next"), pieces = count_of(shards_.back(), "pieces");
  if (next < 0 || next >= pieces) return "";
  return fmt::format(
      "the tiles in {} are of {} of {} pieces of the scenes: the ditdata make that cuts them still runs, or was "
      "interrupted and goes on when it is started again",
      path_, next, pieces);
}

void TileShards::check_like_first(const TileShard& shard) const {
  const TileShard& first = shards_.front();
  const auto same = [&](const char* what, const std::string& got, const std::string& want) {
    if (got != want)
      refuse(shard.file.path(), fmt::format("this shard differs from {} in its {}", first.file.path(), what), got, want,
             "one folder per kind of tiles");
  };
  const auto names = [](const TileShard& s) {
    std::vector<std::string> all;
    for (const TileBand& band : s.bands) all.push_back(band.name);
    return fmt::format("[{}]", fmt::join(all, ", "));
  };
  const auto size = [](const TileShard& s) { return fmt::format("{} x {}", s.height, s.width); };
  same("type", images::safetensors_name(shard.type), images::safetensors_name(first.type));
  same("bands", names(shard), names(first));
  same("size", size(shard), size(first));
  same("classes", fmt::format("[{}]", fmt::join(shard.classes, ", ")),
       fmt::format("[{}]", fmt::join(first.classes, ", ")));
  if (shard.count > 0 && first.count > 0)
    same("labels", shard.labels.empty() ? "none" : "labels", first.labels.empty() ? "none" : "labels");
}

void add_to(files::Checksum& sum, const TileShards& shards) {
  for (const TileShard& shard : shards.shards()) {
    const weights::TensorView& images = shard.file.tensor("images");
    sum.add(shard.file.data(), size_t(shard.file.tensors().front().offset));
    const size_t tile = images.bytes / size_t(std::max<int64_t>(1, shard.count));
    for (int64_t i = 0; i < shard.count; i += 1000) sum.add(images.data + size_t(i) * tile, tile);
    sum.add(shard.labels.data(), shard.labels.size() * sizeof shard.labels[0]);
  }
}

bool holds_tiles(const std::string& path) {
  std::error_code ec;
  std::string file = path;
  if (fs::is_directory(path, ec)) {
    file.clear();
    for (const std::string& name : list_folder(path).files)
      if (file.empty() && lower_extension(name) == "safetensors") file = path + "/" + name;
  }
  return lower_extension(file) == "safetensors" && weights::SafetensorsFile(file).contains("images");
}

std::string canonical_band(const std::string& name) {
  std::string text;
  for (const char c : name) text += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  const bool number = text.size() > 2 && text[0] == 'b' && text[1] == '0' && text[2] >= '0' && text[2] <= '9';
  return number ? "b" + text.substr(2) : text;
}

bool is_numbered_band(const std::string& name) {
  return name.size() > 4 && name.starts_with("band") && name.find_first_not_of("0123456789", 4) == name.npos;
}

std::string nearest_band(const std::string& name, const std::vector<std::string>& have) {
  const std::string band = canonical_band(name);
  const bool number = band.size() > 1 && band[0] == 'b' && band[1] >= '0' && band[1] <= '9';
  return number ? "" : nearest_word(name, have);
}

namespace {

// Advice where `name` is not there: the name that was misspelt, or those of all bands if there are as many as wanted.
std::string other_bands(const std::string& name, const std::vector<std::string>& have,
                        const std::vector<std::string>& want, const std::string& where) {
  const auto missing = std::count_if(want.begin(), want.end(), [&](const std::string& w) {
    return std::none_of(have.begin(), have.end(),
                        [&](const std::string& h) { return canonical_band(h) == canonical_band(w); });
  });
  const std::string near = nearest_band(name, have);
  if (where != "data.bands" || want.size() != have.size() || (missing == 1 && !near.empty())) return near;
  return "--set " + quoted_word(fmt::format("data.bands=[{}]", fmt::join(have, ",")));
}

}  // namespace

std::vector<int> find_bands(const std::vector<std::string>& have, const std::vector<std::string>& want,
                            const std::string& where) {
  check_distinct(want, where);
  std::vector<int> positions;
  for (const std::string& name : want) {
    const auto found = std::find_if(have.begin(), have.end(), [&](const std::string& other) {
      return canonical_band(other) == canonical_band(name);
    });
    const bool unnamed = std::all_of(have.begin(), have.end(), [](const std::string& other) { return other.empty(); });
    if (found == have.end() && unnamed)
      refuse(where, "its bands have no names", fmt::format("{} band(s)", have.size()),
             fmt::format("{}", fmt::join(want, ", ")), "a copy of the file whose bands have these descriptions");
    if (found == have.end() && !is_numbered_band(name) && std::all_of(have.begin(), have.end(), is_numbered_band))
      refuse(
          where, "there is no band of this name", name, fmt::format("one of {}", fmt::join(have, ", ")),
          have.size() == want.size()
              ? fmt::format("ditdata make --names {} into another folder, if the files have their bands in this order",
                            fmt::join(want, ","))
              : "ditdata make --names B2,B3,..., which names the bands of files that name none");
    if (found == have.end())
      refuse(where, "there is no band of this name", name, fmt::format("one of {}", fmt::join(have, ", ")),
             other_bands(name, have, want, where));
    positions.push_back(int(found - have.begin()));
  }
  return positions;
}

void check_distinct(const std::vector<std::string>& names, const std::string& where) {
  std::set<std::string> seen;
  for (const std::string& name : names)
    if (!seen.insert(canonical_band(name)).second)
      refuse(where, "two bands of one name", name, "a name of its own for every band");
}

ColourBands find_colours(const std::vector<std::string>& names) { return find_colours(names, names); }

CommonColours find_common_colours(const std::vector<std::string>& first, const std::vector<std::string>& second) {
  std::vector<std::string> common;
  std::vector<int> in_first, in_second;
  for (size_t a = 0; a < first.size(); ++a)
    for (size_t b = 0; b < second.size(); ++b)
      if (canonical_band(first[a]) == canonical_band(second[b]))
        common.push_back(first[a]), in_first.push_back(int(a)), in_second.push_back(int(b));
  const ColourBands found = find_colours(common, second.size() > first.size() ? second : first);
  CommonColours colours;
  for (int ColourBands::*band : {&ColourBands::red, &ColourBands::green, &ColourBands::blue, &ColourBands::nir}) {
    if (found.*band < 0) continue;
    colours.first.*band = in_first[size_t(found.*band)], colours.second.*band = in_second[size_t(found.*band)];
  }
  return colours;
}

}  // namespace ditrain::dataset
