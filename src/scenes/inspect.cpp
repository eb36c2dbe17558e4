#include "ditrain/scenes/inspect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/pattern.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_statistics.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/exif.hpp"
#include "ditrain/scenes/scenes.hpp"

namespace ditrain::scenes {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr size_t kMaxLines = 40;  // of files in the table
constexpr int64_t kReadBytes = int64_t{32} << 20;

json number(double x) { return std::isnan(x) ? json("nan") : std::isfinite(x) ? json(x) : json(); }

// Sums of one band.
struct Sums {
  int64_t valid = 0;
  double first = 0, sum = 0, squares = 0, min = HUGE_VAL, max = -HUGE_VAL;
  void add(double x) {
    if (valid++ == 0) first = x;
    sum += x - first, squares += (x - first) * (x - first), min = std::min(min, x), max = std::max(max, x);
  }
  json deviation() const {
    const double n = double(valid);
    return valid == 0 ? json() : number(std::sqrt(std::max(0.0, squares / n - (sum / n) * (sum / n))));
  }
  json mean() const { return valid == 0 ? json() : number(first + sum / double(valid)); }
};

void put_sums(json& file, const std::vector<Sums>& all) {
  for (const char* key : {"valid", "mean", "min", "max"}) file[key] = json::array();
  for (const Sums& s : all) {
    file["valid"].push_back(s.valid), file["mean"].push_back(s.mean());
    file["min"].push_back(s.valid == 0 ? json() : number(s.min)),
        file["max"].push_back(s.valid == 0 ? json() : number(s.max));
  }
}

// One value where all bands have the same, else a list.
json joined(const json& list) {
  return std::all_of(list.begin(), list.end(), [&](const json& item) { return item == list.front(); }) ? list.front()
                                                                                                       : list;
}

std::vector<Sums> sums_of(images::Raster& raster) {
  const images::RasterInfo& info = raster.info();
  const auto n = int64_t(info.bands.size());
  std::vector<Sums> sums(static_cast<size_t>(n));
  // Windows are as wide as the raster, unless a single row of all bands is too much.
  const auto side = [](int64_t most, int64_t whole, int64_t block) {
    most = std::clamp<int64_t>(most, 1, whole);
    return most < whole && block <= most ? most / block * block : most;
  };
  const int64_t pixel_bytes = n * images::pixel_bytes(info.type);
  const int64_t columns = side(kReadBytes / pixel_bytes, info.width, info.block_width);
  const int64_t rows = side(kReadBytes / (pixel_bytes * columns), info.height, info.block_height);
  images::RasterRead request;
  for (int64_t b = 0; b < n; ++b) request.bands.push_back(int(b));
  std::vector<double> numbers;
  const auto add_window = [&](const images::Window& window) {
    request.window = window;
    const int64_t pixels = window.width * window.height;
    const std::vector<std::byte> bytes = raster.read(request);
    const std::vector<uint8_t> valid = raster.read_mask(request.window);
    numbers.resize(size_t(pixels));
    for (int64_t b = 0; b < n; ++b) {
      images::to_f64(info.type, bytes.data() + b * pixels * images::pixel_bytes(info.type), pixels, numbers.data());
      const auto& nodata = info.bands[size_t(b)].nodata;
      for (size_t p = 0; p < numbers.size(); ++p)
        if ((valid[p] != 0 || info.bands[size_t(b)].is_alpha) && std::isfinite(numbers[p]) &&
            !(nodata && numbers[p] == *nodata))
          sums[size_t(b)].add(numbers[p]);
    }
  };
  for (int64_t y = 0; y < info.height; y += rows)
    for (int64_t x = 0; x < info.width; x += columns)
      add_window({x, y, std::min(columns, info.width - x), std::min(rows, info.height - y)});
  return sums;
}

// `named`: the band that the file's name gives to ditdata make, or "".
json of_raster(const std::string& path, const std::string& named) {
  images::Raster raster(path);
  const images::RasterInfo& info = raster.info();
  json file = {{"file", path},
               {"format", info.format},
               {"dtype", images::numpy_name(info.type)},
               {"shape", {info.bands.size(), info.height, info.width}}};
  json nodata = json::array(), names = json::array(), scales = json::array(), offsets = json::array();
  for (const images::RasterBand& band : info.bands) {
    nodata.push_back(band.nodata ? number(*band.nodata) : json());
    names.push_back(band.name), scales.push_back(band.scale), offsets.push_back(band.offset);
    if (band.is_alpha) file["alpha_band"] = names.size();
  }
  for (size_t b = 0; b < info.bands.size(); ++b)
    if (!named.empty() && !info.bands[b].is_alpha) names[b] = named;  // the only one
  file["nodata"] = joined(nodata), file["bands"] = names, file["scales"] = scales, file["offsets"] = offsets;
  file["crs"] = info.crs.empty() ? json() : json(info.crs);
  if (info.epsg != 0) file["epsg"] = info.epsg;
  file["geotransform"] = info.transform ? json(*info.transform) : json();
  file["mask"] = info.has_mask;
  put_sums(file, sums_of(raster));
  return file;
}

json of_image(const std::string& path, int64_t& turned) {
  const std::string bytes = files::read_text_file(path, images::kMaxImageFileBytes);
  const int orientation = images::exif_orientation(bytes);
  if (orientation != 1) ++turned;
  const images::ImageU8 image = images::decode_image(path, bytes);
  std::vector<Sums> sums(static_cast<size_t>(image.channels));
  for (size_t i = 0; i < image.pixels.size(); ++i) sums[i % sums.size()].add(image.pixels[i]);
  json file = {{"file", path},
               {"dtype", "uint8"},
               {"shape", {image.channels, image.height, image.width}},
               {"nodata", nullptr},
               {"bands", {"red", "green", "blue"}},
               {"crs", nullptr}};
  if (orientation != 1) file["exif_orientation"] = orientation;
  put_sums(file, sums);
  return file;
}

json of_tiles(const std::string& path) {
  const dataset::TileShards shards(path);
  const dataset::TileShard& s = shards.shards().front();
  const dataset::TileStatistics statistics = dataset::statistics_of(shards);
  json file = {{"file", path},
               {"dtype", images::numpy_name(s.type)},
               {"shape", {s.channels, s.height, s.width}},
               {"tiles", s.count}};
  json nodata = json::array();
  for (const dataset::TileBand& band : s.bands) nodata.push_back(band.nodata ? json(*band.nodata) : json());
  file["nodata"] = joined(nodata), file["bands"] = shards.band_names();
  file["crs"] = s.crs.empty() ? json() : json(s.crs);
  for (const dataset::BandStatistics& band : statistics.bands) {
    file["valid"].push_back(band.valid), file["mean"].push_back(band.mean);
    file["min"].push_back(band.min), file["max"].push_back(band.max);
  }
  if (!s.labels.empty()) file["labels"] = true;
  return file;
}

// As numpy calls it; numpy has no bfloat16, but everybody knows what is meant. Others as the file has them.
std::string numpy_name(const std::string& safetensors_type) {
  for (const auto& [type, name] :
       {std::pair{"F64", "float64"}, {"F32", "float32"}, {"F16", "float16"}, {"BF16", "bfloat16"}})
    if (safetensors_type == type) return name;
  return safetensors_type;
}

json of_latents(const std::string& path) {
  const weights::SafetensorsFile shard(path);
  const char* name = shard.contains("latents") ? "latents" : "mean";
  const weights::TensorView& view = shard.tensor(name);
  if (view.shape.size() != 4 || view.num_elements() == 0)
    throw InputError(
        {.where = path, .what = fmt::format("`{}` does not hold latents", name), .expected = "[N, C, H, W]"});
  std::vector<Sums> sums(static_cast<size_t>(view.shape[1]));
  const int64_t plane = view.shape[2] * view.shape[3];
  for (int64_t row = 0; row < view.shape[0]; ++row) {
    const std::vector<double> values = weights::to_f64(weights::row_range(view, row, 1));
    for (size_t i = 0; i < values.size(); ++i)
      if (std::isfinite(values[i])) sums[i / size_t(plane)].add(values[i]);
  }
  json file = {{"file", path},
               {"dtype", numpy_name(view.dtype)},
               {"shape", {view.shape[1], view.shape[2], view.shape[3]}},
               {"samples", view.shape[0]},
               {"nodata", nullptr},
               {"bands", json::array()},
               {"crs", nullptr}};
  if (shard.contains("labels")) file["labels"] = true;
  if (shard.contains(std::string(name) + "_flip")) file["flipped"] = true;
  const auto factor = shard.metadata().find("scale_factor");
  const double scale = factor == shard.metadata().end() ? 0 : std::strtod(factor->second.c_str(), nullptr);
  if (scale > 0) file["scale_factor"] = scale;
  put_sums(file, sums);
  for (const Sums& s : sums) file["deviation"].push_back(s.deviation());
  return file;
}

struct Found {
  std::map<dataset::FileKind, std::vector<std::string>> paths;
  dataset::VisitedFolders visited = {};
};

void look(const std::string& folder, int depth, Found& found) {
  if (!found.visited.enter(folder)) return;
  const dataset::Listing listing = dataset::list_folder(folder, "a folder that exists");
  for (const std::string& name : listing.files) found.paths[dataset::file_kind(name)].push_back(folder + "/" + name);
  if (depth < dataset::kMaxDepth)
    for (const std::string& name : listing.folders)
      if (name != dataset::kQualityFolder) look(folder + "/" + name, depth + 1, found);
}

std::string numbers_text(const json& list) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(list.size(), 4); ++i)
    text += (i ? " " : "") + (list[i].is_number() ? fmt::format("{:.5g}", list[i].get<double>()) : "-");
  return text + (list.size() > 4 ? " ..." : "");
}

