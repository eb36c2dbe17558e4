#include "ditrain/eval/training_fid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/eval/frechet.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::eval {
namespace {

using dataset::SampleShape;

// Images in memory.
class Samples final : public ImageSet {
 public:
  Samples(const std::vector<float>& values, const SampleShape& shape, bool is_latent)
      : values_(values), shape_(shape), is_latent_(is_latent) {}
  int64_t size() const override { return int64_t(values_.size()) / shape_.elements(); }
  std::string describe() const override { return fmt::format("{} samples", size()); }
  std::string sha256() const override { return ""; }
  EvalImage image(int64_t i) override {
    return round_as_saved(values_.data() + i * shape_.elements(), shape_, is_latent_, fmt::format("sample {}", i));
  }

 private:
  const std::vector<float>& values_;
  const SampleShape shape_;
  const bool is_latent_;
};

// Images of a data set, spread evenly over it: numbers first ... first + n - 1 of `all`.
class ImagesOfData final : public ImageSet {
 public:
  ImagesOfData(const dataset::Dataset& data, const parallel::Range& mine, int64_t all, bool is_latent)
      : data_(data), mine_(mine), all_(all), is_latent_(is_latent) {}
  int64_t size() const override { return mine_.size(); }
  std::string describe() const override { return fmt::format("{} images of the data", all_); }
  std::string sha256() const override { return ""; }
  EvalImage image(int64_t i) override {
    const int64_t index = (mine_.begin + i) * data_.size() / all_;
    std::vector<float> chw(size_t(data_.shape().elements()));
    Condition condition;
    data_.load(index, /*flip=*/false, chw.data(), &condition);
    return round_as_saved(chw.data(), data_.shape(), is_latent_, fmt::format("image {} of the data", index));
  }

 private:
  const dataset::Dataset& data_;
  const parallel::Range mine_;
  const int64_t all_;
  const bool is_latent_;
};

}  // namespace

void expect_colours_in_order(const dataset::Config& settled) {
  if (!dataset::has_scaling(settled) || settled.bands.size() != 3) return;
  const std::vector<std::string>& bands = settled.bands;
  const dataset::ColourBands c = dataset::colours_of(settled);
  if (c.has_rgb() && (c.red != 0 || c.green != 1))
    throw InputError(
        {.where = "data.bands",
         .what = "eval.features: inception sees the channels of the model as red, green and blue",
         .got = fmt::format("{}", fmt::join(bands, ", ")),
         .expected = fmt::format("{}, {}, {}", bands[size_t(c.red)], bands[size_t(c.green)], bands[size_t(c.blue)]),
         .hint = "eval.features: pixels, or data.bands in this order for a new run"});
  if (!c.has_rgb() && log::of_rank().empty())
    log::warn("eval: bands {} are taken for red, green and blue, which their names do not say", fmt::join(bands, ", "));
}

// Each rank has the features of its own images; rank 0 gets statistics of those of all, in the order of the ranks.
FeatureStatistics TrainingFid::statistics_of_all(std::vector<float> mine) {
  const std::vector<float> all = dist::gather_floats(comm_, std::move(mine));
  if (comm_.rank() != 0) return {};
  return statistics_of(team_, all, dimensions_of(settings_.kind, shape_));
}

TrainingFid::TrainingFid(const Setup& setup, const dataset::Dataset& data, parallel::Team& team,
                         dist::Communicator& comm)
    : settings_(setup.features), shape_(setup.samples), is_latent_(setup.is_latent), team_(team), comm_(comm) {
  load_network(settings_);
  std::string input;
  if (!setup.reference.empty()) {
    Reference reference = read_reference(team, comm, setup.reference, settings_, setup.latent_scale);
    reference_ = std::move(reference.statistics), description_ = std::move(reference.description);
    input = std::move(reference.input);
    const ImageSizes own{shape_.height, shape_.height, shape_.width, shape_.width};
    if (reference.sizes != ImageSizes{} && reference.sizes != own)
      log::warn(
          "eval.reference: images of {} pixels are resized, not cropped, the samples have {}: resizing alone makes a "
          "distance",
          reference.sizes.describe(), own.describe());
  } else {
    const int64_t n = std::min(data.size(), setup.most_of_data);
    ImagesOfData images(data, parallel::partition(n, comm.rank(), comm.world_size()), n, is_latent_);
    reference_ =
        statistics_of_all(images.size() > 0 ? features_of(team, images, settings_).values : std::vector<float>());
    description_ = images.describe();
  }
  const int64_t d = dimensions_of(settings_.kind, shape_);
  if (comm.rank() == 0 && reference_.dimensions() != d)
    throw InputError({.where = setup.reference.empty() ? "eval" : "eval.reference",
                      .what = "the reference has features of other dimensions than the samples",
                      .got = std::to_string(reference_.dimensions()),
                      .expected = std::to_string(d),
                      .hint = "images of the size of the samples, or statistics made with the same features"});
  if (comm.rank() == 0 && !setup.reference.empty() && settings_.kind == FeatureKind::kPixels)
    expect_pixels(setup.reference, input);
}

