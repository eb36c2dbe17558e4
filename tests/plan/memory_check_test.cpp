// What is advised to a run that does not fit.
#include "ditrain/plan/memory_check.hpp"

#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/limits.hpp"

using namespace ditrain;

namespace {

config::Config config_of(const std::string& recompute, int64_t micro_batch = 8) {
  config::Config c;
  c.train.recompute = parse_word<nn::Recompute>("test", "recompute", recompute), c.train.global_batch = 8,
  c.train.micro_batch = micro_batch;
  return c;
}

size_t bytes_of(const std::string& recompute, int64_t micro_batch) {
  return plan::plan_run(config_of(recompute, micro_batch), 1).memory.total();
}

/// Lowers what the plan is held against to `bytes` for its lifetime.
struct DataLimit {
  explicit DataLimit(size_t bytes) {
    getrlimit(RLIMIT_DATA, &before);
    const rlimit lower{bytes, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_DATA, &lower) == 0);
    REQUIRE(platform::memory_limit(1).bytes == bytes);
  }
  ~DataLimit() { setrlimit(RLIMIT_DATA, &before); }
  rlimit before{};
};

/// Of so many ranks of a node, each of which may take `limit` bytes.
std::string refusal(const config::Config& config, size_t limit, int ranks = 1) {
  const DataLimit lowered(limit);
  try {
    plan::check_memory(plan::plan_run(config, ranks, {.ranks_on_node = ranks}));
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a run that does not fit is told to recompute, where that helps") {
  const auto advice = [](const std::string& recompute, size_t limit) {
    const std::string message = refusal(config_of(recompute), limit);
    REQUIRE(message.find("[memory] 1 rank(s) on this node do not fit") == 0);
    return message.substr(message.find("what fits:") + 10);
  };
  // Bytes rise in this order: block 1, 2, selective 1, block 4, none 1, selective 2, block 8, none 2, selective 4, ...
  CHECK(advice("none", bytes_of("selective", 8)) ==
        "\n  --set train.micro_batch=4\n  --set train.recompute=selective\n  --set train.recompute=block");
  CHECK(advice("none", bytes_of("block", 8)) ==
        "\n  --set train.micro_batch=1\n  --set train.recompute=selective --set train.micro_batch=2"
        "\n  --set train.recompute=block");
  CHECK(advice("selective", bytes_of("block", 4)) ==
        "\n  --set train.micro_batch=1\n  --set train.recompute=block --set train.micro_batch=4");
  CHECK(advice("selective", bytes_of("block", 2)) == "\n  --set train.recompute=block --set train.micro_batch=2");
  CHECK(advice("block", bytes_of("block", 4)) == "\n  --set train.micro_batch=4");
  CHECK(advice("selective", bytes_of("block", 1) - 1) == "\n  a smaller model, or a node with more memory");
  CHECK(refusal(config_of("block"), bytes_of("block", 8)) == "no error");
}

TEST_CASE("ranks that do not fit are told to shard their states, where they can") {
  config::Config config = config_of("block", 2), sharded = config;
  sharded.dist.shard_optimizer = true;
  const size_t fits = plan::plan_run(sharded, 2).memory.total();
  REQUIRE(fits < plan::plan_run(config_of("block", 1), 2).memory.total());
  const std::string line = "\n  --set dist.shard_optimizer=true";
  const auto offer = [&](const config::Config& c, size_t limit, int ranks = 2) -> std::string {
    const std::string message = refusal(c, limit, ranks);
    REQUIRE(message.find("do not fit") != message.npos);
    const size_t at = message.find(line);
    return at == message.npos ? "none" : message.substr(at, message.find('\n', at + 1) - at);
  };
  CHECK(offer(config, fits) == line);
  CHECK(offer(config, fits, 1) == "none");
  CHECK(offer(sharded, fits / 2) == "none");  // it does so already
  sharded.train.micro_batch = 1;
  CHECK(offer(config, plan::plan_run(sharded, 2).memory.total()) == line + " --set train.micro_batch=1");
  config.dist.engine = false;
  CHECK(offer(config, fits) == "none");
  config.dist.engine = true, config.parallel.strategy = config::Strategy::kDpTp, config.parallel.tensor_ranks = 2;
  CHECK(offer(config, fits / 2) == "none");
}
