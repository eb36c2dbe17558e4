#include "diffusers_config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kClass = "DiTTransformer2DModel";
constexpr const char* kWeightFiles[] = {"diffusion_pytorch_model.safetensors",
                                        "diffusion_pytorch_model.safetensors.index.json",
                                        "diffusion_pytorch_model.bin"};
constexpr int64_t kMostNumber = 1 << 24;
constexpr double kEps = 1e-6;  // of the LayerNorms of the reference

std::string text_of(const json& value) { return files::json_text(value).substr(0, 80); }

std::string word_in(const json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

// A whole number of config.json; none if it is not there, or null.
std::optional<int64_t> number_in(const json& config, const char* key, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  const double value = found->is_number() ? found->get<double>() : 0;
  if (!(value >= 1 && value <= double(kMostNumber) && value == std::floor(value)))
    throw InputError({.where = path, .what = key, .got = text_of(*found), .expected = "a whole number above 0"});
  return int64_t(value);
}

std::optional<double> real_in(const json& config, const char* key, const std::string& path) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (!found->is_number())
    throw InputError({.where = path, .what = key, .got = text_of(*found), .expected = "a number"});
  return found->get<double>();
}

bool is_there(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

std::string beside(const fs::path& folder, const char* name) {
  for (const fs::path& path : {folder / name, folder / "scheduler" / name, folder.parent_path() / "scheduler" / name})
    if (is_there(path)) return path.string();
  return "";
}

void expect(const json& config, const std::string& path, const char* key, const json& only) {
  const auto found = config.find(key);
  if (found == config.end() || *found == only) return;
  throw InputError({.where = path,
                    .what = std::string("this is another network: ") + key,
                    .got = text_of(*found),
                    .expected = text_of(only)});
}

}  // namespace

std::optional<DiffusersFolder> find_diffusers(const std::string& folder) {
  const fs::path root = fs::path(folder) / "";  // "dir" and "dir/" have the same parent then
  const fs::path top = root.parent_path();
  if (is_there(top / "model_index.json") && !is_there(top / "transformer")) {
    const json index = files::read_json_object((top / "model_index.json").string());
    throw InputError({.where = folder,
                      .what = "this pipeline of diffusers has no transformer, hence no DiT",
                      .got = word_in(index, "_class_name").empty() ? "" : word_in(index, "_class_name"),
                      .expected = "a DiTPipeline"});
  }
  const fs::path model = is_there(top / "transformer" / "config.json") ? top / "transformer" : top;
  if (!is_there(model / "config.json")) return std::nullopt;
  DiffusersFolder found{.weights = {}, .config = (model / "config.json").string(), .scheduler = {}};
  const std::string class_name = word_in(files::read_json_object(found.config), "_class_name");
  if (class_name.empty()) return std::nullopt;
  if (class_name != kClass && class_name != "Transformer2DModel")  // its name in older versions
    throw InputError({.where = found.config, .what = "not a DiT", .got = class_name, .expected = kClass});
  found.scheduler = beside(model, "scheduler_config.json");
  for (const char* name : kWeightFiles) {
    found.weights = (model / name).string();
    if (is_there(found.weights)) return found;
  }
  throw InputError({.where = model.string(), .what = "no weights in this folder", .expected = kWeightFiles[0]});
}

DitHints hints_of(const DiffusersFolder& folder) {
  const json config = files::read_json_object(folder.config);
  expect(config, folder.config, "activation_fn", "gelu-approximate");
  expect(config, folder.config, "norm_type", "ada_norm_zero");
  expect(config, folder.config, "norm_elementwise_affine", false);
  DitHints hints;
  hints.num_heads = number_in(config, "num_attention_heads", folder.config);
  hints.input_height = hints.input_width = number_in(config, "sample_size", folder.config);
  hints.num_classes = number_in(config, "num_embeds_ada_norm", folder.config);
  return hints;
}

void check_config(const DiffusersFolder& folder, const nn::ModelConfig& model) {
  const json config = files::read_json_object(folder.config);
  const std::pair<const char*, int64_t> sizes[] = {{"in_channels", model.in_channels},
                                                   {"patch_size", model.patch_size},
                                                   {"num_layers", model.depth},
                                                   {"out_channels", model.out_channels()},
                                                   {"num_attention_heads", model.num_heads},
                                                   {"attention_head_dim", model.head_dim()},
                                                   {"num_embeds_ada_norm", model.num_classes}};
  for (const auto& [key, ours] : sizes) {
    const std::optional<int64_t> theirs = number_in(config, key, folder.config);
    if (theirs && *theirs != ours)
      throw InputError({.where = folder.config,
                        .what = std::string(key) + " contradicts the weights",
                        .got = std::to_string(*theirs),
                        .expected = std::to_string(ours)});
  }
}

diffusion::Config noise_of(const DiffusersFolder& folder, std::vector<std::string>& notes) {
  notes.emplace_back(kDiffusersDiffers);
  const json model = files::read_json_object(folder.config);
  if (const auto eps = real_in(model, "norm_eps", folder.config); eps && *eps != kEps)
    notes.push_back(fmt::format("its second LayerNorm has eps {}, which here is {} as in the reference", *eps, kEps));
  diffusion::Config noise;
  if (folder.scheduler.empty()) return noise;
  const json scheduler = files::read_json_object(folder.scheduler);
  if (const auto steps = number_in(scheduler, "num_train_timesteps", folder.scheduler)) noise.num_steps = *steps;
  const std::string schedule = word_in(scheduler, "beta_schedule"), prediction = word_in(scheduler, "prediction_type");
  if (!schedule.empty() && !find_word(schedule, noise.schedule))
    notes.push_back(fmt::format("its beta_schedule {} is not known here: {} is taken", schedule, noise.schedule->name));
  const double scale = 1000.0 / double(noise.num_steps);  // as in the reference's linear schedule
  const auto first = real_in(scheduler, "beta_start", folder.scheduler),
             last = real_in(scheduler, "beta_end", folder.scheduler);
  const auto differs = [&](const std::optional<double>& theirs, double ours) {
    return theirs && std::fabs(*theirs - ours * scale) > 1e-9;
  };
  if (schedule == "linear" && (differs(first, 1e-4) || differs(last, 0.02)))
    notes.push_back(fmt::format("its noise goes from beta {} to {}, where ditrain's linear schedule goes from {} to {}",
                                first.value_or(1e-4), last.value_or(0.02), 1e-4 * scale, 0.02 * scale));
  for (const diffusion::Prediction& row : diffusion::rows_of(static_cast<const diffusion::Prediction*>(nullptr)))
    if (!prediction.empty() && row.diffusers_name == prediction) {
      noise.prediction = &row;
      return noise;
    }
  if (!prediction.empty())
    notes.push_back(fmt::format("its prediction_type {} is not known here: epsilon is taken", prediction));
  return noise;
}

}  // namespace ditrain::checkpoint
