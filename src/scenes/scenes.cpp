#include "ditrain/scenes/scenes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/pattern.hpp"
#include "ditrain/dataset/config.hpp"
#include "ditrain/dataset/file_list.hpp"

namespace ditrain::scenes {
namespace {

namespace fs = std::filesystem;

struct FoundFile {
  std::string path, folder, top;  // top: the sub-folder of the top folder; "": in it, or in a product in it
  images::RasterInfo info = {};
};

// "10m", "R10m"
bool is_size(const std::string& word) {
  static const Pattern size("^r?[0-9]+m$", /*any_case=*/true);
  return size.is_in(word);
}

void list_rasters(const std::string& folder, const std::string& top, int depth, std::vector<FoundFile>& files,
                  int64_t& others, dataset::VisitedFolders& visited) {
  if (!visited.enter(folder)) return;
  const dataset::Listing listing = dataset::list_folder(folder, "a folder that exists");
  for (const std::string& name : listing.files)
    dataset::file_kind(name) == dataset::FileKind::kRaster ? files.push_back({folder + "/" + name, folder, top})
                                                           : void(++others);
  if (depth == dataset::kMaxDepth) return;
  for (const std::string& name : listing.folders)
    if (name != dataset::kQualityFolder)
      list_rasters(folder + "/" + name, depth == 0 && !is_size(name) && !dataset::is_product(name) ? name : top,
                   depth + 1, files, others, visited);
}

// Products are downloaded as archives.
bool holds_archives(const std::string& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) return false;
  const std::vector<std::string> files = dataset::list_folder(folder).files;
  return std::any_of(files.begin(), files.end(), dataset::is_archive);
}

// What a name says if one of its words is the band: "T33_B02_10m" is the band "B02" of "T33".
struct NameParts {
  std::string band, rest;
};

// All that a name may say, likelier ones first: numbers before colours, words at the end before those at the beginning.
// {}: no word is a band.
std::vector<NameParts> readings_of(const std::string& stem) {
  static const Pattern number("^(b[0-9]{1,2}a?|band([0-9]{1,3}a?))$", /*any_case=*/true);
  static const Pattern name("^(coastal|blue|green|yellow|red|rededge[0-9]?|nir[0-9]*|swir[0-9]*|cirrus|pan|[vh][vh])$",
                            /*any_case=*/true);
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= stem.size();) {
    const size_t end = std::min(stem.find_first_of("_-. ", begin), stem.size());
    if (const std::string word = stem.substr(begin, end - begin); !is_size(word)) words.push_back(word);
    begin = end + 1;
  }
  std::vector<NameParts> all;
  for (const Pattern* kind : {&number, &name})
    for (size_t i = words.size(); i-- > 0;) {
      const Pattern::Match found = kind->find(words[i]);
      if (!found) continue;
      NameParts parts{kind == &number && !found.groups[2].empty() ? "B" + found.groups[2] : words[i], ""};
      for (size_t k = 0; k < words.size(); ++k)
        if (k != i) parts.rest += (parts.rest.empty() ? "" : "_") + words[k];
      all.push_back(parts);
    }
  return all;
}

// "b02" -> "B2", "b8a" -> "B8A"; a band without a number as it is.
std::string as_in_configs(const std::string& band) {
  std::string text = dataset::canonical_band(band);
  if (text.size() < 2 || text[0] != 'b' || std::isdigit(static_cast<unsigned char>(text[1])) == 0) return band;
  for (char& c : text) c = c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
  return text;
}

// "B8A" -> 8; one without a number stands behind all others.
long number_of_band(const std::string& band) {
  const long number = band.size() > 1 && band[0] == 'B' ? std::strtol(band.c_str() + 1, nullptr, 10) : 0;
  return number > 0 || band == "B0" ? number : std::numeric_limits<long>::max();
}

int64_t count_data_bands(const images::RasterInfo& info) {
  return std::count_if(info.bands.begin(), info.bands.end(), [](const images::RasterBand& b) { return !b.is_alpha; });
}

