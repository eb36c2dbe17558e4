#include "inception_features.hpp"

#include <fmt/format.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "ditrain/base/error.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::eval {
namespace {

constexpr int64_t kBatch = 8;  // images at once: 100 MB of activations
constexpr int64_t kInputElements = 3 * nn::kInceptionSide * nn::kInceptionSide;

// Grey becomes three equal channels, alpha is left out, as Pillow's conversion to RGB does.
images::ImageU8 to_rgb(const EvalImage& image) {
  // The fourth channel of a file of pictures is alpha, that of a tensor may be anything.
  const bool with_alpha = image.channels == 2 || image.channels == 4;
  if (!image.is_u8 || image.channels < 1 || image.channels > 4 || (with_alpha && image.channels_first)) {
    throw InputError({.where = image.name,
                      .what = "the Inception network sees pictures of eight bits",
                      .got = fmt::format("{} channels of {}", image.channels, image.is_u8 ? "u8" : "other numbers"),
                      .expected = "grey or RGB; pictures with or without alpha",
                      .hint = "--features pixels, decoding latents (ditsample --vae), or tiles with names of bands"});
  }
  const int64_t pixels = image.height * image.width;
  images::ImageU8 rgb{image.width, image.height, 3, std::vector<uint8_t>(size_t(3 * pixels))};
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t c = 0; c < 3; ++c) {
      const int64_t from = image.channels < 3 ? 0 : c;
      rgb.pixels[size_t(3 * p + c)] =
          image.u8[size_t(image.channels_first ? from * pixels + p : p * image.channels + from)];
    }
  return rgb;
}

// Network inputs of images [begin, end), made by oneTBB's threads while the team computes the batch before. One place
// of the arena is the caller's: where there is one core, it makes them when it waits.
class Inputs {
 public:
  Inputs(ImageSet& set, FidPreset preset, int num_threads)
      : set_(set), preset_(preset), arena_(std::min(num_threads, tbb::info::default_concurrency()), 1) {
    for (std::vector<float>& buffer : buffers_) buffer.resize(size_t(kBatch * kInputElements));
  }
  ~Inputs() {
    arena_.execute([&] { group_.cancel(); });
    try {
      wait();
    } catch (...) {  // the error that ends this is on its way already
    }
  }

  void begin(int64_t begin, int64_t end) {
    float* to = buffers_[next_].data();
    arena_.execute([&] {
      group_.run([=, this] {
        for (int64_t first = begin; first < end;) {
          const int64_t last = std::min(end, first + set_.most_prepared());
          set_.prepare(first, last);
          tbb::parallel_for(first, last, [=, this](int64_t i) {
            const images::ImageU8 image = to_rgb(set_.image(i));
            make_fid_input(image, preset_, to + (i - begin) * kInputElements);
            const std::lock_guard lock(mutex_);
            sizes_.add(image.height, image.width);
          });
          first = last;
        }
      });
    });
  }
  /// What begin() made; valid until the call after the next.
  const float* finished() {
    wait();
    next_ = 1 - next_;
    return buffers_[1 - next_].data();
  }

  const ImageSizes& sizes() const { return sizes_; }  ///< of all images that are finished

 private:
  void wait() {
    arena_.execute([&] { group_.wait(); });
  }

  ImageSet& set_;
  FidPreset preset_;
  tbb::task_arena arena_;
  tbb::task_group group_;
  std::vector<float> buffers_[2];
  std::mutex mutex_;  // guards sizes_
  ImageSizes sizes_;
  size_t next_ = 0;
};

// What the precision of the network costs: the same images in f32.
double error_of(ops::Context& ctx, const FeatureSettings& settings, const Tensor& images, const Tensor& features) {
  nn::Inception exact = load_inception(settings.weights);
  const Tensor want(features.shape());
  exact.run(ctx, images, {want});
  const Pin<float> a(features), b(want);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    error += std::pow(double(a[i]) - double(b[i]), 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace

Features inception_features(parallel::Team& team, dist::Communicator& comm, ImageSet& set,
                            const FeatureSettings& settings) {
  Features features{.n = set.size(), .d = nn::kInceptionFeatures};
  features.description =
      fmt::format("{} of the FID Inception, weights sha256 {}; preset {}: {}", features.d, settings.weights_sha256,
                  word_of(settings.preset), description_of(settings.preset));
  const parallel::Range mine = parallel::partition(set.size(), comm.rank(), comm.world_size());
  features.values.resize(size_t(mine.size() * features.d));
  if (settings.spatial) features.spatial.resize(size_t(mine.size() * nn::kInceptionSpatial));
  if (settings.logits) features.logits.resize(size_t(mine.size() * nn::kInceptionClasses));
  ops::Context ctx(team);
  Inputs inputs(set, settings.preset, team.num_workers());
  const auto end_of = [&](int64_t begin) { return std::min(begin + kBatch, mine.end); };
  if (!mine.empty()) inputs.begin(mine.begin, end_of(mine.begin));
  for (int64_t begin = mine.begin; begin < mine.end; begin += kBatch) {
    const float* input = inputs.finished();
    const int64_t n = end_of(begin) - begin, row = begin - mine.begin;
    if (begin + kBatch < mine.end) inputs.begin(begin + kBatch, end_of(begin + kBatch));
    const Tensor images({n, 3, nn::kInceptionSide, nn::kInceptionSide});
    std::copy_n(input, n * kInputElements, Pin<float>(images).get());
    const auto tensor = [&](bool wanted, Shape shape) { return wanted ? Tensor(std::move(shape)) : Tensor(); };
    constexpr int64_t kSide = nn::kInceptionSpatialSide;
    const nn::Inception::Outputs out{Tensor({n, features.d}),
                                     tensor(settings.spatial, {n, kSide, kSide, nn::kInceptionSpatialChannels}),
                                     tensor(settings.logits, {n, nn::kInceptionClasses})};
    settings.network->run(ctx, images, out);
    if (begin == 0 && settings.network->type() != DType::kF32) {
      features.error_of_precision = error_of(ctx, settings, images, out.features);
      features.description += fmt::format("; network in bf16: its features of the first {} images are off by {:.2g} %",
                                          n, 100 * *features.error_of_precision);
    }
    const auto keep = [&](const Tensor& from, std::vector<float>& to) {
      if (from.defined()) std::copy_n(Pin<float>(from).get(), from.size(), to.data() + row * (from.size() / n));
    };
    keep(out.features, features.values), keep(out.spatial, features.spatial), keep(out.logits, features.logits);
  }
  const ImageSizes& s = inputs.sizes();
  std::vector<float> sizes;
  if (!mine.empty())
    for (const int64_t x : {s.least_height, s.least_width, s.greatest_height, s.greatest_width})
      sizes.push_back(float(x));
  sizes = dist::gather_floats(comm, std::move(sizes));
  for (size_t i = 0; i + 1 < sizes.size(); i += 2) features.sizes.add(int64_t(sizes[i]), int64_t(sizes[i + 1]));
  for (std::vector<float>* rows : {&features.values, &features.spatial, &features.logits})
    *rows = dist::gather_floats(comm, std::move(*rows));
  return features;
}

}  // namespace ditrain::eval
