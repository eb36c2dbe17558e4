#include "ditrain/scenes/tile_maker.hpp"

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "ditrain/base/error.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "scene_reader.hpp"

namespace ditrain::scenes {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Metadata = std::map<std::string, std::string>;

constexpr int64_t kPieceBytes = int64_t{32} << 20;     // of a scene that a thread reads at a time, if its blocks allow,
constexpr int64_t kMaxPieceBytes = int64_t{96} << 20;  // and at most, unless a single tile is larger
constexpr int64_t kShardBytes = int64_t{64} << 20, kMaxShards = 100000;  // five digits

// Part of a scene: whole tiles.
struct Piece {
  size_t scene;
  images::Window window;
};

struct Tile {
  bool dropped = false;
  std::vector<std::byte> numbers = {};
  std::vector<uint8_t> valid = {};
  images::GeoTransform transform = {};
};

struct CutPiece {
  int64_t number = 0;
  size_t scene = 0;
  std::vector<Tile> tiles = {};
  double source_bytes = 0;
};

// Side of pieces along one direction: multiples of tiles that do not cut blocks, where that is possible.
int64_t unit_of(int64_t tile, int64_t block) { return block > tile && block % tile == 0 ? block : tile; }

const SceneBand& finest_band(const Scene& scene) {
  const auto finer = [](const SceneBand& a, const SceneBand& b) { return a.width * a.height < b.width * b.height; };
  return *std::max_element(scene.bands.begin(), scene.bands.end(), finer);
}

// Pixels of the finest band that are read for one of the grid; 1 where these are fewer than two.
double pixels_read(const Scene& scene) {
  const SceneBand& band = finest_band(scene);
  const double pixels = double(band.width) / double(scene.width) * double(band.height) / double(scene.height);
  return pixels < 2 ? 1 : pixels;
}

std::vector<Piece> pieces_of(const Scene& scene, size_t number, int64_t tile) {
  const int64_t width = scene.width / tile * tile, height = scene.height / tile * tile;
  std::vector<Piece> pieces;
  if (width == 0 || height == 0) return pieces;
  const SceneBand& band = finest_band(scene);
  // Blocks are those of the file, pieces lie on the grid.
  const int64_t block_width = std::max<int64_t>(1, band.block_width * scene.width / band.width);
  const int64_t block_height = std::max<int64_t>(1, band.block_height * scene.height / band.height);
  const auto pixel = int64_t(double(images::pixel_bytes(scene.type)) * double(scene.bands.size()) * pixels_read(scene));
  const bool strips = band.block_width >= band.width;  // a block is as wide as the scene
  const int64_t unit_width = strips ? tile : unit_of(tile, block_width);
  int64_t step_y = unit_of(tile, block_height);
  const int64_t budget = strips ? kMaxPieceBytes : kPieceBytes;
  if (step_y * unit_width * pixel > kMaxPieceBytes) step_y = tile;
  const int64_t units = std::max<int64_t>(1, budget / (step_y * unit_width * pixel));
  const int64_t step_x = unit_width * units;
  for (int64_t y = 0; y < height; y += step_y)
    for (int64_t x = 0; x < width; x += step_x)
      pieces.push_back({number, {x, y, std::min(step_x, width - x), std::min(step_y, height - y)}});
  return pieces;
}

template <class T>
void mark_missing(const std::byte* plane, int64_t n, const dataset::TileBand& band, std::vector<uint8_t>& missing,
                  int64_t& count) {
  if (std::is_integral_v<T> && !band.nodata) return;
  for (int64_t p = 0; p < n; ++p) {
    T x;
    std::memcpy(&x, plane + p * int64_t(sizeof x), sizeof x);
    if (dataset::is_missing(double(x), band)) missing[size_t(p)] = 1, ++count;
  }
}

// Whether a tile has too few valid pixels, or a band none.
bool is_dropped(const Scene& scene, const Tile& tile, int64_t pixels, double max_nodata) {
  std::vector<uint8_t> missing(static_cast<size_t>(pixels), 0);
  int64_t masked = 0;
  if (!tile.valid.empty())
    for (size_t p = 0; p < missing.size(); ++p) missing[p] = tile.valid[p] == 0, masked += missing[p];
  if (masked == pixels) return true;
  for (size_t b = 0; b < scene.bands.size(); ++b) {
    const dataset::TileBand& band = scene.bands[b].facts;
    const std::byte* plane = tile.numbers.data() + int64_t(b) * pixels * images::pixel_bytes(scene.type);
    int64_t count = 0;
    images::with_tile_number(scene.type,
                             [&](auto type) { mark_missing<decltype(type)>(plane, pixels, band, missing, count); });
    if (count == pixels) return true;
  }
  const auto gone = std::count(missing.begin(), missing.end(), uint8_t{1});
  return gone == pixels || double(gone) > max_nodata * double(pixels);
}

CutPiece cut(const TileJob& job, const Piece& piece, int64_t number, SceneReader& reader) {
  const Scene& scene = job.scenes.scenes[piece.scene];
  ScenePixels pixels = reader.read(scene, piece.window);
  CutPiece out{.number = number, .scene = piece.scene, .source_bytes = pixels.source_bytes};
  const int64_t side = job.tile, bytes = images::pixel_bytes(scene.type), width = piece.window.width;
  const auto bands = int64_t(scene.bands.size());
  for (int64_t y = 0; y < piece.window.height; y += side)
    for (int64_t x = 0; x < width; x += side) {
      Tile tile;
      tile.numbers.resize(size_t(bands * side * side * bytes));
      std::byte* to = tile.numbers.data();
      for (int64_t b = 0; b < bands; ++b)
        for (int64_t row = 0; row < side; ++row, to += side * bytes)
          std::memcpy(to, pixels.numbers.data() + ((b * piece.window.height + y + row) * width + x) * bytes,
                      size_t(side * bytes));
      if (!pixels.valid.empty())
        for (int64_t row = 0; row < side; ++row) {
          const auto from = pixels.valid.begin() + (y + row) * width + x;
          tile.valid.insert(tile.valid.end(), from, from + side);
        }
      tile.dropped = is_dropped(scene, tile, side * side, job.max_nodata);
      if (tile.dropped) tile.numbers.clear(), tile.numbers.shrink_to_fit(), tile.valid.clear();
      tile.transform = scene.transform.value_or(images::kNoGeoTransform);
      images::GeoTransform& t = tile.transform;
      const double column = double(piece.window.x + x), line = double(piece.window.y + y);
      t[0] += column * t[1] + line * t[2], t[3] += column * t[4] + line * t[5];
      out.tiles.push_back(std::move(tile));
    }
  return out;
}

Metadata metadata_of(const Scene& scene) {
  std::vector<dataset::TileBand> bands;
  for (const SceneBand& band : scene.bands) bands.push_back(band.facts);
  return dataset::metadata_of(bands);
}

// Metadata of shards come from files. Throws for what is not an integer from 0 on.
int64_t count_of(const json& number) {
  if (!number.is_number_integer() || number.get<int64_t>() < 0) throw std::out_of_range("no count");
  return number.get<int64_t>();
}

// The next tile to be looked at.
struct Position {
  int64_t piece = 0, tile = 0;
};

class ShardWriter {
 public:
  ShardWriter(const TileJob& job, int64_t num_pieces) : job_(job), num_pieces_(num_pieces) {
    const Scene& first = job.scenes.scenes.front();
    const int64_t bytes = job.tile * job.tile * images::pixel_bytes(first.type) * int64_t(first.bands.size());
    capacity_ = std::clamp<int64_t>(kShardBytes / bytes, 1, job.shard_tiles);
    made_ = {{"tile", std::to_string(job.tile)},
             {"max_nodata", fmt::format("{}", job.max_nodata)},
             {"scenes", files::to_hex(files::checksum_of(fingerprint()))}};
    // Versions that counted pixels of the grid alone had other pieces, by whose numbers interrupted work goes on.
    const auto& scenes = job.scenes.scenes;
    if (std::any_of(scenes.begin(), scenes.end(), [](const Scene& scene) { return pixels_read(scene) > 1; }))
      made_["pieces_of"] = "pixels read";
    find_existing();
  }

