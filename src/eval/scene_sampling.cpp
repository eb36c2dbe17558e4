#include "ditrain/eval/scene_sampling.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/ops/random.hpp"
#include "model_pass.hpp"

namespace ditrain::eval {
namespace {

std::vector<int> bands_of(const images::RasterInfo& info, const dataset::Config& data) {
  std::vector<std::string> have;
  for (const images::RasterBand& band : info.bands) have.push_back(band.name);
  return dataset::find_bands(have, dataset::condition_of(data).bands, info.path);
}

// What is known of the numbers that the model learnt from.
struct LearntNumbers {
  std::optional<images::PixelType> type;
  std::vector<dataset::TileBand> bands;  // of the condition; empty: their tiles are not there
  double pixel = 0;                      // side, in units of the CRS; 0: unknown
};

double pixel_side(const double* transform) { return std::hypot(transform[1], transform[4]); }

LearntNumbers learnt_numbers(const dataset::Config& data) {
  const dataset::ConditionBands condition = dataset::condition_of(data);
  LearntNumbers learnt;
  if (condition.path.empty()) learnt.type = data.number_type;
  const std::string& path = condition.path.empty() ? data.path : condition.path;
  std::error_code unreadable;
  if (!std::filesystem::exists(path, unreadable)) return learnt;
  try {
    const dataset::TileShards tiles(path);
    for (const int band : dataset::find_bands(tiles.band_names(), condition.bands, path))
      learnt.bands.push_back(tiles.bands()[size_t(band)]);
    learnt.type = tiles.type();
    const weights::SafetensorsFile& first = tiles.shards().front().file;
    if (!tiles.shards().front().crs.empty() && first.contains("geotransform") && tiles.shards().front().count > 0)
      learnt.pixel = pixel_side(weights::to_f64(first.tensor("geotransform")).data());
  } catch (const Error& e) {  // sampling does not need them
    if (log::of_rank().empty())
      log::warn("fill numbers and scales of the tiles that the model learnt from are unknown: {}", e.what());
  }
  return learnt;
}

// A raster in other units would be scaled into nonsense without a word. One that states no scale may have any.
void expect_same_units(const images::RasterInfo& raster, const std::vector<int>& bands, const LearntNumbers& learnt) {
  const auto refuse = [&](const std::string& what, const std::string& got, const std::string& expected) {
    throw InputError({.where = raster.path,
                      .what = what,
                      .got = got,
                      .expected = expected + ", as in the tiles that the model learnt from",
                      .hint = "a raster made as those of the tiles were (gdalinfo FILE, ditdata inspect TILES)"});
  };
  const double pixel = raster.transform ? pixel_side(raster.transform->data()) : 0;
  if (learnt.pixel > 0 && pixel > 0 && std::abs(pixel / learnt.pixel - 1) > 0.05 && log::of_rank().empty())
    log::warn(
        "{} has pixels of {:.6g}, the tiles that the model learnt from of {:.6g} (units of the CRS): gdalwarp -tr "
        "brings it to their size, with -r near where coarse numbers were repeated",
        raster.path, pixel, learnt.pixel);
  for (size_t c = 0; c < learnt.bands.size(); ++c) {
    const images::RasterBand& have = raster.bands[size_t(bands[c])];
    const dataset::TileBand& want = learnt.bands[c];
    const bool stated = have.scale != 1 || have.offset != 0;
    if (stated && (have.scale != want.scale || have.offset != want.offset))
      refuse(fmt::format("band {} has another scale or offset", want.name),
             fmt::format("{:.9g} and {:.9g}", have.scale, have.offset),
             fmt::format("{:.9g} and {:.9g}", want.scale, want.offset));
  }
}

// Without the tiles a raster has to say by itself which of its pixels are missing.
void warn_of_unknown(const images::RasterInfo& raster, const std::vector<int>& bands) {
  const bool told = raster.has_mask || std::all_of(bands.begin(), bands.end(), [&](int band) {
                      return raster.bands[size_t(band)].nodata.has_value();
                    });
  if (told || !log::of_rank().empty()) return;
  log::warn(
      "the tiles that the model learnt from are not here, and {} states neither a number of missing pixels nor a mask: "
      "all of its pixels count as data (gdal_translate -a_nodata V writes a copy that states V), and its scale and "
      "units are not compared with theirs",
      raster.path);
}

// Where tiles begin along a side of the scene. Their distance is a pixel less than half a tile: so borders of patches,
// which a model may show, lie elsewhere in each of the tiles that overlap.
std::vector<int64_t> beginnings(int64_t scene, int64_t tile) {
  std::vector<int64_t> all;
  for (int64_t at = 0; at < scene - tile; at += std::max<int64_t>(1, tile / 2 - 1)) all.push_back(at);
  all.push_back(scene - tile);
  return all;
}

std::vector<float> window_of(int64_t side) {
  std::vector<float> w;
  for (int64_t i = 0; i < side; ++i) {
    const double s = std::sin(std::numbers::pi * (double(i) + 0.5) / double(side));
    w.push_back(float(s * s));
  }
  return w;
}

// The model as a function of whole scenes.
class SceneModel {
 public:
  SceneModel(ops::Context& ctx, nn::Model& model, const SceneRequest& request, int64_t output_channels,
             const nn::Routes& routes = {})
      : pass_(ctx, model, request.precision, routes),
        m_(model.config()),
        height_(request.height),
        width_(request.width),
        output_channels_(output_channels),
        seed_(request.seed),
        first_tile_(request.index << 40),
        window_y_(window_of(m_.input_height)),
        window_x_(window_of(m_.input_width)),
        weight_(size_t(height_ * width_)) {
    for (const int64_t y : beginnings(height_, m_.input_height))
      for (const int64_t x : beginnings(width_, m_.input_width)) tiles_.push_back({y, x});
    const std::vector<float> ones(size_t(m_.pixels()), 1.0f);
    for (const Place& tile : tiles_) add(tile, ones.data(), weight_.data(), 1);
    const int64_t rounds = (int64_t(tiles_.size()) + request.batch - 1) / request.batch;
    batch_ = (int64_t(tiles_.size()) + rounds - 1) / rounds;
  }

