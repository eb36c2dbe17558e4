// The weights of an autoencoder: names, shapes, names in other files, sizes that follow from them.
#include <algorithm>

#include "autoencoder_plan.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/kernels/attention.hpp"
#include "ditrain/nn/autoencoder.hpp"

namespace ditrain::nn {
namespace {

constexpr int64_t kMostLevels = 8, kMostLayers = 16, kMostChannels = 8192;

class List {
 public:
  void conv(const std::string& name, int64_t in, int64_t out, int64_t k) { add(name, {out, in, k, k}); }
  void matrix(const std::string& name, int64_t n) { add(name, {n, n}); }
  void norm(const std::string& name, int64_t n) { add(name, {n}); }
  void resnet(const std::string& name, int64_t in, int64_t out) {
    norm(name + ".norm1", in), conv(name + ".conv1", in, out, 3);
    norm(name + ".norm2", out), conv(name + ".conv2", out, out, 3);
    if (in != out) conv(name + ".conv_shortcut", in, out, 1);
  }
  void middle(const std::string& name, int64_t C) {
    const std::string attention = name + ".attentions.0";
    norm(attention + ".group_norm", C);
    for (const char* part : {".to_q", ".to_k", ".to_v", ".to_out.0"}) matrix(attention + part, C);
    for (int64_t i = 0; i < 2; ++i) resnet(numbered(name + ".resnets", i), C, C);
  }
  std::vector<AutoencoderWeight> all;

