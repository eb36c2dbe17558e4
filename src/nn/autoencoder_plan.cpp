#include "autoencoder_plan.hpp"

#include <algorithm>
#include <numeric>

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
  Builder(int64_t image_h, int64_t image_w, int64_t channels, int64_t slice_pixels)
      : height_(image_h), width_(image_w), channels_(channels), slice_pixels_(slice_pixels) {}

  // A convolution; its result replaces `now`. Moments are made if a norm reads the result next.
  void conv(const std::string& weight, int64_t outputs, const ops::Conv2d& c, bool then_norm,
            const std::string& module) {
    now_ = add_conv({.weight = weight, .module = module}, now_, outputs, c, then_norm);
  }
  // Its result leaves the block.
  void last_conv(const std::string& weight, int64_t outputs, const ops::Conv2d& c, const std::string& norm = {}) {
    PlannedStep step = conv_step(weight, now_, outputs, c);
    step.module = weight, step.norm = step.norm_module = norm;
    if (!norm.empty()) add_buffer(step);
    plan_.steps.push_back(step);
    now_ = kOutside, channels_ = outputs;
  }
  // Norms are part of the convolutions behind them. The second one, and a shortcut with fewer channels, leave their
  // result where their input lay.
  void resnet(const std::string& name, int64_t outputs, bool then_norm = true) {
    const ops::Conv2d three = ops::Conv2d::same(3);
    const int64_t inputs = channels_;
    int x = now_;
    const int h = add_conv({.weight = name + ".conv1", .norm = name + ".norm1"}, x, outputs, three, true);
    if (inputs != outputs) {
      channels_ = inputs;
      x = add_conv({.weight = name + ".conv_shortcut", .y = outputs < inputs ? x : kOutside}, x, outputs, {}, false);
    }
    const PlannedStep second{.weight = name + ".conv2", .norm = name + ".norm2", .y = h, .residual = x, .module = name};
    now_ = add_conv(second, h, outputs, three, then_norm);
  }
  void attention(const std::string& name) {
    const int x = now_;
    const int64_t C = channels_;
    PlannedStep normed{.kind = Kind::kNorm, .weight = name + ".group_norm", .x = x, .y = add_value(C)};
    read(x);
    plan_.steps.push_back(normed);
    now_ = add_conv({.weight = name + "." + kJoinedProjection}, normed.y, 3 * C, {}, false);
    PlannedStep step{.kind = Kind::kAttention, .x = now_, .in = C, .out = C};
    step.height = height_, step.width = width_;
    step.y = add_value(C);
    read(now_);
    plan_.steps.push_back(step);
    plan_.tokens = height_ * width_;
    plan_.macs += 2.0 * double(plan_.tokens) * double(plan_.tokens) * double(C);
    channels_ = C;
    now_ = add_conv({.weight = name + ".to_out.0", .residual = x, .module = name}, step.y, C, {}, true);
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
  // Adds `step`, which tells weight, norm, residual, module and the place of the result, if it is not a new one.
  int add_conv(PlannedStep step, int x, int64_t outputs, const ops::Conv2d& c, bool makes_moments) {
    const PlannedStep sizes = conv_step(step.weight, x, outputs, c);
    step.x = x, step.conv = c, step.in = sizes.in, step.out = outputs, step.height = sizes.height;
    step.width = sizes.width, step.makes_moments = makes_moments;
    if (!step.norm.empty() || (x != kOutside && step.y == x)) add_buffer(step);
    height_ = step.height, width_ = step.width, channels_ = outputs;
    if (step.y == kOutside) step.y = add_value(outputs);
    read(step.y), read(step.residual);
    plan_.steps.push_back(step);
    return step.y;
  }
  // Room for the rows of x that a slice reads; slices begin where units of the moments do.
  void add_buffer(PlannedStep& step) {
    const int64_t unit = ops::moment_rows(step.height * step.width), least = unit / std::gcd(unit, step.width);
    const int64_t wanted = std::max<int64_t>(1, slice_pixels_ / step.width);
    step.slice_rows = std::min(step.height, (wanted + least - 1) / least * least);
    step.buffer = add_value(step.in);
    plan_.values.back().height = std::min(step.height, step.slice_rows + step.conv.kernel_h - 1);
  }

  AutoencoderPlan plan_;
  int now_ = kOutside;
  int64_t height_, width_, channels_, slice_pixels_;
};

AutoencoderPlan Builder::finished() {
  plan_.elements = place(plan_.values);
  for (const PlannedStep& step : plan_.steps)
    if (step.makes_moments)
      plan_.moment_elements =
          std::max(plan_.moment_elements, num_elements(ops::moments_shape({1, step.height, step.width, step.out})));
  return std::move(plan_);
}

void middle(Builder& b, const std::string& part, int64_t channels) {
  b.resnet(part + ".mid_block.resnets.0", channels);
  b.attention(part + ".mid_block.attentions.0");
  b.resnet(part + ".mid_block.resnets.1", channels);
}

}  // namespace

AutoencoderPlan plan_encoder(const AutoencoderConfig& config, int64_t height, int64_t width, int64_t slice_pixels) {
  Builder b(height, width, config.image_channels, slice_pixels);
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
  b.last_conv("encoder.conv_out", 2 * config.latent_channels, ops::Conv2d::same(3), "encoder.conv_norm_out");
  b.last_conv("quant_conv", 2 * config.latent_channels, {});
  return b.finished();
}

AutoencoderPlan plan_decoder(const AutoencoderConfig& config, int64_t height, int64_t width, int64_t slice_pixels) {
  Builder b(height, width, config.latent_channels, slice_pixels);
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
  b.last_conv("decoder.conv_out", config.image_channels, ops::Conv2d::same(3), "decoder.conv_norm_out");
  return b.finished();
}

}  // namespace ditrain::nn
