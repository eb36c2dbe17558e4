#include "ditrain/train/outer_sync.hpp"

#include <fmt/format.h>

#include <utility>

namespace ditrain::train {
namespace {

dist::EngineConfig engine_config(const config::DistConfig& dist, const std::vector<int>& comm_pus) {
  return {.hierarchical = dist.allreduce == config::AllReduce::kHierarchical,
          .wire = dist.wire,
          .link = dist.simulate_link,
          .pus = comm_pus};
}

}  // namespace

OuterSync::OuterSync(const plan::RunPlan& plan, autograd::ParameterStore& parameters, dist::Communicator& comm,
                     ops::Context& ctx, const std::vector<int>& comm_pus)
    : plan_(plan),
      config_(*plan.config.dist.outer),
      parameters_(parameters),
      ctx_(ctx),
      memory_(comm, size_t(parameters.arena_size()) * sizeof(float), /*may_share=*/true, plan.config.memory.pages),
      optimizer_(config_, plan.replicas, parameters, memory_),
      gradient_(optimizer_.gradient()),
      engine_(comm, memory_, engine_config(plan.config.dist, comm_pus)),
      buckets_(engine_, gradient_.get(), plan.gradients.buckets) {}

void OuterSync::start() {
  buckets_.start_all();
  under_way_ = true;
}

void OuterSync::finish() {
  if (std::exchange(under_way_, false)) buckets_.finish();
}

dist::StepOutcome OuterSync::step(PhaseLog& log) {
  const auto timed = [&](Phase phase, auto f) {
    const PhaseTimer timer(log, phase);
    f();
  };
  if (saver_ != nullptr) timed(Phase::kOptimizer, [&] { saver_->before_update({0, parameters_.arena_size()}); });
  const auto take = [&] {
    timed(Phase::kOptimizer, [&] { optimizer_.take_gradient(ctx_); });
    start();
  };
  if (!config_.overlap) take();
  dist::StepOutcome outcome;
  if (under_way_) {
    timed(Phase::kAllreduceExposed, [&] { finish(); });
    outcome = buckets_.last_step();
  }
  timed(Phase::kOptimizer, [&] { optimizer_.apply(ctx_, std::exchange(ema_decay_, 1)); });
  if (config_.overlap) take();
  outcome.bytes = buckets_.bytes();
  return outcome;
}

std::string OuterSync::description() const {
  return fmt::format(
      "outer steps: {} groups of {} rank(s) train by themselves and average their weights every {} steps (lr {}, "
      "momentum {}){}; {}",
      config_.groups, plan_.gradients.replicas, config_.every, config_.lr, config_.momentum,
      config_.overlap ? ", while the next phase runs" : "", engine_.description());
}

}  // namespace ditrain::train
