#include "ditrain/eval/label_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/sampler.hpp"
#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/kernels/random.hpp"
#include "model_pass.hpp"

namespace ditrain::eval {
namespace {

// The fixed triples, in batches, and the loss of each image under both labels.
class Validation {
 public:
  Validation(ops::Context& ctx, nn::Model& model, const diffusion::Config& config, const dataset::Dataset& data,
             int64_t num_images, uint64_t seed)
      : ctx_(ctx),
        data_(data),
        num_images_(num_images),
        num_classes_(model.config().num_classes),
        seed_(seed),
        process_(diffusion::make_process(config, model.config().learn_sigma)),
        shape_{model.config().in_channels, model.config().pixels()},
        order_(data.size(), seed),
        pass_(ctx, model) {}

  /// Images first ... first + n - 1; right and wrong [n]. Without a second class wrong is left as it is.
  void prediction_errors(int64_t first, int64_t n, double* right, double* wrong) {
    prepare(first, n);
    prediction_errors(right_, n, right);
    if (num_classes_ > 1) prediction_errors(wrong_, n, wrong);
  }

 private:
  void prepare(int64_t first, int64_t n) {
    const int64_t elements = shape_.elements();
    for (auto* array : {&x0_, &x_t_, &noise_}) array->resize(size_t(n * elements));
    for (auto* array : {&right_, &wrong_}) array->resize(size_t(n));
    for (auto* array : {&time_, &model_time_}) array->resize(size_t(n));
    out_.resize(size_t(n * process_->output_channels(shape_.channels) * shape_.pixels));
    ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t i = begin; i < end; ++i) prepare_image(first + i, i);
      diffusion::q_sample(*process_, x0_.data(), noise_.data(), time_.data(), x_t_.data(), elements, begin, end);
    });
  }

  void prepare_image(int64_t image, int64_t at) {
    const int64_t elements = shape_.elements();
    Condition& right = right_[size_t(at)];
    data_.load(order_.index_at(image), /*flip=*/false, x0_.data() + at * elements, &right);
    kernels::fill_normal(RandomKey(seed_, Stream::kEval, uint64_t(image)), 0, noise_.data() + at * elements, elements);
    time_[size_t(at)] = process_->spread_time(image, num_images_);
    model_time_[size_t(at)] = process_->model_time(time_[size_t(at)]);
    if (num_classes_ < 2) return;
    const auto shift =
        int64_t(RandomKey(seed_, Stream::kEval, uint64_t(image), 1).below(0, uint64_t(num_classes_ - 1)));
    wrong_[size_t(at)] = right;
    wrong_[size_t(at)].label = (right.label + 1 + shift) % num_classes_;
  }

  void prediction_errors(const std::vector<Condition>& conditions, int64_t n, double* mse) {
    pass_(x_t_.data(), model_time_.data(), conditions.data(), n, out_.data());
    const diffusion::LossBatch batch{x0_.data(),   x_t_.data(), noise_.data(),
                                     time_.data(), out_.data(), conditions.data()};
    ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      diffusion::prediction_error(*process_, shape_, batch, mse, begin, end);
    });
  }

  ops::Context& ctx_;
  const dataset::Dataset& data_;
  const int64_t num_images_, num_classes_;
  const uint64_t seed_;
  const std::unique_ptr<diffusion::Process> process_;
  const diffusion::Shape shape_;
  const dataset::EpochSampler order_;
  ModelPass pass_;
  std::vector<float> x0_, x_t_, noise_, out_;
  std::vector<double> time_, model_time_;
  std::vector<Condition> right_, wrong_;  // wrong_: another label
};

double mean(const double* values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += values[i];
  return sum / double(n);
}

