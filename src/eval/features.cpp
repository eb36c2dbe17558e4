#include "ditrain/eval/features.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "ditrain/base/error.hpp"
#include "ditrain/files/sha256.hpp"
#include "inception_features.hpp"

namespace ditrain::eval {
namespace {

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Mean of every block, channel by channel; blocks at the lower and right edge may be smaller. Eight bits become 0 to 1.
void average_blocks(const EvalImage& image, int64_t block, float* out) {
  const int64_t step_x = image.channels_first ? 1 : image.channels, step_y = step_x * image.width;
  const int64_t step_c = image.channels_first ? image.width * image.height : 1;
  const double scale = image.is_u8 ? 1.0 / 255.0 : 1.0;
  for (int64_t c = 0; c < image.channels; ++c) {
    for (int64_t top = 0; top < image.height; top += block) {
      for (int64_t left = 0; left < image.width; left += block) {
        const int64_t bottom = std::min(top + block, image.height), right = std::min(left + block, image.width);
        double sum = 0;
        for (int64_t y = top; y < bottom; ++y) {
          for (int64_t x = left; x < right; ++x) {
            const auto at = size_t(c * step_c + y * step_y + x * step_x);
            sum += image.is_u8 ? double(image.u8[at]) : double(image.f32[at]);
          }
        }
        *out++ = float(sum / double((bottom - top) * (right - left)) * scale);
      }
    }
  }
}

// The shape that all images of the set must have: that of the first one that a worker got.
class CommonShape {
 public:
  explicit CommonShape(int64_t num_images) : num_images_(num_images) {}

  int64_t block() const { return block_; }
  const EvalImage& first() const { return first_; }

  /// Makes room for the features of all images when it meets the first one.
  void meet(const EvalImage& image, Features& features) {
    const std::lock_guard lock(mutex_);
    if (features.d == 0) {
      first_ = {image.height, image.width, image.channels, image.is_u8, false, {}, {}, image.name};
      block_ = pixel_block(image.height, image.width, image.channels);
      features.d = dimensions_of(FeatureKind::kPixels, {image.channels, image.height, image.width});
      features.values.resize(size_t(num_images_ * features.d));
    }
    const bool same = image.height == first_.height && image.width == first_.width && image.channels == first_.channels;
    if (same && image.is_u8 == first_.is_u8) return;
    throw InputError(
        {.where = image.name,
         .what = "features of pixels need images of one size and type",
         .got = text(image),
         .expected = fmt::format("{} as in {}", text(first_), first_.name),
         .hint = "images of one size, or features of Inception, which resizes, or in training no eval.reference: "
                 "samples are compared with the data then, in the size that the model learns"});
  }

 private:
  static std::string text(const EvalImage& image) {
    return fmt::format("{}x{}x{} of {}", image.height, image.width, image.channels,
                       image.is_u8 ? "u8" : "other numbers");
  }
  int64_t num_images_;
  std::mutex mutex_;
  EvalImage first_;
  int64_t block_ = 0;
};

Features pixel_features(parallel::Team& team, ImageSet& set) {
  Features features{.n = set.size()};
  CommonShape shape(features.n);
  set.visit(team, [&](int64_t i, const EvalImage& image) {
    shape.meet(image, features);
    average_blocks(image, shape.block(), features.values.data() + i * features.d);
  });
  const EvalImage& first = shape.first();
  features.description =
      fmt::format("{} values of {}x{}x{} pixels{}{}", features.d, first.height, first.width, first.channels,
                  shape.block() > 1 ? fmt::format(", averaged by blocks of {0}x{0}", shape.block()) : "",
                  first.is_u8 ? ", divided by 255" : "");
  return features;
}

}  // namespace

void ImageSizes::add(int64_t height, int64_t width) {
  const bool first = greatest_height == 0;
  least_height = first ? height : std::min(least_height, height);
  least_width = first ? width : std::min(least_width, width);
  greatest_height = std::max(greatest_height, height), greatest_width = std::max(greatest_width, width);
}

std::string ImageSizes::describe() const {
  const bool one = least_height == greatest_height && least_width == greatest_width;
  return fmt::format("{}x{}{}", least_height, least_width,
                     one ? "" : fmt::format(" to {}x{}", greatest_height, greatest_width));
}

int64_t pixel_block(int64_t height, int64_t width, int64_t channels) {
  if (channels > kMaxPixelFeatures) {
    throw InputError({.where = "features",
                      .what = "images have too many channels for features of pixels",
                      .got = std::to_string(channels),
                      .expected = fmt::format("at most {}", kMaxPixelFeatures)});
  }
  int64_t block = 1;
  while (blocks_of(height, block) * blocks_of(width, block) * channels > kMaxPixelFeatures) ++block;
  return block;
}

int64_t dimensions_of(FeatureKind kind, const dataset::SampleShape& shape) {
  if (kind == FeatureKind::kInception) return nn::kInceptionFeatures;
  const int64_t block = pixel_block(shape.height, shape.width, shape.channels);
  return blocks_of(shape.height, block) * blocks_of(shape.width, block) * shape.channels;
}

void load_network(FeatureSettings& settings) {
  if (settings.kind != FeatureKind::kInception || settings.network) return;
  if (settings.weights.empty())
    throw InputError({.where = "features",
                      .what = "features of the Inception network need its weights",
                      .got = "no --weights",
                      .expected =
                          "pt_inception-2015-12-05-6726825d.pth; the guide \"Evaluate: published FIDs\" says where to "
                          "get it",
                      .hint = "--features pixels, whose distances need no weights and are no published FIDs"});
  settings.network = std::make_shared<nn::Inception>(load_inception(settings.weights, settings.precision));
  settings.weights_sha256 = files::sha256_of_file(settings.weights);
}

Features features_of(parallel::Team& team, dist::Communicator& comm, ImageSet& set, const FeatureSettings& settings) {
  FeatureSettings loaded = settings;
  load_network(loaded);
  if (settings.kind == FeatureKind::kInception) return inception_features(team, comm, set, loaded);
  return comm.rank() == 0 ? pixel_features(team, set) : Features{};
}

Features features_of(parallel::Team& team, ImageSet& set, const FeatureSettings& settings) {
  return features_of(team, *dist::make_null_communicator(), set, settings);
}

}  // namespace ditrain::eval