// What files call alpha is data where the request counts it among the bands: many programs give the last of four bands
// that role unasked.
void settle_alpha(images::RasterInfo& info, const SceneRequest& request) {
  for (size_t b = 0; b < info.bands.size(); ++b) {
    const bool asked = b + 1 == info.bands.size() &&
                       std::any_of(request.bands.begin(), request.bands.end(), [&](const std::string& name) {
                         return dataset::canonical_band(name) == dataset::canonical_band(fmt::format("band{}", b + 1));
                       });
    if (!info.bands[b].is_alpha || !(asked || request.names.size() == info.bands.size())) continue;
    info.bands[b].is_alpha = false;
    if (info.mask_is_alpha) info.has_mask = info.mask_is_alpha = false;
  }
}

void warn_of_alpha(const images::RasterInfo& info) {
  const auto alpha = std::find_if(info.bands.begin(), info.bands.end(), [](const auto& b) { return b.is_alpha; });
  if (alpha == info.bands.end()) return;
  log::warn(
      "band {} of {} is alpha: taken as a mask, not as data (if it is data: --names with a name for each of the {} "
      "bands)",
      alpha - info.bands.begin() + 1, info.path, info.bands.size());
}

// The files of each scene; `band` is the name that the file's name gives, or "".
struct Part {
  const FoundFile* file;
  std::string band;
};
struct Group {
  std::string name, top;
  bool single_bands = false;  // its files hold one band each
  std::vector<Part> parts;
};

// The name of the scene that a file of one band belongs to.
std::string scene_of(const FoundFile& file, const NameParts& parts) {
  const fs::path folder(file.folder), place = is_size(folder.filename().string()) ? folder.parent_path() : folder;
  return place.string() + (parts.rest.empty() ? "" : "/" + parts.rest);
}

std::vector<Group> group_files(const std::vector<FoundFile>& files) {
  std::set<std::string> stacked;
  for (const FoundFile& file : files)
    if (file.info.format == "VRT")
      for (const std::string& part : file.info.files)
        if (part != file.path) stacked.insert(fs::weakly_canonical(part).string());
  struct NamedFile {
    const FoundFile* file;
    std::vector<NameParts> readings;
  };
  std::vector<NamedFile> named;
  std::map<std::string, std::set<std::string>> bands;  // of scenes that names may mean
  for (const FoundFile& file : files) {
    if (stacked.contains(fs::weakly_canonical(file.path).string())) continue;
    named.push_back({&file, {}});
    if (count_data_bands(file.info) == 1) named.back().readings = readings_of(fs::path(file.path).stem().string());
    for (const NameParts& parts : named.back().readings)
      bands[scene_of(file, parts)].insert(dataset::canonical_band(parts.band));
  }
  std::map<std::string, Group> groups;  // by name, so in order
  for (const auto& [file, readings] : named) {
    // Of several bands in a name ("Red_Sea_B02", "site_B1_red") the one counts by which a scene has most bands.
    const NameParts* best = nullptr;
    for (const NameParts& parts : readings)
      if (best == nullptr || bands[scene_of(*file, parts)].size() > bands[scene_of(*file, *best)].size()) best = &parts;
    const std::string name = best != nullptr ? scene_of(*file, *best) : file->path;
    Group& group = groups[name];
    group.name = name, group.top = file->top, group.single_bands = best != nullptr;
    group.parts.push_back({file, best != nullptr ? best->band : ""});
  }
  std::vector<Group> all;
  for (auto& [name, group] : groups) all.push_back(std::move(group));
  return all;
}

// Side of a pixel in units of the CRS; without a georeference a part of the side of the scene.
double pixel_side(const images::RasterInfo& info) {
  return info.transform ? std::hypot((*info.transform)[1], (*info.transform)[4]) : 1 / double(info.width);
}

