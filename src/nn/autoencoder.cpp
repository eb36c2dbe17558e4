#include "ditrain/nn/autoencoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "autoencoder_plan.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/logvar.hpp"
#include "ditrain/kernels/attention.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/group_norm.hpp"

namespace ditrain::nn {
namespace {

using Kind = PlannedStep::Kind;
constexpr const char* kWhere = "autoencoder";

// Between [channels, pixels] and [pixels, channels] of one image.
void exchange(ops::Context& ctx, const float* from, float* to, int64_t pixels, int64_t channels, bool to_last) {
  ctx.for_range(pixels, 1024, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t first = c * pixels + p, last = p * channels + c;
        to_last ? to[last] = from[first] : to[first] = from[last];
      }
  });
}

void expect_images(const char* name, const Tensor& t, const Shape& expected) {
  ops::expect_shape(kWhere, name, t, expected);
  if (t.dtype() != DType::kF32) throw_dtype_mismatch(t.dtype(), DType::kF32);
}

// What a weight is to the network; a matrix is a convolution of 1 x 1.
enum class Role { kNorm, kConv, kJoined, kPartOfJoined };
Role role_of(const AutoencoderWeight& w) {
  const std::string layer = w.name.substr(0, w.name.rfind('.'));
  if (layer.ends_with(".to_q")) return Role::kJoined;  // queries, keys and values are one projection
  if (layer.ends_with(".to_k") || layer.ends_with(".to_v")) return Role::kPartOfJoined;
  return w.shape.size() == 1 ? Role::kNorm : Role::kConv;
}
Shape conv_layout(const Shape& w) { return {w.size() == 4 ? w[2] : 1, w.size() == 4 ? w[3] : 1, w[1], w[0]}; }
DType conv_type(const std::string& name, DType type) {  // f32 in and out, and tiny
  return name.starts_with("quant_conv.") || name.starts_with("post_quant_conv.") ? DType::kF32 : type;
}

struct NormTensors {
  Tensor weight, bias;
};

}  // namespace

// By the names that the plan gives them.
struct Autoencoder::Weights {
  struct Conv {
    ops::ConvWeights weight;
    Tensor bias;
  };
  std::map<std::string, Conv> convs;
  std::map<std::string, NormTensors> norms;

  void add_conv(const std::string& name, const Shape& shape, DType type, const std::vector<float>& weight,
                const std::vector<float>& bias) {
    const Tensor values(shape, type);
    ops::to_conv_layout(weight, shape[3], values);
    convs.emplace(name, Conv{ops::packed_weights(values), from_values({shape[3]}, bias)});
  }
  void add_norm(const std::string& name, const Shape& shape, const Source& source) {
    norms.emplace(name, NormTensors{from_values(shape, source(name + ".weight", shape)),
                                    from_values(shape, source(name + ".bias", shape))});
  }
  void add_joined(const std::string& attention, int64_t C, DType type, const Source& source) {
    std::vector<float> weight, bias;
    for (const char* part : {".to_q", ".to_k", ".to_v"}) {
      const std::vector<float> w = source(attention + part + ".weight", {C, C}),
                               b = source(attention + part + ".bias", {C});
      weight.insert(weight.end(), w.begin(), w.end()), bias.insert(bias.end(), b.begin(), b.end());
    }
    add_conv(attention + "." + kJoinedProjection, {1, 1, C, 3 * C}, type, weight, bias);
  }
};

struct Autoencoder::Memory {
  std::map<std::tuple<bool, int64_t, int64_t>, AutoencoderPlan> plans;
  Tensor block, moments, terms;

  void make_room(const AutoencoderPlan& plan, DType type) {
    if (!block.defined() || block.size() < plan.elements) block = {}, block = Tensor({plan.elements}, type);
    if (!moments.defined() || moments.size() < plan.moment_elements)
      moments = {}, moments = Tensor({plan.moment_elements});
  }
};

