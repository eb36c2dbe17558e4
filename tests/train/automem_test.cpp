// Training in a fast tier that is too small: the same bits as with all in memory.
#include <catch2/catch.hpp>
#include <limits>
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
  std::vector<std::vector<float>> states;  // weights, EMA, moments
  automem::ResidencyTotals totals;
  size_t allocations = 0;  // of tensors, in the last step
  int64_t mappings = 0;    // of pages
};

/// `fast_share` of what moves fits the fast tier.
config::Config with_fast_share(config::Config config, double fast_share) {
  if (config.memory.automem == config::AutoMem::kOff) return config;
  nn::Model layout(config.model);
  const int64_t micro = config.train.micro_batch == 0 ? config.train.global_batch : config.train.micro_batch;
  const plan::GradientPlan gradients = plan::plan_gradients(config, layout.parameters(), 1);
  const automem::Uses uses = plan::record_step(config, gradients, config.train.global_batch, micro);
  const size_t fixed = plan::fixed_fast_bytes(config, gradients, micro) + uses.small_bytes;
  config.memory.fast_gib = (double(fixed) + fast_share * double(uses.total_bytes())) / 0x1p30;
  return config;
}

/// A model that trains on one rank, with its tensors where the config says.
struct Trainee {
  Trainee(const config::Config& wanted, int clusters, double fast_share, const std::string& disk_folder,
          memory::CopyBy by = memory::CopyBy::kThreads)
      : config(with_fast_share(wanted, fast_share)),
        team({.num_workers = 2, .num_clusters = clusters}),
        ctx(team),
        plan(plan::plan_run(config, 1, {.cluster_sizes = team.cluster_sizes(), .copying = {.by = by}})),
        // A share of the pool for each cluster: one where there is memory, one where there is none.
        moves(plan.automem ? std::make_unique<automem::AutoMem>(
                                 *plan.automem, automem::AutoMem::Setup{.clusters = {{.node = 0}, {.node = 4000}},
                                                                        .disk_folder = disk_folder,
                                                                        .simulate = config.memory.simulate_bulk})
                           : nullptr),
        model(config.model),
        before(memory::system_memory().bytes_in_use()),
        step(make_step()),
        allocated_bytes(memory::system_memory().bytes_in_use() - before) {
    copy(random_weights(model), model.parameters().values);
    step.copy_own_part(model.parameters().values, model.parameters().ema_state());
  }
  train::TrainStep make_step() {
    model.parameters().allocate(autograd::ParameterStore::For::kTraining, config.train.precision,
                                {.home = moves ? &moves->beside() : &memory::system_memory(),
                                 .states = optim::state_arrays(config.optimizer, config.ema),
                                 .gradient_slices = plan.gradients.gradient_slices,
                                 .segments = moves ? &moves->source() : nullptr});
    return train::TrainStep(plan, model, {*comm}, ctx, {.automem = moves.get()});
  }
  train::StepResult run() { return step.run(random_batch(config), progress); }
  std::vector<std::vector<float>> states() {
    const automem::Reading reading(moves.get());
    const autograd::ParameterStore& p = model.parameters();
    std::vector<std::vector<float>> all = {to_vector(p.values), to_vector(p.ema)};
    for (const autograd::OptimizerState& state : p.states) all.push_back(to_vector(state.data));
    return all;
  }

  const config::Config config;
  parallel::Team team;
  ops::Context ctx;
  const plan::RunPlan plan;
  std::unique_ptr<automem::AutoMem> moves;  // before what has its memory from it
  std::unique_ptr<dist::Communicator> comm = dist::make_null_communicator();
  nn::Model model;
  const size_t before;  // bytes in use
  train::TrainStep step;
  const size_t allocated_bytes;  // of what does not move
  train::Progress progress;
};

Outcome four_steps(const config::Config& config, int clusters, double fast_share, const std::string& disk_folder,
                   memory::CopyBy by = memory::CopyBy::kThreads) {
  Trainee trainee(config, clusters, fast_share, disk_folder, by);
  Outcome o;
  for (int i = 0; i < 4; ++i) {
    const dataset::Batch batch = random_batch(config);
    const size_t allocations = memory::system_memory().allocations();
    const int64_t mappings = platform::num_page_mappings();
    const train::StepResult result = trainee.step.run(batch, trainee.progress);
    o.allocations = memory::system_memory().allocations() - allocations;
    o.mappings = platform::num_page_mappings() - mappings;
    o.losses.push_back(result.facts.loss), o.norms.push_back(result.grad_norm);
  }
  if (trainee.moves) o.totals = trainee.moves->totals();
  o.states = trainee.states();
  return o;
}

