#include "small_classifier.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::bench {
namespace {

constexpr int64_t kBatch = 64, kLeastTokens = 64;
constexpr optim::Config kOptimizer{
    .lr = 2e-3, .beta2 = 0.99, .weight_decay = 0.05, .clip_norm = 1, .schedule = optim::LrSchedule::kCosine};

// The largest patch that divides the image into 64 tokens or more.
int64_t patch_of(const dataset::SampleShape& s) {
  for (int64_t p = std::gcd(s.height, s.width); p > 1; --p)
    if (s.height % p == 0 && s.width % p == 0 && (s.height / p) * (s.width / p) >= kLeastTokens) return p;
  return 1;
}

// Its output has as many channels as its input: those that the images lack are zeros.
nn::ModelConfig sizes(const dataset::SampleShape& shape, int64_t num_classes) {
  DITRAIN_CHECK(num_classes >= 2, "classes to tell apart");
  return {.name = "custom",
          .input_height = shape.height,
          .input_width = shape.width,
          .in_channels = std::max(shape.channels, num_classes),
          .patch_size = patch_of(shape),
          .hidden_size = 64,
          .depth = 3,
          .num_heads = 2,
          .num_classes = 0,
          .class_dropout = 0,
          .learn_sigma = false};
}

}  // namespace

SmallClassifier::SmallClassifier(ops::Context& ctx, const dataset::SampleShape& shape, int64_t num_classes)
    : ctx_(ctx),
      shape_(shape),
      num_classes_(num_classes),
      model_(sizes(shape, num_classes)),
      pass_(model_, kBatch, autograd::Mode::kTraining) {
  model_.parameters().allocate(autograd::ParameterStore::For::kTraining, DType::kF32,
                               {.states = optim::state_arrays(kOptimizer)});
  pass_.allocate();
  std::fill(pass_.t().begin(), pass_.t().end(), 0.0);
}

size_t SmallClassifier::bytes(const dataset::SampleShape& shape, int64_t num_classes) {
  nn::Model model(sizes(shape, num_classes));
  nn::ModelPass pass(model, kBatch, autograd::Mode::kTraining);
  return model.parameters().bytes(autograd::ParameterStore::For::kTraining, DType::kF32,
                                  optim::state_arrays(kOptimizer)) +
         pass.tape().kept_bytes() + pass.tape().temporary_bytes();
}

// Sample number `sample` of the data as row `row` of the input; pixels beyond the border are those of the border.
void SmallClassifier::fill(const LabelledImages& data, int64_t sample, int64_t row, uint64_t draw, bool augment,
                           float* to) const {
  const int64_t H = shape_.height, W = shape_.width, pixels = H * W;
  const RandomKey key(draw, Stream::kFlip, uint64_t(row), 1);
  const auto shift = [&](uint64_t which, int64_t side) {
    const int64_t most = side / 8;
    return augment ? int64_t(key.below(which, uint64_t(2 * most + 1))) - most : 0;
  };
  const int64_t down = shift(0, H), right = shift(1, W);
  const bool flip = augment && key.below(2, 2) == 1;
  const float* from = data.at(sample);
  float* image = to + row * model_.config().in_channels * pixels;
  std::fill_n(image, model_.config().in_channels * pixels, 0.0f);
  for (int64_t c = 0; c < shape_.channels; ++c)
    for (int64_t y = 0; y < H; ++y)
      for (int64_t x = 0; x < W; ++x) {
        const int64_t from_y = std::clamp<int64_t>(y - down, 0, H - 1);
        const int64_t from_x = std::clamp<int64_t>((flip ? W - 1 - x : x) - right, 0, W - 1);
        image[c * pixels + y * W + x] = from[c * pixels + from_y * W + from_x];
      }
}

// Softmax of the logits of a row.
std::vector<double> SmallClassifier::probabilities(int64_t row, const float* out) const {
  const int64_t pixels = shape_.height * shape_.width;
  std::vector<double> p(static_cast<size_t>(num_classes_));
  for (int64_t k = 0; k < num_classes_; ++k) {
    const float* channel = out + (row * model_.config().in_channels + k) * pixels;
    p[size_t(k)] = std::accumulate(channel, channel + pixels, 0.0) / double(pixels);
  }
  const double most = *std::max_element(p.begin(), p.end());
  for (double& x : p) x = std::exp(x - most);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

void SmallClassifier::train(const LabelledImages& data, int64_t steps, uint64_t seed) {
  DITRAIN_CHECK(data.size() > 0, "images to train on");
  nn::initialise(model_, seed);
  for (const autograd::OptimizerState& state : model_.parameters().states) fill_zero(state.data);
  optim::Config config = kOptimizer;
  config.warmup_steps = steps / 20;
  const int64_t pixels = shape_.height * shape_.width, channels = model_.config().in_channels;
  for (int64_t step = 0; step < steps; ++step) {
    const RandomKey draw(seed, Stream::kShuffle, uint64_t(step), 1);
    std::vector<int64_t> samples;
    for (uint64_t i = 0; i < kBatch; ++i) samples.push_back(int64_t(draw.below(i, uint64_t(data.size()))));
    {
      const Pin<float> image(pass_.image());
      ctx_.for_range(kBatch, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
        for (int64_t i = begin; i < end; ++i)
          fill(data, samples[size_t(i)], i, seed + uint64_t(step) * 1000003, /*augment=*/true, image);
      });
    }
    pass_.forward(ctx_);
    {
      const Pin<float> out(pass_.out(), Access::kRead), dout(pass_.dout());
      ctx_.for_range(kBatch, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
        for (int64_t i = begin; i < end; ++i) {
          const std::vector<double> p = probabilities(i, out);
          for (int64_t k = 0; k < channels; ++k) {
            const double target = k == data.labels[size_t(samples[size_t(i)])] ? 1 : 0;
            const double d = k < num_classes_ ? (p[size_t(k)] - target) / double(pixels * kBatch) : 0;
            std::fill_n(dout.get() + (i * channels + k) * pixels, pixels, static_cast<float>(d));
          }
        }
      });
    }
    pass_.backward(ctx_, autograd::Gradients::kOverwrite);
    const double norm = optim::gradient_norm(ctx_, model_.parameters());
    optim::adamw_ema_step(ctx_, config,
                          {.step = step,
                           .lr = optim::learning_rate(config, step, steps),
                           .ema_decay = 0,
                           .grad_scale = optim::clip_factor(norm, config.clip_norm)},
                          model_.parameters());
  }
}

double SmallClassifier::accuracy(const LabelledImages& data) {
  int64_t hits = 0;
  for (int64_t first = 0; first < data.size(); first += kBatch) {
    const int64_t n = std::min(kBatch, data.size() - first);
    {
      const Pin<float> image(pass_.image());
      for (int64_t i = 0; i < kBatch; ++i) fill(data, first + std::min(i, n - 1), i, 0, /*augment=*/false, image);
    }
    pass_.forward(ctx_);
    const Pin<float> out(pass_.out(), Access::kRead);
    for (int64_t i = 0; i < n; ++i) {
      const std::vector<double> p = probabilities(i, out);
      hits += std::max_element(p.begin(), p.end()) - p.begin() == data.labels[size_t(first + i)] ? 1 : 0;
    }
  }
  return data.size() == 0 ? 0 : double(hits) / double(data.size());
}

}  // namespace ditrain::bench
