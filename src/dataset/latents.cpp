// Latents made beforehand: safetensors shards (a folder of them, or one file), each with
//   latents [N, C, H, W] (F32, BF16, F16), or mean and logvar of the same shape, from which every visit draws;
//   labels [N] (integers; all shards or none);
//   latents_flip, or mean_flip and logvar_flip: those of the mirrored images (all shards or none).
// Samples are numbered through the shards in the order of their names. Shards stay mapped; a sample is converted to f32
// when it is wanted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/logvar.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/file_list.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::dataset {
namespace {

struct Shard {
  weights::SafetensorsFile file;
  int64_t first;  // number of its first sample
  int64_t count;
  std::vector<int64_t> labels;  // empty: none
  bool draws() const { return file.contains("mean"); }
  const weights::TensorView& latents() const { return file.tensor(draws() ? "mean" : "latents"); }
};

constexpr const char* kOptional[] = {"labels", "latents_flip", "mean", "mean_flip"};

void expect_latents(const weights::SafetensorsFile& file) {
  if (file.contains("latents") || file.contains("mean")) return;
  std::vector<std::string> names;
  for (const weights::TensorView& view : file.tensors()) names.push_back(view.name);
  const std::string nearest = nearest_word("latents", names);
  throw InputError({.where = file.path(),
                    .what = "there is no tensor 'latents', nor 'mean' and 'logvar'",
                    .got = fmt::format("a file of {} tensors", names.size()),
                    .hint = nearest.empty() ? "" : fmt::format("another name in the file: latents for {}", nearest)});
}

// A tensor of latents must have the model's sample shape behind N, and a type that can be read.
void check_latents(const weights::SafetensorsFile& file, const weights::TensorView& view, const SampleShape& want) {
  const std::vector<int64_t> sample{want.channels, want.height, want.width};
  const bool channels_last = view.shape.size() == 4 && view.shape[1] == view.shape[2] && view.shape[3] < view.shape[1];
  if (view.shape.size() != 4 || !std::equal(sample.begin(), sample.end(), view.shape.begin() + 1))
    throw ShapeError({.where = file.path(),
                      .what = "`" + view.name + "` is not what the model reads",
                      .got = fmt::format("{}", view.shape),
                      .expected = "[N, " + fmt::format("{}", sample).substr(1),
                      .hint = channels_last ? "[N, C, H, W], the channels before the pixels: these seem to be last"
                                            : "model.in_channels and model.input_size of these latents"});
  if (view.dtype != "F32" && view.dtype != "BF16" && view.dtype != "F16")
    throw InputError({.where = file.path(),
                      .what = "`" + view.name + "` has a type that latents cannot have",
                      .got = view.dtype,
                      .expected = "F32, BF16 or F16"});
}

std::vector<int64_t> read_labels(const weights::SafetensorsFile& file, int64_t count) {
  const weights::TensorView& view = file.tensor("labels");
  if (view.shape != std::vector<int64_t>{count})
    throw ShapeError({.where = file.path(),
                      .what = "`labels` does not go with `latents`",
                      .got = fmt::format("{}", view.shape),
                      .expected = fmt::format("[{}]", count)});
  std::vector<int64_t> labels = weights::to_i64(view);
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] < 0 || labels[i] >= kMaxClasses)
      throw InputError({.where = file.path(),
                        .what = "label out of range at row " + std::to_string(i),
                        .got = std::to_string(labels[i]),
                        .expected = "0 to " + std::to_string(kMaxClasses - 1)});
  return labels;
}

void check_beside(const Shard& shard, const std::string& name, const SampleShape& shape) {
  const weights::TensorView& view = shard.file.tensor(name);
  check_latents(shard.file, view, shape);
  if (view.shape[0] != shard.count)
    throw ShapeError({.where = shard.file.path(),
                      .what = "`" + name + "` does not go with `" + shard.latents().name + "`",
                      .got = fmt::format("{}", view.shape),
                      .expected = fmt::format("{}", shard.latents().shape)});
}

Shard open_shard(const std::string& path, int64_t first, const SampleShape& shape) {
  Shard shard{weights::SafetensorsFile(path), first, 0, {}};
  if (shard.draws() && shard.file.contains("latents"))
    throw InputError({.where = path,
                      .what = "both `latents` and `mean`",
                      .expected = "latents, or mean and logvar from which training draws them"});
  expect_latents(shard.file);
  check_latents(shard.file, shard.latents(), shape);
  shard.count = shard.latents().shape[0];
  if (shard.draws()) check_beside(shard, "logvar", shape);
  if (shard.file.contains("labels")) shard.labels = read_labels(shard.file, shard.count);
  for (const char* name : {"latents_flip", "mean_flip", "logvar_flip"})
    if (shard.file.contains(name)) check_beside(shard, name, shape);
  if (shard.file.contains("mean_flip") != shard.file.contains("logvar_flip"))
    throw InputError({.where = path, .what = "`mean_flip` and `logvar_flip` go together"});
  return shard;
}

