// ditdata: makes training data and looks at it. `make`: tiles of scenes. `encode`: the latents of images, by the
// autoencoder that a model is to be trained on. `stats`: statistics of tiles. `inspect`: what a path holds.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/pattern.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/base/words.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/dataset/tile_statistics.hpp"
#include "ditrain/eval/autoencoder_file.hpp"
#include "ditrain/eval/latent_shards.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/plan/placement.hpp"
#include "ditrain/scenes/inspect.hpp"
#include "ditrain/scenes/tile_maker.hpp"

namespace {

using namespace ditrain;

constexpr double kSameSize = 1.01;  // sizes of pixels of one product differ by map projections
constexpr double kGreatestFloat = std::numeric_limits<float>::max();
const std::vector<std::string> kCommands = {"make", "encode", "stats", "inspect"};

config::CommandLine make_command_line() {
  std::vector<config::Command> commands;
  for (const std::string& name : kCommands) commands.push_back({.name = name});
  return config::CommandLine(config::Usage{
      "ditdata",
      "make training data and look at it",
      {{"from", "PATH",
        "a folder of images or tiles (encode) or of scenes (make), or one with a sub-folder of them per class"},
       {"vae", "FILE|DIR",
        "encode: autoencoder: safetensors under the names of diffusers or latent-diffusion, or a folder of diffusers"},
       {"out", "DIR", "make, encode: folder of the shards"},
       {"size", "N", "encode: side of the images, cropped and scaled as for training; tiles have their own", "256"},
       {"posterior", config::choices<eval::PosteriorUse>(),
        "encode: what is stored: one draw from the posterior, its mean, or mean and log-variance, from which training "
        "draws "
        "anew each time",
        "sample"},
       {"flip", "", "encode: also the latents of the mirrored images"},
       {"shard", "N", "encode: images in a shard", "1024"},
       {"seed", "K", "encode: seed of the random numbers, from 0 to 2^63 - 1", "0"},
       {"precision", config::choices<DType>(), "encode: of the autoencoder", "f32"},
       {"scale-factor", "X", "encode: what latents are to be multiplied by, where the VAE's config.json does not tell"},
       {"groups", "G", "encode: of group normalisation, where the VAE's config.json does not tell (default: 32)"},
       {"on-bad-file", config::choices<dataset::OnBadFile>(),
        "encode: stop at an unreadable image, or take the next one in its place", "error"},
       {"tile", "N", "make: side of the tiles in pixels", "256"},
       {"bands", "A,B,...",
        "make: bands by name, in this order (default: all of the first scene); encode: of tiles, as many as the VAE "
        "has"},
       {"names", "A,B,...", "make: names of the bands of files that name none"},
       {"resolution", "M", "make: side of a pixel in units of the CRS (default: that of the finest band)"},
       {"max-nodata", "F", "make: greatest share of missing pixels of a tile that is kept", "0.1"},
       {"nodata", "V", "make: the number of missing pixels, in files that state none (Sentinel-2: 0)"},
       {"scale", "X",
        "make: reflectance (or another quantity) = number * X + Y of --offset, in files that state no scale "
        "(Sentinel-2: 1e-4)",
        "1"},
       {"offset", "Y", "make: see --scale (Sentinel-2 from baseline 04.00 on: -0.1)", "0"},
       {"no-labels", "", "make: sub-folders are no classes"},
       {"json", "FILE", "inspect: write what was found there"},
       {"threads", "T", "make, encode, stats: of a rank; 0: all of its cores", "0"}},
      "make | encode | stats PATH | inspect PATH",
      "make splits scenes (GeoTIFF, COG, JPEG 2000, VRT; one file per scene or one per band) into tiles: safetensors "
      "shards\n"
      "(data.kind: tiles) and stats.json beside them. It needs GDAL. stats writes the stats.json of a folder anew; "
      "inspect\n"
      "says what rasters, images, tiles or latents a path holds. An interrupted make resumes when it is started "
      "again.\n\n"
      "encode writes the latents of images as safetensors shards (data.kind: latents) and stats.json beside them, "
      "alone\nor under mpirun. An interrupted encode resumes with the shards that are missing. Latents do not "
      "depend on the\nnumber of ranks or threads.",
      commands});
}

eval::AutoencoderOptions options_of(const config::CommandLine& line) {
  eval::AutoencoderOptions options;
  if (line.has("groups")) options.groups = line.get_int("groups", 1, 4096);
  if (line.has("scale-factor")) options.scale_factor = line.get_double("scale-factor", 1e-6, 1e6);
  return options;
}

std::vector<std::string> names_of(const config::CommandLine& line, const std::string& flag) {
  if (!line.has(flag)) return {};
  const std::vector<std::string> names = cells(line.get(flag), ',');
  if (std::count(names.begin(), names.end(), "") > 0)
    throw InputError({.where = "command line", .what = "--" + flag + " has an empty name", .got = line.get(flag)});
  return names;
}

void expect_bands(const dataset::Config& config, const dataset::TileShards& tiles, int64_t channels) {
  const std::vector<std::string> all = tiles.band_names();
  const size_t n = config.bands.empty() ? all.size() : config.bands.size();
  if (int64_t(n) == channels) return;
  throw InputError({.where = config.path,
                    .what = "the tiles have another number of bands than the VAE has channels",
                    .got = std::to_string(n),
                    .expected = std::to_string(channels),
                    .hint = fmt::format("--bands with {} of {}", channels, fmt::join(all, ", "))});
}

/// Notes in `shards` what is known of tiles.
std::unique_ptr<dataset::Dataset> open_images(const config::CommandLine& line, int64_t channels,
                                              eval::LatentShards& shards) {
  dataset::Config config;
  config.path = line.get_path("from");
  config.kind = dataset::find_kind(dataset::holds_tiles(config.path) ? "tiles" : "folder");
  config.bands = names_of(line, "bands");
  if (!config.kind->of_bands && !config.bands.empty())
    throw InputError({.where = "command line",
                      .what = "--bands names bands of tiles",
                      .got = "images in " + config.path,
                      .hint = "ditdata make, which makes tiles of scenes"});
  int64_t height = line.get_int("size", 8, 1 << 14), width = height;
  if (config.kind->of_bands) {
    const dataset::TileShards tiles(config.path);
    const dataset::TileShard& first = tiles.shards().front();
    if (line.has("size") && (first.height != height || first.width != width))
      throw InputError({.where = "command line",
                        .what = "--size is the side of images; tiles are encoded as they are",
                        .got = fmt::format("--size {} for tiles of {} x {}", height, first.height, first.width),
                        .hint = "ditdata make --tile N, which cuts tiles of another size"});
    height = first.height, width = first.width;
    expect_bands(config, tiles, channels);
    dataset::settle_tiles(config);
    shards.tiles = dataset::tile_facts(config);
  }
  config.on_bad_file = line.get_word<dataset::OnBadFile>("on-bad-file");
  return dataset::open_dataset(config, {channels, height, width}, 0, 0);
}

/// How far rank 0 is: often on a terminal, now and then in a file.
class Progress {
 public:
  explicit Progress(bool speaks) : speaks_(speaks) {}
  void operator()(const eval::EncodingProgress& p) {
    const double now = now_s() - start_s_;
    if (!speaks_ || (p.encoded < p.to_do && now - last_s_ < interval_s_)) return;
    last_s_ = now;
    const double rate = double(p.encoded) / now;
    log::progress_line(fmt::format("{} of {} images of this rank, {:.2f} images/s, {:.0f} s to go", p.encoded, p.to_do,
                                   rate, double(p.to_do - p.encoded) / rate));
  }

