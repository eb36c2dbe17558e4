#include "ditrain/nn/inception.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"
#include "inception_plan.hpp"

namespace ditrain::nn {
namespace {

constexpr const char* kInception = "inception";
constexpr double kEpsilon = 1e-3;  // of all its BatchNorms

Shape shape_of(const InceptionConv& c, size_t i) { return {c.outputs[i], c.inputs, c.conv.kernel_h, c.conv.kernel_w}; }

// A convolution and the BatchNorm after it as one: w gamma / sqrt(var + eps), beta - mean gamma / sqrt(var + eps).
void append_folded(const InceptionConv& c, size_t i, const Inception::Source& source, std::vector<float>& weight,
                   std::vector<float>& bias) {
  const Shape shape = shape_of(c, i), of_norm = {shape[0]};
  const std::vector<float> w = source(c.names[i] + ".conv.weight", shape);
  const std::string norm = c.names[i] + ".bn.";
  const std::vector<float> gamma = source(norm + "weight", of_norm), beta = source(norm + "bias", of_norm),
                           mean = source(norm + "running_mean", of_norm), var = source(norm + "running_var", of_norm);
  const size_t each = w.size() / size_t(shape[0]);
  for (size_t n = 0; n < gamma.size(); ++n) {
    const double scale = double(gamma[n]) / std::sqrt(double(var[n]) + kEpsilon);
    for (size_t k = n * each; k < (n + 1) * each; ++k) weight.push_back(float(double(w[k]) * scale));
    bias.push_back(float(double(beta[n]) - double(mean[n]) * scale));
  }
}

// Channels of a view in f32, without gaps.
void gather(ops::Context& ctx, const ops::ChannelView& view, float* to) {
  const int64_t C = view.images.dim(3), pixels = view.images.size() / C;
  const auto each = [&](const auto* from) {
    ctx.for_range(pixels, 64, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t c = 0; c < view.count; ++c) {
          const auto v = from[p * C + view.begin + c];
          if constexpr (std::is_same_v<std::remove_const_t<decltype(v)>, BFloat16>)
            to[p * view.count + c] = to_f32(v);
          else
            to[p * view.count + c] = v;
        }
    });
  };
  view.images.dtype() == DType::kBF16 ? each(Pin<BFloat16>(view.images).get()) : each(Pin<float>(view.images).get());
}

// [B, 3, H, W] to [B, H, W, 3].
void to_channels_last(ops::Context& ctx, const Tensor& images, const Tensor& to) {
  const Pin<float> from(images);
  const int64_t C = images.dim(1), pixels = images.dim(2) * images.dim(3);
  const auto each = [&](auto* out) {
    ctx.for_range(images.dim(0) * pixels, 1024, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t c = 0; c < C; ++c) {
          const float v = from[(i / pixels * C + c) * pixels + i % pixels];
          if constexpr (std::is_same_v<decltype(out), BFloat16*>)
            out[i * C + c] = to_bf16(v);
          else
            out[i * C + c] = v;
        }
    });
  };
  to.dtype() == DType::kBF16 ? each(Pin<BFloat16>(to).get()) : each(Pin<float>(to).get());
}

}  // namespace

std::vector<InceptionWeight> inception_weights() {
  std::vector<InceptionWeight> all;
  for (const InceptionConv& c : plan_inception().convs) {
    for (size_t i = 0; i < c.names.size(); ++i) {
      all.push_back({c.names[i] + ".conv.weight", shape_of(c, i)});
      for (const char* part : {"weight", "bias", "running_mean", "running_var"})
        all.push_back({c.names[i] + ".bn." + part, {c.outputs[i]}});
    }
  }
  all.push_back({"fc.weight", {kInceptionClasses, kInceptionFeatures}});
  return all;
}

Inception::Inception(DType type, const Source& source) : type_(type), plan_(new InceptionPlan(plan_inception())) {
  for (const InceptionConv& c : plan_->convs) {
    std::vector<float> weight, bias;
    for (size_t i = 0; i < c.names.size(); ++i) append_folded(c, i, source, weight, bias);
    const auto outputs = int64_t(bias.size());
    const Tensor values({c.conv.kernel_h, c.conv.kernel_w, c.inputs, outputs}, type);
    ops::to_conv_layout(weight, outputs, values);
    layers_.push_back({ops::packed_weights(values), from_values({outputs}, bias)});
  }
  fc_ = Tensor({1, 1, kInceptionFeatures, kInceptionClasses});
  ops::to_conv_layout(source("fc.weight", {kInceptionClasses, kInceptionFeatures}), kInceptionClasses, fc_);
}
Inception::~Inception() = default;
Inception::Inception(Inception&&) noexcept = default;

size_t Inception::weight_bytes() const {
  size_t bytes = fc_.bytes();
  for (const Layer& layer : layers_) bytes += layer.weight.values.bytes() + layer.bias.bytes();
  return bytes;
}
size_t Inception::activation_bytes(int64_t batch) const { return size_t(batch * plan_->elements) * dtype_bytes(type_); }
double Inception::macs() const { return plan_->macs; }

void Inception::run(ops::Context& ctx, const Tensor& images, const Outputs& out, const Observer& observer) {
  const int64_t B = images.shape().empty() ? 0 : images.dim(0);
  ops::expect_shape(kInception, "images", images, {B, 3, kInceptionSide, kInceptionSide});
  ops::expect_shape(kInception, "features", out.features, {B, kInceptionFeatures});
  if (B == 0) return;
  if (!block_.defined() || block_.size() < B * plan_->elements)
    block_ = {}, block_ = Tensor({B * plan_->elements}, type_);
  const auto view = [&](const InceptionView& v) {
    const InceptionValue& value = plan_->values[size_t(v.value)];
    return ops::ChannelView{block_.slice(B * value.offset, {B, value.side, value.side, value.channels}), v.begin,
                            v.count};
  };
  to_channels_last(ctx, images, view(plan_->input).images);
  for (const InceptionStep& step : plan_->steps) {
    const ops::ChannelView x = view(step.x), y = view(step.y);
    if (step.conv < 0) {
      ops::pool2d(ctx, x, step.pool, y);
    } else {
      const Layer& layer = layers_[size_t(step.conv)];
      ops::conv2d(ctx, x, layer.weight, layer.bias, plan_->convs[size_t(step.conv)].conv, y,
                  ops::ConvOutput::Kind::kRelu);
    }
    if (!observer || step.module.empty()) continue;
    const ops::ChannelView shown = view(step.shown);
    const Tensor plain(shown.shape());
    gather(ctx, shown, Pin<float>(plain));
    observer(step.module, plain);
  }
  ops::mean_over_pixels(ctx, view(plan_->features), out.features);
  if (out.spatial.defined()) {
    const ops::ChannelView spatial = view(plan_->spatial);
    ops::expect_shape(kInception, "spatial features", out.spatial, spatial.shape());
    gather(ctx, spatial, Pin<float>(out.spatial));
  }
  if (out.logits.defined())
    ops::conv2d(ctx, out.features.reshaped({B, 1, 1, kInceptionFeatures}), fc_, {}, {},
                out.logits.reshaped({B, 1, 1, kInceptionClasses}));
}

}  // namespace ditrain::nn