Autoencoder::Autoencoder(const AutoencoderConfig& config, DType type, const Source& source, AutoencoderUse use,
                         int64_t slice_pixels)
    : config_(config), type_(type), use_(use), slice_pixels_(slice_pixels), weights_(new Weights), memory_(new Memory) {
  check_autoencoder_config(config);
  memory_->terms = Tensor({2 * *std::max_element(config.channels.begin(), config.channels.end())});
  for (const AutoencoderWeight& w : autoencoder_weights(config, use)) {
    if (!w.name.ends_with(".weight")) continue;
    const std::string name = w.name.substr(0, w.name.rfind('.'));
    const Role role = role_of(w);
    if (role == Role::kJoined)
      weights_->add_joined(name.substr(0, name.rfind('.')), w.shape[0], type, source);
    else if (role == Role::kNorm)
      weights_->add_norm(name, w.shape, source);
    else if (role == Role::kConv)
      weights_->add_conv(name, conv_layout(w.shape), conv_type(w.name, type), source(w.name, w.shape),
                         source(name + ".bias", {w.shape[0]}));
  }
}
Autoencoder::~Autoencoder() = default;
Autoencoder::Autoencoder(Autoencoder&&) noexcept = default;

size_t Autoencoder::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& [name, conv] : weights_->convs) bytes += conv.weight.values.bytes() + conv.bias.bytes();
  for (const auto& [name, norm] : weights_->norms) bytes += norm.weight.bytes() + norm.bias.bytes();
  return bytes;
}

const AutoencoderPlan& Autoencoder::plan(bool encodes, int64_t height, int64_t width) const {
  const std::tuple key(encodes, height, width);
  const auto found = memory_->plans.find(key);
  if (found != memory_->plans.end()) return found->second;
  const auto make = encodes ? plan_encoder : plan_decoder;
  return memory_->plans.emplace(key, make(config_, height, width, slice_pixels_)).first->second;
}

namespace {
size_t bytes_of(const AutoencoderPlan& plan, DType type) {
  return size_t(plan.elements) * dtype_bytes(type) + size_t(plan.moment_elements) * sizeof(float);
}
}  // namespace

size_t autoencoder_weight_bytes(const AutoencoderConfig& config, DType type, AutoencoderUse use) {
  size_t bytes = 0;
  for (const AutoencoderWeight& w : autoencoder_weights(config, use)) {
    if (w.shape.size() == 1)
      bytes += size_t(num_elements(w.shape)) * sizeof(float);
    else if (role_of(w) == Role::kJoined)
      bytes += ops::packed_weights_bytes({1, 1, w.shape[1], 3 * w.shape[0]}, type);
    else if (role_of(w) == Role::kConv)
      bytes += ops::packed_weights_bytes(conv_layout(w.shape), conv_type(w.name, type));
  }
  return bytes;
}
size_t autoencoder_activation_bytes(const AutoencoderConfig& config, DType type, bool encodes, int64_t height,
                                    int64_t width) {
  const int64_t f = encodes ? 1 : config.shrink();
  return bytes_of((encodes ? plan_encoder : plan_decoder)(config, height / f, width / f, kSlicePixels), type);
}
size_t autoencoder_scratch_bytes(const AutoencoderConfig& config, DType type, int64_t height, int64_t width) {
  const int64_t f = config.shrink();
  return kernels::attention_forward_scratch_bytes(height / f * (width / f), config.channels.back(), type);
}

std::vector<AutoencoderConv> autoencoder_convolutions(const AutoencoderConfig& config, bool encodes, int64_t height,
                                                      int64_t width) {
  const int64_t f = encodes ? 1 : config.shrink();
  std::vector<AutoencoderConv> all;
  for (const PlannedStep& step :
       (encodes ? plan_encoder : plan_decoder)(config, height / f, width / f, kSlicePixels).steps) {
    if (step.kind != Kind::kConv) continue;
    const ops::Conv2d& c = step.conv;
    all.push_back({.height = (step.height - 1) * c.stride_h + c.kernel_h - c.pad_top - c.pad_bottom,
                   .width = (step.width - 1) * c.stride_w + c.kernel_w - c.pad_left - c.pad_right,
                   .channels = step.in,
                   .outputs = step.out,
                   .conv = c});
  }
  return all;
}