// Which of two sides of pixels serves the wanted one better: no detail is lost, then none is made up.
bool is_better(double side, double other, double wanted) {
  const double limit = wanted * (1 + 1e-6);
  if (side <= limit || other <= limit) return side <= limit && (other > limit || side > other);
  return side < other;
}

void keep_one_resolution(Group& group, double wanted, SceneList& list) {
  const auto is_worse = [&](const Part& part) {
    return std::any_of(group.parts.begin(), group.parts.end(), [&](const Part& other) {
      return dataset::canonical_band(other.band) == dataset::canonical_band(part.band) &&
             is_better(pixel_side(other.file->info), pixel_side(part.file->info), wanted);
    });
  };
  std::vector<Part> kept;
  for (const Part& part : group.parts)
    is_worse(part) ? list.other_resolutions.push_back(part.file->path) : kept.push_back(part);
  group.parts = std::move(kept);
}

std::string name_of_band(const images::RasterBand& band, size_t position, const Part& part,
                         const SceneRequest& request) {
  if (!part.band.empty()) return part.band;
  if (!band.name.empty()) return band.name;
  if (request.names.empty()) return fmt::format("band{}", position + 1);
  if (position >= request.names.size())
    refuse(part.file->path, "there are more bands than --names", fmt::format("band {}", position + 1),
           fmt::format("{} names", request.names.size()));
  return request.names[position];
}

[[noreturn]] void refuse_doubled(const Group& group, const std::string& band, const std::string& a,
                                 const std::string& b) {
  const bool one_file = a == b;
  refuse(group.name, fmt::format("band {} is there twice", band), one_file ? "" : fmt::format("in {} and in {}", a, b),
         one_file ? "names that differ" : "one file with it",
         one_file ? "gdal_translate -b, which leaves a band out"
                  : "leaving one of them out, or stacking the files by a VRT (gdalbuildvrt -separate)");
}

void expect_intensities(const Group& group) {
  for (const Part& part : group.parts)
    if (part.file->info.is_palette)
      refuse(part.file->path, "the numbers are indices of a palette, not intensities", "", "",
             "gdal_translate -expand rgb, or leave the file out");
}

// Statistics and overviews do not decide about numbers, and programs that look at a raster write them beside it.
std::vector<std::string> sources_of(const images::RasterInfo& info) {
  std::vector<std::string> sources;
  for (const std::string& file : info.files)
    if (file != info.path && !file.ends_with(".aux.xml") && !file.ends_with(".ovr")) sources.push_back(file);
  return sources;
}

Scene make_scene(const Group& group, const SceneRequest& request) {
  Scene scene{.name = group.name, .bands = {}, .type = group.parts.front().file->info.type};
  std::vector<std::string> names;
  for (const Part& part : group.parts) {
    const images::RasterInfo& info = part.file->info;
    if (info.type != scene.type)
      refuse(info.path, fmt::format("another type than {} of the same scene", group.parts.front().file->path),
             std::string(word_of(info.type)), std::string(word_of(scene.type)));
    const std::vector<std::string> sources = sources_of(info);
    size_t position = 0;
    for (size_t b = 0; b < info.bands.size(); ++b) {
      const images::RasterBand& band = info.bands[b];
      if (band.is_alpha) continue;
      const std::string name = name_of_band(band, position++, part, request);
      for (size_t k = 0; k < names.size(); ++k)
        if (dataset::canonical_band(names[k]) == dataset::canonical_band(name))
          refuse_doubled(group, name, scene.bands[k].file, info.path);
      names.push_back(name);
      auto nodata = band.nodata || info.has_mask ? band.nodata : request.nodata;
      if (nodata && std::isnan(*nodata)) nodata.reset();                             // NaN is missing everywhere
      if (nodata && scene.type == images::PixelType::kF32) nodata = float(*nodata);  // as its pixels have it
      const bool states_scale = band.scale != 1 || band.offset != 0;
      scene.bands.push_back({.facts = {name, states_scale ? band.scale : request.scale,
                                       states_scale ? band.offset : request.offset, nodata},
                             .file = info.path,
                             .index = int(b),
                             .width = info.width,
                             .height = info.height,
                             .block_width = info.block_width,
                             .block_height = info.block_height,
                             .has_mask = info.has_mask,
                             .sources = sources});
    }
  }
  return scene;
}

