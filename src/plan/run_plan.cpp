#include "ditrain/plan/run_plan.hpp"

#include "ditrain/config/replicas.hpp"

namespace ditrain::plan {

RunPlan plan_run(const config::Config& config, int world_size, const RankPlace& place,
                 const DomainBandwidth& bandwidth) {
  RunPlan plan{
      .config = config, .world_size = world_size, .place = place, .replicas = config::replicas(config, world_size)};
  plan.samples = config.train.global_batch / plan.replicas;
  plan.micro_batch = config::micro_batch_of(config, plan.replicas);
  plan.cut = plan_cut(config, plan.micro_batch, place.cluster_sizes, bandwidth);
  nn::Dit model(config.model, {.size = config::tensor_ranks(config)});
  plan.gradients = plan_gradients(config, model.parameters(), plan.replicas);
  plan.automem = plan_automem(config, plan.gradients, plan.samples, plan.micro_batch, place);
  plan.memory = plan_memory(config, world_size, model, plan.gradients, place.ranks_on_node,
                            plan.automem ? &*plan.automem : nullptr);
  return plan;
}

}  // namespace ditrain::plan
