// A small transformer that tells the classes of images apart, of the blocks that train: a Dit without labels whose
// logit of class k is the mean of its output channel k over the image. For comparing sets of images; it is trained from
// scratch in seconds and no match for a good classifier.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::bench {

/// Images in a row, [n, C, H, W], with their labels.
struct LabelledImages {
  dataset::SampleShape shape;
  std::vector<float> images = {};
  std::vector<int64_t> labels = {};
  int64_t size() const { return int64_t(labels.size()); }
  const float* at(int64_t i) const { return images.data() + i * shape.elements(); }
};

class SmallClassifier {
 public:
  /// Memory:   bytes()
  /// Errors:   LogicFault for fewer than 2 classes
  SmallClassifier(ops::Context& ctx, const dataset::SampleShape& shape, int64_t num_classes);

  /// What a classifier of such images takes.
  static size_t bytes(const dataset::SampleShape& shape, int64_t num_classes);

  /// Trains from new random weights: AdamW with a warm-up and a cosine, cross-entropy, batches of 64 drawn by the seed,
  /// each image shifted by up to an eighth of its sides and mirrored at random.
  /// Numerics: the same for any number of threads
  void train(const LabelledImages& data, int64_t steps, uint64_t seed);
  /// The share of images whose largest logit is that of their label.
  double accuracy(const LabelledImages& data);

 private:
  void fill(const LabelledImages& data, int64_t sample, int64_t row, uint64_t draw, bool augment, float* to) const;
  std::vector<double> probabilities(int64_t row, const float* out) const;

  ops::Context& ctx_;
  const dataset::SampleShape shape_;
  const int64_t num_classes_;
  nn::Model model_;
  nn::ModelPass pass_;
};

}  // namespace ditrain::bench
