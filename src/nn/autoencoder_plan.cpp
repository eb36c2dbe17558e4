#include "autoencoder_plan.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/group_norm.hpp"
#include "placement.hpp"

namespace ditrain::nn {
namespace {

using Kind = PlannedStep::Kind;
constexpr int kOutside = PlannedStep::kOutside;

// Adds steps one after the other; the value that the next module reads is `now`.
class Builder {
 public:
  Builder(int64_t image_h, int64_t image_w, int64_t channels)
      : height_(image_h), width_(image_w), channels_(channels) {}

  // A convolution; its result replaces `now`. Moments are made if a norm reads the result next.
  void conv(const std::string& weight, int64_t outputs, const ops::Conv2d& c, bool then_norm,
            const std::string& module) {
    now_ = add_conv(weight, now_, outputs, c, then_norm);
    plan_.steps.back().module = module;
  }
  // Its result leaves the block.
  void last_conv(const std::string& weight, int64_t outputs, const ops::Conv2d& c) {
    PlannedStep step = conv_step(weight, now_, outputs, c);
    step.module = weight;
    plan_.steps.push_back(step);
    now_ = kOutside, channels_ = outputs;
  }
  void norm(const std::string& weight, bool silu, bool in_place, const std::string& module = {}) {
    PlannedStep step{.kind = Kind::kNorm, .weight = weight, .x = now_, .y = now_, .silu = silu, .module = module};
    step.height = height_, step.width = width_;
    if (!in_place) step.y = add_value(channels_);
    read(now_);
    plan_.steps.push_back(step);
    now_ = step.y;
  }
  void resnet(const std::string& name, int64_t outputs, bool then_norm = true) {
    int x = now_;
    const int64_t inputs = channels_;
    norm(name + ".norm1", true, false);
    now_ = add_conv(name + ".conv1", now_, outputs, ops::Conv2d::same(3), true);
    norm(name + ".norm2", true, true);
    const int h = now_;
    if (inputs != outputs) {
      channels_ = inputs;
      x = add_conv(name + ".conv_shortcut", x, outputs, {}, false);
    }
    channels_ = outputs;
    now_ = add_conv(name + ".conv2", h, outputs, ops::Conv2d::same(3), then_norm, x);
    plan_.steps.back().module = name;
  }
  void attention(const std::string& name) {
    const int x = now_;
    const int64_t C = channels_;
    norm(name + ".group_norm", false, false);
    now_ = add_conv(name + "." + kJoinedProjection, now_, 3 * C, {}, false);
    PlannedStep step{.kind = Kind::kAttention, .x = now_, .in = C, .out = C};
    step.height = height_, step.width = width_;
    step.y = add_value(C);
    read(now_);
    plan_.steps.push_back(step);
    plan_.tokens = height_ * width_;
    plan_.macs += 2.0 * double(plan_.tokens) * double(plan_.tokens) * double(C);
    channels_ = C;
    now_ = add_conv(name + ".to_out.0", step.y, C, {}, true, x);
    plan_.steps.back().module = name;
  }

  AutoencoderPlan finished();

 private:
  int step() const { return int(plan_.steps.size()); }
  int add_value(int64_t channels) {
    plan_.values.push_back({.height = height_, .width = width_, .channels = channels, .first = step(), .last = step()});
    return int(plan_.values.size()) - 1;
  }
  void read(int value) {
    if (value != kOutside) plan_.values[size_t(value)].last = step();
  }
  PlannedStep conv_step(const std::string& weight, int x, int64_t outputs, const ops::Conv2d& c) {
    const Shape y = ops::conv2d_shape({1, height_, width_, channels_}, {c.kernel_h, c.kernel_w, channels_, outputs}, c);
    read(x);
    PlannedStep step{.kind = Kind::kConv, .weight = weight, .x = x, .conv = c, .in = channels_, .out = outputs};
    step.height = y[1], step.width = y[2];
    plan_.macs += double(y[1] * y[2]) * double(c.kernel_h * c.kernel_w * channels_ * outputs);
    return step;
  }
  int add_conv(const std::string& weight, int x, int64_t outputs, const ops::Conv2d& c, bool makes_moments,
               int residual = kOutside) {
    PlannedStep step = conv_step(weight, x, outputs, c);
    height_ = step.height, width_ = step.width, channels_ = outputs;
    step.y = add_value(outputs), step.residual = residual, step.makes_moments = makes_moments;
    read(residual);
    plan_.steps.push_back(step);
    return step.y;
  }

