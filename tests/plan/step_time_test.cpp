// How long a step takes, as predicted from counts of work and rates of the machine.
#include "ditrain/plan/step_time.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/nn/model.hpp"
#include "recompute_config.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using Catch::Contains;

namespace {

plan::RunPlan plan_of(const config::Config& wanted, int ranks = 1, std::vector<int> clusters = {1}) {
  config::Config config = wanted;
  config.model.num_classes = 1000;
  return plan::plan_run(config, ranks, {.cluster_sizes = std::move(clusters)});
}

// A second for each 1e9 of a count, or none.
plan::MachineRates rates(double gemm, double attention, double values, double parameters) {
  plan::WorkerRates r;
  r.gemm_s = gemm * 1e-9, r.attention_mac_s = attention * 1e-9, r.value_s = values * 1e-9;
  r.parameter_s = parameters * 1e-9;
  return {r, r};
}

}  // namespace

TEST_CASE("the work of a step is that of the model, its samples and its recomputation") {
  const plan::RunPlan selective = plan_of(test::config_of("selective"));
  const plan::StepWork work = work_of(selective);
  const double macs = nn::forward_macs(selective.config.model);
  CHECK(work.gemm_flop + 6 * work.attention_macs == Approx(6 * macs * 8));
  CHECK(work.attention_macs == Approx(8 * 12 * 2.0 * 256 * 256 * 384));
  CHECK(work.values == 8 * 12 * 256 * 384.0);
  CHECK(work.gemm_flop_per_width == Approx(work.gemm_flop / 384));
  CHECK((work.parameters > 32e6 && work.parameters < 34e6 && work.summed == 0));
  const plan::StepWork block = work_of(plan_of(test::config_of("block")));
  CHECK(block.gemm_flop == Approx(work.gemm_flop * 4 / 3));
  const plan::StepWork half = work_of(plan_of(test::config_of("selective", 4), 2));
  CHECK(half.gemm_flop == Approx(work.gemm_flop / 2));
  CHECK((half.parameters == work.parameters && half.summed == work.parameters));
  config::Config routed = test::config_of("selective");
  routed.train.routing = {{.ratio = 0.5, .from = 2, .to = 8}};
  const plan::StepWork less = work_of(plan_of(routed));
  CHECK(less.attention_macs == Approx(8 * 2.0 * 384 * (5 * 256 * 256 + 7 * 128 * 128)));
  CHECK(less.values == 8 * 384.0 * (5 * 256 + 7 * 128));
  CHECK(less.gemm_flop == Approx(work.gemm_flop - 6 * 8 * 7 * 128 * 12.0 * 384 * 384));
  config::Config shards = test::config_of("selective", 4);
  shards.dist.shard_optimizer = true;
  CHECK(work_of(plan_of(shards, 2)).parameters == work.parameters / 2);
}

TEST_CASE("the work of a step with Muon has the products of its update, that with AdamW has none") {
  config::Config config = test::config_of("selective");  // width 384, 12 blocks
  CHECK(work_of(plan_of(config)).update_flop == 0);
  CHECK(predict_step(plan_of(config), rates(1, 0, 0, 0)).update_s == 0);
  config.optimizer.kind = optim::Kind::kMuon;
  // Multiply-adds of a matrix / 384^3. Symmetric products take (384 + 64) / 768 = 7/12 of their work: five times X X^T
  // and S S of them and q X of the square ones; X X^T, q X twice and 14 products of squares of the long ones.
  const double square = 5 * (1 + 7.0 / 12) + 5 * 7.0 / 12, longer = 2 * (1 + 7.0 / 12) * 4 + 14 * 7.0 / 12;
  const double flop = 2 * 12 * (4 * square + 2 * longer) * 384 * 384 * 384;
  const plan::StepWork work = work_of(plan_of(config));
  CHECK(work.update_flop == Approx(flop));
  CHECK(work.update_flop_per_width == Approx(flop / 384));
  plan::MachineRates r = rates(1, 0, 0, 4);
  r.alone.gemm_per_width_s = 1e-8, r.alone.update_factor = 2;
  const plan::StepTime time = predict_step(plan_of(config), r);
  CHECK(time.update_products_s == Approx(2 * (flop * 1e-9 + flop / 384 * 1e-8)));
  CHECK(time.update_s == Approx(work.parameters * 4e-9 + time.update_products_s));
  config = test::config_of("selective", 4);
  config.optimizer.kind = optim::Kind::kMuon;
  CHECK(work_of(plan_of(config, 2)).update_flop == Approx(flop));
  config.dist.shard_optimizer = true;
  CHECK(work_of(plan_of(config, 2)).update_flop == Approx(flop / 2));
}

