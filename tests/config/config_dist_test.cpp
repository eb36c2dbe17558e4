// Configs of runs on several ranks: what has to fit together.
#include <catch2/catch.hpp>

#include "config_support.hpp"
#include "support/message_of.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("dist.reproducible needs a size of micro-batches, our own sums and 2^n ranks") {
  const auto refused = [](const std::string& dist, const std::string& train = "micro_batch: 2, global_batch: 12") {
    const config::Config config =
        config::parse_config("dist: {reproducible: true" + dist + "}\ntrain: {" + train + "}\n", "a.yaml");
    return message_of([&] { config::validate_without_data(config); });
  };
  CHECK(refused("") == "no error");
  for (const char* other : {", allreduce: flat", ", engine: false", ", wire: bf16"})
    CHECK(refused(other).find("dist.reproducible needs sums whose order ditrain makes itself") != std::string::npos);
  CHECK(refused("", "micro_batch: 0").find("must not follow from the ranks; got train.micro_batch: 0") !=
        std::string::npos);
  const config::Config config =
      config::parse_config("dist: {reproducible: true}\ntrain: {micro_batch: 2, global_batch: 12}", "a.yaml");
  CHECK_NOTHROW(config::validate_for_ranks(config, 1));
  CHECK_NOTHROW(config::validate_for_ranks(config, 2));
  CHECK(message_of([&] { config::validate_for_ranks(config, 3); }).find("got 3 ranks, expected 1, 2, 4, 8") !=
        std::string::npos);
}

TEST_CASE("dist.shard_optimizer needs the engine") {
  const auto refused = [](const std::string& text) {
    return message_of([&] { config::validate_without_data(config::parse_config(text, "a.yaml")); });
  };
  CHECK(refused("dist: {shard_optimizer: true}") == "no error");
  CHECK(refused("dist: {shard_optimizer: true, allreduce: flat}") == "no error");
  CHECK(refused("dist: {shard_optimizer: true, engine: false}").find("dist.shard_optimizer is a task of the engine") !=
        std::string::npos);
}

TEST_CASE("dist.adaln: factors needs the engine, and room in the place of the gradients") {
  const auto refused = [](const std::string& text) {
    return message_of(
        [&] { config::validate_without_data(config::parse_config("dist: {adaln: factors" + text, "a.yaml")); });
  };
  CHECK(refused("}") == "no error");
  CHECK(refused(", engine: false}").find("dist.adaln: factors are gathered by the engine") != std::string::npos);
  CHECK(refused(", reproducible: true}\ntrain: {micro_batch: 1}").find("not added as dist.reproducible adds") !=
        std::string::npos);
  CHECK(refused("}\ntrain: {global_batch: 257}")
            .find("got train.global_batch: 257 with width 384, expected at most 256") != std::string::npos);
}

TEST_CASE("dist.simulate_link is off or a map") {
  CHECK_FALSE(config::Config{}.dist.simulate_link);
  const auto link = [](const std::string& value) {
    return config::parse_config("dist: {simulate_link: " + value + "}", "a.yaml").dist.simulate_link;
  };
  CHECK_FALSE(link("off"));
  REQUIRE(link("{gbit_s: 2.5, latency_us: 30, hosts: 4}"));
  CHECK(link("{gbit_s: 2.5, latency_us: 30, hosts: 4}")->gbit_s == 2.5);
  CHECK(link("{gbit_s: 2.5, latency_us: 30, hosts: 4}")->latency_us == 30);
  CHECK(link("{hosts: 4}")->hosts == 4);
  CHECK(link("{hosts: 4}")->gbit_s == 10);

  config::Config config;
  config::apply_set(config, "dist.simulate_link={gbit_s: 1, latency_us: 0, hosts: 3}");
  REQUIRE(config.dist.simulate_link);
  CHECK(config.dist.simulate_link->hosts == 3);
  const config::Config again = config::parse_config(config::to_yaml(config), "a.yaml");
  REQUIRE(again.dist.simulate_link);
  CHECK(again.dist.simulate_link->gbit_s == 1);
  CHECK(again.dist.simulate_link->latency_us == 0);
  config::apply_set(config, "dist.simulate_link=off");
  CHECK_FALSE(config.dist.simulate_link);

  for (const char* value : {"10GbE", "{}", "{gbit: 1}", "{gbit_s: 1, gbit_s: 2}", "[1, 2]", "{gbit_s: {a: 1}}"}) {
    INFO(value);
    CHECK(parse_error("dist: {simulate_link: " + std::string(value) + "}").find("dist.simulate_link: bad value") !=
          std::string::npos);
  }
  CHECK(set_error("dist.simulate_link={hosts: 1}").find("dist.simulate_link.hosts: bad value; got '1'") !=
        std::string::npos);
  CHECK(set_error("dist.simulate_link={gbit_s: fast}").find("dist.simulate_link.gbit_s: bad value") !=
        std::string::npos);
}

