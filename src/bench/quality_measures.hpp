// How good samples are, by measures that need no weights from elsewhere: they compare samples with images that training
// saw and with images that were held out.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/ops/context.hpp"
#include "small_classifier.hpp"

namespace ditrain::bench {

/// A measure, and how a value of it becomes a cost: less is better.
struct Measure {
  enum class Goal { kLeast, kMost, kOne };
  const char *name, *help;
  Goal goal;
  double cost(double value) const {
    return goal == Goal::kLeast ? value : goal == Goal::kMost ? 1 - value : value < 1 ? 1 - value : value - 1;
  }
};

/// The measures of a set of samples; a value is NaN where a measure does not exist (no classes).
///   4x4, 8x8, 16x16   distance of the means over so many parts of the samples to those of held-out images: Frechet
///                     distance, or, with fewer than ten times as many samples, training or held-out images as
///                     dimensions, the unbiased kernel distance (squared maximum mean discrepancy of the kernel
///                     (a.b/d + 1)^3); samples and the real images in their place have the same one
///   real -> samples   share of samples to which a small classifier, trained on the training images, gives their label
///   samples -> real   share of held-out images to which one trained on the samples gives their label
///   nearest           mean distance to the nearest training image / mean distance to the nearest held-out image, as a
///                     multiple of what images have that nobody has seen: 1 is right, 0 means memorised images
///   border ratio      mean absolute difference of neighbouring pixels across borders of the model's patches / the same
///                     within patches, as a multiple of what held-out images have: above 1 the grid of patches shows;
///                     NaN for patches of one pixel and for a single patch
inline constexpr std::array<Measure, 7> kMeasures = {{
    {"4x4", "means over 4x4 parts against held-out images", Measure::Goal::kLeast},
    {"8x8", "means over 8x8 parts against held-out images", Measure::Goal::kLeast},
    {"16x16", "means over 16x16 parts against held-out images", Measure::Goal::kLeast},
    {"real -> samples", "accuracy on samples of a classifier of training images", Measure::Goal::kMost},
    {"samples -> real", "accuracy on held-out images of a classifier of samples", Measure::Goal::kMost},
    {"nearest", "distance to training / to held-out images, 1 for new images", Measure::Goal::kOne},
    {"border ratio", "steps across borders of patches / within them, 1 for held-out images", Measure::Goal::kOne},
}};
using MeasureValues = std::array<double, kMeasures.size()>;

/// How many images to compare with, of `there` and at most `most`: as many as fit into `most_bytes` in f32, but
/// kFewestImages at least.
inline constexpr int64_t kFewestImages = 1000;
int64_t num_images(int64_t there, int64_t most, size_t most_bytes, const dataset::SampleShape& shape);

/// `most` images of a data set in a random order that the seed gives, or all.
LabelledImages load_images(const dataset::Dataset& data, int64_t most, uint64_t seed);

/// The samples of a picture, row by row: with 2 to 16 classes a column for each, and as many rows as all of them can
/// fill, at most `rows`; otherwise the first `rows` x `rows`.
struct GridOfClasses {
  int64_t columns;
  std::vector<int64_t> numbers;
};
GridOfClasses grid_of_classes(const std::vector<int64_t>& labels, int64_t num_classes, int64_t rows);

/// Mean absolute difference of neighbouring pixels, in rows and in columns, across borders of patches / within patches.
double border_ratio(const LabelledImages& images, int64_t patch);

class QualityMeter {
 public:
  struct Setup {
    LabelledImages training, held_out;
    int64_t num_classes = 0;  ///< below 2: no classifiers
    int64_t classifier_steps = 300;
  };
  /// What the meter takes for so many training and held-out images and the measures of so many samples, with the images
  /// and the samples.
  static size_t bytes(const dataset::SampleShape& shape, int64_t training, int64_t held_out, int64_t samples,
                      int64_t num_classes);
  /// Trains the classifier of the training images.
  /// Errors:   InputError for fewer than 4 held-out images
  QualityMeter(ops::Context& ctx, Setup setup);

  /// Every image has a label; `patch` is the model's. The seed is that of the classifier of the samples.
  MeasureValues measure(const LabelledImages& samples, int64_t patch, uint64_t seed);
  /// What `num` training images have in the place of samples: the value that no recipe has to beat. That of
  /// "real -> samples" is of held-out images, as the classifier knows the others; that of
  /// "nearest" is of a random half of the held-out images that define 1.
  MeasureValues of_real(int64_t num, int64_t patch, uint64_t seed);
  /// The labels of the images of of_real() with this seed, in their order, again from the first where `num` are more:
  /// samples with them have the classes of the data in their proportions. Zeros for a model without classes.
  std::vector<int64_t> labels_of_real(int64_t num, uint64_t seed) const;
  int64_t of_training() const { return setup_.training.size(); }  ///< images
  /// "8x8: Frechet distance" ... for so many samples.
  std::vector<std::string> describe(int64_t num_samples) const;

 private:
  struct Means {
    int64_t dimensions = 0;
    std::vector<float> rows = {};
  };
  Means means_of(const LabelledImages& images, int64_t parts) const;
  bool takes_frechet(int64_t num_samples, int64_t dimensions) const;
  double distance(const LabelledImages& samples, int64_t parts) const;
  double nearest_ratio(const Means& samples) const;
  double mean_nearest(const Means& samples, const Means& others) const;

  ops::Context& ctx_;
  const Setup setup_;
  Means training_, held_out_half_, new_half_;  // 16x16, for the nearest; the halves of held-out images
  double ratio_of_new_ = 1, real_accuracy_ = 0;
  std::unique_ptr<SmallClassifier> of_training_, of_samples_;
};

}  // namespace ditrain::bench