TEST_CASE("a step takes its work times the rates, divided by the workers of a rank") {
  const plan::RunPlan plan = plan_of(test::config_of("selective"));
  const plan::StepWork work = work_of(plan);
  const plan::StepTime time = predict_step(plan, rates(1, 2, 3, 4));
  CHECK(time.gemm_s == Approx(work.gemm_flop * 1e-9));
  CHECK(time.attention_s == Approx(work.attention_macs * 2e-9));
  CHECK(time.values_s == Approx(work.values * 3e-9));
  CHECK(time.update_s == Approx(work.parameters * 4e-9));
  CHECK(time.sums_s == 0);
  CHECK(time.total_s() == Approx(time.compute_s() + time.update_s));
  const plan::RunPlan more = plan_of(test::config_of("selective"), 1, {2, 2});
  CHECK(predict_step(more, rates(1, 2, 3, 4)).total_s() == Approx(time.total_s() / 4));
  CHECK(predict_step(plan_of(test::config_of("selective", 4), 2), rates(1, 2, 3, 4)).sums_s > 0);
  const auto gemms_s = [](const char* recompute) {
    return predict_step(plan_of(test::config_of(recompute)), rates(1, 0, 0, 0)).gemm_s;
  };
  CHECK(gemms_s("none") == Approx(gemms_s("selective") / 1.05));
  CHECK(gemms_s("block") == Approx(gemms_s("none") * 3.95 / 3));
}

TEST_CASE("a step starts jobs for each block and micro-batch, however many workers there are") {
  plan::MachineRates r;
  r.in_team.pass_s = 0.001, r.in_team.overhead = 3;
  config::Config config = test::config_of("selective");
  CHECK(predict_step(plan_of(config, 1, {4}), r).total_s() == Approx(0.012));
  config.train.micro_batch = 2;
  CHECK(predict_step(plan_of(config, 1, {4}), r).jobs_s == Approx(0.048));
  CHECK(predict_step(plan_of(config, 1, {1, 1}), r).total_s() == 0);  // workers of one cluster each
}

TEST_CASE("loading holds up all workers of a rank, unless it has cores of its own") {
  config::Config config = test::config_of("selective");
  config.data.loader_threads = 1;
  const plan::MachineRates none;
  CHECK(predict_step(plan_of(config, 1, {4}), none, {.sample_s = 0.01}).total_s() == Approx(0.08));
  config.data.loader_threads = 3;
  CHECK(predict_step(plan_of(config, 1, {4}), none, {.sample_s = 0.01}).loading_s == Approx(0.08 / 3));
  CHECK(predict_step(plan_of(config, 1, {2}), none, {.sample_s = 0.01}).loading_s == Approx(0.04));
  config.data.loader_threads = 1;
  plan::MachineRates jobs;
  jobs.in_team.pass_s = 0.05 / 12;
  const plan::Loading beside{.sample_s = 0.01, .cores = 2};
  CHECK(predict_step(plan_of(config, 1, {4}), jobs, beside).total_s() == Approx(0.08));
  config.data.loader_threads = 2;
  CHECK(predict_step(plan_of(config, 1, {4}), jobs, beside).total_s() == Approx(0.05));
  config.data.loader_threads = 100;  // on two cores
  CHECK(predict_step(plan_of(config, 1, {4}), jobs, {.sample_s = 0.02, .cores = 2}).total_s() == Approx(0.08));
}

TEST_CASE("workers that share cores take turns") {
  const plan::RunPlan plan = plan_of(test::config_of("selective"), 1, {4});
  plan::MachineRates r = rates(1, 1, 1, 1);
  r.in_team.pass_s = 0.001;
  const double before_s = predict_step(plan, r).total_s();
  share_cores(r, 2);
  CHECK(predict_step(plan, r).total_s() == Approx(2 * before_s));
}

TEST_CASE("recomputation that differs between blocks takes the mean of their times") {
  plan::RunPlan plan = plan_of(test::config_of("selective"));
  config::TrainConfig& train = plan.config.train;
  train.recompute.reset();
  const auto seconds = [&](nn::Recompute first, nn::Recompute others) {
    train.recompute_of_blocks.assign(size_t(plan.config.model.depth), others);
    std::fill_n(train.recompute_of_blocks.begin(), plan.config.model.depth / 2, first);
    return predict_step(plan, rates(1, 0, 0, 0)).compute_s();
  };
  const double none = seconds(nn::Recompute::kNone, nn::Recompute::kNone);
  const double block = seconds(nn::Recompute::kBlock, nn::Recompute::kBlock);
  CHECK(block / none == Approx(3.95 / 3));
  CHECK(seconds(nn::Recompute::kNone, nn::Recompute::kBlock) == Approx((none + block) / 2).epsilon(0.01));
}