 private:
  void add(const std::string& name, const Shape& shape) {
    all.push_back({name + ".weight", shape});
    all.push_back({name + ".bias", {shape[0]}});
  }
};

const Shape& shape_of(const std::string& where, const std::map<std::string, Shape>& shapes, const std::string& name,
                      size_t dims) {
  const auto found = shapes.find(name);
  if (found == shapes.end())
    throw InputError({.where = where, .what = "not the weights of an autoencoder", .got = "no tensor " + name});
  if (found->second.size() != dims)
    throw InputError({.where = where,
                      .what = "shape of " + name,
                      .got = to_string(found->second),
                      .expected = std::to_string(dims) + " dimensions"});
  return found->second;
}

}  // namespace

void check_autoencoder_config(const AutoencoderConfig& c) {
  const auto bad = [](const std::string& what, int64_t got, const std::string& expected, const std::string& hint = {}) {
    return InputError(
        {.where = "autoencoder", .what = what, .got = std::to_string(got), .expected = expected, .hint = hint});
  };
  const auto within = [&](const char* what, int64_t n, int64_t most) {
    if (n < 1 || n > most) throw bad(what, n, "1 to " + std::to_string(most));
  };
  within("levels", c.levels(), kMostLevels);
  within("blocks of a level", c.layers, kMostLayers);
  within("channels of images", c.image_channels, kMostChannels);
  within("channels of latents", c.latent_channels, kMostChannels);
  for (const int64_t n : c.channels) {
    within("channels of a level", n, kMostChannels);
    if (c.groups < 1 || n % c.groups != 0)
      throw bad(
          "channels of a level do not divide into groups of equal size", n, "a multiple of " + std::to_string(c.groups),
          "a file config.json beside the weights with {\"norm_num_groups\": N}; ditdata encode takes --groups N, too");
  }
  within("channels of the attention", c.channels.back(), kernels::kMostHeadDim);
}

std::vector<AutoencoderWeight> autoencoder_weights(const AutoencoderConfig& c, AutoencoderUse use) {
  List list;
  const int64_t levels = c.levels(), deepest = c.channels.back();
  list.conv("encoder.conv_in", c.image_channels, c.channels[0], 3);
  for (int64_t level = 0, in = c.channels[0]; level < levels; ++level) {
    const std::string block = numbered("encoder.down_blocks", level);
    const int64_t out = c.channels[size_t(level)];
    for (int64_t i = 0; i < c.layers; ++i, in = out) list.resnet(numbered(block + ".resnets", i), in, out);
    if (level + 1 < levels) list.conv(block + ".downsamplers.0.conv", out, out, 3);
  }
  list.middle("encoder.mid_block", deepest);
  list.norm("encoder.conv_norm_out", deepest);
  list.conv("encoder.conv_out", deepest, 2 * c.latent_channels, 3);
  list.conv("decoder.conv_in", c.latent_channels, deepest, 3);
  for (int64_t i = 0, in = deepest; i < levels; ++i) {
    const std::string block = numbered("decoder.up_blocks", i);
    const int64_t out = c.channels[size_t(levels - 1 - i)];
    for (int64_t j = 0; j <= c.layers; ++j, in = out) list.resnet(numbered(block + ".resnets", j), in, out);
    if (i + 1 < levels) list.conv(block + ".upsamplers.0.conv", out, out, 3);
  }
  list.middle("decoder.mid_block", deepest);
  list.norm("decoder.conv_norm_out", c.channels[0]);
  list.conv("decoder.conv_out", c.channels[0], c.image_channels, 3);
  list.conv("quant_conv", 2 * c.latent_channels, 2 * c.latent_channels, 1);
  list.conv("post_quant_conv", c.latent_channels, c.latent_channels, 1);
  if (use == AutoencoderUse::kBoth) return list.all;
  std::erase_if(list.all, [&](const AutoencoderWeight& w) {
    const bool encodes = w.name.starts_with("encoder.") || w.name.starts_with("quant_conv.");
    return encodes != (use == AutoencoderUse::kEncode);
  });
  return list.all;
}

std::string older_autoencoder_name(const std::string& name) {
  return replaced(name,
                  {{".to_q.", ".query."}, {".to_k.", ".key."}, {".to_v.", ".value."}, {".to_out.0.", ".proj_attn."}});
}

std::string original_autoencoder_name(const std::string& name, int64_t levels) {
  std::string result = replaced(name, {{".mid_block.attentions.0.group_norm.", ".mid.attn_1.norm."},
                                       {".mid_block.attentions.0.to_out.0.", ".mid.attn_1.proj_out."},
                                       {".mid_block.attentions.0.to_", ".mid.attn_1."},
                                       {".mid_block.resnets.0.", ".mid.block_1."},
                                       {".mid_block.resnets.1.", ".mid.block_2."},
                                       {".conv_shortcut.", ".nin_shortcut."},
                                       {".downsamplers.0.", ".downsample."},
                                       {".upsamplers.0.", ".upsample."},
                                       {".conv_norm_out.", ".norm_out."},
                                       {".down_blocks.", ".down."},
                                       {".resnets.", ".block."}});
  const std::string blocks = ".up_blocks.";
  const size_t at = result.find(blocks);
  if (at == std::string::npos) return result;
  const size_t begin = at + blocks.size(), end = result.find('.', begin);
  const int64_t level = levels - 1 - std::stoll(result.substr(begin, end - begin));
  return result.substr(0, at) + ".up." + std::to_string(level) + result.substr(end);
}

AutoencoderConfig autoencoder_config_of(const std::string& where, const std::map<std::string, Shape>& shapes) {
  AutoencoderConfig config;
  config.channels.clear();
  const auto block = [](int64_t level, int64_t i) {
    return numbered(numbered("encoder.down_blocks", level) + ".resnets", i) + ".conv1.weight";
  };
  config.image_channels = shape_of(where, shapes, "encoder.conv_in.weight", 4)[1];
  config.latent_channels = shape_of(where, shapes, "decoder.conv_in.weight", 4)[1];
  for (int64_t level = 0; level < kMostLevels && (level == 0 || shapes.contains(block(level, 0))); ++level)
    config.channels.push_back(shape_of(where, shapes, block(level, 0), 4)[0]);
  config.layers = 0;
  while (config.layers < kMostLayers && shapes.contains(block(0, config.layers))) ++config.layers;
  return config;
}

}  // namespace ditrain::nn