  const Position& position() const { return next_; }
  const TileResult& result() const { return result_; }

  void add(CutPiece&& piece) {
    for (size_t i = 0; i < piece.tiles.size(); ++i) {
      if (piece.number == next_.piece && int64_t(i) < next_.tile) continue;  // in a shard that was there
      Tile& tile = piece.tiles[i];
      if (!tile.dropped) {
        if (count() > 0 && (count() == capacity_ || !fits(piece.scene))) save({piece.number, int64_t(i)});
        append(piece.scene, std::move(tile));
      } else {
        ++dropped_;
      }
    }
    next_ = {piece.number + 1, 0};
  }

  void finish() {
    if (count() > 0) save({num_pieces_, 0});
    result_.dropped += dropped_;
  }

  int64_t new_tiles() const { return result_.tiles - result_.found + count(); }
  int64_t new_dropped() const { return new_dropped_ + dropped_; }

 private:
  std::string path(int64_t shard) const { return fmt::format("{}/tiles_{:05}.safetensors", job_.out, shard); }
  int64_t count() const { return int64_t(transforms_.size()) / 6; }

  // What decides about the tiles besides the flags.
  std::string fingerprint() const {
    std::string text;
    for (const Scene& scene : job_.scenes.scenes) {
      text += fmt::format("{} {}x{} {} {} {}\n", scene.name, scene.width, scene.height, word_of(scene.type),
                          scene.label, scene.crs);
      for (const double x : scene.transform.value_or(images::kNoGeoTransform)) text += fmt::format("{} ", x);
      for (const SceneBand& band : scene.bands) {
        text += fmt::format("{} {} {} {} {} {} {} {}\n", band.facts.name, band.facts.scale, band.facts.offset,
                            band.facts.nodata ? fmt::format("{}", *band.facts.nodata) : "none", band.file, band.index,
                            fs::file_size(band.file), fs::last_write_time(band.file).time_since_epoch().count());
        for (const std::string& source : band.sources) {
          std::error_code inside_archive;
          const auto bytes = fs::file_size(source, inside_archive);
          const auto time = fs::last_write_time(source, inside_archive);
          if (!inside_archive) text += fmt::format("{} {} {}\n", source, bytes, time.time_since_epoch().count());
        }
      }
    }
    return text;
  }