// Names that are left over mean that the bands are others than was thought.
void expect_all_names(const Group& group, const SceneRequest& request) {
  for (const Part& part : group.parts) {
    const std::vector<images::RasterBand>& bands = part.file->info.bands;
    const bool uses_names = part.band.empty() && std::any_of(bands.begin(), bands.end(), [](const auto& b) {
                              return b.name.empty() && !b.is_alpha;
                            });
    const auto count = size_t(count_data_bands(part.file->info));
    if (uses_names && count < request.names.size())
      refuse(part.file->path, "there are fewer bands than --names",
             fmt::format("{} band(s){}", count, count < bands.size() ? " and alpha" : ""),
             fmt::format("{} names", request.names.size()), "one folder per layout of bands");
  }
}

void check_type(const Scene& scene, const SceneRequest& request) {
  const auto type = std::find(std::begin(dataset::kTileTypes), std::end(dataset::kTileTypes), scene.type);
  if (type != std::end(dataset::kTileTypes) && request.nodata && images::is_integer(scene.type)) {
    const auto [least, greatest] = images::number_range(scene.type);
    if (*request.nodata < least || *request.nodata > greatest || std::nearbyint(*request.nodata) != *request.nodata)
      refuse(scene.name, "--nodata is no number that this scene can hold", fmt::format("{}", *request.nodata),
             fmt::format("an integer from {} to {} ({})", least, greatest, word_of(scene.type)));
  }
  if (type != std::end(dataset::kTileTypes)) return;
  refuse(scene.name, "tiles cannot have numbers of this type", std::string(word_of(scene.type)), "u8, u16, i16 or f32",
         "gdal_translate -ot Float32");
}

// The bands that are wanted, in their order.
void choose_bands(Scene& scene, const std::vector<std::string>& want, bool others_allowed, SceneList& list) {
  std::vector<std::string> have, missing;
  for (const SceneBand& band : scene.bands) have.push_back(band.facts.name);
  std::vector<SceneBand> chosen;
  std::vector<size_t> order;
  for (const std::string& name : want) {
    const auto found = std::find_if(have.begin(), have.end(), [&](const std::string& h) {
      return dataset::canonical_band(h) == dataset::canonical_band(name);
    });
    if (found == have.end()) {
      missing.push_back(name);
      continue;
    }
    order.push_back(size_t(found - have.begin()));
    chosen.push_back(scene.bands[order.back()]);
    chosen.back().facts.name = name;
  }
  if (!missing.empty())
    refuse(scene.name,
           fmt::format("the scene lacks {} {}", missing.size() == 1 ? "band" : "bands", fmt::join(missing, ", ")),
           fmt::format("{}", fmt::join(have, ", ")), "",
           others_allowed ? dataset::nearest_band(missing.front(), have)
                          : "--bands with those that are wanted: rasters that have none of them are left out");
  if (!others_allowed && chosen.size() != have.size()) {
    std::vector<std::string> other;
    for (size_t i = 0; i < have.size(); ++i)
      if (std::find(order.begin(), order.end(), i) == order.end()) other.push_back(have[i]);
    refuse(scene.name, "the scene has bands that the first one has not", fmt::format("{}", fmt::join(other, ", ")),
           fmt::format("{}", fmt::join(want, ", ")), "--bands with those that all have");
  }
  if (!others_allowed && !std::is_sorted(order.begin(), order.end())) ++list.reordered;
  scene.bands = std::move(chosen);
}

// Previews and masks of a product, where bands are asked for by name.
bool has_none(const Scene& scene, const std::vector<std::string>& want) {
  return std::none_of(scene.bands.begin(), scene.bands.end(), [&](const SceneBand& band) {
    return std::any_of(want.begin(), want.end(), [&](const std::string& name) {
      return dataset::canonical_band(name) == dataset::canonical_band(band.facts.name);
    });
  });
}

