#include "ditrain/plan/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/eval/fid.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::plan {

dataset::SampleShape model_shape(const nn::ModelConfig& m) { return {m.in_channels, m.input_height, m.input_width}; }

namespace {

// Images of the reference whose features are in memory at once. What cannot be read is told by those who read it.
int64_t reference_images(const config::Config& c) try {
  const std::string& reference = c.eval.reference;
  if (c.eval.fid_every_steps == 0) return 0;
  const bool may_scale = c.data.kind->of_bands || !c.sample.vae.empty();
  const bool scaled = reference.empty() || (may_scale && dataset::holds_tiles(reference));
  return scaled ? eval::TrainingFid::kMostOfData : eval::num_images_of(reference);
} catch (const InputError&) {
  return 0;
}

dataset::SampleShape shape_of_data(const config::Config& c, const eval::LatentCodecPlan* encoder) {
  return encoder != nullptr ? encoder->images() : model_shape(c.model);
}

}  // namespace

std::unique_ptr<dataset::Dataset> open_data(const config::Config& config, const eval::LatentCodecPlan* encoder,
                                            dataset::Part part) {
  // With model.num_classes: auto labels are not held against a number.
  const int64_t classes = std::max<int64_t>(0, config.model.num_classes);
  return dataset::open_dataset(config.data, shape_of_data(config, encoder), classes, uint64_t(config.train.seed), part);
}

Inputs open_inputs(const config::Config& wanted) {
  Inputs inputs;
  InputFacts& facts = inputs.facts;
  const dataset::SampleShape latents = model_shape(wanted.model);
  const auto plan = [&](const std::string& vae) {
    return vae.empty() ? nullptr : std::make_shared<const eval::LatentCodecPlan>(vae, latents);
  };
  facts.encoder = plan(wanted.data.vae);
  if (config::draws_samples(wanted)) facts.decoder = plan(wanted.sample.vae);
  facts.reference_images = reference_images(wanted);
  if (!wanted.data.kind->path.empty() && wanted.data.path.empty()) return inputs;
  config::Config c = wanted;
  dataset::settle(c.data);
  facts.data = c.data;
  inputs.data = open_data(c, facts.encoder.get());
  if (c.data.hold_out > 0 && c.eval.every_steps > 0)
    inputs.held_out = open_data(c, facts.encoder.get(), dataset::Part::kHeldOut);
  facts.num_classes = inputs.data->num_classes(), facts.samples = inputs.data->size();
  // What is no UTF-8 cannot be kept in a checkpoint.
  if (const auto& names = inputs.data->class_names(); std::all_of(names.begin(), names.end(), is_utf8))
    facts.class_names = names;
  for (size_t i = 0; i < kNumMetadata; ++i) facts.known_numbers[i] = inputs.data->knows(i);
  facts.condition_channels = inputs.data->condition_channels();
  if (facts.decoder) expect_learned_scale(*facts.decoder, c);
  if (c.eval.fid_every_steps > 0 && c.eval.features == config::FidFeatures::kInception)
    eval::expect_colours_in_order(c.data);
  return inputs;
}

Ranks ranks_of(const dist::Communicator& world) {
  const std::vector<int> nodes = world.nodes();
  const auto ranks_on = [&](int node) { return int(std::count(nodes.begin(), nodes.end(), node)); };
  const int first = ranks_on(nodes.front());
  return {world.world_size(), first,
          std::all_of(nodes.begin(), nodes.end(), [&](int node) { return ranks_on(node) == first; })};
}

namespace {

// The groups of dist.outer: what lies on one side of a slow link.
int groups_of(const config::Config& c, const Ranks& ranks) {
  const auto fail = [&](const std::string& what, const std::string& got, const std::string& expected,
                        const std::string& hint) {
    throw InputError(
        {.where = "config", .what = "dist.outer: " + what, .got = got, .expected = expected, .hint = hint});
  };
  if (!c.dist.simulate_link && !ranks.alike)
    fail("nodes have different numbers of ranks, and their averages would weigh differently",
         fmt::format("{} on the first node, another number elsewhere", ranks.per_node), "as many on every node",
         "another --map-by, or dist.outer: off");
  const int groups = c.dist.simulate_link ? c.dist.simulate_link->hosts : ranks.world_size / ranks.per_node;
  if (ranks.world_size % groups != 0)
    fail("ranks do not divide over the hosts of dist.simulate_link",
         fmt::format("{} rank(s), hosts: {}", ranks.world_size, groups), "a multiple of the hosts",
         fmt::format("mpirun -np {}", (ranks.world_size / groups + 1) * groups));
  if (groups == 1)
    fail("one node has nothing to average", fmt::format("{} rank(s) on one node", ranks.world_size),
         "two nodes or more",
         "dist.outer: off, or, to see it on one machine, dist.simulate_link={hosts: 2} and mpirun -np 2");
  return groups;
}

}  // namespace

