// Outer steps of a run (dist.outer, optim/outer.hpp): after every OuterConfig::every steps, the all-reduce of the outer
// gradients over all ranks, which is the only communication between groups of ranks.
#pragma once
#include <vector>

#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/optim/outer.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

class OuterSync {
 public:
  /// Collective over comm, the ranks with samples of their own. The store is allocated for training. All arguments
  /// outlive the object. comm_pus: as StepPlace.
  OuterSync(const plan::RunPlan& plan, autograd::ParameterStore& parameters, dist::Communicator& comm,
            ops::Context& ctx, const std::vector<int>& comm_pus);

  /// As optim::OuterOptimizer::begin.
  void begin(bool loaded) { optimizer_.begin(ctx_, loaded); }
  /// The arrays that nothing uses between outer steps.
  std::vector<Tensor> arrays_between_steps() const { return optimizer_.arrays(); }
  /// Counts a step of the inner optimiser, whose EMA would have had this decay.
  void count_update(double ema_decay) { ema_decay_ *= ema_decay; }
  /// Runs the outer step. Collective. Waiting counts as kAllreduceExposed, the rest as kOptimizer. Returns the outcome
  /// of the communication; with overlap, the time of the sum that has arrived and the bytes of the one that starts.
  dist::StepOutcome step(PhaseLog& log);
  /// Returns when no sum is under way. It does not change the result of the next step.
  void finish();
  /// The saver may still read what an outer step is about to change; it outlives the object.
  void set_saver(checkpoint::CheckpointSaver* saver) { saver_ = saver; }
  std::string description() const;  ///< for the log

 private:
  void start();

  const plan::RunPlan& plan_;
  const optim::OuterConfig config_;
  autograd::ParameterStore& parameters_;
  ops::Context& ctx_;
  dist::NodeMemory memory_;
  optim::OuterOptimizer optimizer_;
  Pin<float> gradient_;  // the buckets hold its address
  dist::Engine engine_;
  dist::GradientBuckets buckets_;
  bool under_way_ = false;
  double ema_decay_ = 1;  // of the phase so far
  checkpoint::CheckpointSaver* saver_ = nullptr;
};

}  // namespace ditrain::train
