// What a run changes and what a checkpoint keeps: the model with its optimiser state, and the step over them, in the
// memory that the plan gives them. The constructor completes it; then weights are initialised or loaded.
#pragma once
#include <memory>
#include <string>

#include "ditrain/automem/automem.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/train/train_step.hpp"
#include "run_context.hpp"

namespace ditrain::train {

/// The state of the checkpoint folder that a run with train.branch_from starts from.
/// Errors:   InputError for one of another model or with other state, or beyond the end of this run
checkpoint::CheckpointState expect_trunk(const config::Config& config, const std::string& folder);

struct TrainingState {
  /// Collective: allocates. `run` and `validation`, the images of the validation loss, outlive the object.
  /// Errors:   InputError if a tier of memory cannot be had, and for autoencoders that do not fit
  TrainingState(RunContext& run, const dataset::Dataset& validation);

  /// Sets the weights of a new run: random ones, or those of train.init_from; or all that the checkpoint
  /// train.branch_from holds. Errors: InputError for a checkpoint of another model, or beyond the end of this run
  void initialise();
  /// Loads a checkpoint. Errors: InputError for a damaged one
  void load(const std::string& checkpoint);

  RunContext& run;
  // The order matters: what is freed last comes first.
  std::unique_ptr<dist::NodeMemory> gradient_memory;    ///< only with several ranks
  std::unique_ptr<eval::LatentCodec> encoder, decoder;  ///< data.vae, sample.vae
  std::unique_ptr<eval::EncodedImages> encoded;         ///< for validation, with an encoder
  std::unique_ptr<nn::Model> guide;                     ///< sample.guide
  std::unique_ptr<automem::AutoMem> automem;            ///< null: nothing moves
  nn::Model model;
  TrainStep step;
  std::unique_ptr<checkpoint::CheckpointSaver> saver;
  Progress progress = {};

 private:
  void load_other_models(const dataset::Dataset& validation);
  void branch(const std::string& path);
  TrainStep make_step(const dataset::Dataset& validation);
  void spread();
  void make_saver();
};

}  // namespace ditrain::train
