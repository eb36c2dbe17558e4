#include "ditrain/nn/model_config.hpp"

#include <algorithm>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/metadata.hpp"
#include "ditrain/kernels/attention.hpp"
#include "models.hpp"

namespace ditrain::nn {
namespace {

std::string full_name(const ModelRow& row, const NamedSize& size, int64_t patch) {
  return std::string(row.title) + "-" + size.name + "/" + std::to_string(patch);
}

// f(name, size, patch) for all names of a row, until it returns true; whether it did.
template <class F>
bool any_name(const ModelRow& row, const F& f) {
  for (const NamedSize& size : row.sizes)
    for (const int64_t patch : row.patches)
      if (f(full_name(row, size, patch), size, patch)) return true;
  return false;
}

// "DiT-{S,B,L,XL}/{2,4,8}"
std::string all_names(const ModelRow& row) {
  std::string sizes, patches;
  for (const NamedSize& size : row.sizes) sizes += (sizes.empty() ? "" : ",") + std::string(size.name);
  for (const int64_t patch : row.patches) patches += (patches.empty() ? "" : ",") + std::to_string(patch);
  return std::string(row.title) + "-{" + sizes + "}/{" + patches + "}";
}

// What to do about a name that the kind does not have.
std::string advice_on_name(const ModelConfig& config) {
  for (const ModelRow& row : model_rows())
    if (any_name(row, [&](const std::string& name, auto&&...) { return name == config.name; }))
      return "model.kind: " + std::string(word_of(row.kind)) + ", which has this name";
  return nearest_word(config.name, model_names(config.kind));
}

}  // namespace

void require_model(bool ok, const std::string& what, const std::string& got, const std::string& expected) {
  if (!ok) throw InputError({.where = "model", .what = what, .got = got, .expected = expected});
}

namespace {

std::vector<std::string> names_of(std::span<const ModelRow> rows) {
  std::vector<std::string> names;
  for (const ModelRow& row : rows)
    any_name(row, [&](const std::string& name, auto&&...) {
      names.push_back(name);
      return false;
    });
  names.emplace_back("custom");
  return names;
}

}  // namespace

std::vector<std::string> model_names(ModelKind kind) { return names_of({&model_row(kind), 1}); }
std::vector<std::string> model_names() { return names_of(model_rows()); }

std::string describe_model_kinds() {
  std::string text;
  for (const ModelRow& row : model_rows())
    text += (text.empty() ? "" : ", ") + std::string(word_of(row.kind)) + " (" + row.help + ")";
  return text;
}

void apply_name(ModelConfig& config) {
  if (config.name == "custom") return;
  const ModelRow& row = model_row(config.kind);
  const bool known = any_name(row, [&](const std::string& name, const NamedSize& size, int64_t patch) {
    if (name != config.name) return false;
    config.hidden_size = size.hidden_size, config.depth = size.depth, config.num_heads = size.num_heads;
    config.patch_size = patch;
    return true;
  });
  if (known) return;
  throw InputError({.where = "model",
                    .what = "unknown model.name",
                    .got = config.name,
                    .expected = all_names(row) + " or custom",
                    .hint = advice_on_name(config)});
}

void validate(const ModelConfig& c) {
  const auto text = [](int64_t v) { return std::to_string(v); };
  for (int64_t v : {c.input_height, c.input_width, c.in_channels, c.patch_size, c.hidden_size, c.depth, c.num_heads})
    require_model(v >= 1, "sizes must be positive", text(v), ">= 1");
  require_model(c.condition_channels >= 0, "model.condition_channels", text(c.condition_channels), ">= 0");
  require_model(c.input_height % c.patch_size == 0 && c.input_width % c.patch_size == 0, "model.input_size",
                text(c.input_height) + " x " + text(c.input_width),
                "multiples of the patch size " + text(c.patch_size));
  require_model(c.patch_overlap >= 0 && c.patch_overlap < c.patch_size, "model.patch_overlap", text(c.patch_overlap),
                "0 to " + text(c.patch_size - 1) + ": less than model.patch_size");
  const int64_t in_patch = (c.in_channels + c.condition_channels) * c.patch_side() * c.patch_side();
  require_model(c.patch_bottleneck >= 0 && c.patch_bottleneck <= std::min(in_patch, c.hidden_size),
                "model.patch_bottleneck", text(c.patch_bottleneck),
                "at most the " + text(in_patch) + " values of a patch and model.hidden_size = " + text(c.hidden_size) +
                    "; 0 for none");
  require_model(c.hidden_size % c.num_heads == 0, "model.hidden_size", text(c.hidden_size),
                "a multiple of model.num_heads = " + text(c.num_heads));
  require_model(c.head_dim() <= kernels::kMostHeadDim, "model.hidden_size / model.num_heads", text(c.head_dim()),
                "at most " + text(kernels::kMostHeadDim));
  require_model(c.mlp_size() >= 1, "model.mlp_ratio", std::to_string(c.mlp_ratio), "at least 1 / hidden_size");
  require_model(c.num_classes >= 0, "model.num_classes",
                c.num_classes == kClassesOfData ? "auto, which needs the data" : text(c.num_classes),
                ">= 0 (0: no labels)");
  std::set<size_t> numbers;
  for (const std::string& name : c.metadata)
    require_model(numbers.insert(metadata_index(name, "model.metadata")).second, "model.metadata", name + " twice",
                  "each once");
  require_model(c.metadata_drop >= 0 && c.metadata_drop < 1, "model.metadata_drop", std::to_string(c.metadata_drop),
                "a share in [0, 1)");
  require_model(c.class_dropout >= 0 && c.class_dropout < 1, "model.class_dropout", std::to_string(c.class_dropout),
                "a share in [0, 1)");
  model_row(c.kind).check(c);
}

}  // namespace ditrain::nn
