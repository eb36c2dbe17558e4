// The memory plan: what train.recompute, bf16, shared replicas and sharded states save.
#include "ditrain/plan/memory_plan.hpp"

#include <catch2/catch.hpp>

#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "recompute_config.hpp"

using namespace ditrain;
using test::config_of;

namespace {

plan::MemoryPlan memory_of(const config::Config& config, int world_size) {
  return plan::plan_run(config, world_size).memory;
}

const plan::MemoryItem& item(const plan::MemoryPlan& plan, const std::string& name) {
  for (const plan::MemoryItem& i : plan.items)
    if (i.name == name) return i;
  throw std::runtime_error("no item " + name);
}

}  // namespace

TEST_CASE("blocks get explicit pages in turn, wholly or not at all, in whole pages") {
  constexpr size_t kMiB = 1 << 20;
  CHECK(plan::bytes_in_explicit_pages({3 * kMiB, 4 * kMiB}, 8 * kMiB) == 7 * kMiB);
  CHECK(plan::bytes_in_explicit_pages({3 * kMiB, 4 * kMiB}, 7 * kMiB) == 3 * kMiB);  // four of them taken
  CHECK(plan::bytes_in_explicit_pages({9 * kMiB, 1}, 8 * kMiB) == 1);
  CHECK(plan::bytes_in_explicit_pages({1, 1}, 2 * kMiB) == 1);
  CHECK(plan::bytes_in_explicit_pages({kMiB}, 0) == 0);
}

TEST_CASE("the more is recomputed, the less is kept") {
  const plan::MemoryPlan none = memory_of(config_of("none"), 1), selective = memory_of(config_of("selective"), 1),
                         block = memory_of(config_of("block"), 1);
  const double unit = 4.0 * 8 * 256 * 384 * 12;  // a value for each token and channel of all blocks of S/2
  const auto kept = [&](const plan::MemoryPlan& plan) { return double(item(plan, "stored activations").bytes) / unit; };
  CHECK(kept(none) == Approx(18).epsilon(0.03));
  CHECK(kept(selective) == Approx(11).epsilon(0.03));
  CHECK(kept(block) == Approx(1).epsilon(0.25));  // the final layer's two weigh more here
  CHECK(none.total() > selective.total());
  CHECK(selective.total() > block.total());
  CHECK(item(block, "stored activations").note == "micro-batch of 8, train.recompute: block");
}

TEST_CASE("LayerSync weighs as the loss does, which is a mean over the samples of a group") {
  config::Config config = config_of("selective");
  config.train.global_batch = 32, config.train.layer_sync = nn::LayerSync{.weight = 0.2, .from = 1, .to = 3};
  CHECK(plan::pass_options(config).layer_sync->weight == Approx(0.2 / 32));
  config.dist.outer = optim::OuterConfig{.groups = 4};
  CHECK(plan::pass_options(config).layer_sync->weight == Approx(0.2 / 8));
}

TEST_CASE("the weights of a guide are in the plan of a run that draws samples") {
  config::Config config = config_of("selective");
  config.sample.guide = "runs/early";
  CHECK(item(memory_of(config, 1), "guide").bytes == 0);
  config.sample.every_steps = 100;
  CHECK(item(memory_of(config, 1), "guide").bytes == item(memory_of(config, 1), "weights").bytes);
  config.sample.guide = config::kRoutedGuide;  // the model itself
  CHECK(item(memory_of(config, 1), "guide").bytes == 0);
}

TEST_CASE("the images of a sample grid are in the plan, whole on the rank that makes the picture") {
  config::Config config = config_of("selective");
  config.sample.every_steps = 100;
  const auto samples_of = [&](int64_t n, int ranks) {
    config.sample.num_images = n;
    return item(memory_of(config, ranks), "samples, validation").bytes;
  };
  const size_t image = size_t(config.model.in_channels * config.model.pixels()) * sizeof(float);
  CHECK(samples_of(4096, 1) > samples_of(64, 1) + 4000 * image);
  CHECK(samples_of(4096, 4) > samples_of(64, 4) + 8000 * image);  // gathered
}

TEST_CASE("scratch is that of each worker, and grows with what attention has at a time") {
  const auto scratch_of = [](int64_t side, int workers) {
    config::Config config = config_of("selective");
    config.model.input_height = config.model.input_width = side;
    return item(plan::plan_run(config, 1, {.cluster_sizes = {workers}}).memory, "scratch").bytes;
  };
  CHECK(scratch_of(32, 6) == 6 * scratch_of(32, 1));
  CHECK(scratch_of(128, 1) >= kernels::attention_scratch_bytes(4096, 64, DType::kF32));
  CHECK(scratch_of(128, 1) > scratch_of(32, 1));
  // A panel of b for k = 1,536, at least.
  CHECK(scratch_of(32, 1) >= size_t{1152 * kernels::kPackedColumns} * sizeof(float));
}