  void find_existing() {
    for (; fs::exists(path(shards_)); ++shards_) {
      const std::string file_path = path(shards_);
      const dataset::TileShards shard(file_path);
      const Metadata& metadata = shard.shards().front().file.metadata();
      if (const auto scenes = metadata.find("scenes"); scenes == metadata.end() || scenes->second != made_.at("scenes"))
        // What a flag changes for all scenes is said by its name.
        dataset::expect_made_so(file_path, metadata, metadata_of(job_.scenes.scenes.front()), "these tiles were",
                                "scenes");
      dataset::expect_made_so(file_path, metadata, made_, "these tiles were", "scenes");
      try {
        const json place = files::parse_json(metadata.at("next"));
        next_ = {count_of(place.at(0)), count_of(place.at(1))};
        if (next_.piece > num_pieces_) throw std::out_of_range("next");
        result_.dropped += count_of(files::parse_json(metadata.at("dropped")));
      } catch (const std::exception&) {
        throw InputError(
            {.where = file_path, .what = "the shard does not say where the next one begins", .hint = "another folder"});
      }
      result_.found += shard.size();
    }
    result_.tiles = result_.found;
  }

  bool fits(size_t scene_number) const {
    const Scene &a = job_.scenes.scenes[scene_], &b = job_.scenes.scenes[scene_number];
    if (a.crs != b.crs) return false;
    for (size_t i = 0; i < a.bands.size(); ++i)
      if (!(a.bands[i].facts == b.bands[i].facts)) return false;
    return true;
  }