TEST_CASE("bf16 between nodes and a simulated link are tasks of the engine") {
  const auto refused = [](const std::string& dist) {
    const config::Config c = config::parse_config("dist: {" + dist + "}", "a.yaml");
    return message_of([&] { config::validate_without_data(c); }, "");
  };
  CHECK(refused("wire: bf16").empty());
  CHECK(refused("wire: bf16, allreduce: flat").find("dist.wire: bf16 is for hierarchical sums") != std::string::npos);
  CHECK(refused("wire: bf16, engine: false").find("dist.wire: bf16 is for hierarchical sums") != std::string::npos);
  CHECK(refused("simulate_link: {gbit_s: 1}, engine: false").find("a task of the engine") != std::string::npos);
}

namespace {

std::string ranks_error(int64_t batch, int64_t micro, int ranks) {
  config::Config config = labelled_config();
  config.train.global_batch = batch, config.train.micro_batch = micro;
  return message_of([&] { config::validate_for_ranks(config, ranks); });
}

}  // namespace

TEST_CASE("a batch has to divide over ranks and micro-batches") {
  CHECK(ranks_error(8, 0, 4) == "no error");
  CHECK(ranks_error(8, 2, 4) == "no error");
  CHECK(ranks_error(8, 1, 8) == "no error");
  CHECK(ranks_error(10, 0, 4) ==
        "[config] train.global_batch does not divide over the ranks; got 10 samples over 4 ranks, expected a multiple "
        "of 4; try train.global_batch: 8 or 12");
  CHECK(ranks_error(2, 0, 4) ==
        "[config] more ranks than samples in a batch; got 4 ranks for train.global_batch 2, expected at most 2 ranks; "
        "try train.global_batch: 4");
  CHECK(ranks_error(16, 3, 2) ==
        "[config] train.micro_batch does not divide the batch of a rank; got 3 for 8 samples per rank "
        "(train.global_batch 16 over 2 ranks), expected a divisor of 8, or 0 for all at once");
  CHECK(ranks_error(16, 16, 2) == "no error");  // on more ranks than before each has less, all at once
  config::Config same_sums = labelled_config();
  same_sums.train.global_batch = 16, same_sums.train.micro_batch = 16, same_sums.dist.reproducible = true;
  const std::string refusal = message_of([&] { config::validate_for_ranks(same_sums, 2); });
  CHECK(refusal.find("train.micro_batch does not divide") != std::string::npos);
  CHECK(refusal.ends_with("expected a divisor of 8"));  // dist.reproducible refuses 0
}

TEST_CASE("strategies that give a rank one cluster, or share a replica, refuse what does not fit") {
  const auto error = [](const char* strategy, int64_t clusters) {
    return validate_error([=](config::Config& c) {
      c.parallel.strategy = parse_word<config::Strategy>("", "", strategy), c.parallel.clusters = clusters;
    });
  };
  CHECK(error("dp", 0) == "no error");
  CHECK(error("dp_tp", 1) == "no error");
  CHECK(error("cftp", 2) == "no error");
  CHECK(error("dp", 2) ==
        "[config] parallel.strategy: dp has one cluster per rank; got parallel.clusters: 2, expected "
        "parallel.clusters: auto or 1; try mpirun -np 2, or parallel.strategy: cftp");
  const std::string sampling =
      validate_error([](config::Config& c) { c.parallel.strategy = config::Strategy::kDpTp, c.eval.every_steps = 5; });
  CHECK(sampling.find("got sample.every_steps: 0, eval.every_steps: 5, eval.fid_every_steps: 0, expected 0 for all, or "
                      "parallel.strategy: cftp or dp") != std::string::npos);
  for (bool config::DistConfig::*key : {&config::DistConfig::shard_optimizer, &config::DistConfig::reproducible})
    CHECK(validate_error([=](config::Config& c) {
            c.parallel.strategy = config::Strategy::kDpTp, c.dist.*key = true;
          }).find("divides replicas over ranks in its own way") != std::string::npos);

  const auto ranks = [](int64_t tensor_ranks, int world_size, int64_t batch = 8) {
    config::Config c;
    c.model.name = "custom", c.model.hidden_size = 48, c.model.num_heads = 6;
    c.parallel.strategy = config::Strategy::kDpTp, c.parallel.tensor_ranks = tensor_ranks, c.train.global_batch = batch;
    return message_of([&] { config::validate_for_ranks(c, world_size); });
  };
  CHECK(ranks(2, 4) == "no error");
  CHECK(ranks(6, 6, 1) == "no error");  // the group takes all samples
  CHECK(
      ranks(2, 3) ==
      "[config] the ranks do not divide into groups that share a replica; got parallel.tensor_ranks: 2 for 3 rank(s), "
      "expected a multiple of 2 ranks");
  CHECK(ranks(4, 4) ==
        "[config] attention heads and MLP width do not divide over the ranks that share a replica; got 6 heads and "
        "width 192 for parallel.tensor_ranks: 4, expected multiples; try parallel.tensor_ranks: 2");
  CHECK(ranks(2, 4, 9).find("got 9 samples over 2 replicas") != std::string::npos);
  config::Config swiglu;  // two thirds of 4 x 50 are no even number
  swiglu.model.name = "custom", swiglu.model.hidden_size = 50, swiglu.model.num_heads = 2;
  swiglu.model.mlp = nn::Mlp::kSwiglu;
  swiglu.parallel.strategy = config::Strategy::kDpTp, swiglu.parallel.tensor_ranks = 2, swiglu.train.global_batch = 8;
  CHECK(message_of([&] { config::validate_for_ranks(swiglu, 2); }).find("2 heads and width 133 for") !=
        std::string::npos);
}

