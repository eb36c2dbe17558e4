#include "ditrain/checkpoint/import.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/version.hpp"
#include "new_path.hpp"

namespace ditrain::checkpoint {
namespace {

bool is_set(const std::vector<std::string>& sets, const std::string& key) {
  return std::any_of(sets.begin(), sets.end(), [&](const std::string& s) { return s.starts_with(key + "="); });
}

void apply(const std::vector<std::string>& sets, config::Config& config) {
  for (const std::string& assignment : sets) config::apply_set(config, assignment);
  if (is_set(sets, "model.name")) nn::apply_name(config.model);
}

// The ranges and scales of the file go with its bands, wherever the keys put these; the keys may give others.
void keep_ranges(const dataset::Config& of_file, const std::vector<std::string>& sets, dataset::Config& data) {
  if (of_file.bands.empty() || data.bands == of_file.bands) return;
  const std::pair<const char*, std::vector<double>*> lists[] = {{"data.scale_low", &data.scale_low},
                                                                {"data.scale_high", &data.scale_high},
                                                                {"data.number_scale", &data.number_scale},
                                                                {"data.number_offset", &data.number_offset}};
  for (const auto& [key, list] : lists) {
    if (is_set(sets, key) || list->size() != of_file.bands.size()) continue;
    std::vector<double> moved;
    for (const int b : dataset::find_bands(of_file.bands, data.bands, "data.bands"))
      moved.push_back((*list)[size_t(b)]);
    *list = moved;
  }
}

// What the keys say about the file, besides what they say about the checkpoint.
DitHints hints_of(const std::vector<std::string>& sets) {
  config::Config asked;
  apply(sets, asked);
  const nn::ModelConfig& m = asked.model;
  DitHints hints;
  if (is_set(sets, "model.num_heads") || (is_set(sets, "model.name") && m.name != "custom"))
    hints.num_heads = m.num_heads;
  if (is_set(sets, "model.input_size")) hints.input_height = m.input_height, hints.input_width = m.input_width;
  if (is_set(sets, "model.num_classes")) hints.num_classes = m.num_classes;
  if (is_set(sets, "model.patch_overlap")) hints.patch_overlap = m.patch_overlap;
  if (is_set(sets, "model.position")) hints.position = m.position;
  if (is_set(sets, "model.condition_channels")) hints.condition_channels = m.condition_channels;
  if (is_set(sets, "model.class_dropout")) hints.class_dropout = m.class_dropout;
  return hints;
}

// By one rank. The moments are pages that nothing touches, and the average is the weights themselves.
void write_checkpoint(const std::string& out, nn::Model& model, const config::Config& config) {
  NewPath target(out, "import");
  parallel::Team team({.num_workers = 1});
  ops::Context ctx(team);
  const auto comm = dist::make_null_communicator();
  autograd::ParameterStore& parameters = model.parameters();
  CheckpointSaver saver(
      {.checkpoints_dir = target.temporary(), .config = {}, .mine = {.parts = {{0, parameters.arena_size()}}}},
      parameters, *comm, ctx);
  CheckpointState state;
  state.isa = kernels::chosen_isa(), state.kernels = kernels::dispatch_report(), state.version = kVersion;
  state.config_yaml = config::to_yaml(config);
  std::optional<SaveOutcome> outcome = saver.start(state);
  if (!outcome) outcome = saver.finish();
  DITRAIN_CHECK(outcome, "a checkpoint that was begun ends");
  if (!outcome->problem.empty()) throw RunError({.where = "import", .what = outcome->problem});
  target.commit(outcome->folder);
}

}  // namespace

Imported import_weights(const ImportRequest& request) {
  const DitFile file(request.from, request.weights, hints_of(request.sets));
  Imported imported{.config = file.config(), .file = file.path(), .notes = file.notes()};
  if (!file.has_config() && !is_set(request.sets, "diffusion.process"))
    imported.notes.push_back(
        "taken as a model that predicts noise (diffusion.process=ddpm); one that predicts velocities, as SiT, has the "
        "same tensors and needs --set diffusion.process=flow --set model.learn_sigma=false");
  if (!file.has_config() && !is_set(request.sets, "sample.cfg_channels") && file.config().model.in_channels > 3)
    imported.notes.push_back(
        "guidance acts on the first three channels, as in the reference (sample.cfg_channels=3; "
        "--set sample.cfg_channels=all guides all, as diffusers does)");
  apply(request.sets, imported.config);
  if (!file.has_config()) imported.config.diffusion.prediction = &diffusion::prediction_of(imported.config.diffusion);
  if (!file.has_config() && !is_set(request.sets, "sample.steps")) {
    std::string& steps = imported.config.sample.steps;
    if (imported.config.diffusion.process->name == std::string_view("ddpm"))
      imported.notes.push_back("samples are drawn in " + steps +
                               " steps, as those of published weights are (sample.steps=" + steps + ")");
    else
      steps = config::Config().sample.steps;
  }
  if (config::learns_pixels(imported.config)) keep_ranges(file.config().data, request.sets, imported.config.data);
  config::validate_without_data(imported.config);
  config::check_bands(imported.config);
  nn::Model model(imported.config.model);
  autograd::ParameterStore& parameters = model.parameters();
  parameters.allocate(autograd::ParameterStore::For::kTraining, DType::kF32,
                      {.states = optim::state_arrays(imported.config.optimizer, imported.config.ema)});
  parameters.ema = parameters.values;
  nn::initialise(model, uint64_t(imported.config.train.seed));
  for (const std::string& change : load_adapted(file, imported.config, model)) imported.notes.push_back(change);
  imported.num_parameters = parameters.num_parameters();
  write_checkpoint(request.out, model, imported.config);
  return imported;
}

}  // namespace ditrain::checkpoint
