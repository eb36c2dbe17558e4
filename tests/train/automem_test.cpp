// Training in a fast tier that is too small: the same bits as with all in memory.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/plan/automem_plan.hpp"
#include "ditrain/platform/pages.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;
using memory::CopyBy;

namespace {

config::Config moving_config() {
  config::Config c = small_config();
  c.model.input_height = c.model.input_width = 16;
  c.model.hidden_size = 128, c.model.depth = 2;
  return c;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> values;
  std::vector<std::vector<float>> states;
  automem::ResidencyTotals totals;
  size_t allocations = 0;  // of tensors, in the last step
  int64_t mappings = 0;    // of pages
};

/// Four steps; `fast_share` of what moves fits the fast tier.
Outcome four_steps(config::Config config, int clusters, double fast_share, const std::string& disk_folder,
                   memory::CopyBy by = memory::CopyBy::kThreads) {
  nn::Dit model(config.model);
  parallel::Team team({.num_workers = 2, .num_clusters = clusters});
  ops::Context ctx(team);
  const plan::RankPlace place{.cluster_sizes = team.cluster_sizes(), .copying = {.by = by}};
  if (config.memory.automem != config::AutoMem::kOff) {
    const int64_t micro = config.train.micro_batch == 0 ? config.train.global_batch : config.train.micro_batch;
    const plan::GradientPlan gradients = plan::plan_gradients(config, model.parameters(), 1);
    const size_t fixed = plan::fixed_fast_bytes(config, gradients, micro);
    const automem::Uses uses = plan::record_step(config, gradients, config.train.global_batch, micro);
    config.memory.fast_gib = (double(fixed) + fast_share * double(uses.total_bytes())) / 0x1p30;
  }
  const plan::RunPlan plan = plan::plan_run(config, 1, place);
  std::unique_ptr<automem::AutoMem> moves;
  if (plan.automem)
    // A share of the pool for each cluster: one where there is memory, one where there is none.
    moves = std::make_unique<automem::AutoMem>(*plan.automem,
                                               automem::AutoMem::Setup{.clusters = {{.node = 0}, {.node = 4000}},
                                                                       .disk_folder = disk_folder,
                                                                       .simulate = config.memory.simulate_bulk});
  const auto comm = dist::make_null_communicator();
  train::TrainStep step(plan, model, *comm, ctx);
  autograd::ParameterStore& parameters = model.parameters();
  parameters.allocate(autograd::ParameterStore::For::kTraining, config.train.precision,
                      {.segments = moves ? &moves->source() : nullptr});
  step.allocate(nullptr, {}, moves.get());
  copy(random_weights(model), parameters.values);
  step.keep(parameters.values, parameters.ema);
  Outcome o;
  train::Progress progress;
  for (int i = 0; i < 4; ++i) {
    const dataset::Batch batch = random_batch(config);
    const size_t allocations = memory::system_memory().allocations();
    const int64_t mappings = platform::page_events().mappings;
    const train::StepResult result = step.run(batch, progress);
    o.allocations = memory::system_memory().allocations() - allocations;
    o.mappings = platform::page_events().mappings - mappings;
    o.losses.push_back(result.facts.loss), o.norms.push_back(result.grad_norm);
  }
  if (moves) moves->begin_other(/*writes=*/false), o.totals = moves->totals();
  o.values = to_vector(parameters.values);
  for (const Tensor* state : {&parameters.ema, &parameters.exp_avg, &parameters.exp_avg_sq})
    o.states.push_back(to_vector(*state));
  return o;
}

}  // namespace

TEST_CASE("memory.automem changes no bit: strategies, tiers, precisions, clusters, micro-batches") {
  const TemporaryFolder folder;
  config::Config config = moving_config();
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  config.train.micro_batch = GENERATE(0, 2);
  const int clusters = GENERATE(1, 2);
  const Outcome off = four_steps(config, clusters, 1, "");
  struct Tiers {
    const char* name;
    std::optional<double> bulk_gib;
    double disk_gib;
    std::optional<memory::SimulatedBulk> link;
  };
  for (const Tiers& tiers : {Tiers{"bulk", {}, 0, {}}, Tiers{"slow bulk", {}, 0, memory::SimulatedBulk{.gb_s = 2}},
                             Tiers{"disk", 0.0, 1, {}}, Tiers{"both", 2e-3, 1, {}}})
    for (const auto& [automem, by] : {std::pair{config::AutoMem::kPaper, CopyBy::kThreads},
                                      {config::AutoMem::kPaper, CopyBy::kWorkers},
                                      {config::AutoMem::kPlanned, CopyBy::kThreads},
                                      {config::AutoMem::kPlanned, CopyBy::kWorkers}}) {
      INFO(tiers.name << ", " << word_of(automem) << (by == CopyBy::kWorkers ? ", workers, " : ", ")
                      << dtype_name(config.train.precision) << ", micro-batch " << config.train.micro_batch
                      << ", clusters " << clusters);
      config.memory.automem = automem;
      config.memory.tier_gib = {tiers.bulk_gib, tiers.disk_gib};
      config.memory.simulate_bulk = tiers.link;
      const Outcome moved = four_steps(config, clusters, 0.5, folder.path(), by);
      CHECK(moved.losses == off.losses);
      CHECK(moved.norms == off.norms);
      CHECK((moved.values == off.values));  // in parentheses: a failure prints no vector of a million numbers
      CHECK((moved.states == off.states));
      if (tiers.disk_gib > 0) CHECK(moved.totals.bytes_in > 0);
      for (const Outcome& o : {off, moved}) {  // once a step is warm
        CHECK(o.allocations == 0);
        CHECK(o.mappings == 0);
      }
    }
}