 private:
  bool speaks_;
  double interval_s_ = isatty(STDOUT_FILENO) != 0 ? 0.5 : 10, last_s_ = 0;
  double start_s_ = now_s();
};

void check_agreement(const config::CommandLine& line, const std::string& vae, const dataset::Dataset& data,
                     dist::Communicator& comm) {
  std::vector<config::RankInvariant> invariants = config::program_invariants("ditdata");
  invariants.push_back({"command line", line.effective_text({"threads"}), "the same flags for all ranks"});
  invariants.push_back({"hash of the VAE", vae, "a file system that all nodes share"});
  invariants.push_back({"images", data.describe(), "a file system that all nodes share"});
  config::check_agreement(comm, invariants);
}

// Latents among the images would be a class of them when the work goes on.
void expect_outside(const std::string& out, const std::string& from) {
  namespace fs = std::filesystem;
  const std::string inner = fs::weakly_canonical(out).string() + "/", outer = fs::weakly_canonical(from).string() + "/";
  if (inner.starts_with(outer))
    throw InputError({.where = "command line",
                      .what = "--out lies inside of --from",
                      .got = out,
                      .expected = "a folder beside " + from});
}

// The latents of a shard are kept until it is whole; images are read as many at a time as there are workers.
size_t bytes_of_encoding(const eval::AutoencoderFile& file, const eval::LatentShards& shards,
                         const dataset::SampleShape& image, int64_t images, DType type, int workers) {
  const int64_t f = file.config().shrink(), z = file.config().latent_channels;
  const int64_t latent = z * (image.height / f) * (image.width / f);
  const int64_t parts = (shards.posterior == eval::PosteriorUse::kMoments ? 2 : 1) * (shards.flip ? 2 : 1);
  return file.bytes(type, nn::AutoencoderUse::kEncode, image.height, image.width, workers) +
         size_t(workers * (image.elements() + 6 * latent) + std::min(images, shards.samples) * latent * parts) *
             sizeof(float);
}

int encode(const config::CommandLine& line, dist::Communicator& comm) {
  line.need({"from", "vae", "out"});
  const eval::AutoencoderFile file(line.get_path("vae"), options_of(line));
  eval::LatentShards shards{.out = line.get_path("out"),
                            .samples = line.get_int("shard", 1, 1 << 20),
                            .flip = line.has("flip"),
                            .posterior = line.get_word<eval::PosteriorUse>("posterior"),
                            .seed = uint64_t(line.get_int("seed", 0, INT64_MAX)),
                            .scale_factor = file.scale_factor(),
                            .vae = files::to_hex(files::checksum_of_file(file.weights_path()))};
  const auto data = open_images(line, file.config().image_channels, shards);
  expect_outside(shards.out, line.get_path("from"));
  check_agreement(line, shards.vae, *data, comm);
  log::info("{}", data->describe());
  for (const std::string& warning : data->warnings())
    if (comm.rank() == 0) log::warn("{}", warning);
  if (const std::string ignored = data->describe_ignored(); !ignored.empty()) log::info("{}", ignored);

  config::Config machine;
  machine.parallel.threads = line.get_int("threads", 0, 1 << 16), machine.parallel.comm_cores = 0;
  const plan::Placement placement = plan::plan_placement(machine, comm);
  for (const std::string& note : placement.notes) log::info("{}", note);
  parallel::Team team(placement.team());
  ops::Context ctx(team);
  const dataset::SampleShape& image = data->shape();
  const DType type = line.get_word<DType>("precision");
  const size_t bytes = bytes_of_encoding(file, shards, image, data->size(), type, team.num_workers());
  plan::check_memory(bytes, comm.local_size(), "encoders",
                     shards.tiles.empty() ? "fewer ranks, a smaller --shard or --size"
                                          : "fewer ranks, a smaller --shard, or smaller tiles");
  nn::Autoencoder vae = file.load(type, nn::AutoencoderUse::kEncode);
  log::info("autoencoder {}: weights {:.0f} MB, in all {:.0f} MB per rank, latents {} x {} x {}, scale factor {}",
            file.weights_path(), double(vae.weight_bytes()) * 1e-6, double(bytes) * 1e-6, file.config().latent_channels,
            image.height / file.config().shrink(), image.width / file.config().shrink(), file.describe_scale());
  eval::write_latent_shards(ctx, vae, *data, shards, comm, Progress(comm.rank() == 0));
  if (data->bad_files() > 0) log::warn("{} unreadable images were replaced by the next ones", data->bad_files());
  log::info("latents of {} images in {}; to train on them: data.kind=latents data.path={}", data->size(),
            quoted_word(shards.out), quoted_word(shards.out));
  return kExitDone;
}

/// A scene whose numbers of this band mean something else than those of the first scene; null: there is none.
const scenes::Scene* with_other_scale(const scenes::SceneList& list, size_t band) {
  const dataset::TileBand& facts = list.scenes.front().bands[band].facts;
  const auto found = std::find_if(list.scenes.begin(), list.scenes.end(), [&](const scenes::Scene& scene) {
    return scene.bands[band].facts.scale != facts.scale || scene.bands[band].facts.offset != facts.offset;
  });
  return found == list.scenes.end() ? nullptr : &*found;
}

void warn_of_scales(const scenes::SceneList& list) {
  const scenes::Scene& first = list.scenes.front();
  for (size_t b = 0; b < first.bands.size(); ++b)
    if (const scenes::Scene* other = with_other_scale(list, b)) {
      const dataset::TileBand &facts = first.bands[b].facts, &others = other->bands[b].facts;
      log::warn(
          "{} has scale {} and offset {} in band {}, and {} has {} and {}: ditrain refuses tiles of both, which "
          "need folders of their own, unless data.number_scale and data.number_offset are set",
          first.name, facts.scale, facts.offset, facts.name, other->name, others.scale, others.offset);
      return;
    }
}

/// Warns of scenes that show the same ground on the same day: copies, or bands whose names do not tell that.
void warn_of_twins(const scenes::SceneList& list) {
  std::map<std::string, const scenes::Scene*> seen;  // by folder, grid and date
  int64_t twins = 0;
  std::pair<std::string, std::string> example;
  for (const scenes::Scene& scene : list.scenes) {
    if (!scene.transform) continue;
    const auto folder = std::filesystem::path(scene.bands.front().file).parent_path().string();
    const auto [same, is_first] = seen.emplace(
        fmt::format("{} {} x {} {} {} {}", folder, scene.width, scene.height, fmt::join(*scene.transform, " "),
                    fmt::join(scene.metadata.begin() + kYear, scene.metadata.end(), " "), scene.crs),
        &scene);
    if (!is_first && ++twins == 1) example = {same->second->name, scene.name};
  }
  if (twins == 0) return;
  log::warn(
      "{} of {} scenes lie on the grid of another one of their folder and have no other date, such as {} and {}: {}",
      twins, list.scenes.size(), example.first, example.second,
      list.scenes.front().bands.size() > 1
          ? "a copy, such as a stack beside its single bands, gives every tile twice"
          : "leave copies out; bands of one scene need names that say so (X_B2.tif, X_Red.tif), or a VRT that stacks "
            "them (gdalbuildvrt -separate)");
}

/// Warns of scenes whose numbers or pixels mean something else than those of the others.
void warn_of_mixtures(const scenes::SceneList& list) {
  static const Pattern baseline("S2[A-Z]_MSIL.*_N([0-9]{4})_");
  std::string with_offset, without;       // a product of each kind
  double least = HUGE_VAL, greatest = 0;  // sides of pixels
  for (const scenes::Scene& scene : list.scenes) {
    const std::string& file = scene.bands.front().file;
    if (const auto found = baseline.find(file)) (found.groups[1] >= "0400" ? with_offset : without) = file;
    if (!scene.transform) continue;
    const double side = std::hypot((*scene.transform)[1], (*scene.transform)[4]);
    least = std::min(least, side), greatest = std::max(greatest, side);
  }
  if (!with_offset.empty() && !without.empty())
    log::warn(
        "Sentinel-2 products of processing baseline 04.00 and later have an offset of -1000, older ones have none: "
        "{} and {} need folders of their own, and --offset of their own",
        with_offset, without);
  if (greatest > kSameSize * least)
    log::warn("scenes have pixels of different sizes (from {:.6g} to {:.6g}); --resolution makes them equal", least,
              greatest);
  warn_of_scales(list);
  warn_of_twins(list);
}

void log_scenes(const scenes::SceneList& list, double resolution) {
  const scenes::Scene& first = list.scenes.front();
  std::string bands;
  for (const scenes::SceneBand& band : first.bands) bands += (bands.empty() ? "" : ", ") + band.facts.name;
  log::info("{} scene(s) of {} band(s) ({}): {}; the first: {}, {} x {} pixels", list.scenes.size(), first.bands.size(),
            word_of(first.type), bands, first.name, first.width, first.height);
  if (!list.classes.empty())
    log::info("{} classes from sub-folders: {} (--no-labels if they are none)", list.classes.size(),
              fmt::join(list.classes, ", "));
  const scenes::SceneBand& band = first.bands.front();
  if (!band.facts.nodata && !band.has_mask && band.file.find(".SAFE/") != std::string::npos)
    log::warn("{} states no number of missing pixels: --nodata 0 drops the black borders of Sentinel-2 scenes",
              band.file);
  warn_of_mixtures(list);
  if (std::all_of(first.bands.begin(), first.bands.end(),
                  [](const scenes::SceneBand& b) { return dataset::is_numbered_band(b.facts.name); }))
    log::warn(
        "the files name no bands: --names B2,B3,... (or Blue,Green,...) names them; else colours and NDVI are not "
        "found, and configs that name their bands (data.bands) refuse these tiles");
  if (list.reordered > 0) log::info("{} scene(s) have their bands in another order: put into this one", list.reordered);
  if (!list.left_out.empty())
    log::info("left out {} raster(s) without any of --bands, such as {}", list.left_out.size(), list.left_out.front());
  if (!list.other_resolutions.empty())
    log::info("left out {} file(s) of bands that are there at several resolutions, such as {}: {}",
              list.other_resolutions.size(), list.other_resolutions.front(),
              resolution > 0 ? "the coarsest that is not coarser than --resolution is taken, else the finest"
                             : "the finest is taken");
  if (list.other_files > 0)
    log::info("ignored {} files that do not end as rasters do (.tif, .jp2, .vrt ...)", list.other_files);
}

/// As Progress, of scenes.
class TileLine {
 public:
  void operator()(const scenes::TileProgress& p) {
    const double now = now_s() - start_s_;
    if (p.pieces < p.of && now - last_s_ < interval_s_) return;
    last_s_ = now;
    log::progress_line(fmt::format("{} of {} pieces, {} tiles, {} dropped, {:.0f} MB/s", p.pieces, p.of, p.tiles,
                                   p.dropped, p.source_bytes * 1e-6 / now));
  }

