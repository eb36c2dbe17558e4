#include "ditrain/checkpoint/dit_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "diffusers_config.hpp"
#include "dit_tensors.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/files/files.hpp"
#include "export_names.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Where weights lie, before the file is opened.
struct Place {
  std::string file = {};
  std::optional<config::Config> config = {};  ///< of ours
  std::vector<std::string> class_names = {};
  std::optional<DiffusersFolder> diffusers = {};
};

Place place_in_checkpoint(const std::string& file, const std::string& folder) {
  const CheckpointState state = read_checkpoint_state(folder);
  return {.file = file,
          .config = config::parse_config(state.config_yaml, folder + "/state.json"),
          .class_names = state.class_names};
}

Place find_place(const std::string& path, Weights weights) {
  if (!fs::exists(path))
    throw InputError({.where = "weights", .what = path + " does not exist", .expected = "a file or a folder"});
  if (!fs::is_directory(path)) return checks_of(path) ? place_in_checkpoint(path, files::folder_of(path)) : Place{path};
  if (auto diffusers = find_diffusers(path)) return {.file = diffusers->weights, .diffusers = diffusers};
  const std::string folder = find_checkpoint(path);
  return place_in_checkpoint(folder + "/" + std::string(word_of(weights)) + ".safetensors", folder);
}

// Hints that one source gives, or else the other.
DitHints with(DitHints first, const DitHints& second) {
  if (!first.num_heads) first.num_heads = second.num_heads;
  if (!first.input_height) first.input_height = second.input_height, first.input_width = second.input_width;
  if (!first.condition_channels) first.condition_channels = second.condition_channels;
  if (!first.num_classes) first.num_classes = second.num_classes;
  if (!first.class_dropout) first.class_dropout = second.class_dropout;
  if (!first.position) first.position = second.position;
  if (!first.patch_overlap) first.patch_overlap = second.patch_overlap;
  return first;
}

// Pictures have one or three channels; what else DiTs are published for are latents.
const dataset::DataKind* kind_of(const nn::ModelConfig& model, std::vector<std::string>& notes) {
  const bool pictures = model.in_channels == 1 || model.in_channels == 3;
  notes.push_back(fmt::format("{} channels: taken as a model of {} (data.kind={})", model.in_channels,
                              pictures ? "pictures" : "latents", pictures ? "folder" : "latents"));
  return dataset::find_kind(pictures ? "folder" : "latents");
}

}  // namespace

DitHints hints_of(const nn::ModelConfig& m) {
  return {.num_heads = m.num_heads,
          .input_height = m.input_height,
          .input_width = m.input_width,
          .condition_channels = m.condition_channels,
          .num_classes = m.num_classes,
          .class_dropout = m.class_dropout,
          .position = m.position,
          .patch_overlap = m.patch_overlap};
}

struct DitFile::State {
  Place place;
  weights::WeightFile file;
  DitTensors tensors = {};
  config::Config config = {};
  bool has_config = false;
  std::vector<std::string> notes = {};
  std::unique_ptr<nn::Model> layout = {};  // names and shapes, no memory

  State(Place where, Weights weights) : place(std::move(where)), file(place.file) {
    if (!place.config)
      if (const auto yaml = file.metadata().find(kConfigMetadata); yaml != file.metadata().end())
        place.config = config::parse_config(yaml->second, file.path());
    // Shapes and prefixes tell a DiT; files of other architectures are ours and state their config.
    const bool dit = !place.config || place.config->model.kind == nn::ModelConfig().kind;
    tensors = dit ? find_dit(file, weights) : DitTensors{.file = &file};
    if (!tensors.note.empty()) notes.push_back(tensors.note);
  }

  void find_config(const DitHints& hints) {
    if (place.config) {
      config = *place.config, has_config = true;
      return;
    }
    std::error_code unreadable;
    const std::string beside = files::folder_of(file.path()) + "/config.json";
    if (!place.diffusers && tensors.diffusers && fs::exists(beside, unreadable))
      place.diffusers = find_diffusers(files::folder_of(file.path()));
    DitHints known = hints;
    if (place.diffusers) known = with(hints_of(*place.diffusers), hints);
    config.model = model_of(tensors, known, notes);
    if (place.diffusers) {
      check_config(*place.diffusers, config.model);
      config.diffusion = noise_of(*place.diffusers, notes);
    } else if (tensors.diffusers) {
      notes.emplace_back(kDiffusersDiffers);
    }
    config.data.kind = kind_of(config.model, notes);
    // How samples of published weights are drawn:
    config.sample.cfg_channels = config::GuidedChannels::kThree;
    config.sample.steps = fmt::to_string(std::min<int64_t>(250, config.diffusion.num_steps));
  }

  std::vector<float> read_tensor(const std::string& name) const {
    const weights::WeightTensor& tensor = tensors.at(name);
    std::vector<float> values = file.read(tensor);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]))
        throw InputError(
            {.where = file.path(),
             .what = fmt::format("tensor {} holds a number that is not finite at element {}", tensor.name, i),
             .got = std::to_string(values[i])});
    return values;
  }

  // All parts of a parameter of diffusers, whose copies in other blocks have to be the same.
  std::vector<float> read_parts(const autograd::Parameter& p) const {
    std::vector<float> whole;
    for (size_t part = 0; part < p.diffusers.size(); ++part) {
      const std::string first = name_in_file(tensors, p, part);
      const std::vector<float> values = read_tensor(first);
      for (int64_t block = 1; block < layout->config().depth; ++block) {
        const std::string name = name_in_file(tensors, p, part, block);
        if (name == first) break;
        if (read_tensor(name) != values)
          throw InputError({.where = file.path(),
                            .what = fmt::format("{} and {} differ", first, name),
                            .expected = "the same embedder in every block, as a DiT has it",
                            .hint = "weights that were not fine-tuned block by block"});
      }
      whole.insert(whole.end(), values.begin(), values.end());
    }
    return whole;
  }
};

DitFile::DitFile(const std::string& path, Weights weights, const DitHints& hints)
    : state_(new State(find_place(path, weights), weights)) {
  State& s = *state_;
  s.find_config(hints);
  s.layout = std::make_unique<nn::Model>(s.config.model);
  check_tensors(s.tensors, *s.layout);
}
DitFile::~DitFile() = default;
DitFile::DitFile(DitFile&&) noexcept = default;

const std::string& DitFile::path() const { return state_->file.path(); }
const config::Config& DitFile::config() const { return state_->config; }
bool DitFile::has_config() const { return state_->has_config; }
const std::vector<std::string>& DitFile::class_names() const { return state_->place.class_names; }
const std::vector<std::string>& DitFile::notes() const { return state_->notes; }

bool DitFile::is_plain() const {
  const State& s = *state_;
  return s.file.is_safetensors() && s.tensors.prefix.empty() && !s.tensors.diffusers &&
         (s.config.model.position == nn::Position::kRope || s.tensors.find("pos_embed") != nullptr);
}

std::vector<float> DitFile::read(const std::string& name) const {
  const State& s = *state_;
  const autograd::Parameter& p = s.layout->parameters().find(name);
  const bool in_file = s.tensors.diffusers ? !p.diffusers.empty() : s.tensors.find(name) != nullptr;
  if (in_file) return s.tensors.diffusers ? s.read_parts(p) : s.read_tensor(name);
  DITRAIN_CHECK(p.initial.kind == autograd::Initial::Kind::kTable, name + " is computed");
  return p.initial.table();
}

}  // namespace ditrain::checkpoint