TEST_CASE("bf16 adds a copy of the weights to the plan and keeps less of the activations") {
  config::Config f32 = config_of("selective"), bf16 = f32;
  bf16.train.precision = DType::kBF16;
  const plan::MemoryPlan before = memory_of(f32, 1), after = memory_of(bf16, 1);
  const auto parameters = [](const plan::MemoryPlan& plan) {
    size_t bytes = 0;
    for (const char* name : {"weights", "bf16 weights", "gradients", "optimiser state", "EMA"})
      bytes += item(plan, name).bytes;
    return bytes;
  };
  nn::Model model(f32.model);
  const size_t table = size_t(model.parameters().find("pos_embed").size()) * sizeof(float);  // frozen, not planned
  using Store = autograd::ParameterStore;
  CHECK(parameters(before) + table ==
        model.parameters().bytes(Store::For::kTraining, DType::kF32, optim::state_arrays()));
  CHECK(parameters(after) + table ==
        model.parameters().bytes(Store::For::kTraining, DType::kBF16, optim::state_arrays()));
  CHECK(item(before, "bf16 weights").bytes == 0);
  CHECK(item(after, "bf16 weights").bytes == item(after, "weights").bytes / 2);
  CHECK(describe(before).find("bf16") == std::string::npos);
  CHECK(describe(after).find("bf16 weights") != std::string::npos);
  // x, one of 11 values per token and channel, stays f32: (1 + 10 / 2) / 11 = 0.545, statistics on top.
  const double ratio =
      double(item(after, "stored activations").bytes) / double(item(before, "stored activations").bytes);
  CHECK(ratio > 0.54);
  CHECK(ratio < 0.58);
  CHECK(item(after, "temporaries").bytes < item(before, "temporaries").bytes);
}

TEST_CASE("one rank that updates in backward plans gradients of its largest layer only") {
  config::Config config = config_of("selective", 0);
  const size_t all = item(memory_of(config, 1), "gradients").bytes;
  config.optimizer.clip_norm = 0;
  const auto gradients = [&](int ranks) { return item(memory_of(config, ranks), "gradients").bytes; };
  CHECK(gradients(1) < all / 10);
  CHECK(gradients(2) == all);
  config.train.micro_batch = 1;  // they add up
  CHECK(gradients(1) == all);
  config.train.micro_batch = 0, config.train.on_non_finite = config::OnNonFinite::kSkip;
  CHECK(gradients(1) == all);
}

TEST_CASE("ranks that share a replica have their parts of it in the plan, and all samples of the group") {
  config::Config config = config_of("selective", 0);
  const plan::RunPlan whole = plan::plan_run(config, 1);
  config.parallel.strategy = config::Strategy::kDpTp, config.parallel.tensor_ranks = 2;
  const plan::RunPlan shared = plan::plan_run(config, 2), two_groups = plan::plan_run(config, 4);
  // Shared are the 12 C^2 weights of qkv, proj, fc1 and fc2 out of a block's 18 C^2, and 8 of 11 values kept per token
  // and channel.
  const auto bytes = [&](const plan::RunPlan& plan, const char* name) { return double(item(plan.memory, name).bytes); };
  CHECK(bytes(shared, "gradients") == Approx(bytes(whole, "gradients") * (1 - 0.5 * 12 / 18)).epsilon(0.03));
  CHECK(bytes(shared, "stored activations") ==
        Approx(bytes(whole, "stored activations") * (1 - 0.5 * 8 / 11)).epsilon(0.03));
  CHECK(shared.micro_batch == whole.micro_batch);
  CHECK(two_groups.micro_batch == whole.micro_batch / 2);
  CHECK(bytes(two_groups, "data queue") == bytes(whole, "data queue") / 2);
  CHECK(bytes(two_groups, "gradients") == bytes(shared, "gradients"));
}

TEST_CASE("reproducible sums take a gradient for each level of the tree that waits") {
  config::Config config = config_of("selective", 1);
  const size_t gradients = item(memory_of(config, 1), "gradients").bytes;
  CHECK(item(memory_of(config, 1), "tree of sums").bytes == 0);
  config.dist.reproducible = true;
  for (const auto& [ranks, levels] : {std::pair{1, 3}, {2, 2}, {4, 1}, {8, 0}}) {
    const plan::MemoryPlan plan = memory_of(config, ranks);
    CHECK(item(plan, "tree of sums").bytes == size_t(levels) * gradients);
    CHECK((describe(plan).find("tree of sums") != std::string::npos) == (levels > 0));
  }
}

TEST_CASE("sharded states are divided by the ranks") {
  config::Config config = config_of("selective", 1);
  const plan::MemoryPlan whole = memory_of(config, 4);
  config.dist.shard_optimizer = true;
  const plan::MemoryPlan sharded = memory_of(config, 4), one_rank = memory_of(config, 1);
  for (const char* name : {"optimiser state", "EMA"}) {
    CHECK(double(item(sharded, name).bytes) == Approx(double(item(whole, name).bytes) / 4).epsilon(0.01));
    CHECK(item(sharded, name).note.find("shards of 4 ranks") != std::string::npos);
    CHECK(item(one_rank, name).bytes == item(whole, name).bytes);
  }
  CHECK(item(sharded, "weights").bytes == item(whole, "weights").bytes);
}
