// One training step of one rank: noise, forward, loss, backward, all-reduce, clipping, AdamW and EMA.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "ditrain/dataset/loader.hpp"
#include "ditrain/diffusion/process.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/nn/dit.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/train/adaln_factors.hpp"
#include "ditrain/train/config.hpp"
#include "ditrain/train/leaf_sums.hpp"
#include "ditrain/train/metrics.hpp"
#include "ditrain/train/rank_groups.hpp"
#include "ditrain/train/sharded_update.hpp"

namespace ditrain::train {

/// Counters that a checkpoint carries.
struct Progress {
  int64_t step = 0;            ///< steps done
  int64_t optimizer_step = 0;  ///< updates made
  int64_t skipped_steps = 0;
};

struct StepResult {
  double loss = 0, mse = 0, vb = 0;  ///< means over the global batch
  double grad_norm = 0, lr = 0;
  std::string non_finite;         ///< name of the first bad tensor; empty: all is finite and the update was made
  double allreduce_hidden_s = 0;  ///< communication of gradients and new weights that nobody waited for
  PhaseTimes seconds;
  std::vector<PhaseSpan> spans;  ///< where those seconds lie
};

class TrainStep {
 public:
  /// Declares the tape; `allocate` allocates it. The model's store must be allocated for training before.
  /// comm: the ranks that share out samples and sum gradients; group: those that share this rank's model, if any do.
  TrainStep(const Config& config, nn::Dit& model, dist::Communicator& comm, ops::Context& ctx,
            TensorGroup* group = nullptr);
  /// gradient_memory: where the store has its gradients, if ranks share it (dist.engine); it must outlive the step.
  /// comm_pus: cores of communication alone; none: it shares those of the workers.
  void allocate(dist::NodeMemory* gradient_memory = nullptr, const std::vector<int>& comm_pus = {});

  /// Elements of each moment and of the EMA that this rank keeps: what the store must be allocated with. All, or with
  /// dist.shard_optimizer those of its shards.
  int64_t state_elements() const;
  bool is_sharded() const { return shards_.has_value(); }
  /// Collective: a moment or the EMA of the store, whole. With shards it lies in the gradient arena: valid until the
  /// next call or step.
  const Tensor& whole(const Tensor& state);
  /// Takes what this rank keeps of a whole arena into `state`, a moment or the EMA of the store.
  void keep(const Tensor& whole, const Tensor& state);

  /// Step number progress.step (from 0) on this rank's samples of the global batch.
  /// Math:     t, label drop and noise of global sample g come from RandomKey(seed, stream, step, g), the
  ///           noise as kernels::fill_normal makes it (last bits by instruction set); the gradient is
  ///           that of the mean loss over the global batch, summed over micro-batches and ranks; with
  ///           dist.reproducible along one binary tree over all micro-batches of all ranks, loss and norm too
  /// With several ranks, optimizer.clip_norm 0 and train.on_non_finite stop, the weights of a bucket of gradients are
  /// updated when it has arrived, to the same bits; else all of them when the last one has, with its norm.
  /// A step with a loss or gradient that is not finite is named in the result. It changes no weights on any rank,
  /// except where buckets are updated one by one: see weights_are_spoilt().
  StepResult run(const dataset::Batch& batch, Progress& progress);

  /// The last step found something that is not finite when a part of the weights was updated already: nothing of them
  /// is to be kept, and there is no further step.
  bool weights_are_spoilt() const { return weights_are_spoilt_; }

  autograd::Tape& tape() { return pass_.tape(); }
  const AdalnFactors& factors() const { return factors_; }
  const dist::Engine* engine() const { return engine_.get(); }  ///< nullptr: sums are made in passing
  /// Of the last step: its gradients, then the new weights that ranks with shards send each other.
  const dist::StepOutcome& communication() const { return communication_; }

 private:
  struct MicroBatch {
    const float* images;
    const int64_t* labels;
    int64_t first_sample;  // number in the global batch
    bool first, last;      // of the step
  };
  void prepare(const MicroBatch& micro, int64_t step);
  template <class F>
  void timed(Phase phase, StepResult& result, F f);
  void run_micro_batch(const MicroBatch& micro, int64_t step, StepResult& result);
  void run_micro_batches(const dataset::Batch& batch, int64_t step, StepResult& result);
  void compute_loss(const MicroBatch& micro, StepResult& result);
  optim::StepSettings next_update(const Progress& progress) const;
  void collect_gradients(const optim::StepSettings& update, StepResult& result);
  void update_bucket(int64_t k, const optim::StepSettings& update);
  void update_all(const optim::StepSettings& update, StepResult& result);
  void collect_weights(StepResult& result);
  void sum_losses(StepResult& result);
  double squares_of(const parallel::Range& slice);
  double gradient_norm();
  std::string name_of_non_finite();
  std::string first_non_finite();
  std::string first_bad_gradient();
  std::string agree_on_name(const std::string& mine);

  const Config& config_;
  nn::Dit& model_;
  dist::Communicator& comm_;
  TensorGroup* group_;
  ops::Context& ctx_;
  std::unique_ptr<diffusion::Process> process_;
  diffusion::Shape shape_;
  int64_t samples_, micro_batch_;  // of this rank
  const bool updates_early_;       // of a bucket when it has arrived
  AdalnFactors factors_;
  nn::DitPass pass_;
  Tensor noise_;
  std::vector<double> time_;  // of the samples of the micro-batch
  std::vector<diffusion::LossTerms> terms_;
  std::unique_ptr<Pin<float>> grads_;  // the buckets hold an address in the arena: it must not move
  std::unique_ptr<dist::Engine> engine_;
  std::unique_ptr<dist::GradientBuckets> buckets_;
  dist::StepOutcome communication_;
  std::optional<dist::Shards> shards_;  // of dist.shard_optimizer, on several ranks
  std::unique_ptr<ShardedUpdate> sharded_;
  std::unique_ptr<LeafSums> leaf_sums_;  // of dist.reproducible
  std::vector<double> leaf_losses_;      // of it: loss, mse and vb of each micro-batch
  int64_t leaf_ = 0;                     // number of the micro-batch
  double factor_squares_ = 0;            // of the gradients made of factors
  std::string bad_activation_;
  bool copy_is_fresh_ = false;  // values_bf16, if there is one
  bool mark_buckets_ = false, weights_are_spoilt_ = false;
};

}  // namespace ditrain::train