std::string shape_text(const json& shape) {
  return fmt::format("{} x {} x {}", shape[0].get<int64_t>(), shape[1].get<int64_t>(), shape[2].get<int64_t>());
}

// Paths below the folder that all files share; of long ones the first folder and the name.
std::vector<std::string> short_names(const json& files) {
  fs::path folder = fs::path(files.empty() ? "" : files[0].at("file").get<std::string>()).parent_path();
  for (const json& f : files)
    while (!folder.empty() && !f.at("file").get<std::string>().starts_with((folder / "").string()))
      folder = folder == folder.parent_path() ? "" : folder.parent_path();
  std::vector<std::string> names;
  for (const json& f : files) {
    const fs::path path = fs::path(f.at("file").get<std::string>()).lexically_relative(folder.empty() ? "." : folder);
    names.push_back(std::distance(path.begin(), path.end()) <= 2 ? path.string()
                                                                 : (*path.begin() / "..." / path.filename()).string());
  }
  return names;
}

std::string table_of(const json& all) {
  const json& files = all.at("files");
  const std::vector<std::string> names = short_names(files);
  size_t width = 32;
  for (size_t i = 0; i < std::min(names.size(), kMaxLines); ++i) width = std::max(width, names[i].size());
  std::string text = fmt::format("{:<{}} {:<8} {:<18} {:<8} {:<26} {}\n", "file", width, "type", "C x H x W", "missing",
                                 "mean per band", "bands");
  for (size_t i = 0; i < std::min(files.size(), kMaxLines); ++i) {
    const json& f = files[i];
    const int64_t n = f.value("tiles", f.value("samples", int64_t{1}));
    const json& s = f.at("shape");
    int64_t valid = 0;
    for (const json& v : f.at("valid")) valid += v.get<int64_t>();
    const double pixels = double(n) * s[0].get<double>() * s[1].get<double>() * s[2].get<double>();
    std::string bands;
    for (const json& b : f.at("bands")) bands += (bands.empty() ? "" : ",") + b.get<std::string>();
    text += fmt::format("{:<{}} {:<8} {:<18} {:<8} {:<26} {}\n", names[i], width, f.at("dtype").get<std::string>(),
                        (n > 1 ? std::to_string(n) + " of " : "") + shape_text(s),
                        fmt::format("{:.2f} %", 100 * (1 - double(valid) / pixels)), numbers_text(f.at("mean")), bands);
  }
  if (files.size() > kMaxLines) text += fmt::format("... and {} more files\n", files.size() - kMaxLines);
  return text;
}