// Four steps with that share of the tensors in fast memory and the others on disk, by both policies.
void check_on_disk(config::Config config, double share, const Outcome& off) {
  const TemporaryFolder folder;
  config.memory.tier_gib = {0.0, 1.0};
  for (const auto& [automem, by] :
       {std::pair{config::AutoMem::kPaper, CopyBy::kThreads}, {config::AutoMem::kPlanned, CopyBy::kWorkers}}) {
    config.memory.automem = automem;
    const Outcome moved = four_steps(config, 2, share, folder.path(), by);
    CHECK(moved.losses == off.losses);
    CHECK((moved.states == off.states));
    CHECK(moved.totals.bytes_in > 0);
  }
}

}  // namespace

TEST_CASE("memory.automem changes no bit: strategies, tiers, precisions, clusters, micro-batches") {
  const TemporaryFolder folder;
  config::Config config = moving_config();
  // Every pair of precision, micro-batches and clusters.
  const bool bf16 = GENERATE(false, true), micro_batches = GENERATE(false, true);
  config.train.precision = bf16 ? DType::kBF16 : DType::kF32;
  config.train.micro_batch = micro_batches ? 2 : 0;
  const int clusters = bf16 == micro_batches ? 1 : 2;
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
      CHECK((moved.states == off.states));  // in parentheses: a failure prints no vector of a million numbers
      if (tiers.disk_gib > 0) CHECK(moved.totals.bytes_in > 0);
      for (const Outcome& o : {off, moved}) {  // once a step is warm
        CHECK(o.allocations == 0);
        CHECK(o.mappings == 0);
      }
    }
}

TEST_CASE("memory.automem moves the gradients of long skips between their nodes, and changes no bit") {
  config::Config config = moving_config();
  config.model.kind = nn::ModelKind::kUvit, config.model.depth = 5;
  config.train.micro_batch = 2;
  config.train.recompute = GENERATE(nn::Recompute::kSelective, nn::Recompute::kBlock);
  const Outcome off = four_steps(config, 2, 1, "");
  check_on_disk(config, 0.4, off);
  nn::Model model(config.model);
  const automem::Uses uses =
      plan::record_step(config, plan::plan_gradients(config, model.parameters(), 1), config.train.global_batch, 2);
  const auto users = [&](const std::string& name) {
    std::string text;
    for (const automem::Point& point : uses.points)
      for (const int id : point.uses)
        if (uses.tensors[size_t(id)].name == name)
          text += std::string(automem::phase_name(point.phase)) + " of " + point.name + "\n";
    return text;
  };
  const std::string once = "backward of out_blocks.1.skip_linear\nbackward of in_blocks.0.mlp\n";
  CHECK(users("out_blocks.1.skip_linear.dskip") == once + once);  // of each micro-batch
  for (const automem::MovableTensor& tensor : uses.tensors)
    CHECK((tensor.written == automem::Written::kInBackward) == tensor.name.ends_with(".dskip"));
}

TEST_CASE("memory.automem with routes, and with LayerSync, changes no bit") {
  config::Config config = moving_config();
  const int64_t last = config.model.depth - 1;
  if (GENERATE(true, false))
    config.train.routing = {{0.5, 1, last}};
  else
    config.train.layer_sync = nn::LayerSync{.weight = 0.5, .from = 0, .to = last};  // which reads far ahead in backward
  config.train.micro_batch = 2;
  config.train.recompute = GENERATE(nn::Recompute::kSelective, nn::Recompute::kBlock);
  const Outcome off = four_steps(config, 2, 1, "");
  check_on_disk(config, 0.5, off);
}

TEST_CASE("tokens that take a route have no activations to move") {
  config::Config config = moving_config();
  nn::Model model(config.model);
  const auto bytes = [&] {
    return plan::record_step(config, plan::plan_gradients(config, model.parameters(), 1), 4, 2).total_bytes();
  };
  const size_t all = bytes();
  config.train.global_batch = 4, config.train.routing = {{0.5, 1, 1}};
  CHECK(bytes() < all);
}