// Four partial sums, so that additions do not wait for each other; their order is fixed.
double squared_distance(const float* a, const float* b, int64_t n) {
  std::array<double, 4> sums{};
  for (int64_t i = 0; i < n; ++i) {
    const double d = double(a[i]) - double(b[i]);
    sums[size_t(i % 4)] += d * d;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

struct Nearest {
  double distance = std::numeric_limits<double>::infinity();
  int64_t index = std::numeric_limits<int64_t>::max(), label = -1;
  bool better_than(const Nearest& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

}  // namespace

ValidationLoss validation_loss(ops::Context& ctx, dist::Communicator& comm, nn::Model& model,
                               const diffusion::Config& config, const dataset::Dataset& data, int64_t num_images,
                               uint64_t seed) {
  const nn::ModelConfig& m = model.config();
  const dataset::SampleShape& s = data.shape();
  DITRAIN_CHECK(num_images >= 1, "a mean over images");
  DITRAIN_CHECK(s.channels == m.in_channels && s.height == m.input_height && s.width == m.input_width,
                "data of the model's shape");
  // Every number is computed by one rank, the others add zeros: the sum over ranks is exact.
  std::vector<double> mse(size_t(2 * num_images), 0.0);
  double *right = mse.data(), *wrong = right + num_images;
  Validation validation(ctx, model, config, data, num_images, seed);
  const parallel::Range mine = parallel::partition(num_images, comm.rank(), comm.world_size());
  for (int64_t first = mine.begin; first < mine.end; first += kDefaultBatch)
    validation.prediction_errors(first, std::min(kDefaultBatch, mine.end - first), right + first, wrong + first);
  comm.allreduce_sum(mse.data(), 2 * num_images);
  const bool two_classes = m.num_classes > 1;
  return {mean(right, num_images), two_classes ? mean(wrong, num_images) : std::numeric_limits<double>::quiet_NaN()};
}

std::vector<int64_t> validation_samples(const dist::Communicator& comm, const dataset::Dataset& data,
                                        int64_t num_images, uint64_t seed) {
  const dataset::EpochSampler order(data.size(), seed);
  const parallel::Range mine = parallel::partition(num_images, comm.rank(), comm.world_size());
  std::vector<int64_t> samples;
  for (int64_t i = mine.begin; i < mine.end; ++i) samples.push_back(order.index_at(i));
  return samples;
}

std::vector<int64_t> nearest_labels(ops::Context& ctx, const std::vector<float>& images, const dataset::Dataset& data,
                                    int64_t reference_images) {
  const int64_t elements = data.shape().elements(), n = int64_t(images.size()) / elements;
  DITRAIN_CHECK(n * elements == int64_t(images.size()), "whole images of the data's shape");
  const dataset::EpochSampler order(data.size(), kReferenceSeed);
  std::vector<std::vector<Nearest>> found(size_t(ctx.team().num_workers()), std::vector<Nearest>(size_t(n)));
  ctx.for_range(std::min(reference_images, data.size()), 1,
                [&](int64_t begin, int64_t end, const parallel::Worker& worker) {
                  std::vector<float> reference(static_cast<size_t>(elements));
                  Nearest candidate;
                  Condition condition;
                  for (int64_t at = begin; at < end; ++at) {
                    candidate.index = order.index_at(at);
                    data.load(candidate.index, /*flip=*/false, reference.data(), &condition);
                    candidate.label = condition.label;
                    for (int64_t i = 0; i < n; ++i) {
                      candidate.distance = squared_distance(images.data() + i * elements, reference.data(), elements);
                      Nearest& best = found[size_t(worker.worker)][size_t(i)];
                      if (std::isfinite(candidate.distance) && candidate.better_than(best)) best = candidate;
                    }
                  }
                });
  std::vector<int64_t> labels;
  for (size_t i = 0; i < size_t(n); ++i) {
    Nearest best;
    for (const auto& of_worker : found)
      if (of_worker[i].better_than(best)) best = of_worker[i];
    labels.push_back(best.label);
  }
  return labels;
}

double nearest_neighbour_accuracy(ops::Context& ctx, const std::vector<float>& images,
                                  const std::vector<Condition>& conditions, const dataset::Dataset& data,
                                  int64_t reference_images) {
  const std::vector<int64_t> nearest = nearest_labels(ctx, images, data, reference_images);
  DITRAIN_CHECK(nearest.size() == conditions.size(), "one label per image");
  if (conditions.empty()) return 0;
  int64_t hits = 0;
  for (size_t i = 0; i < nearest.size(); ++i) hits += nearest[i] == conditions[i].label ? 1 : 0;
  return double(hits) / double(nearest.size());
}

}  // namespace ditrain::eval