  ModelPass& pass() { return pass_; }

  void operator()(const float* x, const double* t, const Condition* c, int64_t n, float* out) {
    const int64_t pixels = height_ * width_;
    for (int64_t i = 0; i < n; ++i)
      run(x + i * m_.in_channels * pixels, t[i], c[i], out + i * output_channels_ * pixels);
    ++calls_;
  }

 private:
  struct Place {
    int64_t y, x;
  };

  void run(const float* x, double t, const Condition& condition, float* out) {
    const int64_t pixels = height_ * width_, tile_in = m_.in_channels * m_.pixels();
    std::fill_n(out, output_channels_ * pixels, 0.0f);
    std::vector<float> in(size_t(batch_ * tile_in)), predicted(size_t(batch_ * output_channels_ * m_.pixels()));
    std::vector<Condition> conditions(size_t(batch_), Condition{condition.label, condition.numbers});
    const std::vector<double> times(size_t(batch_), t);
    for (size_t first = 0; first < tiles_.size(); first += size_t(batch_)) {
      const auto tile = [&](int64_t b) { return tiles_[std::min(first + size_t(b), tiles_.size() - 1)]; };
      for (int64_t b = 0; b < batch_; ++b) {  // the last ones may repeat a tile, so that all batches are of one size
        cut(tile(b), x, m_.in_channels, in.data() + b * tile_in);
        auto& image = conditions[size_t(b)].image;
        image.resize(size_t(m_.condition_channels * m_.pixels()));
        cut(tile(b), condition.image.data(), m_.condition_channels, image.data());
        for (int64_t k = 0; k < m_.condition_channels; ++k)  // missing pixels: the mean of the tile, as in training
          dataset::fill_condition(image.data() + k * m_.pixels(), m_.pixels());
      }
      pass_.draw_routes_from(seed_, first_tile_ + int64_t(first), calls_);
      pass_(in.data(), times.data(), conditions.data(), batch_, predicted.data());
      for (int64_t b = 0; b < batch_ && first + size_t(b) < tiles_.size(); ++b)
        add(tile(b), predicted.data() + b * output_channels_ * m_.pixels(), out, output_channels_);
    }
    for (int64_t i = 0; i < output_channels_ * pixels; ++i) out[i] /= weight_[size_t(i % pixels)];
  }

