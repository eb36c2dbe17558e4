// The one owner of gradients: buckets, the engine that all-reduces them during backward, low-rank gradient factors of
// adaLN layers, sums of micro-batches along a tree, the update of weights with its state, and the ranks that share a
// replica. TrainStep reports which gradients are final; the plan (plan/gradient_plan.hpp) says which policies take
// part.
#pragma once
#include <memory>
#include <vector>

#include "ditrain/automem/automem.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/train/leaf_sums.hpp"
#include "ditrain/train/low_rank_exchange.hpp"
#include "ditrain/train/state_update.hpp"

namespace ditrain::train {

/// The facts that ranks exchange once per step. Losses are summed over the global batch; a request of one rank holds
/// for all.
struct StepFacts {
  double loss = 0, mse = 0, vb = 0;  ///< first over this rank's samples, then over all
  double layer_cosine = 0;           ///< mean cosine of train.layer_sync
  double bad_files = 0;
  double cpu_seconds = 0;  ///< CPU time of training since the last exchange, without samples and validation
  bool stop = false, checkpoint = false, peak_too_low = false;
  bool writes_checkpoint = false;  ///< still writing one

  /// kSums are added over ranks, losses first; kFlags hold for all ranks as soon as one sets them. A new fact is a
  /// field, its entry here, and the value that TrainLoop::own_facts() gives it.
  static constexpr int kLosses = 3;
  static constexpr double StepFacts::*kSums[] = {&StepFacts::loss,      &StepFacts::mse,
                                                 &StepFacts::vb,        &StepFacts::layer_cosine,
                                                 &StepFacts::bad_files, &StepFacts::cpu_seconds};
  static constexpr bool StepFacts::*kFlags[] = {&StepFacts::stop, &StepFacts::checkpoint, &StepFacts::peak_too_low,
                                                &StepFacts::writes_checkpoint};
  void add(const StepFacts& o) {
    for (const auto sum : kSums) this->*sum += o.*sum;
    for (const auto flag : kFlags) this->*flag = this->*flag || o.*flag;
  }
};

/// The communicators of a step; they must outlive it.
struct StepRanks {
  dist::Communicator& samples;         ///< ranks that divide the global batch
  dist::Communicator* sums = nullptr;  ///< those of `samples` that sum gradients in every step; null: all
  plan::TensorGroup* group = nullptr;  ///< ranks that share this rank's replica; null: none
  dist::Communicator& summing() const { return sums != nullptr ? *sums : samples; }
};

/// Resources of a step that were made before it and must outlive it.
struct StepPlace {
  dist::NodeMemory* gradients = nullptr;  ///< holds the store's gradients if ranks share it (dist.engine)
  automem::AutoMem* automem = nullptr;    ///< provides the store's arenas if tensors move
  std::vector<int> comm_pus = {};         ///< cores reserved for communication; empty: it shares those of the workers
};

class GradientSync {
 public:
  /// Collective. The store is allocated for training. The plan outlives the object.
  GradientSync(const plan::RunPlan& plan, nn::Model& model, const StepRanks& ranks, ops::Context& ctx,
               const StepPlace& place);
  /// Off: the all-reduce starts when backward has ended. dist.overlap sets the initial value.
  void set_overlap(bool overlap) { overlap_ = overlap; }

  const nn::WeightGradientSink& weight_gradients() const { return low_rank_; }  ///< the sink for passes over the model
  /// Call before backward. `update` says how the last micro-batch changes the weights of each slice, if the plan
  /// updates in backward; null: they must not change (the loss is not finite). It must outlive backward.
  void begin(const MicroBatchPlace& micro, const optim::StepSettings* update);
  /// The gradients of this slice are final for the micro-batch.
  void ready(const parallel::Range& slice, PhaseLog& log);
  /// With dist.reproducible: moves the losses of the micro-batch from the facts to the tree that sums them.
  void add_losses(StepFacts& facts);

  /// Returns when all gradients are those of the global batch. If updates are early or in backward, the weights are
  /// updated then, too.
  void collect(const optim::StepSettings& update, PhaseLog& log);
  /// The one small collective of a step: gives all ranks the facts of all.
  void exchange(StepFacts& facts);
  double norm();  ///< L2 norm of the collected gradients
  /// With dist.outer: the root mean square of the norms of all groups, not finite if one of them is not. Otherwise
  /// returns `norm`. Collective.
  double norm_of_groups(double norm);
  /// Updates the weights, unless collect() has done so.
  void update(const optim::StepSettings& settings, PhaseLog& log);
  /// Whether weights were updated before the norm was known.
  bool has_updated() const { return has_updated_; }
  /// The name of the first parameter, in the order of backward, whose gradient is not finite on some rank; "" if all
  /// are finite. Collective.
  std::string first_bad_gradient();

  StateUpdate& state() { return *state_; }
  double summing_s() const { return group_ ? group_->summing_s() : 0; }  ///< seconds in sums over the group so far
  const dist::Engine* engine() const { return engine_.get(); }           ///< null: the calling thread all-reduces
  /// Outcome of the last step: buckets of gradients and, with shards, then the all-gathers of new weights.
  const dist::StepOutcome& communication() const { return communication_; }

 private:
  void finish(PhaseLog& log);
  void update_in_backward(const parallel::Range& slice, PhaseLog& log);
  int64_t last_bad_gradient(const parallel::Range& slice);

  const plan::RunPlan& plan_;
  autograd::ParameterStore& parameters_;
  dist::Communicator &comm_, &summing_;
  ops::Context& ctx_;
  plan::TensorGroup* group_;
  bool overlap_;
  LowRankExchange low_rank_;
  std::unique_ptr<Pin<float>> grads_;  // the buckets hold an address in the arena: it must not move
  std::unique_ptr<dist::Engine> engine_;
  std::unique_ptr<dist::GradientBuckets> buckets_;
  std::unique_ptr<LeafSums> leaf_sums_;  // for dist.reproducible
  std::vector<double> leaf_losses_;      // likewise: loss, mse and vb of each micro-batch
  std::unique_ptr<StateUpdate> state_;
  std::vector<SyncPolicy*> policies_;  // in the order in which they are called
  MicroBatchPlace micro_;
  const optim::StepSettings* update_ = nullptr;  // for updates in this backward; null: it makes none
  int64_t next_group_ = 0;                       // next group of the plan's updates, in backward
  double squares_ = 0;                           // sum of squares of the gradients that backward has used
  std::string bad_gradient_;                     // the first one in backward that was not finite or overflows
  bool has_updated_ = false;
  dist::StepOutcome communication_;
};

}  // namespace ditrain::train
