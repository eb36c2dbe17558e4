// What is advised to a run that does not fit.
#include "ditrain/plan/memory_check.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "dist/thread_world.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/config/option_table.hpp"
#include "recompute_config.hpp"
#include "support/message_of.hpp"

using namespace ditrain;
using ditrain::test::message_of;
using test::config_of;
using test::DataLimit;

namespace {

size_t bytes_of(const std::string& recompute, int64_t micro_batch) {
  return plan::plan_run(config_of(recompute, micro_batch), 1).memory.total();
}

/// Of so many ranks of a node, each of which may take `limit` bytes.
std::string refusal(const config::Config& config, size_t limit, int ranks = 1) {
  const DataLimit lowered(limit);
  return message_of([&] { plan::check_memory(plan::plan_run(config, ranks, {.ranks_on_node = ranks})); });
}

}  // namespace

TEST_CASE("a run that does not fit is told to recompute, where that helps") {
  const auto advice = [](const std::string& recompute, size_t limit) {
    const std::string message = refusal(config_of(recompute), limit);
    REQUIRE(message.find("[memory] 1 rank(s) on this node do not fit") == 0);
    const std::string lines = message.substr(message.find("what fits:") + 10);
    return lines.substr(0, lines.find("\n  --set memory.automem"));
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
  CHECK(advice("selective", size_t{250} << 20) == "\n  a smaller model, or a node with more memory");
  CHECK(refusal(config_of("block"), bytes_of("block", 8)) == "no error");
}

TEST_CASE("a run is warned where other programs hold the memory that it needs") {
  const plan::RunPlan plan = plan::plan_run(config_of("none"), 1);
  CHECK(plan::memory_warning(plan).empty());
  const DataLimit lowered(plan.memory.total() - 1);  // takes the place of what is available
  CHECK(plan::memory_warning(plan).find("memory: this run needs up to") == 0);
}

TEST_CASE("train.recompute: auto recomputes no more blocks than it has to") {
  const auto total_of = [](const std::vector<nn::Recompute>& of_blocks) {
    config::Config config = config_of("selective");
    config.train.recompute_of_blocks = of_blocks;
    return plan::plan_run(config, 1).memory.total();
  };
  config::Config config = config_of("selective");
  config.train.recompute.reset();
  using nn::Recompute;
  const auto settled = [&](size_t limit) {
    const DataLimit lowered(limit);
    const plan::RunPlan plan = plan::plan_run(config, 1);
    CHECK(plan.memory.total() == total_of(plan.config.train.recompute_of_blocks));
    return plan.config.train.recompute_of_blocks;
  };
  const size_t none = bytes_of("none", 8), selective = bytes_of("selective", 8), block = bytes_of("block", 8);
  CHECK(settled(none) == std::vector<Recompute>(12, Recompute::kNone));
  CHECK(settled(block) == std::vector<Recompute>(12, Recompute::kBlock));
  CHECK(settled(block / 2) == std::vector<Recompute>(12, Recompute::kBlock));  // and is refused
  for (const auto& [above, below, more, less] :
       {std::tuple(none, selective, Recompute::kSelective, Recompute::kNone),
        std::tuple(selective, block, Recompute::kBlock, Recompute::kSelective)})
    for (const double share : {0.1, 0.5, 0.9}) {
      CAPTURE(above, below, share);
      const auto limit = below + size_t(share * double(above - below));
      std::vector<Recompute> of_blocks = settled(limit);
      CHECK(total_of(of_blocks) <= limit);
      CHECK(of_blocks.back() == more);
      CHECK(of_blocks.front() == less);
      *std::find(of_blocks.begin(), of_blocks.end(), more) = less;
      CHECK(total_of(of_blocks) > limit);
    }
  const DataLimit lowered((selective + block) / 2);
  const std::string text = describe(plan::plan_run(config, 1).memory);
  CHECK_THAT(text, Catch::Matches(
                       "(.|\\n)*train.recompute: auto: selective in [1-9] block.s., block in [1-9] block.s.(.|\\n)*"));
}

TEST_CASE("train.recompute: auto is the same on ranks that share a replica, though one needs more memory") {
  config::Config config = config_of("none");
  config.parallel.strategy = config::Strategy::kDpTp, config.parallel.tensor_ranks = 2;
  const auto place_of = [](int rank) { return plan::RankPlace{.cluster_sizes = {rank == 0 ? 1 : 4}}; };
  const size_t needed = plan::plan_run(config, 2, place_of(0)).memory.total();
  config.train.recompute.reset();
  const DataLimit lowered(needed);
  const auto alone = [&](int rank) {
    return plan::plan_run(config, 2, place_of(rank)).config.train.recompute_of_blocks;
  };
  REQUIRE(alone(0) != alone(1));  // each worker has scratch
  std::vector<plan::RunPlan> plans(2);
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
  run_ranks(world, [&](ThreadCommunicator& comm) {
    plan::RankPlace place = place_of(comm.rank());
    place.recompute_degree = plan::agreed_recompute_degree(config, place, {}, comm);
    plans[size_t(comm.rank())] = plan::plan_run(config, 2, place);
  });
  for (const plan::RunPlan& plan : plans) {
    CHECK(plan.config.train.recompute_of_blocks == alone(1));
    CHECK(plan.memory.total() <= needed);
  }
}

TEST_CASE("a limit per process is held against all that the first rank takes, not against its share of it") {
  config::Config config = config_of("none", 2);
  config.model.input_height = config.model.input_width = 16;
  config.sample.every_steps = config.eval.fid_every_steps = 100, config.sample.num_images = 1000;
  const plan::RankPlace place{.ranks_on_node = 2};
  const plan::MemoryPlan share = plan::plan_run(config, 2, place).memory, first = share.of_first_rank();
  std::set<std::string> more;
  for (size_t i = 0; i < share.items.size(); ++i)
    if (first.items[i].bytes > share.items[i].bytes) more.insert(share.items[i].name);
  CHECK(more == std::set<std::string>{"checkpoint buffer", "distances", "samples, validation"});
  CHECK_THAT(describe(share), Catch::Contains("eval.fid_every_steps, of rank 0, shared out over"));
  CHECK_THAT(describe(first), !Catch::Contains("shared out"));

  const size_t needed = first.outside_huge_pages();
  CHECK(refusal(config, needed, 2) == "no error");
  const std::string message = refusal(config, needed - 1, 2);
  CHECK(message.find("[memory] the first rank of this node does not fit the limit of a process") == 0);
  CHECK_THAT(message, Catch::Contains("(RLIMIT_DATA)") && Catch::Contains("\n  --set train.recompute=selective"));

  config.train.recompute = nn::Recompute::kSelective;
  const size_t selective = plan::plan_run(config, 2, place).memory.of_first_rank().outside_huge_pages();
  config.train.recompute.reset();
  const size_t limit = (needed + selective) / 2;
  const DataLimit lowered(limit);
  const plan::RunPlan settled = plan::plan_run(config, 2, place);
  CHECK(settled.memory.of_first_rank().outside_huge_pages() <= limit);
  CHECK(settled.config.train.recompute_of_blocks.back() == nn::Recompute::kSelective);
  CHECK(settled.config.train.recompute_of_blocks.front() == nn::Recompute::kNone);  // no more than has to be
}

TEST_CASE("a run that does not fit is told of a fast tier and a disk with which it does") {
  const size_t limit = bytes_of("block", 1) - (size_t{100} << 20);
  const std::string message = refusal(config_of("selective"), limit);
  config::Config tiered = config_of("selective");
  const size_t at = message.find("\n  --set memory.automem=planned ");
  REQUIRE(at != message.npos);
  std::istringstream words(message.substr(at));
  for (std::string word; words >> word;)
    if (word.find('=') != word.npos && word.find("FOLDER") == word.npos) config::apply_set(tiered, word);
  double& disk_gib = *tiered.memory.tier_gib[memory::tier("disk")];
  CHECK(disk_gib > 0);
  CHECK(refusal(tiered, limit) == "no error");
  disk_gib /= 2;
  CHECK_THROWS_WITH(plan::plan_run(tiered, 1),
                    Catch::Contains("do not fit the slow tiers") && Catch::Contains("--set memory.disk_gib="));
  disk_gib *= 2, tiered.memory.fast_gib = 0.1;
  CHECK_THROWS_WITH(
      plan::plan_run(tiered, 1),
      Catch::Matches(".*the fast tier is too small for blocks\\.[0-9]+\\.[a-z]+ "
                     "\\((forward|backward|update)\\), which uses [0-9.]+ [MG]iB beside [0-9.]+ [MG]iB of "
                     "gradients, temporaries and small tensors that never move; got 102.4 MiB, expected "
                     "at least [0-9.]+ [MG]iB; try a larger memory.fast_gib.*"));
  tiered.memory.fast_gib = 0;
  CHECK_THROWS_WITH(plan::plan_run(tiered, 1), Catch::Contains("needs to know how large the fast tier is"));
}

TEST_CASE("a run whose tensors move already is told of a disk as well") {
  config::Config config = config_of("selective");
  config.memory.automem = config::AutoMem::kPlanned, config.memory.fast_gib = 0.5;
  const size_t limit = bytes_of("block", 1) - (size_t{100} << 20);
  const std::string message = refusal(config, limit);
  REQUIRE(message.find("do not fit") != message.npos);
  CHECK_THAT(message, Catch::Contains("--set memory.automem=planned --set memory.fast_gib=") &&
                          Catch::Contains("--set memory.disk_gib="));
}

TEST_CASE("the disk of a plan has to have free space for all ranks of the node, below the nearest folder there is") {
  const TemporaryFolder folder;
  config::Config config = config_of("selective");
  config.memory.automem = config::AutoMem::kPlanned, config.memory.fast_gib = 0.5;
  config.memory.tier_gib[memory::tier("disk")] = 20;
  plan::RunPlan plan = plan::plan_run(config, 1);
  const auto refusal = [&](double share_of_disk, int ranks, const std::string& run_folder) -> std::string {
    const auto free = double(std::filesystem::space(folder.path()).available);
    plan.automem->tier_bytes[memory::tier("disk")] = size_t(share_of_disk * free);
    plan.place.ranks_on_node = ranks;
    return message_of([&] { plan::check_tiers(plan, run_folder); }, "none");
  };
  const std::string later = folder / "not/yet", file = folder / "file";
  std::ofstream(file) << "no folder";
  CHECK(refusal(0.6, 1, later) == "none");
  const std::string of_two = refusal(0.6, 2, later);
  CHECK_THAT(of_two, Catch::StartsWith("[memory] the disk tier cannot be made; got " + folder.path() +
                                       ": not enough free space, ") &&
                         Catch::Contains("for each of the 2 ranks of a node; try --set memory.disk_path="));
  CHECK_THAT(refusal(2, 1, later), Catch::Contains("not enough free space"));
  CHECK_THAT(refusal(0.1, 1, file), Catch::Contains("Not a directory"));
  plan.config.memory.disk_path = folder.path();
  CHECK(refusal(0.6, 1, file) == "none");
  plan.config.memory.disk_path = later;
  CHECK_THAT(refusal(0.1, 1, folder.path()), Catch::Contains(later + ": No such file"));
  CHECK(refusal(0, 1, folder.path()) == "none");  // nothing is away on disk
  plan.automem.reset();
  CHECK_NOTHROW(plan::check_tiers(plan, file));
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
  config.dist.engine = true;
  config.dist.outer = optim::OuterConfig{.every = 50, .groups = 2};  // no shards, and no fewer ranks than groups
  CHECK(offer(config, fits) == "none");
  config.dist.outer.reset();
  config.parallel.strategy = config::Strategy::kDpTp, config.parallel.tensor_ranks = 2;
  CHECK(offer(config, fits / 2) == "none");
}