size_t Autoencoder::encode_bytes(int64_t height, int64_t width) const {
  return bytes_of(plan(true, height, width), type_);
}
size_t Autoencoder::decode_bytes(int64_t height, int64_t width) const {
  return bytes_of(plan(false, height / config_.shrink(), width / config_.shrink()), type_);
}
double Autoencoder::encode_macs(int64_t height, int64_t width) const { return plan(true, height, width).macs; }
double Autoencoder::decode_macs(int64_t height, int64_t width) const {
  return plan(false, height / config_.shrink(), width / config_.shrink()).macs;
}

namespace {

// Values by [row, column, channel]: neighbouring rows of a larger tensor.
Tensor some_rows(const Tensor& x, int64_t begin, int64_t end) {
  const int64_t W = x.dim(2), C = x.dim(3);
  return x.slice(begin * W * C, {1, end - begin, W, C});
}

// Copies between places that may overlap only if `from` lies behind.
void move_rows(ops::Context& ctx, const Tensor& from, const Tensor& to) {
  const Pin<void> source(from), destination(to);
  const auto* first = static_cast<const std::byte*>(source.get());
  auto* last = static_cast<std::byte*>(destination.get());
  if (last <= first && first < last + to.bytes()) {
    std::memmove(last, first, from.bytes());
    return;
  }
  ctx.for_range(int64_t(from.bytes()), 4096, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::memcpy(last + begin, first + begin, size_t(end - begin));
  });
}

// One image on its way through the steps.
struct Pass {
  ops::Context& ctx;
  const AutoencoderPlan& plan;
  const AutoencoderConfig& config;
  const Tensor &block, &moments, &terms;
  const Autoencoder::Observer& observer;
  Tensor outside;  // the value outside of the block, [1, H, W, C]

  Tensor value(int i) const { return value(i, plan.values[size_t(i)].shape()); }
  // A smaller one that was written to the place of value i.
  Tensor value(int i, const Shape& shape) const { return block.slice(plan.values[size_t(i)].offset, shape); }
  Tensor moments_of(const Shape& x) const { return moments.slice(0, ops::moments_shape(x)); }

  // norm is undefined where the step has none.
  void conv(const PlannedStep& step, const ops::ConvWeights& weight, const Tensor& bias, const NormTensors& norm) {
    const Shape shape = {1, step.height, step.width, step.out};
    const Tensor x = step.x == PlannedStep::kOutside ? outside : value(step.x);
    const Tensor y = step.y == PlannedStep::kOutside ? Tensor(shape) : value(step.y, shape);
    ops::ConvOutput output;
    if (step.residual != PlannedStep::kOutside)
      output = {.kind = ops::ConvOutput::Kind::kResidual, .residual = value(step.residual, shape)};
    if (norm.weight.defined()) prepare(step, x, norm.weight, norm.bias);
    if (step.makes_moments) output.moments = moments_of(shape);
    if (step.buffer == PlannedStep::kOutside)
      ops::conv2d(ctx, x, weight, bias, step.conv, y, output);
    else
      conv_in_slices(step, x, weight, bias, norm.bias, y, output);
    if (step.y == PlannedStep::kOutside) outside = y;
    observe(step.module, y);
  }
  void norm(const PlannedStep& step, const NormTensors& norm) {
    const Tensor x = value(step.x);
    ops::group_norm(ctx, x, moments_of(x.shape()), norm.weight, norm.bias, {.groups = config.groups}, value(step.y));
  }
  void attention(const PlannedStep& step) {
    const int64_t T = step.height * step.width, C = step.in;
    const Tensor lse({1, 1, T});
    ops::attention_forward(ctx, value(step.x).reshaped({1, T, 3 * C}), 1, value(step.y).reshaped({1, T, C}), lse);
  }