  void append(size_t scene_number, Tile&& tile) {
    const Scene& scene = job_.scenes.scenes[scene_number];
    const size_t before = size_t(count()), pixels = size_t(job_.tile * job_.tile);
    scene_ = scene_number;
    images_.insert(images_.end(), tile.numbers.begin(), tile.numbers.end());
    if (!tile.valid.empty() && valid_.empty()) valid_.assign(before * pixels, 1);
    if (tile.valid.empty() && !valid_.empty()) tile.valid.assign(pixels, 1);
    valid_.insert(valid_.end(), tile.valid.begin(), tile.valid.end());
    transforms_.insert(transforms_.end(), tile.transform.begin(), tile.transform.end());
    labels_.push_back(scene.label);
    std::vector<double> numbers = scene.metadata;
    if (scene.transform) dataset::set_place(scene.crs, tile.transform, job_.tile, job_.tile, numbers);
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    for (const std::string& file : scene.files())
      if (std::find(source_.begin(), source_.end(), file) == source_.end()) source_.push_back(file);
  }

  Metadata metadata(const Position& next) const {
    const Scene& scene = job_.scenes.scenes[scene_];
    const auto text = [](const json& j) { return files::json_text(j); };
    Metadata all = made_;
    all.merge(metadata_of(scene));
    all.insert({{"crs", scene.crs},
                {"classes", text(job_.scenes.classes)},
                {"source", text(source_)},
                {"next", text(json{next.piece, next.tile})},
                {"pieces", std::to_string(num_pieces_)},
                {"dropped", std::to_string(dropped_)}});
    return all;
  }

  void save(const Position& next) {
    if (shards_ >= kMaxShards)
      throw InputError({.where = job_.out, .what = "too many shards", .expected = "at most 100000"});
    const Scene& scene = job_.scenes.scenes[scene_];
    const int64_t n = count(), side = job_.tile;
    std::vector<weights::TensorToWrite> tensors = {
        {"images", images::safetensors_name(scene.type), {n, int64_t(scene.bands.size()), side, side}, images_.data()},
        {"geotransform", "F64", {n, 6}, transforms_.data()}};
    if (std::any_of(numbers_.begin(), numbers_.end(), [](double x) { return !std::isnan(x); }))
      tensors.push_back({"metadata", "F64", {n, int64_t(kNumMetadata)}, numbers_.data()});
    if (!valid_.empty()) tensors.push_back({"valid", "U8", {n, side, side}, valid_.data()});
    if (!job_.scenes.classes.empty()) tensors.push_back({"labels", "I64", {n}, labels_.data()});
    files::PendingFile pending(path(shards_));
    weights::write_safetensors(pending.temporary(), tensors, metadata(next));
    pending.commit();
    ++shards_;
    result_.tiles += n, result_.dropped += dropped_, new_dropped_ += dropped_;
    images_.clear(), valid_.clear(), transforms_.clear(), labels_.clear(), numbers_.clear(), source_.clear(),
        dropped_ = 0;
  }