TEST_CASE("what loading a sample costs is measured on samples of the data") {
  config::Config config = test::small_config();
  const auto data = dataset::open_dataset(config.data, {3, 64, 64}, dataset::kShapesClasses, 0);
  const plan::Loading loading = plan::measure_loading(*data);
  CHECK((loading.sample_s > 1e-6 && loading.sample_s < 0.1 && loading.problem.empty()));
}

TEST_CASE("samples and validation are counted in passes over the model") {
  config::Config config = test::config_of("selective");
  config.train.steps = 10, config.model.learn_sigma = false;
  const plan::StepTime step = predict_step(plan_of(config), rates(1, 0, 0, 0));
  CHECK(predict_evaluation(plan_of(config), step) == 0);
  const double forward_s = step.compute_s() / 3 / 8;
  config.eval.every_steps = 4, config.eval.num_images = 5;  // after steps 4, 8 and 10, with the right and a wrong label
  CHECK(predict_evaluation(plan_of(config), step) == Approx(3 * 5 * 2 * forward_s));
  CHECK(predict_evaluation(plan_of(config), step, 4) == Approx(2 * 5 * 2 * forward_s));
  CHECK(predict_evaluation(plan_of(config), step, 10) == 0);
  config.eval.every_steps = 0;
  config.sample.every_steps = 10, config.sample.num_images = 3, config.sample.steps = "20";
  CHECK(predict_evaluation(plan_of(config), step) == Approx(3 * 20 * forward_s));
  config.sample.cfg_scale = 4;
  CHECK(predict_evaluation(plan_of(config), step) == Approx(3 * 20 * 2 * forward_s));
  // Two distances of 100 samples of 4,096 values, and the roots of 100 x 100.
  config.sample.every_steps = 0, config.eval.fid_every_steps = 5, config.eval.fid_samples = 100;
  const double macs = 2 * (1e2 * 4096 * 4096 + 1e4 * 4096) + 20 * 1e6;
  CHECK(predict_evaluation(plan_of(config), step) ==
        Approx(2 * (100 * 20 * 2 + macs / nn::forward_macs(config.model)) * forward_s));
  config.sample.every_steps = 10, config.eval.fid_every_steps = 0;
  config.train.routing = {{.ratio = 0.9, .from = 0, .to = 11}};  // samples take all tokens
  const plan::StepTime routed = predict_step(plan_of(config), rates(1, 0, 0, 0));
  CHECK(routed.compute_s() < 0.3 * step.compute_s());
  CHECK(predict_evaluation(plan_of(config), routed) == Approx(3 * 20 * 2 * forward_s).epsilon(0.1));
}

TEST_CASE("a dry run says time, checkpoints, disk and what would shorten the run") {
  config::Config config = test::config_of("block");
  config.train.steps = 3600, config.checkpoint.every_steps = 1000, config.checkpoint.keep_last = 2;
  const plan::RunPlan plan = plan_of(config);
  plan::MachineRates r = rates(1, 0, 0, 0), fast = r;
  r.alone.gemm_s *= 1 / predict_step(plan, r).total_s(), fast.alone.gemm_s = r.alone.gemm_s / 2;
  r.in_team = r.alone;
  const std::string text = describe_time(plan, r, &fast, "/nowhere/yet");
  INFO(text);
  CHECK_THAT(text,
             Contains("step         1 s, 8 images/s: GEMMs 100 %") && Contains("3600 steps   1 h 0 min, and 0 s of"));
  CHECK_THAT(text, Contains("up to 3 at a time take 1.4") && Contains(" free in /nowhere/yet\n"));
  CHECK_THAT(text, Contains("--set train.precision=bf16: 0.5 s per step") &&
                       Contains("--set train.recompute=selective: 0.797 s per step"));
  CHECK_THAT(text, Contains("more nodes: the 8 samples") && !Contains("messages"));
  CHECK_THAT(describe_time(plan, r, &fast, ".", {}, 1800), Contains("1800 steps   30 min"));
  const std::string apart = describe_time(plan_of(config, 2), r, nullptr, ".");  // with one rank per node
  CHECK_THAT(apart, Contains("messages between the nodes are not counted: ditrain plan --platform FILE --nodes 2") &&
                        !Contains("more nodes"));
  plan::MachineRates short_steps = r;
  short_steps.alone.gemm_s /= 10;
  CHECK_THAT(describe_time(plan, short_steps, nullptr, "."), !Contains("more nodes"));
  CHECK(describe_time(plan, r, &r, ".").find("bf16") == std::string::npos);  // no faster
  const std::string loads = describe_time(plan_of(config, 1, {2}), r, nullptr, ".", {.sample_s = 1});
  CHECK_THAT(loads, Contains("loading 94 %") && Contains("--set data.loader_threads=2: 4.5 s per step"));
}

