// The inputs of a run, and the config that follows from them. open_inputs opens the data and reads the headers of the
// other files, once. settle replaces `auto` values by the ones that files and ranks decide, once. Plans, dry runs, runs
// and benches read the settled config and open no files.
//
//   Inputs inputs = open_inputs(wanted);
//   const Settled settled = settle(wanted, inputs.facts, ranks_of(comm));
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/latent_codec.hpp"

namespace ditrain::plan {

/// The shape of a sample as the model takes it.
dataset::SampleShape model_shape(const nn::ModelConfig& model);

/// Facts read from the files of a run.
struct InputFacts {
  std::optional<dataset::Config> data = {};           ///< with bands, ranges and scale of the data; none: no data.path
  int64_t num_classes = 0, samples = 0;               ///< of the data
  std::vector<std::string> class_names = {};          ///< by label; empty: the data, or the settled model, has none
  std::array<bool, kNumMetadata> known_numbers = {};  ///< which numbers of kMetadata the data states
  int64_t condition_channels = 0;                     ///< channels of the images that condition the samples
  std::shared_ptr<const eval::LatentCodecPlan> encoder = {};  ///< data.vae; null: not set
  std::shared_ptr<const eval::LatentCodecPlan> decoder = {};  ///< sample.vae of a run that samples; null: not set
  int64_t reference_images = 0;  ///< images whose features are in memory at once (eval.fid_every_steps)
};

struct Inputs {
  InputFacts facts = {};
  std::unique_ptr<dataset::Dataset> data = {};      ///< with data.vae the images to encode; may be null
  std::unique_ptr<dataset::Dataset> held_out = {};  ///< the other part of data.hold_out, if it is set; may be null

  /// The samples of the validation loss: those that training does not see, if there are any.
  const dataset::Dataset& validation() const { return held_out ? *held_out : *data; }
};

/// Opens the data, and reads the headers of the other files. If the kind needs a data.path that is not set, no data is
/// opened.
/// Errors:   InputError as dataset::settle, dataset::open_dataset and eval::LatentCodecPlan; with data also as
///           expect_learned_scale, and as eval::expect_colours_in_order if samples are scored by Inception
Inputs open_inputs(const config::Config& wanted);

/// Opens only the data, for a config whose bands and scale are settled. `encoder` is the autoencoder of data.vae, if it
/// is set.
/// Errors:   InputError as dataset::open_dataset, also for a missing data.path
std::unique_ptr<dataset::Dataset> open_data(const config::Config& config,
                                            const eval::LatentCodecPlan* encoder = nullptr,
                                            dataset::Part part = dataset::Part::kTraining);

/// How many ranks a run has.
struct Ranks {
  int world_size = 1, per_node = 1;
  bool alike = true;  ///< every node has per_node ranks
};
Ranks ranks_of(const dist::Communicator& world);

/// The number of classes that a plan without data assumes for model.num_classes: auto (ImageNet's).
inline constexpr int64_t kAssumedClasses = 1000;

/// A config in which data, files and number of ranks have replaced `auto`. What the machine decides (recompute, tiers,
/// cut) is in the RunPlan.
struct Settled {
  config::Config wanted, config;
  InputFacts facts = {};
  std::string describe() const;  ///< a line for each key that was settled; "": none
};
/// Replaces each `auto` in this order: prediction of the process, tensor ranks, groups of dist.outer, bands and scale
/// of the data, classes.
/// Errors:   InputError for parallel.tensor_ranks: auto and for dist.outer on nodes with different numbers of ranks,
///           for dist.outer on a single node, and as config::validate_for_ranks
Settled settle(const config::Config& wanted, const InputFacts& facts, const Ranks& ranks);

/// Refuses an autoencoder for samples whose scale factor differs from that of the latents that the model learned, if
/// the config states the latter (data.latent_scale, data.vae).
/// Errors:   InputError
void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config);

/// One line with sizes, parameters and FLOP per image.
std::string describe_model(const config::Config& config);

}  // namespace ditrain::plan
