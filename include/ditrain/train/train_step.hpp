// One training step of one rank: noise, forward, loss, backward, then GradientSync sums the gradients and updates the
// weights.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ditrain/dataset/loader.hpp"
#include "ditrain/diffusion/process.hpp"
#include "ditrain/train/gradient_sync.hpp"
#include "ditrain/train/outer_sync.hpp"

namespace ditrain::train {

/// Counters that a checkpoint carries.
struct Progress {
  int64_t step = 0;            ///< steps done
  int64_t optimizer_step = 0;  ///< updates made
  int64_t skipped_steps = 0;
  int64_t skipped_in_a_row = 0;  ///< up to now
};

struct StepResult {
  StepFacts facts;  ///< facts of all ranks; losses are means over the global batch
  double grad_norm = 0, lr = 0;
  /// Name of the first bad tensor; "gradient norm (overflow)" if the norm is finite, but squares of gradients would
  /// overflow. Empty: all is finite and the update was made.
  std::string non_finite;
  double allreduce_hidden_s = 0;  ///< communication that no thread waited for
  double allreduce_bytes = 0;     ///< bytes that this rank gave to sums and gathers
  PhaseLog log;
};

/// Drops parts of a training sample's condition, so that samples may be drawn without them.
/// Math:     the label for a share class_dropout of the samples; all numbers for a share metadata_drop of those that
///           keep their label, and for half of the others (guidance asks the model without both, a sample of a scene
///           without its label alone); else each number for a share metadata_drop
void drop_condition(const nn::ModelConfig& model, const RandomKey& key, Condition& condition);

class TrainStep {
 public:
  /// Collective: declares and allocates the tape, and splits the work of ctx as the plan says. The model's store is
  /// allocated for training.
  TrainStep(const plan::RunPlan& plan, nn::Model& model, const StepRanks& ranks, ops::Context& ctx,
            const StepPlace& place = {});

  /// See StateUpdate; with shards `whole` is collective.
  Tensor whole(const autograd::OptimizerState& state) { return sync_.state().whole(state); }
  void copy_own_part(const Tensor& whole, const autograd::OptimizerState& state) {
    sync_.state().copy_own_part(whole, state);
  }

  /// Call before the first step, after the weights (and with `loaded` the states) have been set.
  void begin_phase(bool loaded) {
    if (outer_) outer_->begin(loaded);
  }
  OuterSync* outer() { return outer_.get(); }  ///< null: no outer steps

  /// Runs step number progress.step (from 0) on this rank's samples of the global batch. `mine` is called once, after
  /// backward: it returns the facts of this rank beside its losses.
  /// Math:     t, label drop, routes and noise of global sample g come from RandomKey(seed, stream, step, g), the noise
  ///           as kernels::fill_normal makes it (last bits by instruction set); the gradient is that of the mean loss
  ///           over the global batch, summed over micro-batches and ranks; with dist.reproducible along one binary
  ///           tree over all micro-batches of all ranks, loss and norm too. With optimizer.clip_norm 0 and
  ///           train.on_non_finite stop, several ranks update the weights of a bucket when it has arrived, and one
  ///           rank updates those of a node in backward of the last micro-batch; results are bit-identical. Otherwise
  ///           all weights are updated when the last bucket has arrived and the norm is known. A step with a loss or
  ///           gradient that is not finite is named in the result, and so is one with gradients whose squares would
  ///           overflow (optim::squares_overflow). It changes no weights on any rank, except where parts are updated
  ///           one by one: see weights_are_spoilt().
  ///           With dist.outer the gradient is that of the mean loss over the samples of the group, and an outer
  ///           step follows after every OuterConfig::every steps (optim/outer.hpp).
  StepResult run(const dataset::Batch& batch, Progress& progress, const std::function<StepFacts()>& mine = {});

  /// The last step found a non-finite value after a part of the weights had been updated: the weights must not be
  /// saved, and no further step may run.
  bool weights_are_spoilt() const { return weights_are_spoilt_; }

  autograd::Tape& tape() { return pass_.tape(); }
  int64_t micro_batch() const { return micro_number_; }  ///< number of the running micro-batch, from 0
  GradientSync& sync() { return sync_; }
  const GradientSync& sync() const { return sync_; }

 private:
  struct MicroBatch {
    const float* images;
    const Condition* conditions;
    MicroBatchPlace place;
  };
  std::vector<MicroBatch> micro_batches_of(const dataset::Batch& batch) const;
  void refresh_bf16_copy();
  template <class F>
  void timed(Phase phase, PhaseLog& log, F f);
  void prepare(const MicroBatch& micro, int64_t step);
  void compute_loss(const MicroBatch& micro, StepFacts& facts);
  void add_layer_sync(StepFacts& facts) const;
  void backward(const MicroBatch& micro, const optim::StepSettings* update, PhaseLog& log);
  optim::StepSettings next_update(const Progress& progress) const;
  std::string name_of_non_finite();
  std::string first_non_finite();
  std::string agree_on_name(const std::string& mine);

  const plan::RunPlan plan_;
  nn::Model& model_;
  dist::Communicator& comm_;
  ops::Context& ctx_;
  std::unique_ptr<diffusion::Process> process_;
  diffusion::Shape shape_;
  GradientSync sync_;
  std::unique_ptr<OuterSync> outer_;
  nn::ModelPass pass_;
  Tensor noise_;
  std::vector<double> time_;  // of the samples of the micro-batch
  std::vector<diffusion::LossTerms> terms_;
  std::string bad_activation_;
  int64_t micro_number_ = 0;
  PhaseLog* log_ = nullptr;     // of the step that is under way
  automem::AutoMem* automem_;   // null: nothing moves
  bool copy_is_fresh_ = false;  // values_bf16, if there is one
  bool weights_are_spoilt_ = false;
};

}  // namespace ditrain::train
