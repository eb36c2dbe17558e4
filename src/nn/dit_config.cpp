#include "ditrain/nn/dit_config.hpp"

#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/metadata.hpp"
#include "ditrain/kernels/attention.hpp"

namespace ditrain::nn {
namespace {

struct Size {
  const char* name;
  int64_t hidden_size, depth, num_heads;
};
constexpr Size kSizes[] = {{"S", 384, 12, 6}, {"B", 768, 12, 12}, {"L", 1024, 24, 16}, {"XL", 1152, 28, 16}};
constexpr int64_t kPatches[] = {2, 4, 8};

std::string full_name(const Size& size, int64_t patch) {
  return "DiT-" + std::string(size.name) + "/" + std::to_string(patch);
}

void require(bool ok, const std::string& what, const std::string& got, const std::string& expected) {
  if (!ok) throw InputError({.where = "model", .what = what, .got = got, .expected = expected});
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Size& size : kSizes)
    for (int64_t patch : kPatches) names.push_back(full_name(size, patch));
  names.emplace_back("custom");
  return names;
}

void apply_name(DitConfig& config) {
  if (config.name == "custom") return;
  for (const Size& size : kSizes)
    for (int64_t patch : kPatches)
      if (config.name == full_name(size, patch)) {
        config.hidden_size = size.hidden_size, config.depth = size.depth, config.num_heads = size.num_heads;
        config.patch_size = patch;
        return;
      }
  const std::string near = nearest_word(config.name, model_names());
  throw InputError({.where = "model",
                    .what = "unknown model.name",
                    .got = config.name,
                    .expected = "DiT-{S,B,L,XL}/{2,4,8} or custom",
                    .hint = near});
}

void validate(const DitConfig& c) {
  const auto text = [](int64_t v) { return std::to_string(v); };
  for (int64_t v : {c.input_height, c.input_width, c.in_channels, c.patch_size, c.hidden_size, c.depth, c.num_heads})
    require(v >= 1, "sizes must be positive", text(v), ">= 1");
  require(c.condition_channels >= 0, "model.condition_channels", text(c.condition_channels), ">= 0");
  require(c.input_height % c.patch_size == 0 && c.input_width % c.patch_size == 0, "model.input_size",
          text(c.input_height) + " x " + text(c.input_width), "multiples of the patch size " + text(c.patch_size));
  require(c.hidden_size % c.num_heads == 0, "model.hidden_size", text(c.hidden_size),
          "a multiple of model.num_heads = " + text(c.num_heads));
  require(c.head_dim() <= kernels::kMostHeadDim, "model.hidden_size / model.num_heads", text(c.head_dim()),
          "at most " + text(kernels::kMostHeadDim));
  require(c.position != Position::kRope || c.head_dim() % 4 == 0, "model.hidden_size / model.num_heads",
          text(c.head_dim()), "a multiple of 4 for model.position: rope (pairs for rows and columns), or sincos");
  require(c.hidden_size % 4 == 0, "model.hidden_size", text(c.hidden_size),
          "a multiple of 4 (sines and cosines of rows and columns)");
  require(c.mlp_size() >= 1, "model.mlp_ratio", std::to_string(c.mlp_ratio), "at least 1 / hidden_size");
  require(c.num_classes >= 0, "model.num_classes",
          c.num_classes == kClassesOfData ? "auto, which needs the data" : text(c.num_classes), ">= 0 (0: no labels)");
  std::set<size_t> numbers;
  for (const std::string& name : c.metadata)
    require(numbers.insert(metadata_index(name, "model.metadata")).second, "model.metadata", name + " twice",
            "each once");
  require(c.metadata_drop >= 0 && c.metadata_drop < 1, "model.metadata_drop", std::to_string(c.metadata_drop),
          "a share in [0, 1)");
  require(c.class_dropout >= 0 && c.class_dropout < 1, "model.class_dropout", std::to_string(c.class_dropout),
          "a share in [0, 1)");
}

}  // namespace ditrain::nn