TEST_CASE("dist.outer is off or a map") {
  CHECK_FALSE(config::Config{}.dist.outer);
  config::Config config;
  config::apply_set(config, "dist.outer={overlap: false}");
  REQUIRE(config.dist.outer);
  CHECK((config.dist.outer->every == 50 && config.dist.outer->lr == 0.7 && config.dist.outer->momentum == 0.9));
  CHECK_FALSE(config.dist.outer->overlap);
  config::apply_set(config, "dist.outer={every: 8, overlap: true, momentum: 0}");
  const config::Config again = config::parse_config(config::to_yaml(config), "again.yaml");
  REQUIRE(again.dist.outer);
  CHECK((again.dist.outer->every == 8 && again.dist.outer->overlap && again.dist.outer->momentum == 0));
  CHECK(set_error("dist.outer={every: 0}").find("dist.outer.every: bad value; got '0'") != std::string::npos);
  CHECK(set_error("dist.outer={momentum: 1}").find("dist.outer.momentum: bad value") != std::string::npos);
  CHECK(set_error("dist.outer={overlap: 1}").find("dist.outer.overlap: bad value; got '1', expected true or false") !=
        std::string::npos);
  CHECK(set_error("dist.outer={steps: 5}").find("dist.outer: bad value") != std::string::npos);
}

TEST_CASE("dist.outer refuses what it does not combine with, and intervals that end between outer steps") {
  const auto error = [](auto change) {
    return validate_error([&](config::Config& c) {
      c.dist.outer = optim::OuterConfig{.every = 10};
      c.train.steps = c.checkpoint.every_steps = 100;
      c.sample.every_steps = c.eval.every_steps = 0;
      change(c);
    });
  };
  CHECK(error([](config::Config&) {}) == "no error");
  CHECK(error([](config::Config& c) { c.dist.shard_optimizer = true; }) ==
        "[config] dist.outer does not combine with shards: each node has optimiser state of its own; got "
        "dist.shard_optimizer: true, expected dist.shard_optimizer: false; try --set dist.outer=off");
  CHECK(error([](config::Config& c) {
          c.dist.reproducible = true, c.train.micro_batch = 1;
        }).find("dist.reproducible: true, expected dist.reproducible: false") != std::string::npos);
  CHECK(error([](config::Config& c) { c.dist.engine = false; }).find("dist.engine: true") != std::string::npos);
  CHECK(error([](config::Config& c) {
          c.parallel.strategy = config::Strategy::kDpTp;
        }).find("parallel.strategy: cftp or dp") != std::string::npos);
  CHECK(error([](config::Config& c) { c.memory.automem = config::AutoMem::kPlanned, c.memory.fast_gib = 1; }) ==
        "no error");
  CHECK(error([](config::Config& c) { c.ema.snapshots_every = 10; }).find("ema.snapshots_every: 0") !=
        std::string::npos);
  CHECK(error([](config::Config& c) { c.dist.adaln = config::AdalnExchange::kFactors; }).find("dist.adaln=auto") !=
        std::string::npos);
  CHECK(error([](config::Config& c) { c.checkpoint.every_steps = 25; }) ==
        "[config] checkpoint.every_steps is no multiple of dist.outer.every: ranks have the same weights after outer "
        "steps only; got checkpoint.every_steps: 25, every: 10, expected a multiple of 10; try --set "
        "checkpoint.every_steps=30, or an `every` that divides 25");
  CHECK(error([](config::Config& c) { c.train.steps = 101; }).find("train.steps: 101") != std::string::npos);
  CHECK(error([](config::Config& c) { c.sample.every_steps = 5; }).find("sample.every_steps=10") != std::string::npos);
  CHECK(error([](config::Config& c) { c.eval.every_steps = 5; }).find("eval.every_steps=10") != std::string::npos);
  CHECK(error([](config::Config& c) { c.dist.verify_every = 3; }).find("dist.verify_every=10") != std::string::npos);
}
