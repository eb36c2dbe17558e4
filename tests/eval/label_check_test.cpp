#include "ditrain/eval/label_check.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ditrain/dataset/sampler.hpp"
#include "ditrain/diffusion/diffusion.hpp"
#include "support/quiet_communicator.hpp"
#include "support/workers.hpp"
#include "tiny_model.hpp"

using namespace ditrain;

namespace {

constexpr int64_t kImage = 3 * 32 * 32;

std::unique_ptr<dataset::Dataset> shapes(int64_t num_classes = 8) {
  dataset::Config config;
  config.num_images = 100;
  return dataset::open_dataset(config, {3, 32, 32}, num_classes, 3);
}

/// 400 grey images from dark to bright, sorted by their four classes as image folders are.
class Sorted final : public dataset::Dataset {
 public:
  Sorted() : Dataset(dataset::Config{}, {1, 2, 2}) { size_ = 400, num_classes_ = 4; }
  std::string describe() const override { return "sorted"; }

 private:
  void read(int64_t index, bool /*flip*/, float* chw, Condition* condition) const override {
    std::fill(chw, chw + 4, float(index));
    condition->label = index / 100;
  }
};

/// Rank `rank` of two that run one after the other: the first leaves its numbers, the second adds them to its own.
class TwoRanks final : public test::QuietCommunicator {
 public:
  TwoRanks() : QuietCommunicator(2) {}
  void become(int rank) { rank_ = rank; }
  int rank() const override { return rank_; }
  void allreduce_sum(double* data, int64_t n) override {
    if (rank_ == 0) {
      first_.assign(data, data + n);
    } else {
      for (int64_t i = 0; i < n; ++i) data[i] += first_.at(size_t(i));
    }
  }

 private:
  int rank_ = 0;
  std::vector<double> first_;
};

eval::ValidationLoss validate(nn::Model& model, int64_t num_images, int workers = 1) {
  test::Workers crew(workers);
  const auto comm = dist::make_null_communicator();
  return eval::validation_loss(crew.ctx, *comm, model, {}, *shapes(model.config().num_classes), num_images, 11);
}

// One image at a time, from the definition.
double loss_of(nn::Model& model, int64_t image, int64_t num_images, bool right) {
  test::Workers crew;
  const auto data = shapes();
  std::vector<float> x0(kImage), noise(kImage);
  Condition condition;
  data->load(dataset::EpochSampler(data->size(), 11).index_at(image), false, x0.data(), &condition);
  int64_t label = condition.label;
  RandomKey(11, Stream::kEval, uint64_t(image)).fill_normal(noise.data(), kImage);
  if (!right) label = (label + 1 + int64_t(RandomKey(11, Stream::kEval, uint64_t(image), 1).below(0, 7))) % 8;
  const auto t = int64_t((double(image) + 0.5) * 1000 / double(num_images));
  const diffusion::Schedule s = diffusion::make_schedule(*diffusion::named<diffusion::BetaSchedule>("linear"), 1000);
  nn::ModelPass pass(model, 1, autograd::Mode::kInference);
  pass.allocate();
  {
    const Pin<float> x(pass.image());
    for (int64_t i = 0; i < kImage; ++i)
      x[i] = float(s.sqrt_alphas_cumprod[size_t(t)] * x0[size_t(i)] +
                   s.sqrt_one_minus_alphas_cumprod[size_t(t)] * noise[size_t(i)]);
  }
  pass.t()[0] = double(t), pass.conditions()[0].label = label;
  pass.forward(crew.ctx);
  const Pin<float> out(pass.out());
  double sum = 0;
  for (int64_t i = 0; i < kImage; ++i) sum += std::pow(double(noise[size_t(i)]) - out[i], 2);
  return sum / kImage;
}

}  // namespace

TEST_CASE("validation loss is the mean over fixed images, steps and noise") {
  const auto model = test::random_model(test::tiny_config());
  double right = 0, wrong = 0;
  for (int64_t i = 0; i < 6; ++i) right += loss_of(*model, i, 6, true) / 6, wrong += loss_of(*model, i, 6, false) / 6;
  REQUIRE(right != wrong);
  const eval::ValidationLoss loss = validate(*model, 6);
  // The kernels' noise differs by some ulp from RandomKey's and x_t by a rounding more; what the mean over 3,072 values
  // and a few operations leave of that is far below this.
  CHECK(loss.right_label == Approx(right).epsilon(1e-6));
  CHECK(loss.wrong_label == Approx(wrong).epsilon(1e-6));
}

