#include "ditrain/eval/training_fid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/eval/frechet.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::eval {
namespace {

using dataset::SampleShape;

EvalImage as_in_a_file(const float* chw, const SampleShape& shape, std::string name) {
  EvalImage image{.height = shape.height, .width = shape.width, .channels = shape.channels};
  image.name = std::move(name);
  if (shape.channels == 1 || shape.channels == 3) {
    io::ImageU8 picture = io::to_image(chw, shape.channels, shape.height, shape.width);
    image.channels = picture.channels, image.u8 = std::move(picture.pixels);
  } else {
    image.is_u8 = false, image.channels_first = true;
    image.f32.assign(chw, chw + shape.elements());
  }
  return image;
}

// Images in memory.
class Samples final : public ImageSet {
 public:
  Samples(const std::vector<float>& values, const SampleShape& shape) : values_(values), shape_(shape) {}
  int64_t size() const override { return int64_t(values_.size()) / shape_.elements(); }
  std::string describe() const override { return fmt::format("{} samples", size()); }
  std::string sha256() const override { return ""; }
  EvalImage image(int64_t i) override {
    return as_in_a_file(values_.data() + i * shape_.elements(), shape_, fmt::format("sample {}", i));
  }

 private:
  const std::vector<float>& values_;
  const SampleShape shape_;
};

// Images of a data set, spread evenly over it: numbers first ... first + n - 1 of `all`.
class ImagesOfData final : public ImageSet {
 public:
  ImagesOfData(const dataset::Dataset& data, const parallel::Range& mine, int64_t all)
      : data_(data), mine_(mine), all_(all) {}
  int64_t size() const override { return mine_.size(); }
  std::string describe() const override { return fmt::format("{} images of the data", all_); }
  std::string sha256() const override { return ""; }
  EvalImage image(int64_t i) override {
    const int64_t index = (mine_.begin + i) * data_.size() / all_;
    std::vector<float> chw(size_t(data_.shape().elements()));
    int64_t label = 0;
    data_.load(index, /*flip=*/false, chw.data(), &label);
    return as_in_a_file(chw.data(), data_.shape(), fmt::format("image {} of the data", index));
  }

 private:
  const dataset::Dataset& data_;
  const parallel::Range mine_;
  const int64_t all_;
};

}  // namespace

// Every rank computes the features of its own images; rank 0 gets those of all, in the order of the ranks.
Features TrainingFid::features_of_all(ImageSet* mine) {
  Features all;
  if (mine->size() > 0) all = features_of(team_, *mine, settings_);
  const std::string bytes(reinterpret_cast<const char*>(all.values.data()), all.values.size() * sizeof(float));
  std::string gathered;
  for (const std::string& of_rank : comm_.gather_strings(bytes)) gathered += of_rank;
  if (comm_.rank() != 0 || all.d == 0) return all;
  all.values.resize(gathered.size() / sizeof(float));
  std::memcpy(all.values.data(), gathered.data(), gathered.size());
  all.n = int64_t(all.values.size()) / all.d;
  return all;
}

TrainingFid::TrainingFid(const Setup& setup, const dataset::Dataset& data, parallel::Team& team,
                         dist::Communicator& comm)
    : settings_(setup.features), team_(team), comm_(comm) {
  load_network(settings_);
  if (!setup.reference.empty()) {
    reference_ = reference_statistics(team, comm, setup.reference, settings_, description_);
    return;
  }
  const int64_t n = std::min(data.size(), setup.most_of_data);
  ImagesOfData images(data, parallel::partition(n, comm.rank(), comm.world_size()), n);
  const Features features = features_of_all(&images);
  if (comm.rank() != 0) return;
  reference_ = statistics_of(team, features.values, features.d);
  description_ = images.describe();
}

double TrainingFid::distance(const std::vector<float>& mine, const SampleShape& shape) {
  Samples samples(mine, shape);
  const Features features = features_of_all(&samples);
  double value = 0;
  if (comm_.rank() == 0) {
    if (features.d != reference_.dimensions())
      throw InputError({.where = "eval.reference",
                        .what = "the reference has features of other dimensions than the samples",
                        .got = std::to_string(reference_.dimensions()),
                        .expected = std::to_string(features.d),
                        .hint = "images of the size of the samples, or statistics made with the same features"});
    value = frechet_distance(team_, reference_, statistics_of(team_, features.values, features.d)).value;
  }
  comm_.broadcast(&value, sizeof value, 0);
  return value;
}

}  // namespace ditrain::eval