TEST_CASE("a step is recorded as it runs: nodes forward and backward, then segments from the arenas' end") {
  const config::Config config = moving_config();
  nn::Dit model(config.model);
  const automem::Uses uses =
      plan::record_step(config, plan::plan_gradients(config, model.parameters(), 1), config.train.global_batch, 2);
  const auto uses_of = [&](automem::Phase phase, const std::string& name) {
    std::string text;
    for (const automem::Point& p : uses.points)
      if (p.phase == phase && p.name == name) {
        text.clear();
        for (const int id : p.uses) text += uses.tensors[size_t(id)].name + "\n";
      }
    return text;
  };
  for (size_t i = 0; i < uses.tensors.size(); ++i) {
    CAPTURE(uses.tensors[i].name);  // clusters read weights whole, and divide all else
    CHECK(uses.is_divided(int(i)) == !uses.tensors[i].name.starts_with("weights of "));
  }
  using automem::Phase;
  CHECK(uses_of(Phase::kForward, "blocks.0.adaLN_modulation") == "weights of blocks.0.adaLN_modulation.1.weight\n");
  CHECK(uses_of(Phase::kForward, "blocks.1.mlp") ==
        "weights of blocks.1.mlp.fc1.weight\nweights of "
        "blocks.1.mlp.fc2.weight\nblocks.1.mlp.fc1\nblocks.1.mlp.fc2\nfinal_layer.x\n");
  CHECK(uses_of(Phase::kBackward, "blocks.0.attn") ==
        "weights of blocks.0.adaLN_modulation.1.weight\nweights of blocks.0.attn.qkv.weight\n"
        "weights of "
        "blocks.0.attn.proj.weight\nblocks.0.attn.x\nblocks.0.attn.qkv\nblocks.0.attn.attn\nblocks.0.attn.proj\n");
  CHECK(uses_of(Phase::kUpdate, "blocks.1.mlp.fc2.weight") ==
        "weights of blocks.1.mlp.fc2.weight\nfirst moments of blocks.1.mlp.fc2.weight\n"
        "second moments of blocks.1.mlp.fc2.weight\nema of blocks.1.mlp.fc2.weight\n");
  const auto nodes = int64_t(3 + 2 * config.model.depth + config.model.depth + 1);
  CHECK(std::count_if(uses.points.begin(), uses.points.end(),
                      [](const automem::Point& p) { return p.phase == Phase::kForward; }) == 2 * nodes);
}

TEST_CASE("with shards the states of a rank are recorded piece by piece, each in the update of its weights") {
  config::Config config = moving_config();
  config.dist.shard_optimizer = true, config.dist.bucket_mib = 0.5;
  nn::Dit model(config.model);
  const plan::GradientPlan gradients = plan::plan_gradients(config, model.parameters(), 2);
  REQUIRE(gradients.sharded);
  std::set<std::string> updated[2];
  for (const int rank : {0, 1}) {
    const automem::Uses uses = plan::record_step(config, gradients, 2, 2, rank);
    std::map<std::string, int64_t> bytes;  // by the first word of the name
    for (const automem::Point& p : uses.points)
      for (const int id : p.uses) {
        const automem::MovableTensor& t = uses.tensors[size_t(id)];
        const std::string kind = t.name.substr(0, t.name.find(" of "));
        if (kind != "ema" && !kind.ends_with("moments")) continue;
        bytes[kind] += int64_t(t.bytes);
        CHECK(p.phase == automem::Phase::kUpdate);
        CHECK(t.name == kind + " of " + p.name);
        if (kind == "ema") updated[rank].insert(p.name);
      }
    CHECK(bytes.size() == 3);
    for (const auto& [kind, sum] : bytes) {  // but for pieces that are too small to move
      CHECK(sum <= 4 * gradients.state_elements(rank));
      CHECK(double(sum) > 0.8 * 4 * double(gradients.state_elements(rank)));
    }
  }
  CHECK(updated[0] != updated[1]);
}