// The data set that ditrain would open, and what it says; null: it would refuse the path, and `problem` is why.
std::unique_ptr<dataset::Dataset> open_as(const std::string& kind, const std::string& path, const json& first,
                                          std::string& problem) {
  const json& shape = first.at("shape");
  dataset::Config config;
  config.kind = dataset::find_kind(kind == "images" ? "folder" : kind), config.path = path;
  config.scaling = {
      .from = dataset::ScalingFrom::kRange, .low = 0, .high = 1};  // the ranges of tiles do not matter here
  const auto side = [&](size_t i) { return shape[i].get<int64_t>(); };
  try {
    if (kind == "tiles") dataset::settle_tiles(config);
    return dataset::open_dataset(config, {side(0), side(1), side(2)}, /*num_classes=*/0, /*seed=*/0);
  } catch (const Error& e) {
    problem = e.what();
    return nullptr;
  }
}

// The classes that ditdata make would find with these bands; {}: none, or it would refuse the path: `problem` is why.
std::vector<std::string> classes_of_scenes(const std::string& path, const std::vector<std::string>& bands,
                                           std::string& problem) {
  try {
    return find_scenes({.from = path, .bands = bands}).classes;
  } catch (const Error& e) {
    problem = e.what();
    return {};
  }
}

// The side of the tiles that the small configs train on, or a smaller one if no file has such a tile.
int64_t tile_that_fits(const json& files) {
  int64_t largest = 0;
  for (const json& f : files) {
    const json& s = f.at("shape");
    largest = std::max(largest, std::min(s[1].get<int64_t>(), s[2].get<int64_t>()));
  }
  constexpr int64_t kTile = 32, kUnit = 8;  // patches of models divide multiples of 8
  return largest >= kTile ? kTile : largest >= kUnit ? largest / kUnit * kUnit : largest;
}