 private:
  Tensor terms_of(int64_t channels) const { return terms.slice(0, {1, 2, channels}); }

  // What the norm has to know of the whole of x, before any part of it is normalised or its moments are overwritten.
  void prepare(const PlannedStep& step, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    ops::group_norm_terms(ctx, x.shape(), moments_of(x.shape()), weight, {.groups = config.groups}, terms_of(step.in));
    if (!observer || step.norm_module.empty()) return;
    const Tensor plain(x.shape(), x.dtype());  // the module ends before SiLU
    ops::group_norm_rows(ctx, x, terms_of(step.in), bias, {.groups = config.groups}, plain);
    observe(step.norm_module, plain);
  }

  // Rows of y in turn, each slice from a buffer with the rows of x that it reads, so that y may take the place of x.
  // The last rows of a slice are the first ones of the next.
  void conv_in_slices(const PlannedStep& step, const Tensor& x, const ops::ConvWeights& weight, const Tensor& bias,
                      const Tensor& norm_bias, const Tensor& y, const ops::ConvOutput& output) {
    const Tensor buffer = value(step.buffer);
    const int64_t H = step.height, unit = ops::moment_rows(H * step.width);
    int64_t held = 0, done = 0;  // the buffer begins with row `held` of x; rows before `done` were put there
    for (int64_t begin = 0; begin < H; begin += step.slice_rows) {
      const int64_t end = std::min(H, begin + step.slice_rows);
      const int64_t first = std::max<int64_t>(0, begin - step.conv.pad_top),
                    last = std::min(H, end + step.conv.pad_bottom);
      if (done > first)
        move_rows(ctx, some_rows(buffer, first - held, done - held), some_rows(buffer, 0, done - first));
      done = std::max(done, first), held = first;
      if (last > done) fetch(step, some_rows(x, done, last), norm_bias, some_rows(buffer, done - first, last - first));
      done = last;
      ops::Conv2d part = step.conv;
      part.pad_top -= std::min(part.pad_top, begin), part.pad_bottom -= std::min(part.pad_bottom, H - end);
      ops::ConvOutput of_part{.kind = output.kind, .moment_rows = unit};
      if (output.residual.defined()) of_part.residual = some_rows(output.residual, begin, end);
      if (output.moments.defined())
        of_part.moments = units(output.moments, begin * step.width / unit, (end * step.width + unit - 1) / unit);
      ops::conv2d(ctx, some_rows(buffer, 0, last - first), weight, bias, part, some_rows(y, begin, end), of_part);
    }
  }
  void fetch(const PlannedStep& step, const Tensor& from, const Tensor& norm_bias, const Tensor& to) {
    if (norm_bias.defined())
      ops::group_norm_rows(ctx, from, terms_of(step.in), norm_bias, {.groups = config.groups, .silu = true}, to);
    else
      move_rows(ctx, from, to);
  }
  static Tensor units(const Tensor& moments, int64_t begin, int64_t end) {
    const int64_t each = 3 * moments.dim(3);
    return moments.slice(begin * each, {1, end - begin, 3, moments.dim(3)});
  }

  void observe(const std::string& module, const Tensor& y) const {
    if (!observer || module.empty()) return;
    const Tensor f32(y.shape());
    copy(y, f32);
    observer(module, f32);
  }
};

}  // namespace