  AutoencoderPlan plan_;
  int now_ = kOutside;
  int64_t height_, width_, channels_;
};

AutoencoderPlan Builder::finished() {
  plan_.elements = place(plan_.values);
  for (const PlannedStep& step : plan_.steps)
    if (step.makes_moments)
      plan_.moment_elements =
          std::max(plan_.moment_elements, num_elements(ops::moments_shape({1, step.height, step.width, step.out})));
  return std::move(plan_);
}

std::string numbered(const std::string& name, int64_t i) { return name + "." + std::to_string(i); }

void middle(Builder& b, const std::string& part, int64_t channels) {
  b.resnet(part + ".mid_block.resnets.0", channels);
  b.attention(part + ".mid_block.attentions.0");
  b.resnet(part + ".mid_block.resnets.1", channels);
}

}  // namespace

AutoencoderPlan plan_encoder(const AutoencoderConfig& config, int64_t height, int64_t width) {
  Builder b(height, width, config.image_channels);
  b.conv("encoder.conv_in", config.channels[0], ops::Conv2d::same(3), true, "encoder.conv_in");
  for (int64_t level = 0; level < config.levels(); ++level) {
    const std::string block = numbered("encoder.down_blocks", level);
    const int64_t channels = config.channels[size_t(level)];
    const bool shrinks = level + 1 < config.levels();
    for (int64_t i = 0; i < config.layers; ++i)
      b.resnet(numbered(block + ".resnets", i), channels, i + 1 < config.layers || !shrinks);
    const ops::Conv2d halved{
        .kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_bottom = 1, .pad_right = 1};
    if (shrinks) b.conv(block + ".downsamplers.0.conv", channels, halved, true, block + ".downsamplers.0");
  }
  middle(b, "encoder", config.channels.back());
  b.norm("encoder.conv_norm_out", true, true, "encoder.conv_norm_out");
  b.last_conv("encoder.conv_out", 2 * config.latent_channels, ops::Conv2d::same(3));
  b.last_conv("quant_conv", 2 * config.latent_channels, {});
  return b.finished();
}

AutoencoderPlan plan_decoder(const AutoencoderConfig& config, int64_t height, int64_t width) {
  Builder b(height, width, config.latent_channels);
  b.last_conv("post_quant_conv", config.latent_channels, {});
  b.conv("decoder.conv_in", config.channels.back(), ops::Conv2d::same(3), true, "decoder.conv_in");
  middle(b, "decoder", config.channels.back());
  for (int64_t i = 0; i < config.levels(); ++i) {
    const std::string block = numbered("decoder.up_blocks", i);
    const int64_t channels = config.channels[size_t(config.levels() - 1 - i)];
    const bool grows = i + 1 < config.levels();
    for (int64_t j = 0; j <= config.layers; ++j)
      b.resnet(numbered(block + ".resnets", j), channels, j < config.layers || !grows);
    if (grows)
      b.conv(block + ".upsamplers.0.conv", channels, ops::Conv2d::same(3, true), true, block + ".upsamplers.0");
  }
  b.norm("decoder.conv_norm_out", true, true, "decoder.conv_norm_out");
  b.last_conv("decoder.conv_out", config.image_channels, ops::Conv2d::same(3));
  return b.finished();
}

}  // namespace ditrain::nn
