// What a run is made of, and what of its config follows from that: open_inputs opens the data and reads the headers of
// the other files, once; settle puts what is `auto` in place, once. Plans, dry runs, runs and benches read the settled
// config and open no files.
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

/// A sample as the model takes it.
dataset::SampleShape model_shape(const nn::ModelConfig& model);

/// What the files of a run say.
struct InputFacts {
  std::optional<dataset::Config> data = {};           ///< bands, ranges and scale are the data's; none: no data.path
  int64_t num_classes = 0;                            ///< classes of the data
  std::array<bool, kNumMetadata> known_numbers = {};  ///< of kMetadata
  int64_t condition_channels = 0;                     ///< of the images that condition its samples
  std::shared_ptr<const eval::LatentCodecPlan> encoder = {};  ///< data.vae; null: not set
  std::shared_ptr<const eval::LatentCodecPlan> decoder = {};  ///< sample.vae of a run that samples; null: not set
  int64_t reference_images = 0;  ///< whose features are in memory at once (eval.fid_every_steps)
};

struct Inputs {
  InputFacts facts = {};
  std::unique_ptr<dataset::Dataset> data = {};  ///< with data.vae the images to encode; may be null
};

/// Opens the data, and reads the headers of the other files. If the kind needs a data.path that is not set, no data is
/// opened.
/// Errors:   InputError as dataset::settle, dataset::open_dataset and eval::LatentCodecPlan; with data also as
///           expect_learned_scale, and as eval::expect_colours_in_order if samples are scored by Inception
Inputs open_inputs(const config::Config& wanted);

/// Opens the data alone, for a config whose bands and scale are settled. `encoder` is that of data.vae, if it is set.
/// Errors:   InputError as dataset::open_dataset, also for a missing data.path
std::unique_ptr<dataset::Dataset> open_data(const config::Config& config,
                                            const eval::LatentCodecPlan* encoder = nullptr);

/// The ranks of a run.
struct Ranks {
  int world_size = 1, per_node = 1;
  bool alike = true;  ///< every node has per_node of them
};
Ranks ranks_of(const dist::Communicator& world);

/// ImageNet's classes: a plan without data takes them for model.num_classes: auto.
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

/// Refuses an autoencoder for samples whose latents have another scale than those that the model learned, where the
/// config tells it (data.latent_scale, data.vae). Errors: InputError
void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config);

/// One line with sizes, parameters and FLOP per image.
std::string describe_model(const config::Config& config);

}  // namespace ditrain::plan