  void cut(const Place& tile, const float* scene, int64_t channels, float* to) const {
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t y = 0; y < m_.input_height; ++y)
        to = std::copy_n(scene + (c * height_ + tile.y + y) * width_ + tile.x, m_.input_width, to);
  }

  void add(const Place& tile, const float* values, float* scene, int64_t channels) const {
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t y = 0; y < m_.input_height; ++y) {
        float* row = scene + (c * height_ + tile.y + y) * width_ + tile.x;
        for (int64_t x = 0; x < m_.input_width; ++x) row[x] += window_y_[size_t(y)] * window_x_[size_t(x)] * *values++;
      }
  }

  ModelPass pass_;
  const nn::ModelConfig& m_;
  const int64_t height_, width_, output_channels_;
  const uint64_t seed_;  // of routes
  const int64_t first_tile_;
  uint64_t calls_ = 0;
  const std::vector<float> window_y_, window_x_;
  std::vector<float> weight_;  // of all windows at each pixel
  std::vector<Place> tiles_;
  int64_t batch_ = 0;
};

}  // namespace

images::RasterInfo find_condition(const std::string& path, const dataset::Config& data) {
  const images::RasterInfo info = images::Raster(path).info();
  const std::vector<int> bands = bands_of(info, data);
  const LearntNumbers learnt = learnt_numbers(data);
  expect_same_units(info, bands, learnt);
  if (learnt.bands.empty()) warn_of_unknown(info, bands);
  return info;
}

ConditionScene read_condition(const std::string& path, const dataset::Config& data) {
  images::Raster raster(path);
  const images::RasterInfo& info = raster.info();
  const dataset::ConditionBands condition = dataset::condition_of(data);
  const images::Window all{0, 0, info.width, info.height};
  const int64_t pixels = info.width * info.height;
  ConditionScene scene{info};
  const std::vector<uint8_t> mask = raster.read_mask(all);
  std::vector<uint8_t> has_data(size_t(pixels), 1);
  const LearntNumbers learnt = learnt_numbers(data);
  constexpr double kLeastSpread = 0.02;  // of 2
  bool varies = condition.bands.empty();
  size_t c = 0;
  for (const int band : bands_of(info, data)) {
    const std::vector<std::byte> bytes = raster.read({{band}, all});
    std::vector<double> numbers(static_cast<size_t>(pixels));
    images::to_f64(info.type, bytes.data(), pixels, numbers.data());
    // A raster may not state the fill number that ditdata make was told (--nodata).
    const auto& own = info.bands[size_t(band)].nodata;
    const bool told = !own && !info.has_mask && !learnt.bands.empty();
    const dataset::TileBand facts{.name = "", .nodata = told ? learnt.bands[c].nodata : own};
    const dataset::RangeScale scale(data.condition_low[c], data.condition_high[c]);
    std::vector<float> plane(static_cast<size_t>(pixels));
    for (int64_t p = 0; p < pixels; ++p) {
      const double number = numbers[size_t(p)];
      const bool gone = mask[size_t(p)] == 0 || dataset::is_missing(number, facts);
      plane[size_t(p)] = gone ? NAN : scale(number);
      if (gone) has_data[size_t(p)] = 0;
    }
    double low = 1, high = -1;
    for (const float x : plane)
      if (!std::isnan(x)) low = std::min(low, double(x)), high = std::max(high, double(x));
    varies = varies || high - low > kLeastSpread;
    scene.image.insert(scene.image.end(), plane.begin(), plane.end());
    ++c;
  }
  if (learnt.type && info.type != *learnt.type && !varies)
    throw InputError({.where = path,
                      .what =
                          "the numbers of the given bands hardly vary in the range that the model learnt, and are of "
                          "another type: other units?",
                      .got = std::string(word_of(info.type)),
                      .expected = fmt::format("{} from {:.6g} to {:.6g}, as in the tiles", *learnt.type,
                                              data.condition_low.front(), data.condition_high.front()),
                      .hint = "a raster made as those of the tiles were (gdalinfo FILE, ditdata inspect TILES)"});
  const auto gone = std::count(has_data.begin(), has_data.end(), uint8_t{0});
  if (gone == pixels)
    throw InputError({.where = path, .what = "no pixel of the scene has data in all of the given bands"});
  scene.without_data = double(gone) / double(pixels);
  for (int64_t p = 0; condition.valid && p < pixels; ++p)
    scene.image.push_back(has_data[size_t(p)] != 0 ? 1.0f : -1.0f);
  return scene;
}