// Processing baselines of the Sentinel-2 products in which the files lie, 400 of ..._N0400_...; 0: a product whose name
// does not tell.
std::set<int> baselines_of(const std::vector<std::string>& paths) {
  static const Pattern product("^S2[A-Z]_MSIL"), baseline("_N([0-9]{4})(_|[.]|$)");
  std::set<int> all;
  for (const std::string& path : paths)
    for (const fs::path& part : fs::absolute(path).parent_path()) {
      const std::string name = part.string();
      if (!product.is_in(name)) continue;
      const Pattern::Match found = baseline.find(name);
      all.insert(found ? std::stoi(found.groups[1]) : 0);
    }
  return all;
}

// What JPEG 2000 files of Sentinel-2 do not state: the number of missing pixels, and what numbers mean. From baseline
// 04.00 on they have 1000 added.
struct NumberFlags {
  std::string flags, note;
};
NumberFlags number_flags(const std::vector<std::string>& paths) {
  constexpr int kFirstWithOffset = 400;
  const std::set<int> baselines = baselines_of(paths);
  if (baselines.empty()) return {};
  const bool old = *baselines.begin() > 0 && *baselines.begin() < kFirstWithOffset;
  const bool recent = *baselines.rbegin() >= kFirstWithOffset || baselines.contains(0);
  NumberFlags known;
  known.flags = fmt::format(" --nodata 0 --scale 1e-4 --offset {}", recent ? "-0.1" : "0");
  if (old && recent)
    known.note = "Sentinel-2 products from before baseline 04.00 have --offset 0: make tiles of them alone\n";
  else if (baselines.contains(0))
    known.note = "Sentinel-2 products from before baseline 04.00 (N0400 in their name) have --offset 0\n";
  return known;
}

// The line that cuts rasters into tiles. Bands by name leave out previews and masks, which have others.
std::string way_to_tiles(const std::string& from, const json& files, const std::vector<std::string>& bands) {
  std::vector<std::string> paths;
  for (const json& f : files)
    if (f.contains("format")) paths.push_back(f.at("file").get<std::string>());
  const NumberFlags numbers = number_flags(paths);
  return fmt::format("ditrain trains on tiles of them: ditdata make --from {}{}{} --tile {} --out TILES\n{}",
                     quoted_word(from), bands.empty() ? "" : fmt::format(" --bands {}", fmt::join(bands, ",")),
                     numbers.flags, tile_that_fits(files), numbers.note);
}

// What is learnt best has a deviation of about 1; that of latents is 5 or so until they are scaled.
std::string about_deviation(const json& deviations, double scale) {
  double sum = 0;
  for (const json& d : deviations) sum += d.is_number() ? d.get<double>() * d.get<double>() : 0;
  const double deviation = scale * std::sqrt(sum / double(deviations.size()));
  const bool odd = dataset::is_odd_deviation(deviation);
  return fmt::format("deviation per channel: {}; as they are trained on: {:.3g}{}\n", numbers_text(deviations),
                     deviation, odd ? ", far from 1: data.latent_scale should be the factor of their VAE" : "");
}

