#include "ditrain/eval/autoencoder_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/weights/weight_file.hpp"

namespace ditrain::eval {
namespace {

namespace fs = std::filesystem;
constexpr const char* kWeightsFile = "diffusion_pytorch_model.safetensors";
constexpr const char* kPrefixOfWhole = "first_stage_model.";

std::string find_weights(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  for (const fs::path& folder : {fs::path(path), fs::path(path) / "vae"})
    if (fs::exists(folder / kWeightsFile)) return (folder / kWeightsFile).string();
  throw InputError({.where = path, .what = "no autoencoder in this folder", .expected = kWeightsFile});
}

// config.json beside the weights; null if it does not exist.
nlohmann::json read_config(const std::string& weights) {
  const fs::path path = fs::path(weights).parent_path() / "config.json";
  std::error_code unreadable;
  return fs::is_regular_file(path, unreadable) ? files::read_json_object(path.string()) : nlohmann::json();
}

// A positive number of config.json; nothing if it is not there.
std::optional<double> config_number(const nlohmann::json& config, const char* key, const std::string& weights) {
  if (config.is_null() || !config.contains(key)) return std::nullopt;
  const nlohmann::json& value = config.at(key);
  const double number = value.is_number() ? value.get<double>() : 0;
  if (number > 0 && number < 1e6) return number;
  throw InputError({.where = (fs::path(weights).parent_path() / "config.json").string(),
                    .what = key,
                    .got = files::json_text(value).substr(0, 80),
                    .expected = "a positive number"});
}

// The program that names tensors so: diffusers of today, of before 2023, latent-diffusion.
enum class Spelling { kPresent, kOlder, kOriginal };

struct Found {
  std::string prefix;
  Spelling spelling = Spelling::kPresent;
};

bool has_tensor(const weights::WeightFile& file, const std::string& name) { return file.find(name) != nullptr; }

const weights::WeightTensor& tensor_of(const weights::WeightFile& file, const std::string& name) {
  if (const weights::WeightTensor* t = file.find(name)) return *t;
  throw InputError({.where = file.path(), .what = "no tensor " + name, .expected = "the weights of an AutoencoderKL"});
}

// A prefix of names that is not known, before the weights of an autoencoder; none without such a prefix.
std::optional<std::string> other_prefix(const std::vector<std::string>& names) {
  constexpr std::string_view kFirst = "encoder.conv_in.weight";
  for (const std::string& name : names)
    if (name.ends_with(kFirst)) return name.substr(0, name.size() - kFirst.size());
  return std::nullopt;
}

[[noreturn]] void refuse(const weights::WeightFile& file) {
  std::vector<std::string> names;
  for (const weights::WeightTensor& t : file.tensors()) names.push_back(t.name);
  if (const auto prefix = other_prefix(names))
    throw InputError(
        {.where = file.path(),
         .what = "weights of an autoencoder under names that are not known",
         .got = "names that begin with " + (prefix->empty() ? "encoder." : *prefix),
         .expected = "AutoencoderKL of diffusers or latent-diffusion, alone or behind " + std::string(kPrefixOfWhole),
         .hint = "a copy of the file without that prefix"});
  const std::string network = weights::network_of(names);
  const bool dit = network.starts_with("a DiT");
  throw InputError({.where = file.path(),
                    .what = network.empty() ? "not the weights of an autoencoder (VAE)"
                                            : "these are the weights of " + network + ", not of an autoencoder (VAE)",
                    .got = names.empty() ? "no tensors" : "tensors such as " + names.front(),
                    .expected = "encoder.conv_in.weight and others",
                    .hint = dit ? "the file of the VAE that made the latents (sd-vae-ft-ema, say)"
                                : "a file of AutoencoderKL as diffusers or latent-diffusion write it"});
}

Found recognise(const weights::WeightFile& file) {
  // Checkpoints of PyTorch have the weights in a dictionary of their own.
  for (const std::string dictionary : {"", "state_dict/"})
    for (const std::string part : {"", kPrefixOfWhole}) {
      const std::string prefix = dictionary + part;
      const auto has = [&](const char* name) { return has_tensor(file, prefix + name); };
      if (!has("encoder.conv_in.weight")) continue;
      if (has("encoder.down.0.block.0.conv1.weight")) return {prefix, Spelling::kOriginal};
      if (has("encoder.mid_block.attentions.0.query.weight")) return {prefix, Spelling::kOlder};
      if (has("encoder.down_blocks.0.resnets.0.conv1.weight")) return {prefix, Spelling::kPresent};
    }
  refuse(file);
}

// Levels in the original spelling, which its names depend on.
int64_t levels_of(const weights::WeightFile& file, const Found& found) {
  int64_t levels = 0;
  while (levels < 64 &&
         has_tensor(file, found.prefix + "encoder.down." + std::to_string(levels) + ".block.0.conv1.weight"))
    ++levels;
  return levels;
}

bool is_floating(const std::string& dtype) {
  return dtype == "float32" || dtype == "float64" || dtype == "float16" || dtype == "bfloat16";
}

// Matrices of the attention are [C, C] or, as convolutions, [C, C, 1, 1].
Shape without_ones(Shape shape) {
  if (shape.size() == 4 && shape[2] == 1 && shape[3] == 1) shape.resize(2);
  return shape;
}

}  // namespace

struct AutoencoderFile::State {
  weights::WeightFile file;
  Found found;
  int64_t levels;
  nn::AutoencoderConfig config;
  std::optional<double> scale_factor;
  bool scale_is_assumed = false;  // by the sizes of Stable Diffusion's, which others have, too