void Autoencoder::run(ops::Context& ctx, bool encodes, const Tensor& in, const Tensor& out, const Observer& observer) {
  DITRAIN_CHECK(use_ == AutoencoderUse::kBoth || (use_ == AutoencoderUse::kEncode) == encodes,
                "an autoencoder whose other half was wanted");
  const AutoencoderPlan& steps = plan(encodes, in.dim(2), in.dim(3));
  memory_->make_room(steps, type_);
  const int64_t pixels_in = in.dim(2) * in.dim(3), pixels_out = out.dim(2) * out.dim(3);
  const Pin<float> pin(in), pout(out);
  for (int64_t b = 0; b < in.dim(0); ++b) {
    Pass pass{ctx,
              steps,
              config_,
              memory_->block,
              memory_->moments,
              memory_->terms,
              observer,
              Tensor({1, in.dim(2), in.dim(3), in.dim(1)})};
    exchange(ctx, pin + b * in.dim(1) * pixels_in, Pin<float>(pass.outside), pixels_in, in.dim(1), true);
    for (const PlannedStep& step : steps.steps) {
      if (step.kind == Kind::kAttention) {
        pass.attention(step);
        continue;
      }
      if (step.kind != Kind::kConv) {
        pass.norm(step, weights_->norms.at(step.weight));
        continue;
      }
      const Weights::Conv& conv = weights_->convs.at(step.weight);
      pass.conv(step, conv.weight, conv.bias, step.norm.empty() ? NormTensors{} : weights_->norms.at(step.norm));
    }
    exchange(ctx, Pin<float>(pass.outside), pout + b * out.dim(1) * pixels_out, pixels_out, out.dim(1), false);
  }
}

void Autoencoder::encode(ops::Context& ctx, const Tensor& images, const Tensor& moments, const Observer& observer) {
  const int64_t shrink = config_.shrink();
  const Shape& s = images.shape();
  if (s.size() != 4 || s[2] < shrink || s[3] < shrink || s[2] % shrink != 0 || s[3] % shrink != 0)
    throw ShapeError({.where = kWhere,
                      .what = "images to encode",
                      .got = to_string(s),
                      .expected = "sides that are multiples of " + std::to_string(shrink),
                      .hint = "cropping or resizing them"});
  expect_images("images to encode", images, {s[0], config_.image_channels, s[2], s[3]});
  expect_images("moments", moments, {s[0], 2 * config_.latent_channels, s[2] / shrink, s[3] / shrink});
  run(ctx, true, images, moments, observer);
}

void Autoencoder::decode(ops::Context& ctx, const Tensor& latents, const Tensor& images, const Observer& observer) {
  const int64_t shrink = config_.shrink();
  const Shape& s = latents.shape();
  if (s.size() != 4 || s[2] < 1 || s[3] < 1)
    throw ShapeError({.where = kWhere, .what = "latents", .got = to_string(s), .expected = "[B, C, h, w]"});
  expect_images("latents", latents, {s[0], config_.latent_channels, s[2], s[3]});
  expect_images("decoded images", images, {s[0], config_.image_channels, s[2] * shrink, s[3] * shrink});
  run(ctx, false, latents, images, observer);
}

Posterior::Posterior(const Tensor& moments) {
  const Shape& s = moments.shape();
  const Shape half{s.at(0), s.at(1) / 2, s.at(2), s.at(3)};
  mean = Tensor(half), logvar = Tensor(half);
  const Pin<float> from(moments), m(mean), v(logvar);
  const int64_t each = half[1] * half[2] * half[3];
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t i = 0; i < each; ++i) {
      m[b * each + i] = from[b * 2 * each + i];
      v[b * each + i] = clamp_logvar(from[b * 2 * each + each + i]);
    }
}

Tensor Posterior::sample(const Tensor& eps) const {
  ops::expect_shape(kWhere, "noise", eps, mean.shape());
  const Tensor z(mean.shape());
  const Pin<float> pz(z), m(mean), v(logvar), e(eps);
  for (int64_t i = 0; i < z.size(); ++i) pz[i] = m[i] + std::exp(v[i] / 2) * e[i];
  return z;
}

}  // namespace ditrain::nn