std::vector<std::string> shard_paths(const std::string& path, std::vector<std::string>& others) {
  std::error_code ec;
  if (std::filesystem::is_regular_file(path, ec)) return {path};
  std::vector<std::string> paths;
  const Listing listing = list_folder(path);
  for (const auto& name : listing.files)
    lower_extension(name) == "safetensors" ? paths.push_back(path + "/" + name) : others.push_back(name);
  if (paths.empty())
    throw InputError({.where = "data",
                      .what = "no latents in '" + path + "'",
                      .got = describe(listing),
                      .expected = ".safetensors files",
                      .hint = way_to_data(path, "latents")});
  return paths;
}

class Latents final : public Dataset {
 public:
  Latents(const OpenRequest& request, double scale)
      : Dataset(request.config, request.shape), path_(request.config.path), scale_(float(scale)) {
    std::vector<std::string> others;
    for (const auto& path : shard_paths(path_, others)) {
      shards_.push_back(open_shard(path, size_, shape_));
      size_ += shards_.back().count;
      for (int64_t label : shards_.back().labels) num_classes_ = std::max(num_classes_, label + 1), note_class(label);
      check_same_tensors(shards_.back());
    }
    if (has_scaling(request.config)) {
      const BandScaling scaling = scaling_of(request.config);
      tiles_ = ", of tiles with digital numbers (" + std::string(word_of(scaling.type)) + "): " + scaling.describe();
    }
    for (const std::string& name : others)
      if (name != "stats.json") ignore_file(name);
    if (size_ == 0)
      throw InputError({.where = "data", .what = "no latents in '" + path_ + "'", .got = "tensors of 0 samples"});
  }

  std::string describe() const override {
    const std::string labels = num_classes_ == 0 ? "no labels" : "labels below " + std::to_string(num_classes_);
    const Shard& shard = shards_.front();
    const bool flipped = shard.file.contains(shard.draws() ? "mean_flip" : "latents_flip");
    const std::string flips = std::string(flipped ? "flipped copies" : "no flipped copies") +
                              (shard.draws() ? ", drawn from mean and logvar" : "");
    return "latents '" + path_ + "': " + std::to_string(size_) + " samples in " + std::to_string(shards_.size()) +
           " shards, " + labels + ", " + flips + fmt::format(", times {:.6g}", scale_) + tiles_;
  }

 private:
  void check_same_tensors(const Shard& shard) const {
    for (const char* name : kOptional)
      if (shard.file.contains(name) != shards_.front().file.contains(name))
        throw InputError({.where = shard.file.path(),
                          .what = std::string("`") + name + "` must be in all shards or in none",
                          .got = shard.file.contains(name) ? "it here" : "none here",
                          .expected = "the same as in " + shards_.front().file.path()});
    const auto fact = [](const Shard& s, const char* key) {
      const auto found = s.file.metadata().find(key);
      return found == s.file.metadata().end() ? "nothing" : found->second;
    };
    for (const char* key : kScalingFacts)
      if (fact(shard, key) != fact(shards_.front(), key))
        throw InputError({.where = shard.file.path(),
                          .what = std::string("latents of other tiles: metadata `") + key + "` differs",
                          .got = fact(shard, key),
                          .expected = fact(shards_.front(), key) + ", as in " + shards_.front().file.path()});
  }

  const Shard& shard_of(int64_t index) const {
    const auto after = std::upper_bound(shards_.begin(), shards_.end(), index,
                                        [](int64_t i, const Shard& shard) { return i < shard.first; });
    return *std::prev(after);  // of shards that begin at the same index, the last is the one that is not empty
  }

  int64_t label_of(int64_t index) const override {
    const Shard& shard = shard_of(index);
    return shard.labels.empty() ? 0 : shard.labels[size_t(index - shard.first)];
  }

  void read(int64_t index, bool flip, float* chw, Condition* condition) const override {
    read_drawn(index, flip, RandomKey(0, Stream::kPosterior, uint64_t(index)), chw, condition);
  }

  void read_drawn(int64_t index, bool flip, const RandomKey& draw, float* chw, Condition* condition) const override {
    const Shard& shard = shard_of(index);
    const int64_t row = index - shard.first;
    const std::string name = shard.latents().name;
    const std::string flipped = flip && shard.file.contains(name + "_flip") ? "_flip" : "";
    read_row(shard, name + flipped, row, chw);
    if (shard.draws()) {
      std::vector<float> logvar(static_cast<size_t>(shape_.elements())), noise(logvar.size());
      read_row(shard, "logvar" + flipped, row, logvar.data());
      draw.fill_normal(noise.data(), shape_.elements());
      for (size_t i = 0; i < noise.size(); ++i) chw[i] += std::exp(0.5f * clamp_logvar(logvar[i])) * noise[i];
    }
    for (int64_t i = 0; i < shape_.elements(); ++i) chw[i] *= scale_;
    condition->label = label_of(index);
  }