  explicit State(const std::string& path) : file(path), found(recognise(file)), levels(levels_of(file, found)) {}

  std::string name_in_file(const std::string& present) const {
    switch (found.spelling) {
      case Spelling::kOriginal:
        return found.prefix + nn::original_autoencoder_name(present, levels);
      case Spelling::kOlder:
        return found.prefix + nn::older_autoencoder_name(present);
      default:
        return found.prefix + present;
    }
  }
  // Shapes under present names, of those tensors that sizes follow from.
  std::map<std::string, Shape> shapes_of_interest() const {
    std::map<std::string, Shape> shapes;
    std::vector<std::string> names = {"encoder.conv_in.weight", "decoder.conv_in.weight"};
    for (int64_t level = 0; level < 64; ++level)
      for (int64_t i = 0; i < (level == 0 ? 64 : 1); ++i)
        names.push_back("encoder.down_blocks." + std::to_string(level) + ".resnets." + std::to_string(i) +
                        ".conv1.weight");
    for (const std::string& name : names)
      if (has_tensor(file, name_in_file(name))) shapes[name] = Shape(tensor_of(file, name_in_file(name)).shape);
    return shapes;
  }
  void check_weights() const;
  void check_config(const nlohmann::json& json) const;
};

void AutoencoderFile::State::check_weights() const {
  std::set<std::string> known;
  for (const nn::AutoencoderWeight& w : nn::autoencoder_weights(config)) {
    const std::string name = name_in_file(w.name);
    const weights::WeightTensor& t = tensor_of(file, name);
    if (without_ones(t.shape) != without_ones(w.shape))
      throw InputError({.where = file.path(),
                        .what = "shape of " + name,
                        .got = to_string(t.shape),
                        .expected = to_string(w.shape)});
    if (!is_floating(t.dtype))
      throw InputError({.where = file.path(),
                        .what = "type of " + name,
                        .got = t.dtype,
                        .expected = "float32, float16, bfloat16 or float64"});
    known.insert(name);
  }
  for (const weights::WeightTensor& t : file.tensors()) {
    if (!t.name.starts_with(found.prefix) || known.contains(t.name)) continue;
    const std::string rest = t.name.substr(found.prefix.size());
    if (rest.starts_with("encoder.") || rest.starts_with("decoder.") || rest.starts_with("quant_conv.") ||
        rest.starts_with("post_quant_conv."))
      throw InputError({.where = file.path(),
                        .what = "a weight that this autoencoder does not have",
                        .got = t.name,
                        .expected = "AutoencoderKL with attention in its middle block alone"});
  }
}

void AutoencoderFile::State::check_config(const nlohmann::json& json) const {
  const auto compare = [&](const char* key, int64_t ours) {
    const std::optional<double> theirs = config_number(json, key, file.path());
    if (theirs && *theirs != double(ours))
      throw InputError({.where = file.path(),
                        .what = std::string(key) + " of config.json contradicts the weights",
                        .got = std::to_string(int64_t(*theirs)),
                        .expected = std::to_string(ours)});
  };
  for (const char* key : {"shift_factor", "latents_mean", "latents_std"}) {
    if (json.is_null() || !json.contains(key) || json.at(key).is_null() || json.at(key) == 0) continue;
    throw InputError({.where = file.path(),
                      .what = fmt::format("latents that are shifted or normalised ({} of config.json)", key),
                      .got = files::json_text(json.at(key)).substr(0, 80),
                      .expected = "latents with a scaling_factor alone, as of Stable Diffusion 1 and 2"});
  }
  compare("latent_channels", config.latent_channels);
  compare("in_channels", config.image_channels);
  compare("layers_per_block", config.layers);
}

AutoencoderFile::AutoencoderFile(const std::string& path, const AutoencoderOptions& options)
    : state_(new State(find_weights(path))) {
  State& s = *state_;
  const nlohmann::json json = read_config(s.file.path());
  s.config = nn::autoencoder_config_of(s.file.path(), s.shapes_of_interest());
  const std::optional<double> groups = config_number(json, "norm_num_groups", s.file.path());
  if (groups && (*groups > 4096 || *groups != std::floor(*groups)))
    throw InputError({.where = s.file.path(), .what = "norm_num_groups of config.json is not a number of groups"});
  s.config.groups = options.groups ? *options.groups : groups ? int64_t(*groups) : s.config.groups;
  nn::check_autoencoder_config(s.config);
  s.check_weights();
  s.check_config(json);
  s.scale_factor = options.scale_factor ? options.scale_factor : config_number(json, "scaling_factor", s.file.path());
  const nn::AutoencoderConfig known;
  if (!s.scale_factor && s.config.channels == known.channels && s.config.latent_channels == known.latent_channels)
    s.scale_factor = nn::kStableDiffusionScale, s.scale_is_assumed = true;
}
AutoencoderFile::~AutoencoderFile() = default;
AutoencoderFile::AutoencoderFile(AutoencoderFile&&) noexcept = default;

const nn::AutoencoderConfig& AutoencoderFile::config() const { return state_->config; }
const std::string& AutoencoderFile::weights_path() const { return state_->file.path(); }

double AutoencoderFile::scale_factor() const {
  if (state_->scale_factor) return *state_->scale_factor;
  throw InputError({.where = state_->file.path(),
                    .what = "the scale factor of this autoencoder's latents is not known",
                    .expected = "scaling_factor in a config.json beside the weights",
                    .hint = advice_on_setting("scaling_factor", nn::kStableDiffusionScale) +
                            ", with the number of this VAE; ditdata encode takes --scale-factor, too"});
}

std::string AutoencoderFile::describe_scale() const {
  return fmt::format("{:.9g}{}", scale_factor(),
                     state_->scale_is_assumed ? ", assumed: that of Stable Diffusion, which the sizes fit" : "");
}

std::string AutoencoderFile::advice_on_setting(const char* key, double value) const {
  return fmt::format("a file {} with {{\"{}\": {:.9g}}}",
                     (fs::path(weights_path()).parent_path() / "config.json").string(), key, value);
}

size_t AutoencoderFile::bytes(DType type, nn::AutoencoderUse use, int64_t height, int64_t width, int workers) const {
  const nn::AutoencoderConfig& c = config();
  const int64_t f = c.shrink(), z = c.latent_channels;
  const int64_t outside =
      2 * c.image_channels * height * width + 4 * z * (height / f) * (width / f);  // f32, two copies
  return nn::autoencoder_weight_bytes(c, type, use) +
         nn::autoencoder_activation_bytes(c, type, use == nn::AutoencoderUse::kEncode, height, width) +
         size_t(outside) * sizeof(float) + size_t(workers) * nn::autoencoder_scratch_bytes(c, type, height, width);
}

nn::Autoencoder AutoencoderFile::load(DType type, nn::AutoencoderUse use) const {
  const auto read = [this](const std::string& name, const Shape&) {
    return state_->file.read(tensor_of(state_->file, state_->name_in_file(name)));
  };
  return {state_->config, type, read, use};
}

}  // namespace ditrain::eval