 private:
  double interval_s_ = isatty(STDOUT_FILENO) != 0 ? 0.5 : 10, last_s_ = 0;
  double start_s_ = now_s();
};

dataset::TileStatistics write_tile_statistics(const std::string& path, int threads) {
  const dataset::TileShards shards(path);
  if (const std::string unfinished = shards.describe_unfinished(); !unfinished.empty()) log::warn("{}", unfinished);
  const dataset::TileStatistics statistics = dataset::statistics_of(shards, threads);
  dataset::write_statistics(dataset::statistics_path(path), statistics);
  for (const dataset::BandStatistics& band : statistics.bands)
    log::info("  {:<12} mean {:<10.5g} deviation {:<10.5g} {:.6g} to {:.6g}, 0.5 % {:.6g}, 99.5 % {:.6g}, missing {}",
              band.name, band.mean, band.deviation, band.min, band.max, band.percentile(dataset::kLowPercentile),
              band.percentile(dataset::kHighPercentile), band.missing);
  log::info("statistics of {} tiles in {}", statistics.tiles, dataset::statistics_path(path));
  return statistics;
}

/// What the numbers mean by the scales and offsets of all scenes, which shows a wrong --scale or --offset (`declared`).
void log_quantities(const scenes::SceneList& list, const dataset::TileStatistics& statistics, bool declared) {
  constexpr double kLeast = -0.2, kGreatest = 2;  // of reflectances
  std::string text;
  size_t odd = 0;
  for (size_t b = 0; b < statistics.bands.size(); ++b) {
    if (with_other_scale(list, b) != nullptr) return;  // several quantities
    const dataset::TileBand& facts = list.scenes.front().bands[b].facts;
    if (facts.scale == 1 && facts.offset == 0) continue;
    const double mean = statistics.bands[b].mean * facts.scale + facts.offset;
    text += fmt::format("{}{} {:.4g}", text.empty() ? "" : ", ", facts.name, mean);
    odd += !(mean >= kLeast && mean <= kGreatest);
  }
  if (text.empty()) return;
  log::info("means of number * scale + offset: {}", text);
  if (declared && 2 * odd > statistics.bands.size())
    log::warn(
        "most of these means lie outside of {} to {}, where reflectances are: --scale is what numbers are multiplied "
        "by, and --offset is in units of the result (Sentinel-2: --scale 1e-4, and --offset -0.1 for an offset of "
        "-1000)",
        kLeast, kGreatest);
}

int make(const config::CommandLine& line) {
  line.need({"from", "out"});
  const std::string from = line.get_path("from");
  images::need_gdal(from);
  scenes::SceneRequest request{.from = from, .bands = names_of(line, "bands"), .names = names_of(line, "names")};
  if (line.has("resolution")) request.resolution = line.get_double("resolution", 1e-9, 1e9);
  request.labels = !line.has("no-labels");
  if (line.has("nodata")) request.nodata = line.get_double("nodata", -kGreatestFloat, kGreatestFloat);
  request.scale = line.get_double("scale", -1e30, 1e30), request.offset = line.get_double("offset", -1e30, 1e30);
  if (request.scale == 0) throw InputError({.where = "command line", .what = "--scale 0 makes every number the same"});
  scenes::TileJob job{.scenes = scenes::find_scenes(request),
                      .out = line.get_path("out"),
                      .tile = line.get_int("tile", 1, 4096),
                      .max_nodata = line.get_double("max-nodata", 0, 1),
                      .threads = line.get_threads(0)};
  log_scenes(job.scenes, request.resolution);
  const scenes::TileResult result = scenes::make_tiles(job, TileLine());
  if (result.found > 0) log::info("{} tiles were there already", result.found);
  log::info("{} tiles of {} x {} in {}; {} dropped for missing pixels (--max-nodata {}), {} pixels at edges in no tile",
            result.tiles, job.tile, job.tile, job.out, result.dropped, job.max_nodata, result.edge_pixels);
  if (result.small_scenes > 0) log::warn("{} scene(s) are smaller than a tile and gave none", result.small_scenes);
  log_quantities(job.scenes, write_tile_statistics(job.out, job.threads), line.has("scale") || line.has("offset"));
  log::info("to train on them: data.kind=tiles data.path={} model.in_channels={} model.input_size={}",
            quoted_word(job.out), job.scenes.scenes.front().bands.size(), job.tile);
  return kExitDone;
}

int stats(const config::CommandLine& line, const std::string& path) {
  if (!dataset::holds_tiles(path))
    throw InputError({.where = path,
                      .what = "there are no tiles whose statistics could be written",
                      .hint = "ditdata make; ditdata encode writes those of latents itself"});
  if (dataset::is_one_of_several(path))
    throw InputError({.where = path,
                      .what = "the file is one of several in its folder, whose stats.json is of all of them",
                      .hint = dataset::way_to_statistics(dataset::TileShards(path))});
  write_tile_statistics(path, line.get_threads(0));
  return kExitDone;
}

int inspect(const config::CommandLine& line, const std::string& path) {
  if (line.has("json")) files::check_output_file(line.get_path("json"));
  const scenes::Inspection found = scenes::inspect_path(path);
  log::info_lines(found.table);
  if (line.has("json")) files::write_file_atomically(line.get_path("json"), found.json);
  return found.damaged > 0 ? kExitBadInput : kExitDone;
}

/// Flags of one command would be ignored in silence by another.
void check_flags(const config::CommandLine& line, const std::string& command) {
  const std::map<std::string, std::vector<const char*>> flags = {
      {"make",
       {"from", "out", "tile", "bands", "names", "resolution", "max-nodata", "nodata", "scale", "offset", "no-labels",
        "threads"}},
      {"encode",
       {"from", "vae", "out", "size", "posterior", "flip", "shard", "seed", "precision", "scale-factor", "groups",
        "bands", "on-bad-file", "threads"}},
      {"stats", {"threads"}},
      {"inspect", {"json"}}};
  for (const auto& [other, names] : flags)
    for (const char* name : names) {
      const auto& own = flags.at(command);
      if (line.has(name) &&
          std::find_if(own.begin(), own.end(), [&](const char* o) { return std::string_view(o) == name; }) == own.end())
        throw InputError({.where = "command line",
                          .what = fmt::format("--{} is a flag of ditdata {}", name, other),
                          .got = "ditdata " + command,
                          .hint = std::string_view(name) == "on-bad-file" && command == "make"
                                      ? "moving damaged scenes away, which ditdata inspect lists"
                                      : ""});
    }
}

int body(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line();
  if (!line.parse(argc, argv)) return kExitDone;
  const std::vector<std::string>& words = line.positional();
  const std::string command = words.empty() ? "" : words.front();
  const bool looks = command == "stats" || command == "inspect";
  if (words.empty())
    throw InputError({.where = "command line",
                      .what = "a command is needed",
                      .expected = alternatives(kCommands),
                      .hint = "ditdata --help"});
  if (std::find(kCommands.begin(), kCommands.end(), command) == kCommands.end())
    refuse_word("command line", "unknown command", command, kCommands);
  if (words.size() != (looks ? 2u : 1u))
    throw InputError({.where = "command line",
                      .what = looks ? "ditdata " + command + " takes one path" : "what is not a flag",
                      .got = words.size() > 1 ? words.back() : "nothing",
                      .hint = looks ? "ditdata " + command + " PATH" : "--from " + quoted_word(words.back())});
  check_flags(line, command);
  if (command == "encode") return encode(line, comm);
  if (comm.rank() != 0) return kExitDone;  // the others are there so that a job script need not treat it differently
  if (command == "make") return make(line);
  return command == "stats" ? stats(line, words[1]) : inspect(line, words[1]);
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_mpi_program("ditdata", argc, argv,
                                 [&](dist::Communicator& comm) { return body(argc, argv, comm); });
}