  const TileJob& job_;
  const int64_t num_pieces_;
  int64_t capacity_ = 1, shards_ = 0, dropped_ = 0, new_dropped_ = 0;
  Metadata made_;
  Position next_;
  TileResult result_;
  size_t scene_ = 0;  // of the tiles collected so far
  std::vector<std::byte> images_;
  std::vector<uint8_t> valid_;
  std::vector<double> transforms_;
  std::vector<int64_t> labels_;
  std::vector<double> numbers_;  // kNumMetadata of each tile
  std::vector<std::string> source_;
};

[[noreturn]] void refuse_empty(const TileJob& job, const TileResult& result) {
  const std::string tile = fmt::format("{} x {} pixels", job.tile, job.tile);
  if (result.dropped > 0)
    throw InputError({.where = job.out,
                      .what = "every tile was dropped for its missing pixels",
                      .got = fmt::format("{} tiles of {}", result.dropped, tile),
                      .expected = fmt::format("a share of at most {}, and valid pixels in each band", job.max_nodata),
                      .hint = "a larger --max-nodata, or ditdata inspect to see what is missing"});
  const auto side = [](const Scene& scene) { return std::min(scene.width, scene.height); };
  const Scene& largest = *std::max_element(job.scenes.scenes.begin(), job.scenes.scenes.end(),
                                           [&](const Scene& a, const Scene& b) { return side(a) < side(b); });
  throw InputError({.where = largest.name,
                    .what = job.scenes.scenes.size() == 1
                                ? "the scene is smaller than a tile"
                                : "all scenes are smaller than a tile; this one is the largest",
                    .got = fmt::format("{} x {} pixels", largest.width, largest.height),
                    .expected = fmt::format("at least {}", tile),
                    .hint = fmt::format("--tile {}", side(largest))});
}

void check_job(const TileJob& job) {
  DITRAIN_CHECK(!job.scenes.scenes.empty() && job.threads >= 1 && job.shard_tiles >= 1, "scenes to cut");
  if (job.tile < 1 || job.tile > 4096)
    throw InputError(
        {.where = "tiles", .what = "side of the tiles", .got = std::to_string(job.tile), .expected = "1 to 4096"});
}

}  // namespace

TileResult make_tiles(const TileJob& job, const std::function<void(const TileProgress&)>& progress) {
  check_job(job);
  const auto lock = files::lock_output_folder(job.out);
  files::remove_stale_files(job.out);
  std::vector<Piece> pieces;
  int64_t edge = 0, small = 0;
  for (size_t s = 0; s < job.scenes.scenes.size(); ++s) {
    const Scene& scene = job.scenes.scenes[s];
    const auto of_scene = pieces_of(scene, s, job.tile);
    pieces.insert(pieces.end(), of_scene.begin(), of_scene.end());
    small += of_scene.empty();
    edge += scene.width * scene.height - scene.width / job.tile * job.tile * (scene.height / job.tile * job.tile);
  }
  ShardWriter writer(job, int64_t(pieces.size()));
  TileProgress so_far{.pieces = writer.position().piece, .of = int64_t(pieces.size())};
  int64_t next = writer.position().piece;
  tbb::enumerable_thread_specific<SceneReader> readers;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, size_t(job.threads));
  // A pipeline that an exception ends loses what is in flight, so pieces stay outside: they leave in order, and one
  // that enters finds the place of one that has left.
  std::vector<CutPiece> in_flight(size_t(job.threads) + 1);
  tbb::parallel_pipeline(
      in_flight.size(),
      tbb::make_filter<void, int64_t>(tbb::filter_mode::serial_in_order, [&](tbb::flow_control& control) {
        if (next >= int64_t(pieces.size())) control.stop();
        return next++;
      }) & tbb::make_filter<int64_t, int64_t>(tbb::filter_mode::parallel, [&](int64_t i) {
        in_flight[size_t(i) % in_flight.size()] = cut(job, pieces[size_t(i)], i, readers.local());
        return i;
      }) & tbb::make_filter<int64_t, void>(tbb::filter_mode::serial_in_order, [&](int64_t i) {
        CutPiece piece = std::move(in_flight[size_t(i) % in_flight.size()]);
        so_far.source_bytes += piece.source_bytes;
        writer.add(std::move(piece));
        ++so_far.pieces, so_far.tiles = writer.new_tiles(), so_far.dropped = writer.new_dropped();
        if (progress) progress(so_far);
      }));
  writer.finish();
  TileResult result = writer.result();
  result.edge_pixels = edge, result.small_scenes = small;
  if (result.tiles == 0) refuse_empty(job, result);
  return result;
}

}  // namespace ditrain::scenes