std::vector<float> generate_scene(ops::Context& ctx, nn::Model& model, const diffusion::Config& config,
                                  const SceneRequest& request, const GenerateProgress& progress) {
  const nn::ModelConfig& m = model.config();
  const int64_t pixels = request.height * request.width;
  DITRAIN_CHECK(request.batch >= 1 && request.index >= 0, "a number of tiles and of the sample");
  DITRAIN_CHECK(int64_t(request.condition.image.size()) == m.condition_channels * pixels,
                "an image of the scene's size");
  if (request.height < m.input_height || request.width < m.input_width)
    throw InputError({.where = "sampling",
                      .what = "the scene is smaller than the model's input",
                      .got = fmt::format("{} x {}", request.height, request.width),
                      .expected = fmt::format("at least {} x {}", m.input_height, m.input_width)});
  const auto process = diffusion::make_process(config, m.learn_sigma);
  request.sampler.validate(*process);
  const diffusion::Shape shape{m.in_channels, pixels};
  SceneModel scene(ctx, model, request, process->output_channels(m.in_channels));
  std::optional<SceneModel> guide;
  if ((request.guide != nullptr || !request.guide_routes.empty()) && request.sampler.cfg_scale != 1)
    guide.emplace(ctx, request.guide != nullptr ? *request.guide : model, request,
                  process->output_channels(m.in_channels), request.guide_routes);
  const diffusion::ModelFn call_guide = [&](auto... args) { (*guide)(args...); };
  const std::vector<double> times = diffusion::model_times(*process, request.sampler);
  std::vector<Condition> expected{Condition{request.condition.label, request.condition.numbers}};
  if (guide) guide->pass().expect(times, expected, request.modulation_bytes);
  const int64_t null_class = takes_guidance(m) ? m.num_classes : -1;
  if (!guide && request.sampler.cfg_scale != 1) expected.push_back(without_label({}, null_class));
  scene.pass().expect(times, expected, request.modulation_bytes);

  const auto draw = [&](uint64_t number, float* out) {
    std::vector<RandomKey> rows;
    for (int64_t c = 0; c < m.in_channels; ++c)
      for (int64_t y = 0; y < request.height; ++y)
        rows.emplace_back(request.seed, Stream::kSampleNoise, uint64_t(request.index << 40 | c << 24 | y), number);
    ops::fill_normal(ctx, rows, request.width, out);
  };
  std::vector<float> z(size_t(shape.elements()));
  draw(0, z.data());
  diffusion::sample_loop(
      *process, request.sampler, shape, std::ref(scene),
      {.n = 1,
       .z = z.data(),
       .conditions = &request.condition,
       .null_class = null_class,
       .guide = guide ? &call_guide : nullptr},
      [&](int64_t step, int64_t, float* out) { draw(uint64_t(step) + 1, out); },
      [&](int64_t step, int64_t num_steps, const float*) {
        if (progress) progress(double(step + 1) / double(num_steps));
      });
  return z;
}

// z, noise, the guided pair and what samplers keep (up to 3 states); the model's outputs; the image as it is read, in
// the request and in the loop; weights; the numbers and the picture that are written.
size_t bytes_per_scene_pixel(const nn::ModelConfig& m, const diffusion::SamplerConfig& sampler) {
  const int64_t twice = sampler.cfg_scale != 1 ? 2 : 1;
  const int64_t floats = 8 * m.in_channels + twice * m.out_channels() + (3 + twice) * m.condition_channels + 4;
  return size_t(floats) * sizeof(float);
}

}  // namespace ditrain::eval