TEST_CASE("a model of flow is judged at even times, which it is given as they are") {
  nn::ModelConfig tiny = test::tiny_config();
  tiny.learn_sigma = false;
  const auto model = test::random_model(tiny);
  test::Workers crew;
  const auto comm = dist::make_null_communicator();
  const diffusion::Config flow{.process = diffusion::named<diffusion::ProcessKind>("flow"), .time_shift = 3};
  double want = 0;
  constexpr int64_t kImages = 3;
  for (int64_t i = 0; i < kImages; ++i) {
    std::vector<float> x0(kImage), noise(kImage);
    Condition condition;
    const auto data = shapes();
    data->load(dataset::EpochSampler(data->size(), 11).index_at(i), false, x0.data(), &condition);
    int64_t label = condition.label;
    RandomKey(11, Stream::kEval, uint64_t(i)).fill_normal(noise.data(), kImage);
    const double t = (double(i) + 0.5) / kImages;
    nn::ModelPass pass(*model, 1, autograd::Mode::kInference);
    pass.allocate();
    {
      const Pin<float> x(pass.image());
      for (int64_t k = 0; k < kImage; ++k) x[k] = float(t * x0[size_t(k)] + (1 - t) * noise[size_t(k)]);
    }
    pass.t()[0] = t, pass.conditions()[0].label = label;
    pass.forward(crew.ctx);
    const Pin<float> out(pass.out());
    for (int64_t k = 0; k < kImage; ++k)
      want += std::pow(double(x0[size_t(k)]) - noise[size_t(k)] - out[k], 2) / kImage / kImages;
  }
  CHECK(eval::validation_loss(crew.ctx, *comm, *model, flow, *shapes(), kImages, 11).right_label ==
        Approx(want).epsilon(1e-6));
}

TEST_CASE("validation loss is the same for any number of workers and ranks") {
  const auto model = test::random_model(test::tiny_config());
  constexpr int64_t kImages = 41;  // neither of batches nor of ranks
  const eval::ValidationLoss loss = validate(*model, kImages);
  const eval::ValidationLoss three = validate(*model, kImages, 3);
  CHECK(three.right_label == loss.right_label);
  CHECK(three.wrong_label == loss.wrong_label);

  test::Workers crew;
  TwoRanks comm;
  eval::ValidationLoss two;
  for (const int rank : {0, 1}) {
    comm.become(rank);
    two = eval::validation_loss(crew.ctx, comm, *model, {}, *shapes(), kImages, 11);
  }
  CHECK(two.right_label == loss.right_label);
  CHECK(two.wrong_label == loss.wrong_label);
}

TEST_CASE("models without a second class have no wrong label") {
  nn::ModelConfig config = test::tiny_config();
  config.num_classes = 0;
  const eval::ValidationLoss loss = validate(*test::random_model(config), 4);
  CHECK(std::isfinite(loss.right_label));
  CHECK(std::isnan(loss.wrong_label));
}

TEST_CASE("more images than the data set has are more draws from it") {
  const auto model = test::random_model(test::tiny_config());
  const eval::ValidationLoss loss = validate(*model, 130);
  CHECK(std::isfinite(loss.right_label));
  CHECK(loss.right_label != validate(*model, 100).right_label);
}

TEST_CASE("the nearest neighbour of a slightly changed image has its class") {
  const auto data = shapes();
  std::vector<float> images(20 * kImage);
  std::vector<int64_t> labels(20), wrong(20);
  for (int64_t i = 0; i < 20; ++i) {
    Condition condition;
    data->load(i + 30, false, images.data() + i * kImage, &condition);
    labels[size_t(i)] = condition.label;
    wrong[size_t(i)] = (labels[size_t(i)] + 1) % 8;
  }
  for (size_t i = 0; i < images.size(); ++i) images[i] += 0.05f * RandomKey(1, Stream::kTest, 0).normal(i);
  for (const int workers : {1, 3}) {
    test::Workers crew(workers);
    CHECK(eval::nearest_labels(crew.ctx, images, *data, 4000) == labels);
    CHECK(eval::nearest_neighbour_accuracy(crew.ctx, images, conditions_of(labels), *data) == 1.0);
    CHECK(eval::nearest_neighbour_accuracy(crew.ctx, images, conditions_of(wrong), *data) == 0.0);
    wrong[0] = labels[0];
    CHECK(eval::nearest_neighbour_accuracy(crew.ctx, images, conditions_of(wrong), *data) == 1.0 / 20);
    wrong[0] = (labels[0] + 1) % 8;
  }
}

TEST_CASE("only the selected reference images count, and a NaN is near nothing") {
  const auto data = shapes();
  std::vector<float> images(2 * kImage);
  Condition condition;
  data->load(43, false, images.data(), &condition);
  REQUIRE(condition.label == 3);
  images.back() = std::numeric_limits<float>::quiet_NaN();
  test::Workers crew(2);
  CHECK(eval::nearest_labels(crew.ctx, images, *data, 100) == std::vector<int64_t>{3, -1});
  const int64_t only = dataset::EpochSampler(100, eval::kReferenceSeed).index_at(0);
  REQUIRE(only % 8 != 3);
  CHECK(eval::nearest_labels(crew.ctx, images, *data, 1)[0] == only % 8);
  CHECK(eval::nearest_neighbour_accuracy(crew.ctx, {}, {}, *data) == 0);
}

TEST_CASE("references of a set that is sorted by class are of all its classes") {
  std::vector<float> images;  // in the middle of each class
  for (const float grey : {50, 150, 250, 350}) images.insert(images.end(), 4, grey);
  test::Workers crew;
  CHECK(eval::nearest_labels(crew.ctx, images, Sorted(), 40) == std::vector<int64_t>{0, 1, 2, 3});
}
