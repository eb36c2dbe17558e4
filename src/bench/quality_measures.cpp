#include "quality_measures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/sampler.hpp"
#include "ditrain/eval/frechet.hpp"
#include "ditrain/eval/set_metrics.hpp"

namespace ditrain::bench {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kImagesPerDimension = 10;
constexpr int64_t kParts[] = {4, 8, 16};
constexpr int64_t kNearestParts = 16;
constexpr uint64_t kClassifierSeed = 1;

LabelledImages part_of(const LabelledImages& all, int64_t begin, int64_t end) {
  return {all.shape, {all.at(begin), all.at(end)}, {all.labels.begin() + begin, all.labels.begin() + end}};
}

// Sixteen sums, which a compiler keeps in vectors.
float squared_distance(const float* a, const float* b, int64_t n) {
  float sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t j = 0; j < 16; ++j) sums[j] += (a[i + j] - b[i + j]) * (a[i + j] - b[i + j]);
  for (; i < n; ++i) sums[0] += (a[i] - b[i]) * (a[i] - b[i]);
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

}  // namespace

int64_t num_images(int64_t there, int64_t most, size_t most_bytes, const dataset::SampleShape& shape) {
  const auto fit = int64_t(most_bytes / (size_t(shape.elements()) * sizeof(float)));
  return std::min({there, most, std::max(fit, kFewestImages)});
}

LabelledImages load_images(const dataset::Dataset& data, int64_t most, uint64_t seed) {
  const dataset::EpochSampler order(data.size(), seed);
  LabelledImages all{data.shape()};
  const int64_t n = std::min(most, data.size()), elements = data.shape().elements();
  all.images.resize(size_t(n * elements)), all.labels.resize(size_t(n));
  Condition condition;
  for (int64_t i = 0; i < n; ++i) {
    data.load(order.index_at(i), /*flip=*/false, all.images.data() + i * elements, &condition);
    all.labels[size_t(i)] = condition.label;
  }
  return all;
}

GridOfClasses grid_of_classes(const std::vector<int64_t>& labels, int64_t num_classes, int64_t rows) {
  if (num_classes >= 2 && num_classes <= 16) {
    std::vector<std::vector<int64_t>> of_class(static_cast<size_t>(num_classes));
    for (size_t i = 0; i < labels.size(); ++i) of_class.at(size_t(labels[i])).push_back(int64_t(i));
    GridOfClasses grid{num_classes, {}};
    int64_t full = rows;
    for (const auto& numbers : of_class) full = std::min(full, int64_t(numbers.size()));
    for (int64_t row = 0; row < full; ++row)
      for (const auto& numbers : of_class) grid.numbers.push_back(numbers[size_t(row)]);
    if (full > 0) return grid;
  }
  GridOfClasses grid{rows, {}};
  for (int64_t i = 0; i < std::min(int64_t(labels.size()), rows * rows); ++i) grid.numbers.push_back(i);
  return grid;
}

double border_ratio(const LabelledImages& images, int64_t patch) {
  const int64_t H = images.shape.height, W = images.shape.width, planes = images.size() * images.shape.channels;
  double sums[2] = {};  // within patches, across borders
  int64_t counts[2] = {};
  for (int64_t plane = 0; plane < planes; ++plane) {
    const float* image = images.images.data() + plane * H * W;
    const auto add = [&](int64_t at, int64_t before, bool border) {
      sums[border] += std::fabs(double(image[at]) - double(image[before])), ++counts[border];
    };
    for (int64_t y = 0; y < H; ++y)
      for (int64_t x = 0; x < W; ++x) {
        if (x > 0) add(y * W + x, y * W + x - 1, x % patch == 0);
        if (y > 0) add(y * W + x, (y - 1) * W + x, y % patch == 0);
      }
  }
  if (counts[0] == 0 || counts[1] == 0) return kNoValue;
  return sums[1] / double(counts[1]) / (sums[0] / double(counts[0]));
}

