// Runs whose ranks train by themselves and exchange at outer steps only.
#include <catch2/catch.hpp>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// Large enough for tensors that move.
const Args kModel =
    sets({"model.hidden_size=128", "model.num_heads=4", "model.depth=2", "model.input_size=16", "model.patch_size=2"});

// Two simulated hosts; quick, since the link is not what is tested.
Args outer_run(int ranks, const std::string& out, int64_t steps, const std::string& outer, const Args& more = {}) {
  return mpirun(ranks, tiny_ditrain(out, steps,
                                    sets({"dist.outer=" + outer, "checkpoint.every_steps=4", "dist.verify_every=4",
                                          "dist.simulate_link={gbit_s: 1000, latency_us: 1, hosts: 2}"}) +
                                        kModel + more));
}

}  // namespace

TEST_CASE("outer steps: bytes travel at outer steps only, and a resumed run has the bits of one that went on") {
  const std::string overlap = GENERATE("false", "true");
  const std::string outer = "{every: 4, overlap: " + overlap + "}";
  const Args tiers = sets({"memory.automem=paper", "memory.fast_gib=0.012"});
  CAPTURE(overlap);
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(outer_run(2, scratch / "whole", 12, outer)), 0);
  const auto metrics = read_metrics(scratch / "whole");
  REQUIRE(steps_are_complete(metrics, 12));
  for (size_t i = 0; i < metrics.size(); ++i) CHECK((metrics[i].at("allreduce_bytes") > 0) == (i % 4 == 3));

  // Its first part in a fast tier that is too small for it.
  REQUIRE_EXIT(run(outer_run(2, scratch / "parts", 4, outer, tiers)), 0);
  CHECK(read_metrics(scratch / "parts").front()["automem"]["bytes_in"] > 0);
  require_ok(outer_run(2, scratch / "parts", 12, outer, {"--resume", "auto"}));
  CHECK(column(read_metrics(scratch / "parts"), "loss") == column(metrics, "loss"));
  CHECK(different_files(checkpoint_of(scratch / "parts", 12), checkpoint_of(scratch / "whole", 12)).empty());

  if (overlap == "false") return;  // what follows is the same for both, and overlap has more to keep
  // Groups of two ranks, which sum gradients in the node; each group goes on with its own moments.
  const std::string pairs = scratch / "parts";
  REQUIRE_EXIT(run(outer_run(4, pairs, 16, outer, {"--resume", "auto"})), 0);
  const auto all = read_metrics(pairs);
  REQUIRE(steps_are_complete(all, 16));
  CHECK(all[13].at("allreduce_bytes") > 0);
  CHECK(all[15].at("allreduce_bytes") == 2 * all[13].at("allreduce_bytes").get<double>());
  // Other groups begin with the mean of the moments, also where these move between tiers.
  const std::string moving = scratch / "moving";
  fs::copy(pairs, moving, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const Args four_hosts = sets({"dist.simulate_link={gbit_s: 1000, latency_us: 1, hosts: 4}"});
  REQUIRE_EXIT(run(outer_run(4, pairs, 20, outer, four_hosts + Args{"--resume", "auto"})), 0);
  REQUIRE_EXIT(run(outer_run(4, moving, 20, outer, four_hosts + tiers + Args{"--resume", "auto"})), 0);
  CHECK(different_files(checkpoint_of(moving, 20), checkpoint_of(pairs, 20)).empty());

  require_error(outer_run(2, pairs, 24, "{every: 2, overlap: " + overlap + "}", {"--resume", "auto"}),
                {"dist.outer: was {every: 4, lr: 0.7, momentum: 0.9, overlap: " + overlap + "}"});
}

TEST_CASE("outer steps: a request to stop waits for the next of them") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  // 1 us is over after the first step.
  const Result stopped = run(outer_run(2, out, 12, "{every: 4}", {"--maxh", "3e-10"}));
  REQUIRE_EXIT(stopped, 75);
  CHECK_THAT(stopped.out, Contains("stopping after the next outer step") && Contains("stopped at step 4 of 12"));
  REQUIRE_EXIT(run(outer_run(2, out, 12, "{every: 4}", {"--resume", "auto"})), 0);
  CHECK(steps_are_complete(read_metrics(out), 12));
}