const images::RasterInfo& info_of(const Group& group, const std::string& file) {
  for (const Part& part : group.parts)
    if (part.file->path == file) return part.file->info;
  DITRAIN_CHECK(false, "a file of the scene");
}

std::pair<double, double> corner(const images::GeoTransform& t, double x, double y) {
  return {t[0] + x * t[1] + y * t[2], t[3] + x * t[4] + y * t[5]};
}

// All bands cover the same ground.
void check_places(const Scene& scene, const Group& group, const images::RasterInfo& finest) {
  for (const SceneBand& band : scene.bands) {
    const images::RasterInfo& info = info_of(group, band.file);
    const bool same_size = info.width == finest.width && info.height == finest.height;
    if (info.transform.has_value() != finest.transform.has_value() || (!info.transform && !same_size))
      refuse(info.path, fmt::format("no place in common with {}", finest.path),
             fmt::format("{} x {} pixels{}", info.width, info.height, info.transform ? "" : " without a georeference"));
    if (info.crs != finest.crs) refuse(info.path, fmt::format("another CRS than {}", finest.path));
    if (!info.transform) continue;
    const images::GeoTransform &a = *info.transform, &b = *finest.transform;
    const double tolerance = 0.5 * (std::fabs(b[1]) + std::fabs(b[2]));
    for (const auto& [x, y] : {std::pair{0.0, 0.0}, {1.0, 0.0}, {0.0, 1.0}, {1.0, 1.0}}) {
      const auto p = corner(a, x * double(info.width), y * double(info.height));
      const auto q = corner(b, x * double(finest.width), y * double(finest.height));
      if (std::hypot(p.first - q.first, p.second - q.second) > tolerance)
        refuse(info.path, fmt::format("covers other ground than {}", finest.path),
               fmt::format("a corner at {:.3f} {:.3f}", p.first, p.second),
               fmt::format("{:.3f} {:.3f}", q.first, q.second), "gdalwarp onto one grid");
    }
  }
}

void place(Scene& scene, const Group& group, double resolution) {
  const SceneBand* finest = &scene.bands.front();
  for (const SceneBand& band : scene.bands)
    if (band.width * band.height > finest->width * finest->height) finest = &band;
  const images::RasterInfo& info = info_of(group, finest->file);
  check_places(scene, group, info);
  scene.width = info.width, scene.height = info.height;
  scene.whole_width = double(info.width), scene.whole_height = double(info.height);
  scene.crs = info.crs, scene.transform = info.transform;
  scene.metadata = dataset::metadata_of_raster(info);
  if (resolution == 0) return;
  if (!info.transform || info.crs.empty())
    refuse(scene.name, "--resolution needs scenes with a CRS", "no georeference", "", "--tile alone, in pixels");
  images::GeoTransform& t = *scene.transform;
  if (!std::all_of(t.begin(), t.end(), [](double x) { return std::isfinite(x); }))
    refuse(scene.name, "--resolution needs a geotransform of numbers", fmt::format("{}", fmt::join(t, ", ")));
  const double across = std::hypot(t[1], t[4]) / resolution, down = std::hypot(t[2], t[5]) / resolution;
  const auto pixels = [](double x) { return std::abs(x - std::round(x)) <= 1e-6 ? std::round(x) : x; };
  scene.whole_width = pixels(scene.whole_width * across), scene.whole_height = pixels(scene.whole_height * down);
  const double most = double(int64_t{1} << 20);
  if (!(scene.whole_width > 0 && scene.whole_height > 0 && scene.whole_width <= most && scene.whole_height <= most))
    refuse(scene.name, "--resolution makes a grid of too many pixels, or of none",
           fmt::format("{:.6g} x {:.6g}", scene.whole_width, scene.whole_height));
  if (scene.whole_width < 1 || scene.whole_height < 1)
    refuse(scene.name, "the scene is smaller than a pixel of --resolution",
           fmt::format("{:.6g} x {:.6g} pixels", scene.whole_width, scene.whole_height), "",
           fmt::format("a side in units of the CRS, in which pixels of this scene have {:.6g} x {:.6g}",
                       across * resolution, down * resolution));
  scene.width = int64_t(std::floor(scene.whole_width)), scene.height = int64_t(std::floor(scene.whole_height));
  t[1] /= across, t[4] /= across, t[2] /= down, t[5] /= down;
}