QualityMeter::QualityMeter(ops::Context& ctx, Setup setup) : ctx_(ctx), setup_(std::move(setup)) {
  const LabelledImages& held_out = setup_.held_out;
  if (held_out.size() < 4)
    refuse("ditbench", "too few images are held out to compare with", std::to_string(held_out.size()),
           "at least 4, and as many as samples are drawn",
           "more images, or a larger share of them: --set data.hold_out=0.5");
  const int64_t half = held_out.size() / 2;
  training_ = means_of(setup_.training, kNearestParts);
  held_out_half_ = means_of(part_of(held_out, 0, half), kNearestParts);
  new_half_ = means_of(part_of(held_out, half, held_out.size()), kNearestParts);
  ratio_of_new_ = nearest_ratio(new_half_);
  if (setup_.num_classes < 2) return;
  of_training_ = std::make_unique<SmallClassifier>(ctx, held_out.shape, setup_.num_classes);
  of_samples_ = std::make_unique<SmallClassifier>(ctx, held_out.shape, setup_.num_classes);
  of_training_->train(setup_.training, setup_.classifier_steps, kClassifierSeed);
  real_accuracy_ = of_training_->accuracy(held_out);
}

// A half of the held-out images is copied for a while. Samples count twice: for themselves, and for what drawing or
// copying them takes beside.
size_t QualityMeter::bytes(const dataset::SampleShape& shape, int64_t training, int64_t held_out, int64_t samples,
                           int64_t num_classes) {
  const auto image = size_t(shape.elements()) * sizeof(float),
             means = size_t(shape.channels * kNearestParts * kNearestParts) * sizeof(float);
  return size_t(training + held_out + held_out / 2 + 2 * samples) * image +
         size_t(training + 2 * held_out + samples) * means +
         (num_classes < 2 ? 0 : 2 * SmallClassifier::bytes(shape, num_classes));
}

// Sides that have fewer pixels are taken as they are.
QualityMeter::Means QualityMeter::means_of(const LabelledImages& images, int64_t parts) const {
  const dataset::SampleShape& s = images.shape;
  const int64_t rows = std::min(parts, s.height), columns = std::min(parts, s.width);
  Means means{s.channels * rows * columns, {}};
  means.rows.resize(size_t(images.size() * means.dimensions));
  ctx_.for_range(images.size() * s.channels, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t plane = begin; plane < end; ++plane)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const parallel::Range ys = {r * s.height / rows, (r + 1) * s.height / rows};
          const parallel::Range xs = {c * s.width / columns, (c + 1) * s.width / columns};
          double sum = 0;
          for (int64_t y = ys.begin; y < ys.end; ++y)
            for (int64_t x = xs.begin; x < xs.end; ++x)
              sum += images.images[size_t((plane * s.height + y) * s.width + x)];
          means.rows[size_t((plane * rows + r) * columns + c)] =
              static_cast<float>(sum / double(ys.size() * xs.size()));
        }
  });
  return means;
}

bool QualityMeter::takes_frechet(int64_t num_samples, int64_t dimensions) const {
  return std::min({num_samples, setup_.training.size(), setup_.held_out.size()}) >= kImagesPerDimension * dimensions;
}

double QualityMeter::distance(const LabelledImages& samples, int64_t parts) const {
  const Means a = means_of(samples, parts), b = means_of(setup_.held_out, parts);
  parallel::Team& team = ctx_.team();
  if (!takes_frechet(samples.size(), a.dimensions))
    return eval::kernel_distance<float>(team, {a.rows.data(), samples.size(), a.dimensions},
                                        {b.rows.data(), setup_.held_out.size(), b.dimensions});
  return eval::frechet_distance(team, eval::statistics_of(team, a.rows, a.dimensions),
                                eval::statistics_of(team, b.rows, b.dimensions))
      .value;
}

