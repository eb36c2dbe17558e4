#include "ditrain/dist/replicas.hpp"

#include <catch2/catch.hpp>

#include "thread_world.hpp"

using namespace ditrain;
using namespace ditrain::dist;
using Catch::Contains;

namespace {

/// What every rank is told when rank r brings these checksums of weights and moments; of `parts` parts, rank r has r %
/// parts.
std::vector<std::string> messages(const std::vector<std::pair<uint64_t, uint64_t>>& of_ranks, int parts = 1) {
  ThreadWorld world{.ranks = int(of_ranks.size()), .ranks_per_node = 1};
  std::vector<std::string> texts(of_ranks.size());
  run_ranks(world, [&](ThreadCommunicator& comm) {
    const auto& [weights, moments] = of_ranks[size_t(comm.rank())];
    try {
      compare_replicas(comm, {{"weights", weights}, {"moments", moments}}, "after step 7", comm.rank() % parts,
                       "what to do");
    } catch (const RunError& e) {
      texts[size_t(comm.rank())] = e.what();
    }
  });
  return texts;
}

}  // namespace

TEST_CASE("replicas: no rank is told anything while all are alike") {
  for (const std::string& text : messages({{1, 2}, {1, 2}, {1, 2}})) CHECK(text.empty());
  for (const std::string& text : messages({{~uint64_t{0}, 0}})) CHECK(text.empty());
}

TEST_CASE("replicas: of two ranks, the one that differs from rank 0 is named on both") {
  const auto texts = messages({{1, 2}, {1, 3}});
  CHECK_THAT(texts[0], Contains("[replicas] after step 7") && Contains("differences on rank 1 (") &&
                           Contains("): moments, unlike rank 0") && Contains("try what to do"));
  CHECK(texts[1] == texts[0]);
}

TEST_CASE("replicas: where most ranks agree, rank 0 itself is named") {
  const auto texts = messages({{9, 3}, {1, 2}, {1, 2}});
  CHECK_THAT(texts[0], Contains("differences on rank 0 (") && Contains("): weights, moments, unlike most ranks"));
  CHECK_THAT(texts[0], !Contains("rank 1"));
}

TEST_CASE("replicas: of many ranks that differ, some are named and the rest counted") {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (uint64_t rank = 0; rank < 12; ++rank) all.emplace_back(rank, 0);
  CHECK_THAT(messages(all)[3], Contains("rank 8 (") && !Contains("rank 9 (") && Contains("; and 3 more"));
}

TEST_CASE("replicas: ranks that have other parts of a model are not held against each other") {
  for (const std::string& text : messages({{1, 0}, {2, 0}, {1, 0}, {2, 0}}, 2)) CHECK(text.empty());
  const auto texts = messages({{1, 0}, {2, 0}, {1, 0}, {3, 0}}, 2);
  CHECK_THAT(texts[0], Contains("differences on rank 3 (") && Contains("): weights, unlike rank 1"));
  for (const std::string& text : texts) CHECK(text == texts[0]);
}
