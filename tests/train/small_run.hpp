// A model that is quick everywhere, and runs of it on ranks that are threads of this process.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/thread_world.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/train/replicas.hpp"
#include "ditrain/train/train_step.hpp"
#include "support/random_tensor.hpp"
#include "support/small_config.hpp"

namespace ditrain::test {

/// `count` samples of the global batch from number `first` on.
inline dataset::Batch random_batch(const config::Config& c, int64_t first, int64_t count) {
  const int64_t elements = c.model.in_channels * c.model.pixels();
  const std::vector<float> all = to_vector(random_tensor({c.train.global_batch, elements}, 3));
  dataset::Batch batch;
  batch.images.assign(all.begin() + first * elements, all.begin() + (first + count) * elements);
  for (int64_t i = first; i < first + count; ++i) batch.conditions.push_back({.label = i % c.model.num_classes});
  return batch;
}
inline dataset::Batch random_batch(const config::Config& c) { return random_batch(c, 0, c.train.global_batch); }

/// A model that predicts clean data: a huge number among them makes huge gradients, which are finite.
inline config::Config flow_config() {
  config::Config c = small_config();
  c.model.learn_sigma = false;
  c.diffusion.process = diffusion::named<diffusion::ProcessKind>("flow");
  c.diffusion.prediction = diffusion::named<diffusion::Prediction>("x0");
  return c;
}

/// A whole arena of weights; 0 between parameters, as everywhere.
inline Tensor random_weights(nn::Model& model) {
  Tensor arena({model.parameters().arena_size()});
  for (const autograd::Parameter* p : model.parameters().state_dict())
    if (p->trainable) copy(random_tensor(p->shape, 5, 0.1f), model.parameters().view(arena, *p));
  return arena;
}

/// What a rank has after some steps.
struct RankOutcome {
  std::vector<double> losses, norms, bytes;
  std::vector<float> values, published;
  std::vector<std::vector<float>> states;  ///< EMA and moments, whole
  int64_t state_elements = 0;              ///< of each, of this rank
  bool copy_is_right = true;               ///< in bf16: that of the weights
  std::string non_finite;                  ///< of the last step
  bool spoilt = false;
  double moved_in = 0;  ///< bytes that memory.automem brought
  /// With dist.outer and overlap: what comparing replicas says if these ranks pass for one group; "": they are alike.
  std::string unlike_as_one_group;
  /// In which of its numbers it differs from the other; "": the same bits.
  std::string difference(const RankOutcome& o) const {
    return std::string(losses == o.losses ? "" : "losses ") + (norms == o.norms ? "" : "norms ") +
           (values == o.values ? "" : "weights ") + (states == o.states ? "" : "states ");
  }
};

/// y is x rounded to bf16.
inline bool is_rounded(const Tensor& x, const Tensor& y) {
  const Tensor rounded(x.shape(), DType::kBF16), a(x.shape()), b(x.shape());
  copy(x, rounded);
  copy(rounded, a), copy(y, b);
  return to_vector(a) == to_vector(b);
}

/// All ranks of the world make `steps` steps on their shares of one batch; `change` may spoil what a rank gets.
inline std::vector<RankOutcome> train_on(ThreadWorld&& world, const config::Config& config, int steps,
                                         const std::function<void(int rank, dataset::Batch&)>& change = {},
                                         memory::CopyBy copy_by = memory::CopyBy::kThreads) {
  std::vector<RankOutcome> outcomes(static_cast<size_t>(world.ranks));
  run_ranks(world, [&](ThreadCommunicator& comm) {
    std::optional<dist::NodeMemory> gradients;  // outlives the model, whose gradients lie there
    std::unique_ptr<automem::AutoMem> moves;    // likewise
    nn::Model model(config.model);
    autograd::ParameterStore& parameters = model.parameters();
    // Groups of dist.outer have one rank each here: they sum no gradients.
    const auto alone = dist::make_null_communicator();
    dist::Communicator& summing = config.dist.outer ? *alone : static_cast<dist::Communicator&>(comm);
    gradients.emplace(summing, size_t(parameters.arena_size()) * sizeof(float));
    parallel::Team team({.num_workers = 1 + comm.rank() % 2});
    ops::Context ctx(team);
    const plan::RunPlan plan =
        plan::plan_run(config, comm.world_size(),
                       {.cluster_sizes = team.cluster_sizes(), .rank = comm.rank(), .copying = {.by = copy_by}});
    const TemporaryFolder disk;
    if (plan.automem)
      moves = std::make_unique<automem::AutoMem>(*plan.automem, automem::AutoMem::Setup{.disk_folder = disk.path()});
    parameters.allocate(autograd::ParameterStore::For::kTraining, config.train.precision,
                        {.gradients = &*gradients,
                         .states = optim::state_arrays(config.optimizer, config.ema, config.dist.outer.has_value()),
                         .state_parts = plan.gradients.state_parts(),
                         .segments = moves ? &moves->source() : nullptr});
    train::TrainStep step(plan, model, {comm, &summing}, ctx, {&*gradients, moves.get()});
    copy(random_weights(model), parameters.values);
    step.copy_own_part(parameters.values, parameters.ema_state());
    step.begin_phase(/*loaded=*/false);
    const int64_t share = config.train.global_batch / comm.world_size();
    dataset::Batch batch = random_batch(config, comm.rank() * share, share);
    if (change) change(comm.rank(), batch);
    RankOutcome& o = outcomes[size_t(comm.rank())];
    train::Progress progress;
    for (int i = 0; i < steps; ++i) {
      const train::StepResult result = step.run(batch, progress);
      o.losses.push_back(result.facts.loss), o.norms.push_back(result.grad_norm), o.non_finite = result.non_finite;
      o.bytes.push_back(result.allreduce_bytes);
    }
    if (step.outer() != nullptr) step.outer()->finish();  // a sum under way changes a state
    const automem::Reading reading(moves.get());
    if (config.dist.outer && config.dist.outer->overlap) {
      train::verify_replicas(config, parameters, steps, {0, comm.rank()}, comm, ctx);
      try {
        train::verify_replicas(config, parameters, steps, {0, 0}, comm, ctx);
      } catch (const RunError& error) {
        o.unlike_as_one_group = error.what();
      }
    }
    if (moves) o.moved_in = moves->totals().bytes_in;
    o.values = to_vector(parameters.values);
    if (parameters.values_bf16.defined()) o.copy_is_right = is_rounded(parameters.values, parameters.values_bf16);
    o.state_elements = parameters.ema.size();
    o.states.push_back(to_vector(step.whole(parameters.ema_state())));
    for (const autograd::OptimizerState& state : parameters.states) {
      const std::vector<float> whole = to_vector(step.whole(state));
      std::vector<float>& all = o.states.emplace_back(size_t(parameters.arena_size()), 0.0f);
      const bool packed = whole.size() < all.size();  // arrays of some parameters, as they lie
      const autograd::StateLayout layout = parameters.layout_of(state.declared);
      for (const autograd::ArenaSlice& part : layout.slices())
        std::copy_n(whole.begin() + (packed ? state.layout.at(part.begin) : part.begin), part.size(),
                    all.begin() + part.begin);
    }
    o.spoilt = step.weights_are_spoilt();
    if (parameters.published.defined()) o.published = to_vector(parameters.published);
    comm.barrier();  // no rank frees its memory while others still use it
  });
  return outcomes;
}

}  // namespace ditrain::test
