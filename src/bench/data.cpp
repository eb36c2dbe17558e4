// The samples go through dataset::Loader as in a run: threads, queue, augmentation. Steps do not use what it gives
// them, as sizes differ: they take a batch, and train on random numbers.
#include "ditrain/bench/data.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

constexpr int64_t kBands = 13;
constexpr int kQuality = 90;  // about the bytes per pixel of ImageNet, with the grain of write_photos

std::string write_tiles(const std::string& folder, int64_t n, int64_t side) {
  std::string bands;
  for (int64_t b = 0; b < kBands; ++b) bands += fmt::format("{}\"B{}\"", b == 0 ? "[" : ",", b + 1);
  const RandomKey key(0, Stream::kTest, uint64_t(side));
  std::vector<uint16_t> numbers(size_t(n * kBands * side * side));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint16_t(key.below(i, 10000));
  std::filesystem::create_directory(folder);
  weights::write_safetensors(folder + "/tiles.safetensors",
                             {{"images", "U16", {n, kBands, side, side}, numbers.data()}}, {{"bands", bands + "]"}});
  return folder;
}

// Slow waves with grain.
std::string write_photos(const std::string& folder, int64_t n, int64_t width, int64_t height) {
  std::filesystem::create_directory(folder);
  images::ImageU8 image{width, height, 3, std::vector<uint8_t>(size_t(3 * width * height))};
  for (int64_t i = 0; i < n; ++i) {
    check_stop();
    const RandomKey key(0, Stream::kTest, uint64_t(i));
    for (int64_t p = 0; p < width * height; ++p)
      for (int64_t c = 0; c < 3; ++c) {
        const double x = double(p % width) * double(c + 1), y = double(p / width + 40 * i);
        const double wave = 60 * std::sin(x / 70) * std::cos(y / 50) + 20 * std::sin((x + y) / 9);
        image.pixels[size_t(3 * p + c)] = uint8_t(110 + wave + double(key.below(uint64_t(p), 40)));
      }
    files::write_file_atomically(fmt::format("{}/{:05}.jpg", folder, i), images::encode_jpeg(image, kQuality));
  }
  return folder;
}

struct Source {
  std::string name;
  dataset::Config config;
  dataset::SampleShape shape;
};

Source tiles(const std::string& folder, const DataBench& bench, int64_t side) {
  Source source{fmt::format("tiles {}x{}x{} u16", kBands, side, side), {}, {kBands, side, side}};
  source.config.kind = dataset::find_kind("tiles");
  source.config.path = write_tiles(folder, bench.samples, side);
  source.config.scaling = {dataset::ScalingFrom::kRange, 0, 10000};
  source.config.augment = dataset::Augment::kTurns;
  return source;
}

Source photos(const std::string& folder, const DataBench& bench) {
  Source source{
      fmt::format("JPEG {}x{} to {}x{}", bench.photo_width, bench.photo_height, bench.photo_size, bench.photo_size),
      {},
      {3, bench.photo_size, bench.photo_size}};
  source.config.kind = dataset::find_kind("folder");
  source.config.path = write_photos(folder, bench.samples, bench.photo_width, bench.photo_height);
  return source;
}

class DataMeter {
 public:
  DataMeter(Harness& harness, const DataBench& bench, const Row& alone)
      : harness_(harness), bench_(bench), step_rate_(double(bench.batch) / alone.time.median_s) {}

  void measure(const Source& source) {
    const auto data = dataset::open_dataset(source.config, source.shape, 0, 0);
    add_loader(source, *data);
    add_steps(source, *data);
  }

 private:
  // One thread, where a run has it: a core that does not compute, if there is one.
  dataset::LoaderConfig settings(const Source& source) const {
    dataset::LoaderConfig config{.global_batch = bench_.batch, .count = bench_.batch};
    config.random_flip = source.config.random_flip, config.augment = source.config.augment;
    config.on_thread_start = [this](int64_t) { platform::set_affinity_mask(harness_.placement().helper_pus); };
    return config;
  }

  void add_loader(const Source& source, const dataset::Dataset& data) {
    const int64_t batches = std::max<int64_t>(1, data.size() / bench_.batch);
    std::vector<double> seconds;
    for (int64_t repeat = -1; repeat < harness_.effort().repeats; ++repeat) {  // the first one fills the page cache
      check_stop();
      const double start = now_s();
      dataset::Loader loader(data, dataset::EpochSampler(data.size(), 0), settings(source));
      for (int64_t i = 0; i < batches; ++i) loader.next();
      if (repeat >= 0) seconds.push_back((now_s() - start) / double(batches * bench_.batch));
    }
    Row row = timed_row("loader " + source.name, "f32", seconds);
    const double rate = 1 / row.time.median_s;
    row.details = {{"images_per_second", rate}, {"times_step", rate / step_rate_}};
    harness_.add(std::move(row));
  }

  void add_steps(const Source& source, const dataset::Dataset& data) {
    dataset::Loader loader(data, dataset::EpochSampler(data.size(), 0), settings(source));
    loader.next();  // a run waits for its first batch once
    std::vector<double> waits;
    StepBench step = bench_.step;
    step.wait_for_data = [&] {
      const double before = loader.wait_s();
      loader.next();
      waits.push_back(loader.wait_s() - before);
    };
    Row row = measure_step(harness_, step, bench_.batch, "step with " + source.name);
    const double wait_s = quantile(waits, 0.5);
    row.details.push_back({"data_wait_s", wait_s});
    row.details.push_back({"data_wait_share", wait_s / row.time.median_s});
    harness_.add(std::move(row));
  }

  Harness& harness_;
  const DataBench& bench_;
  const double step_rate_;  // images per second
};

}  // namespace

void bench_data(Harness& harness, const DataBench& bench) {
  const Row alone = measure_step(harness, bench.step, bench.batch);
  harness.add(alone);
  DataMeter meter(harness, bench, alone);
  const TemporaryFolder folder;
  meter.measure(tiles(folder / "large", bench, bench.large_tile));
  meter.measure(tiles(folder / "small", bench, bench.small_tile));
  meter.measure(photos(folder / "photos", bench));
  harness.note(harness.products());
}

}  // namespace ditrain::bench