Settled settle(const config::Config& wanted, const InputFacts& facts, const Ranks& ranks) {
  Settled settled{wanted, wanted, facts};
  config::Config& c = settled.config;
  c.diffusion.prediction = &diffusion::prediction_of(c.diffusion);
  if (c.parallel.strategy == config::Strategy::kDpTp && c.parallel.tensor_ranks == 0) {
    if (!ranks.alike)
      throw InputError({.where = "config",
                        .what = "parallel.tensor_ranks: auto needs as many ranks on every node",
                        .got = fmt::format("{} on the first node, another number elsewhere", ranks.per_node),
                        .hint = "parallel.tensor_ranks: a number that divides the ranks of every node"});
    c.parallel.tensor_ranks = ranks.per_node;
  }
  config::validate_for_ranks(c, ranks.world_size);
  if (c.dist.outer) c.dist.outer->groups = groups_of(c, ranks);
  if (facts.data) c.data = *facts.data;
  const int64_t given = facts.data ? facts.condition_channels : dataset::condition_of(c.data).channels();
  if (c.model.condition_channels != 0 && c.model.condition_channels != given)
    throw InputError({.where = "config",
                      .what = "data.condition makes another number of channels than the model is to be given",
                      .got = fmt::format("model.condition_channels: {}", c.model.condition_channels),
                      .expected = std::to_string(given),
                      .hint = "model.condition_channels: 0, which data.condition replaces"});
  c.model.condition_channels = given;
  for (const std::string& name : c.model.metadata)
    if (facts.data && !facts.known_numbers[metadata_index(name, "model.metadata")])
      throw InputError({.where = "config",
                        .what = "model.metadata names a number that no sample of the data knows",
                        .got = name,
                        .expected = "tiles with a tensor `metadata` in which it is a number",
                        .hint = "ditdata make, which takes it from georeference, tags and names of files, or "
                                "model.metadata without it"});
  if (c.model.num_classes == nn::kClassesOfData) c.model.num_classes = facts.data ? facts.num_classes : kAssumedClasses;
  if (c.model.num_classes == 0) settled.facts.class_names.clear();
  return settled;
}

std::string Settled::describe() const {
  std::string lines;
  for (const config::Difference& d : config::differences(wanted, config))
    lines += fmt::format("settled: {}: {}, was {}\n", d.key, d.new_value, d.old_value);
  return lines;
}

void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config) {
  std::error_code unreadable;
  if (!config.data.vae.empty()) {  // a file that other machines need not have
    if (std::filesystem::exists(config.data.vae, unreadable))
      decoder.expect_scale(eval::LatentCodecPlan(config.data.vae, model_shape(config.model)).scale_factor(),
                           "data.vae: " + config.data.vae);
  } else if (const double scale = config.data.latent_scale.value_or(1); scale != 1) {  // 1: scaled beforehand
    decoder.expect_scale(scale, "data.latent_scale");
  }
}

std::string describe_model(const config::Config& config) {
  const nn::ModelConfig& m = config.model;
  nn::Model model(m);
  return fmt::format(
      "model: {} ({} blocks, width {}, {} heads, patch {}), input {} x {} x {}, {} classes, {} parameters, "
      "{:.2f} GFLOP per image and training step\n",
      m.name, m.depth, m.hidden_size, m.num_heads, m.patch_size, m.in_channels, m.input_height, m.input_width,
      m.num_classes, model.parameters().num_parameters(), 6e-9 * nn::forward_macs(m, config.train.routing));
}

}  // namespace ditrain::plan