// Whether a class folder would be named after its only scene, as X/X_B2.tif or X/X_SR_B2.tif: it is no class.
bool names_its_scene(const std::string& top, const Group& group) {
  const fs::path name(group.name);
  return group.single_bands && (name.filename().string() + "_").starts_with(top + "_") &&
         name.parent_path().filename() == top;
}

std::vector<std::string> classes_of(const std::vector<std::pair<const Group*, Scene>>& found) {
  std::map<std::string, int> scenes;
  bool all_named = true, loose = false;
  for (const auto& [group, scene] : found) {
    loose = loose || group->top.empty();
    if (group->top.empty()) continue;
    all_named = ++scenes[group->top] == 1 && names_its_scene(group->top, *group) && all_named;
  }
  if (all_named || (loose && scenes.size() < 2)) return {};  // a folder of previews beside scenes is not a class
  std::vector<std::string> classes;
  for (const auto& [top, count] : scenes) classes.push_back(top);
  if (std::all_of(scenes.begin(), scenes.end(), [](const auto& item) { return item.second == 1; }))
    log::warn(
        "every class folder ({} in all) holds one scene, as folders of products do (--no-labels if they are none)",
        classes.size());
  return classes;
}

// As in a folder of images: what lies beside class folders has no class and is left out.
void leave_out_loose(std::vector<std::pair<const Group*, Scene>>& found, const std::string& from) {
  const auto loose = [](const auto& item) { return item.first->top.empty(); };
  const auto count = std::count_if(found.begin(), found.end(), loose);
  if (count == 0) return;
  log::warn("{} scenes beside the class folders of '{}' are not used", count, from);
  std::erase_if(found, loose);
}

auto facts_of(const Scene& scene) {
  std::string text = scene.crs;
  for (const SceneBand& band : scene.bands)
    text += fmt::format("|{} {} {}", band.facts.scale, band.facts.offset,
                        band.facts.nodata ? fmt::format("{}", *band.facts.nodata) : "none");
  return text;
}

}  // namespace

std::vector<std::string> Scene::files() const {
  std::vector<std::string> all;
  for (const SceneBand& band : bands)
    if (std::find(all.begin(), all.end(), band.file) == all.end()) all.push_back(band.file);
  return all;
}