TEST_CASE("memory.automem loses nothing by a step that is skipped, also of images that move") {
  const TemporaryFolder folder;
  config::Config config = moving_config();
  config.model.input_height = config.model.input_width = 64, config.model.patch_size = 8;
  config.train.on_non_finite = config::OnNonFinite::kSkip;
  const auto train = [&](memory::CopyBy by) {
    Trainee trainee(config, 1, 0.4, folder.path(), by);
    if (trainee.moves) {
      const std::vector<automem::MovableTensor>& tensors = trainee.plan.automem->uses.tensors;
      REQUIRE(std::count_if(tensors.begin(), tensors.end(),
                            [](const auto& tensor) { return tensor.name == "x_embedder.image"; }) == 1);
    }
    std::vector<double> losses;
    for (int i = 0; i < 6; ++i) {
      dataset::Batch batch = random_batch(config);
      const bool bad = i == 1 || i == 2;
      if (bad) batch.images[5] = std::numeric_limits<float>::quiet_NaN();
      const train::StepResult result = trainee.step.run(batch, trainee.progress);
      CHECK(result.non_finite == (bad ? "input image" : ""));
      if (!bad) losses.push_back(result.facts.loss);
    }
    return std::pair(losses, trainee.states());
  };
  const auto off = train(CopyBy::kThreads);
  config.memory.tier_gib = {0.0, 1.0};
  for (const config::AutoMem automem : {config::AutoMem::kPaper, config::AutoMem::kPlanned})
    for (const CopyBy by : {CopyBy::kThreads, CopyBy::kWorkers}) {
      config.memory.automem = automem;
      const auto moved = train(by);
      CHECK(moved.first == off.first);
      CHECK((moved.second == off.second));
    }
}

TEST_CASE("the embedder of a model with a condition announces the noisy image, and trains with the least fast memory") {
  config::Config config = moving_config();
  config.model.input_height = config.model.input_width = 64, config.model.patch_size = 8;
  config.model.condition_channels = 2, config.model.hidden_size = 32;  // so that the image is the larger part
  config.train.micro_batch = 2;
  config.memory.automem = GENERATE(config::AutoMem::kPaper, config::AutoMem::kPlanned);
  nn::Model layout(config.model);
  const plan::GradientPlan gradients = plan::plan_gradients(config, layout.parameters(), 1);
  const automem::Uses uses = plan::record_step(config, gradients, config.train.global_batch, 2);
  for (const automem::Point& point : uses.points) {
    if (point.name != "x_embedder" || point.phase != automem::Phase::kForward) continue;
    std::set<std::string> names;
    for (const int id : point.uses) names.insert(uses.tensors[size_t(id)].name);
    CHECK(names.count("x_embedder.image") == 1);
    CHECK(names.count("x_embedder.image_and_condition") == 1);
  }
  const auto least = double(uses.bytes_of(uses.largest()) + memory::kBlock);  // a block: for rounding
  Trainee trainee(config, 1, least / double(uses.total_bytes()), "");
  dataset::Batch batch = random_batch(config);
  for (Condition& condition : batch.conditions) condition.image.assign(size_t(2 * config.model.pixels()), 0.5f);
  for (int i = 0; i < 3; ++i) CHECK(std::isfinite(trainee.step.run(batch, trainee.progress).facts.loss));
}

TEST_CASE("the peak of the fast tier is all that lay in it at one time") {
  config::Config config = moving_config();
  config.memory.automem = config::AutoMem::kPlanned;
  Trainee trainee(config, 1, 1.2, "");
  REQUIRE(trainee.plan.automem->in_place_bytes() == 0);
  size_t moving = 0;  // everything has room
  for (const automem::MovableTensor& tensor : trainee.plan.automem->uses.tensors)
    moving += memory::whole_blocks(tensor.bytes);
  trainee.run(), trainee.run();
  const size_t peak = trainee.moves->fast_peak_bytes();
  CHECK(peak == trainee.allocated_bytes + moving);
  CHECK(double(peak) <= trainee.config.memory.fast_gib * 0x1p30);
  const Tensor too_long({1 << 16}, DType::kF32, trainee.moves->beside());
  trainee.run();
  CHECK(trainee.moves->fast_peak_bytes() == peak + too_long.bytes());
}

TEST_CASE("a step is recorded as it runs: nodes forward and backward, then segments from the arenas' end") {
  const config::Config config = moving_config();
  nn::Model model(config.model);
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
  nn::Model model(config.model);
  std::set<std::string> updated[2];
  for (const int rank : {0, 1}) {
    const plan::GradientPlan gradients = plan::plan_gradients(config, model.parameters(), 2, rank);
    REQUIRE(gradients.sharded);
    const automem::Uses uses = plan::record_step(config, gradients, 2, 2);
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
      CHECK(sum <= 4 * gradients.state_elements());
      CHECK(double(sum) > 0.8 * 4 * double(gradients.state_elements()));
    }
  }
  CHECK(updated[0] != updated[1]);
}