double QualityMeter::mean_nearest(const Means& samples, const Means& others) const {
  const int64_t d = samples.dimensions, n = int64_t(samples.rows.size()) / d, m = int64_t(others.rows.size()) / d;
  std::vector<double> nearest(static_cast<size_t>(n));
  ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = begin; i < end; ++i) {
      float least = std::numeric_limits<float>::infinity();
      for (int64_t j = 0; j < m; ++j)
        least = std::min(least, squared_distance(samples.rows.data() + i * d, others.rows.data() + j * d, d));
      nearest[size_t(i)] = std::sqrt(double(least));
    }
  });
  double sum = 0;
  for (const double x : nearest) sum += x;
  return sum / double(n);
}

double QualityMeter::nearest_ratio(const Means& samples) const {
  return mean_nearest(samples, training_) / mean_nearest(samples, held_out_half_);
}

MeasureValues QualityMeter::measure(const LabelledImages& samples, int64_t patch, uint64_t seed) {
  DITRAIN_CHECK(samples.size() >= 2, "a set of samples");
  MeasureValues values;
  values.fill(kNoValue);
  for (size_t i = 0; i < std::size(kParts); ++i) values[i] = distance(samples, kParts[i]);
  values[5] = nearest_ratio(means_of(samples, kNearestParts)) / ratio_of_new_;
  values[6] = border_ratio(samples, patch) / border_ratio(setup_.held_out, patch);
  if (!of_samples_) return values;
  values[3] = of_training_->accuracy(samples);
  of_samples_->train(samples, setup_.classifier_steps, seed);
  values[4] = of_samples_->accuracy(setup_.held_out);
  return values;
}

MeasureValues QualityMeter::of_real(int64_t num, int64_t patch, uint64_t seed) {
  const LabelledImages& all = setup_.training;
  const dataset::EpochSampler order(all.size(), seed);
  LabelledImages some{all.shape};
  for (int64_t i = 0; i < std::min(num, all.size()); ++i) {
    const int64_t at = order.index_at(i);
    some.images.insert(some.images.end(), all.at(at), all.at(at + 1));
    some.labels.push_back(all.labels[size_t(at)]);
  }
  MeasureValues values = measure(some, patch, seed);
  if (of_training_) values[3] = real_accuracy_;
  const int64_t d = new_half_.dimensions, of_new = int64_t(new_half_.rows.size()) / d;
  const dataset::EpochSampler order_of_new(of_new, seed);
  Means drawn{d, {}};
  for (int64_t i = 0; i < of_new / 2; ++i) {
    const auto row = new_half_.rows.begin() + order_of_new.index_at(i) * d;
    drawn.rows.insert(drawn.rows.end(), row, row + d);
  }
  values[5] = nearest_ratio(drawn) / ratio_of_new_;
  return values;
}

std::vector<int64_t> QualityMeter::labels_of_real(int64_t num, uint64_t seed) const {
  std::vector<int64_t> labels(size_t(num), 0);
  const dataset::EpochSampler order(setup_.training.size(), seed);
  for (int64_t i = 0; i < num && setup_.num_classes > 0; ++i)
    labels[size_t(i)] = setup_.training.labels[size_t(order.index_at(i % order.size()))];
  return labels;
}

std::vector<std::string> QualityMeter::describe(int64_t num_samples) const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::size(kParts); ++i) {
    const dataset::SampleShape& s = setup_.held_out.shape;
    const int64_t d = s.channels * std::min(kParts[i], s.height) * std::min(kParts[i], s.width);
    lines.push_back(fmt::format("{}: {} of {} samples and {} held-out images in {} dimensions", kMeasures[i].name,
                                takes_frechet(num_samples, d) ? "Frechet distance" : "unbiased kernel distance",
                                num_samples, setup_.held_out.size(), d));
  }
  for (size_t i = std::size(kParts); i < kMeasures.size(); ++i)
    lines.push_back(fmt::format("{}: {}", kMeasures[i].name, kMeasures[i].help));
  return lines;
}

}  // namespace ditrain::bench