TEST_CASE("a dry run names the samples at once with which train.recompute: auto recomputes less") {
  const auto said = [](size_t limit, bool reproducible) {
    const test::DataLimit lowered(limit);
    config::Config config = test::config_of("none");
    config.train.recompute.reset();
    config.dist.reproducible = reproducible;
    return describe_time(plan_of(config), rates(1, 0, 0, 0), nullptr, ".");
  };
  const auto bytes_of = [](const char* recompute, int64_t micro_batch) {
    return plan_of(test::config_of(recompute, micro_batch)).memory.total();
  };
  CHECK_THAT(said(2 * bytes_of("none", 8), false), !Contains("train.micro_batch"));
  const size_t little = bytes_of("none", 1) + (size_t{1} << 20);  // two at once would recompute
  CHECK_THAT(said(little, false), Contains("--set train.micro_batch=1: "));
  CHECK_THAT(said(little, true), !Contains("train.micro_batch"));
}

TEST_CASE("the rates of this machine are measured in a moment") {
  parallel::Team team({.num_workers = 2});
  const plan::MachineRates of_machine = plan::measure_rates(team, DType::kF32);
  for (const plan::WorkerRates& r : {of_machine.alone, of_machine.in_team}) {
    CHECK((r.gemm_s > 1e-13 && r.gemm_s < 1e-8));  // 10 TFLOP/s ... 0.1 GFLOP/s of a core
    CHECK((r.attention_mac_s > 0 && r.value_s > 0 && r.parameter_s > 0 && r.overhead >= 1));
    CHECK((r.gemm_per_width_s >= 0 && r.attention_value_s >= 0 && r.input_s > 0 && r.pass_s > 0));
    CHECK((r.update_factor > 0.1 && r.update_factor < 100));
  }
}

TEST_CASE("disk: snapshots make checkpoints with their averages, and stay, and Muon keeps one state of a matrix") {
  config::Config c = test::small_config();
  c.train.steps = 100, c.checkpoint.every_steps = 10, c.checkpoint.keep_last = 2;
  const plan::CheckpointDisk plain = plan::checkpoint_disk(c);
  nn::Model model(c.model);
  const double bytes = 4.0 * double(model.parameters().num_parameters());
  CHECK(plain.checkpoint_bytes == Approx(4 * bytes).epsilon(0.05));  // arenas have padding, and no frozen table
  CHECK(plain.kept == 3);
  CHECK(plain.snapshot_bytes == 0);
  c.ema.snapshots_every = 30;
  const plan::CheckpointDisk averaged = plan::checkpoint_disk(c);
  CHECK(averaged.checkpoint_bytes == Approx(6 * bytes).epsilon(0.05));
  CHECK(averaged.snapshot_bytes == Approx(4 * 2 * bytes).epsilon(0.05));
  c.checkpoint.keep_last = 0;
  CHECK(plan::checkpoint_disk(c).kept == 14);
  c.ema.snapshots_every = 0, c.optimizer.kind = optim::Kind::kMuon;
  CHECK(plan::checkpoint_disk(c).checkpoint_bytes < 0.95 * plain.checkpoint_bytes);
  c.model.num_classes = nn::kClassesOfData;
  CHECK(plan::checkpoint_disk(c).checkpoint_bytes > 0);
}

TEST_CASE("disk: a user is told when checkpoints do not fit, and how many bytes they need") {
  const TemporaryFolder scratch;
  const std::string run = scratch / "not/there/yet";
  plan::CheckpointDisk disk{.checkpoint_bytes = 0x1p60, .kept = 3};
  CHECK_THAT(plan::disk_warning(disk, run, 0),
             Contains(" are free in " + run) && Contains("checkpoints need ") && Contains("checkpoint.keep_last"));
  disk = {.checkpoint_bytes = 1, .kept = 3};
  CHECK(plan::disk_warning(disk, run, 0).empty());
  disk.snapshot_bytes = 0x1p60;
  CHECK_THAT(plan::disk_warning(disk, run, 0.5), Contains("checkpoints need "));
  CHECK(plan::disk_warning(disk, run, 1).empty());  // all snapshots are written
}

TEST_CASE("disk: with outer steps every group has its moments in a checkpoint") {
  config::Config c = test::small_config();
  nn::Model model(c.model);
  const double bytes = 4.0 * double(model.parameters().num_parameters());
  c.dist.outer = optim::OuterConfig{.groups = 3};
  CHECK(plan::checkpoint_disk(c).checkpoint_bytes == Approx((2 + 3 * 2 + 1) * bytes).epsilon(0.05));
  c.dist.outer->overlap = true;
  CHECK(plan::checkpoint_disk(c).checkpoint_bytes == Approx((2 + 3 * 4 + 2) * bytes).epsilon(0.05));
}