  void read_row(const Shard& shard, const std::string& name, int64_t row, float* chw) const {
    weights::read_f32(weights::row_range(shard.file.tensor(name), row, 1), chw);
    for (int64_t i = 0; i < shape_.elements(); ++i)
      if (!std::isfinite(chw[i] * scale_))
        throw InputError({.where = shard.file.path(),
                          .what = "non-finite value in `" + name + "`",
                          .got = std::to_string(chw[i] * scale_) + " in row " + std::to_string(row)});
  }

  std::string path_, tiles_;  // tiles_: for describe(), of latents made of tiles
  float scale_;
  std::vector<Shard> shards_;
};

// Of the values of the first samples of a shard; 1 if there is nothing to judge.
double deviation_of(const std::string& path) {
  constexpr int64_t kMaxValues = int64_t{1} << 20;
  const weights::SafetensorsFile file(path);
  const char* name = file.contains("latents") ? "latents" : "mean";
  if (!file.contains(name)) return 1;
  const weights::TensorView& view = file.tensor(name);
  const bool is_float = view.dtype == "F32" || view.dtype == "BF16" || view.dtype == "F16";
  if (view.shape.empty() || view.num_elements() == 0 || !is_float) return 1;  // what is wrong is said elsewhere
  const int64_t rows = std::min(view.shape[0], kMaxValues / (view.num_elements() / view.shape[0]));
  const std::vector<double> values = weights::to_f64(weights::row_range(view, 0, rows));
  double n = 0, mean = 0, squares = 0;  // Welford's sums
  for (const double x : values) {
    if (!std::isfinite(x)) continue;
    const double before = x - mean;
    mean += before / ++n, squares += before * (x - mean);
  }
  return n < 2 ? 1 : std::sqrt(squares / n);
}

}  // namespace

double stated_latent_scale(const weights::SafetensorsFile& shard) {
  const auto found = shard.metadata().find("scale_factor");
  const double factor = found == shard.metadata().end() ? 0 : std::strtod(found->second.c_str(), nullptr);
  return factor > 0 && std::isfinite(factor) ? factor : 0;
}

bool is_odd_deviation(double deviation) { return deviation > 2 || (deviation < 0.4 && deviation > 0); }

void settle_latent_scale(Config& config) {
  std::vector<std::string> others;
  const std::vector<std::string> paths = shard_paths(config.path, others);
  const double factor = stated_latent_scale(weights::SafetensorsFile(paths.front()));
  if (config.latent_scale) {
    if (factor > 0 && std::abs(*config.latent_scale / factor - 1) > 1e-6 && log::of_rank().empty())
      log::warn(
          "data.latent_scale is {}, but {} states the factor {} of its VAE; to train on latents times {}, set "
          "data.latent_scale: auto",
          *config.latent_scale, paths.front(), factor, factor);
    return;
  }
  const auto text = [](double x) { return x > 0 ? fmt::format("{}", x) : "none"; };
  for (const std::string& path : paths)
    if (const double other = stated_latent_scale(weights::SafetensorsFile(path)); other != factor)
      throw InputError({.where = path,
                        .what = "this shard states another scale_factor than " + paths.front(),
                        .got = text(other),
                        .expected = text(factor),
                        .hint = "a folder for the latents of each VAE, or --set data.latent_scale=X for all of them"});
  config.latent_scale = factor > 0 ? factor : 1;
  if (factor > 0) return;
  if (const double deviation = deviation_of(paths.front()); is_odd_deviation(deviation) && log::of_rank().empty())
    log::warn(
        "data: the values of {} have a deviation of {:.3g}, and what is learnt well has about 1; if they are latents "
        "before scaling, set data.latent_scale to the factor of their VAE (--set data.latent_scale=0.18215 for Stable "
        "Diffusion's)",
        paths.front(), deviation);
  else
    log::info(
        "data: the shards of '{}' state no scale_factor and are taken as scaled already; if they are not, set "
        "data.latent_scale to the factor of their VAE (--set data.latent_scale=0.18215 for Stable Diffusion's)",
        config.path);
}

std::unique_ptr<Dataset> open_latents(const OpenRequest& request) {
  Config settled = request.config;
  if (!settled.latent_scale) settle_latent_scale(settled);
  return std::make_unique<Latents>(request, *settled.latent_scale);
}

}  // namespace ditrain::dataset