// Features of pixels have no names: those of other sizes or numbers may be as many.
void TrainingFid::expect_pixels(const std::string& where, const std::string& input) const {
  const std::vector<float> black(size_t(shape_.elements()), -1.0f);
  Samples samples(black, shape_, is_latent_);
  const auto size_of = [](const std::string& description) {
    return description.substr(0, std::min(description.find(", divided by"), description.find(", bands")));
  };
  const std::string expected = size_of(features_of(team_, samples, settings_).description);
  if (!input.empty() && size_of(input) != expected)
    throw InputError({.where = "eval.reference",
                      .what = "the reference has other pixels than the samples",
                      .got = size_of(input) + " in " + where,
                      .expected = expected,
                      .hint = "images of the size of the samples, or statistics of such"});
  const bool of_tiles = input.find(", divided by 255") != input.npos || input.find(", bands ") != input.npos;
  if (of_tiles && !samples.image(0).is_u8)
    throw InputError({.where = "eval.reference",
                      .what = "the statistics are of digital numbers, the samples are bands from -1 to 1 or latents",
                      .got = input + " in " + where,
                      .expected = expected,
                      .hint = "the folder of the tiles itself, which is scaled as the data are"});
  // Colours of pictures are from 0 to 1, bands from -1 to 1, latents about so; resizing overshoots a little.
  const double from = samples.image(0).is_u8 ? -0.0625 : -16, to = samples.image(0).is_u8 ? 1.0625 : 16;
  const auto [least, greatest] = std::minmax_element(reference_.mu.begin(), reference_.mu.end());
  if (*least < from || *greatest > to)
    throw InputError({.where = "eval.reference",
                      .what = "the reference has pixels of other numbers than the samples",
                      .got = fmt::format("means from {:g} to {:g} in {}", *least, *greatest, where),
                      .hint = "the folder of the tiles itself, which is scaled as the data are"});
}

double TrainingFid::distance(int64_t num_mine, const Draw& draw) {
  std::vector<float> features;
  for (int64_t first = 0; first < num_mine; first += kSamplesAtOnce) {
    const std::vector<float> images = draw(first, std::min(kSamplesAtOnce, num_mine - first));
    Samples samples(images, shape_, is_latent_);
    const std::vector<float> more = features_of(team_, samples, settings_).values;
    features.insert(features.end(), more.begin(), more.end());
  }
  const bool finite = std::all_of(features.begin(), features.end(), [](float x) { return std::isfinite(x); });
  if (comm_.allreduce_or(finite ? 0 : 1) != 0) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<float> drawn = dist::gather_floats(comm_, std::move(features));
  double value = comm_.rank() == 0 ? frechet_distance(team_, reference_, drawn).value : 0;
  comm_.broadcast(&value, sizeof value, 0);
  return value;
}

size_t TrainingFid::bytes(FeatureKind kind, const SampleShape& samples, int64_t num_samples, int64_t most_of_data) {
  const auto d = size_t(dimensions_of(kind, samples));
  const size_t rows = size_t(std::max(num_samples, most_of_data)) * d * sizeof(float);
  // Rows as they are gathered and as they are used; the statistics of both sides, and what the distance takes.
  return 2 * rows + 6 * d * d * sizeof(double) + size_t(kSamplesAtOnce * samples.elements()) * sizeof(float);
}

}  // namespace ditrain::eval