// What ditrain would make of it: one or two lines. `bands`: those that ditdata make has to name.
std::string advice_of(const json& all, const std::string& kind, const std::vector<std::string>& bands, int64_t classes,
                      const std::string& problem) {
  const json& first = all.at("files").front();
  const json& s = first.at("shape");
  const auto path = all.at("path").get<std::string>();
  if (!problem.empty())
    return fmt::format("{} would refuse it: {}\n", kind == "rasters" ? "ditdata make" : "ditrain", problem);
  if (kind == "rasters") return way_to_tiles(path, all.at("files"), bands);
  if (kind == "images")
    return fmt::format(
        "data.kind=folder data.path={} model.in_channels=3 model.num_classes={}: scaled and cropped to "
        "model.input_size\n",
        quoted_word(path), classes);
  const double scale = first.value("scale_factor", 1.0);
  return (first.contains("deviation") ? about_deviation(first.at("deviation"), scale) : "") +
         fmt::format(
             "data.kind={} data.path={} model.in_channels={} model.input_size=[{}, {}] model.num_classes={}{}\n", kind,
             quoted_word(path), s[0].get<int64_t>(), s[1].get<int64_t>(), s[2].get<int64_t>(), classes,
             scale == 1 ? "" : fmt::format(" data.latent_scale={}", scale));
}

}  // namespace

Inspection inspect_path(const std::string& path) {
  Found found;
  std::error_code ec;
  if (fs::is_regular_file(path, ec))
    found.paths[dataset::file_kind(path)].push_back(path);
  else
    look(path, 0, found);
  json files = json::array(), damaged = json::array();
  int64_t turned = 0;
  std::string kind;
  std::set<std::string> shapes;
  const auto add = [&](const std::string& file, const std::function<json()>& read) {
    try {
      files.push_back(read());
    } catch (const Error& e) {  // the others are looked at all the same
      damaged.push_back({{"file", file}, {"problem", e.what()}});
    }
  };
  for (const std::string& file : found.paths[dataset::FileKind::kShard])
    add(file, [&] {
      const bool tiles = weights::SafetensorsFile(file).contains("images");
      kind = tiles ? "tiles" : "latents";
      return tiles ? of_tiles(file) : of_latents(file);
    });
  const std::vector<std::string>& rasters = found.paths[dataset::FileKind::kRaster];
  if (!rasters.empty()) kind = "rasters";
  FileNameBands bands = bands_of_file_names(rasters);
  for (const std::string& file : rasters) add(file, [&] { return of_raster(file, bands.of_file[file]); });
  if (kind.empty()) kind = "images";
  for (const std::string& file : found.paths[dataset::FileKind::kImage])
    add(file, [&] { return of_image(file, turned); });
  const size_t others = found.paths[dataset::FileKind::kOther].size();
  const bool archives = std::any_of(found.paths[dataset::FileKind::kOther].begin(),
                                    found.paths[dataset::FileKind::kOther].end(), dataset::is_archive);
  if (files.empty() && !damaged.empty())
    throw InputError({.where = path,
                      .what = fmt::format("none of {} files can be read", damaged.size()),
                      .got = damaged.front().at("problem").get<std::string>()});
  if (files.empty())
    throw InputError({.where = path,
                      .what = "there is no data",
                      .got = fmt::format("{} other files", others),
                      .expected = "rasters (.tif, .jp2, .vrt), images (.jpg, .png, .bmp) or .safetensors shards",
                      .hint = archives ? "unpacking the archives there first" : ""});
  for (const json& file : files) shapes.insert(shape_text(file.at("shape")));
  std::string problem, warnings;
  std::vector<std::string> classes;
  int64_t num_classes = 0;
  if (kind == "rasters") {
    classes = classes_of_scenes(path, bands.wanted, problem);
    num_classes = int64_t(classes.size());
  } else if (const auto data = open_as(kind, path, files.front(), problem)) {
    classes = data->class_names(), num_classes = data->num_classes();
    for (const std::string& warning : data->warnings()) warnings += "warning: " + warning + "\n";
  }
  json all = {{"path", path},          {"kind", kind},          {"classes", classes}, {"num_classes", num_classes},
              {"other_files", others}, {"exif_turned", turned}, {"files", files},     {"damaged", damaged}};
  std::string table = table_of(all);
  table += fmt::format("{} files ({}), {} kind(s) of sizes, {} classes{}, {} other files\n", files.size(), kind,
                       shapes.size(), num_classes,
                       classes.empty() ? "" : fmt::format(" ({})", fmt::join(classes, ", ")), others);
  if (turned > 0)
    table += fmt::format("{} images have an EXIF orientation that data.exif_orientation: true would turn\n", turned);
  for (const json& file : damaged) table += fmt::format("damaged: {}\n", file.at("problem").get<std::string>());
  table += warnings + advice_of(all, kind, bands.wanted, num_classes, problem);
  return {table, int64_t(damaged.size()), files::json_text(all, 1) + "\n"};
}

}  // namespace ditrain::scenes