FileNameBands bands_of_file_names(const std::vector<std::string>& rasters) {
  std::vector<FoundFile> files;
  for (const std::string& path : rasters) {
    try {
      files.push_back({path, fs::path(path).parent_path().string(), "", images::Raster(path).info()});
    } catch (const Error&) {  // names of the others do not depend on it
    }
  }
  FileNameBands found;
  std::vector<std::set<std::string>> scenes;
  for (const Group& group : group_files(files)) {
    std::set<std::string> bands;
    for (const Part& part : group.parts)
      if (group.single_bands) bands.insert(as_in_configs(part.band)), found.of_file[part.file->path] = part.band;
    scenes.push_back(std::move(bands));
  }
  std::erase_if(files, [](const FoundFile& file) { return file.info.format == "VRT"; });
  for (const Group& group : group_files(files))  // parts of VRTs are no scenes, but their names tell bands
    for (const Part& part : group.parts)
      if (group.single_bands) found.of_file.emplace(part.file->path, part.band);
  const auto most =
      std::max_element(scenes.begin(), scenes.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (most == scenes.end()) return found;
  std::set<std::string> common = *most;
  for (const std::set<std::string>& bands : scenes) {
    std::set<std::string> both;
    std::set_intersection(common.begin(), common.end(), bands.begin(), bands.end(), std::inserter(both, both.end()));
    if (!both.empty()) common = std::move(both);
  }
  found.wanted.assign(common.begin(), common.end());
  std::stable_sort(found.wanted.begin(), found.wanted.end(),
                   [](const auto& a, const auto& b) { return number_of_band(a) < number_of_band(b); });
  return found;
}

SceneList find_scenes(const SceneRequest& request) {
  std::error_code ec;
  SceneList list;
  std::vector<FoundFile> files;
  if (fs::is_regular_file(request.from, ec))
    files.push_back({request.from, fs::path(request.from).parent_path().string(), ""});
  else {
    dataset::VisitedFolders visited;
    list_rasters(request.from, "", 0, files, list.other_files, visited);
  }
  if (files.empty())
    refuse(request.from, "there are no scenes", fmt::format("{} other files", list.other_files),
           ".tif, .tiff, .jp2 or .vrt files", holds_archives(request.from) ? "unpacking the archives there first" : "");
  std::vector<std::string> without_grid;
  for (FoundFile& file : files) {
    file.info = images::Raster(file.path).info();
    settle_alpha(file.info, request);
    if (file.info.has_control_points) without_grid.push_back(file.path);
  }
  if (!without_grid.empty())
    log::warn(
        "{} raster(s) have control points and no grid, such as {}: their tiles will have no place; gdalwarp makes "
        "a grid",
        without_grid.size(), without_grid.front());
  std::vector<Group> groups = group_files(files);
  std::vector<std::string> want = request.bands;
  dataset::check_distinct(want, "--bands");
  std::vector<std::pair<const Group*, Scene>> found;
  std::vector<std::string> have;  // names of bands of what is left out
  for (Group& group : groups) {
    if (group.single_bands) keep_one_resolution(group, request.resolution, list);
    Scene scene = make_scene(group, request);
    if (!request.bands.empty() && has_none(scene, want)) {
      list.left_out.push_back(scene.name);
      for (const SceneBand& band : scene.bands)
        if (std::find(have.begin(), have.end(), band.facts.name) == have.end()) have.push_back(band.facts.name);
      continue;
    }
    expect_all_names(group, request);
    expect_intensities(group);
    found.emplace_back(&group, std::move(scene));
  }
  for (const auto& [group, scene] : found)
    if (count_data_bands(group->parts.front().file->info) < int64_t(group->parts.front().file->info.bands.size())) {
      warn_of_alpha(group->parts.front().file->info);
      break;  // once
    }
  if (request.labels) list.classes = classes_of(found);
  if (!list.classes.empty()) leave_out_loose(found, request.from);
  for (auto& [group, scene] : found) {
    if (want.empty())
      for (const SceneBand& band : scene.bands) want.push_back(band.facts.name);
    choose_bands(scene, want, !request.bands.empty(), list);
    check_type(scene, request);
    if (!list.scenes.empty() && scene.type != list.scenes.front().type)
      refuse(scene.name, fmt::format("another type than {}", list.scenes.front().name),
             std::string(word_of(scene.type)), std::string(word_of(list.scenes.front().type)),
             "one folder per type, or gdal_translate -ot");
    place(scene, *group, request.resolution);
    const auto label = std::find(list.classes.begin(), list.classes.end(), group->top);
    if (label != list.classes.end()) scene.label = label - list.classes.begin();
    list.scenes.push_back(std::move(scene));
  }
  if (list.scenes.empty())
    refuse(request.from, "no raster has any of the bands",
           fmt::format("{} raster(s) with {}", list.left_out.size(), fmt::join(have, ", ")),
           fmt::format("{}", fmt::join(want, ", ")), "--bands with names that are there");
  std::stable_sort(list.scenes.begin(), list.scenes.end(),
                   [](const Scene& a, const Scene& b) { return facts_of(a) < facts_of(b); });
  return list;
}

}  // namespace ditrain::scenes
