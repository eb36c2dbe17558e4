#include "ditrain/dist/engine.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "files/file_size_limit.hpp"
#include "thread_world.hpp"

using namespace ditrain;
using namespace ditrain::dist;

namespace {

std::vector<float> gradients_of(int rank, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  RandomKey(1, Stream::kTest, uint64_t(rank)).fill_normal(x.data(), n);
  return x;
}

/// x += y, or its start.
void add_to(std::vector<float>& x, const std::vector<float>& y) {
  if (x.empty()) x.assign(y.size(), -0.0f);  // -0 + y is y
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

/// x as it travels in bf16.
std::vector<float> rounded(std::vector<float> x) {
  for (float& v : x) v = to_f32(to_bf16(v));
  return x;
}

/// The sum in the order that is promised: ranks of a node first, then nodes.
std::vector<float> promised_sum(int ranks, int ranks_per_node, int64_t n) {
  std::vector<float> sum;
  for (int first = 0; first < ranks; first += ranks_per_node) {
    std::vector<float> node;
    for (int rank = first; rank < std::min(ranks, first + ranks_per_node); ++rank) add_to(node, gradients_of(rank, n));
    add_to(sum, node);
  }
  return sum;
}

/// The sum along the tree over ranks first ... first + count - 1.
std::vector<float> tree_of_ranks(int first, int count, int64_t n) {
  if (count == 1) return gradients_of(first, n);
  std::vector<float> sum = tree_of_ranks(first, count / 2, n);
  add_to(sum, tree_of_ranks(first + count / 2, count / 2, n));
  return sum;
}

double sum_squares(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double(v) * double(v);
  return sum;
}

float* own_floats(NodeMemory& memory) { return reinterpret_cast<float*>(memory.part(memory.own_part())); }

/// One step of every rank on n elements: what it got, and its outcome.
struct Stepped {
  std::vector<float> sum;
  StepOutcome outcome;
};

std::vector<Stepped> step(ThreadWorld& world, const EngineConfig& config, int64_t n, int64_t bucket, int steps = 1) {
  std::vector<Stepped> results(static_cast<size_t>(world.ranks));
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, size_t(std::max<int64_t>(n, 1)) * sizeof(float));
    Engine engine(comm, arena, config);
    GradientBuckets buckets(engine, own_floats(arena), {n, bucket});
    for (int i = 0; i < steps; ++i) {
      const std::vector<float> mine = gradients_of(comm.rank(), n);
      std::copy(mine.begin(), mine.end(), own_floats(arena));
      for (int64_t end = n; end > 0; end -= 5000) buckets.mark_ready(std::max<int64_t>(0, end - 5000), end);
      if (n == 0) buckets.start_all();
      buckets.finish();
      results[size_t(comm.rank())] = {{own_floats(arena), own_floats(arena) + n}, buckets.last_step()};
      comm.barrier();  // no rank writes the next gradients while others still compare
    }
  });
  return results;
}

}  // namespace

TEST_CASE("engines of one communicator do not take each other's wake word") {
  constexpr int64_t n = 3 * 4096;
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
  std::vector<std::vector<float>> first(2), second(2);
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, n * sizeof(float)), other_arena(comm, n * sizeof(float));
    Engine engine(comm, arena, {}), other(comm, other_arena, {});
    const auto sum = [&](Engine& with, NodeMemory& memory, std::vector<float>& to) {
      const std::vector<float> mine = gradients_of(comm.rank(), n);
      std::copy(mine.begin(), mine.end(), own_floats(memory));
      with.start_allreduce_sum(own_floats(memory), n)->wait();
      to.assign(own_floats(memory), own_floats(memory) + n);
    };
    for (int i = 0; i < 20; ++i) sum(engine, arena, first[size_t(comm.rank())]);
    sum(other, other_arena, second[size_t(comm.rank())]);
  });
  for (const auto& sums : {first, second})
    for (const std::vector<float>& got : sums) CHECK(got == promised_sum(2, 2, n));
}

TEST_CASE("hierarchical sums are those of the promised order, bit for bit, on every rank") {
  for (const int ranks : {1, 2, 3, 4})
    for (const int ranks_per_node : {1, 2, 3, 4}) {
      if (ranks_per_node > ranks) continue;
      for (const int64_t n : {0, 1, 4097, 16385, 70001}) {
        CAPTURE(ranks, ranks_per_node, n);
        ThreadWorld world{.ranks = ranks, .ranks_per_node = ranks_per_node};
        const std::vector<float> expected = promised_sum(ranks, ranks_per_node, n);
        for (const Stepped& got : step(world, {}, n, 20000, 3)) {
          REQUIRE(got.sum == expected);
          if (ranks == 1 || n == 0) continue;
          REQUIRE(got.outcome.sum_squares);
          REQUIRE(*got.outcome.sum_squares == Approx(sum_squares(expected)).epsilon(1e-12));
        }
      }
    }
}

TEST_CASE("sums along the tree are the same bits wherever the ranks are") {
  for (const int ranks : {1, 2, 4, 8})
    for (int ranks_per_node = 1; ranks_per_node <= ranks; ranks_per_node *= 2)
      for (const int64_t n : {1, 16385, 70001}) {
        CAPTURE(ranks, ranks_per_node, n);
        ThreadWorld world{.ranks = ranks, .ranks_per_node = ranks_per_node};
        const std::vector<float> expected = tree_of_ranks(0, ranks, n);
        if (n > 1 && ranks >= 4) CHECK(expected != promised_sum(ranks, ranks, n));  // the order matters
        const std::vector<Stepped> all = step(world, {.tree = true}, n, 20000, 2);
        for (const Stepped& got : all) {
          REQUIRE(got.sum == expected);
          REQUIRE(got.outcome.sum_squares == all[0].outcome.sum_squares);
        }
      }
}

TEST_CASE("a tree is for sums that ditrain makes in f32, of ranks that are its subtrees") {
  ThreadWorld world{.ranks = 4, .ranks_per_node = 3};
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, 400);
    const auto make = [&](const EngineConfig& config) { Engine(comm, arena, config); };
    found.expect(throws<LogicFault>([&] { make({.hierarchical = false, .tree = true}); }), "flat");
    found.expect(throws<LogicFault>([&] { make({.wire = DType::kBF16, .tree = true}); }), "bf16");
    found.expect(throws<InputError>([&] { make({.tree = true}); }), "3 + 1 ranks");
    Engine whole(comm, arena, {});
    found.expect(throws<LogicFault>([&] { whole.start_allgather(own_floats(arena), 10); }), "nothing to gather");
  });
  CHECK(found.failed() == std::set<std::string>{});
}

TEST_CASE("a bucket that is gathered brings every rank the parts of all, in the order of ranks, beside sums") {
  constexpr int64_t kPart = 30011, kRest = 1000;  // no whole pieces
  for (const bool hierarchical : {true, false})
    for (const DType wire : {DType::kF32, DType::kBF16})
      for (const auto& [ranks, ranks_per_node] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 2}, {3, 2}, {3, 1}}) {
        if (!hierarchical && wire == DType::kBF16) continue;
        CAPTURE(hierarchical, ranks, ranks_per_node, dtype_name(wire));
        ThreadWorld world{.ranks = ranks, .ranks_per_node = ranks_per_node};
        const int64_t gathered = kPart * ranks, n = 5000 + gathered + kRest + 7000;
        Findings found;
        run_ranks(world, [&](ThreadCommunicator& comm) {
          NodeMemory memory(comm, size_t(n) * sizeof(float));
          Engine engine(comm, memory, {.hierarchical = hierarchical, .wire = wire, .gathers = true});
          float* arena = own_floats(memory);
          GradientBuckets buckets(engine, arena, {n, 4000, {{5000, 5000 + gathered + kRest}}});
          found.expect(buckets.num_buckets() == 5, "2 buckets, the gathered one, 2 more");
          buckets.gather_instead(2, gathered);
          found.expect(throws<LogicFault>([&] { buckets.gather_instead(2, gathered + kRest + 1); }), "too many");
          if (ranks > 1)
            found.expect(throws<LogicFault>([&] { buckets.gather_instead(2, gathered - 1); }), "unequal parts");
          for (int step = 0; step < 2; ++step) {
            std::fill_n(arena, n, float(comm.rank() + 1));
            const std::vector<float> mine = gradients_of(10 * step + comm.rank(), kPart);
            std::copy(mine.begin(), mine.end(), arena + 5000 + comm.rank() * kPart);
            buckets.start_all();
            buckets.finish();
            const float sum = float(ranks * (ranks + 1)) / 2;
            for (int64_t i = 0; i < n; ++i) {
              const bool summed = i < 5000 || i >= n - 7000, rest = i >= 5000 + gathered && !summed;
              if (summed) found.expect(arena[i] == sum, "sums");
              if (rest) found.expect(arena[i] == float(comm.rank() + 1), "what lies behind the parts stays");
            }
            for (int rank = 0; rank < ranks; ++rank) {
              const std::vector<float> theirs = gradients_of(10 * step + rank, kPart);
              found.expect(std::equal(theirs.begin(), theirs.end(), arena + 5000 + rank * kPart), "parts of all");
            }
            if (ranks > 1)
              found.expect(*buckets.last_step().sum_squares == Approx(12000.0 * sum * sum), "squares of the sums only");
          }
          comm.barrier();
        });
        CHECK(found.failed() == std::set<std::string>{});
      }
}

TEST_CASE("with shards every rank has the sums of its own, and what it puts there goes to all") {
  const int64_t n = 170001, bucket = 60000;
  for (const bool hierarchical : {true, false})
    for (const auto& [ranks, ranks_per_node] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 2}, {3, 2}, {3, 1}}) {
      CAPTURE(hierarchical, ranks, ranks_per_node);
      ThreadWorld world{.ranks = ranks, .ranks_per_node = ranks_per_node};
      const std::vector<float> expected = promised_sum(ranks, hierarchical ? ranks_per_node : 1, n);
      Findings found;
      run_ranks(world, [&](ThreadCommunicator& comm) {
        NodeMemory memory(comm, n * sizeof(float));
        Engine engine(comm, memory, {.hierarchical = hierarchical, .shards = true});
        float* arena = own_floats(memory);
        GradientBuckets buckets(engine, arena, {n, bucket});
        const Shards shards({n, bucket}, comm.rank(), comm.world_size());
        for (int step = 0; step < 2; ++step) {
          const std::vector<float> mine = gradients_of(comm.rank(), n);
          std::copy(mine.begin(), mine.end(), arena);
          buckets.start_all();
          std::vector<std::unique_ptr<Request>> gathers;
          for (int64_t k = 0; buckets.finish_next(); ++k) {
            const auto own = shards.parts()[size_t(k)];
            found.expect(std::equal(arena + own.begin, arena + own.end, expected.begin() + own.begin), "own sums");
            for (int64_t i = own.begin; i < own.end; ++i) arena[i] = float(i);
            gathers.push_back(engine.start_allgather(arena + buckets.bucket(k).begin, buckets.bucket(k).size()));
          }
          for (const auto& gather : gathers) gather->wait();
          buckets.finish();
          if (ranks > 1)
            found.expect(*buckets.last_step().sum_squares == Approx(sum_squares(expected)).epsilon(1e-12), "squares");
          for (int64_t i = 0; i < n; ++i) found.expect(arena[i] == float(i), "all of what ranks put there");
        }
      });
      CHECK(found.failed() == std::set<std::string>{});
    }
}

TEST_CASE("sums of squares are the same bits on all ranks, for any number of ranks per node, flat or not") {
  const int64_t n = 70001;
  for (const bool hierarchical : {true, false})
    for (const int ranks_per_node : {1, 2, 3, 4}) {
      CAPTURE(hierarchical, ranks_per_node);
      ThreadWorld world{.ranks = 4, .ranks_per_node = ranks_per_node};
      const std::vector<Stepped> all = step(world, {.hierarchical = hierarchical}, n, 20000);
      for (const Stepped& got : all) {
        REQUIRE(got.outcome.sum_squares);
        REQUIRE(*got.outcome.sum_squares == *all[0].outcome.sum_squares);
        REQUIRE(got.sum == all[0].sum);
      }
    }
}

TEST_CASE("a gradient that is not finite shows in the sum of squares of all ranks") {
  for (const float bad : {NAN, INFINITY}) {
    ThreadWorld world{.ranks = 3, .ranks_per_node = 2};
    std::vector<double> squares(3);
    run_ranks(world, [&](ThreadCommunicator& comm) {
      NodeMemory arena(comm, 40000 * sizeof(float));
      Engine engine(comm, arena, {});
      GradientBuckets buckets(engine, own_floats(arena), {40000, 10000});
      if (comm.rank() == 1) own_floats(arena)[777] = bad;
      buckets.start_all();
      buckets.finish();
      squares[size_t(comm.rank())] = buckets.last_step().sum_squares.value();
    });
    for (const double s : squares) CHECK_FALSE(std::isfinite(s));
  }
}

TEST_CASE("bf16 between nodes: sums in f32, rounded once on the way there and once back, whatever the buckets") {
  const int64_t n = 30000;
  for (const int ranks_per_node : {1, 2}) {
    std::vector<float> expected;
    for (int first = 0; first < 4; first += ranks_per_node) {
      std::vector<float> node;
      for (int rank = first; rank < first + ranks_per_node; ++rank) add_to(node, gradients_of(rank, n));
      add_to(expected, rounded(node));
    }
    expected = rounded(expected);
    CHECK(expected != promised_sum(4, ranks_per_node, n));
    for (const int64_t bucket : {12000, 7000}) {
      CAPTURE(ranks_per_node, bucket);
      ThreadWorld world{.ranks = 4, .ranks_per_node = ranks_per_node};
      for (const Stepped& got : step(world, {.wire = DType::kBF16}, n, bucket)) CHECK(got.sum == expected);
    }
  }
}

TEST_CASE("at most two sums are under way") {
  for (const int limit : {1, 2}) {
    ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
    run_ranks(world, [&](ThreadCommunicator& comm) {
      NodeMemory arena(comm, 50000 * sizeof(float));
      Engine engine(comm, arena, {.hierarchical = false, .max_in_flight = limit});
      GradientBuckets buckets(engine, own_floats(arena), {50000, 3000});
      // No sum ends before rank 1 brings its part: rank 0 starts as many as it may.
      if (comm.rank() == 1) world.wait_until([&] { return int(world.most_under_way) >= limit; });
      buckets.start_all();
      buckets.finish();
    });
    CHECK(int(world.most_under_way) == limit);
  }
}

TEST_CASE("time of a ring all-reduce on the modelled link") {
  const LinkModel link{.gbit_s = 8, .latency_us = 100, .hosts = 4};
  CHECK(link.seconds(0) == Approx(6e-4));
  CHECK(link.seconds(1e9) == Approx(6e-4 + 1.5));
  CHECK(LinkModel{.gbit_s = 8, .latency_us = 100, .hosts = 1}.seconds(1e9) == 0);
}

TEST_CASE("the engine holds buckets until the link would have delivered them, one after the other") {
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
  // 10 buckets of 5000 floats: 20 kB in 10 ms each.
  const LinkModel link{.gbit_s = 0.016, .latency_us = 0, .hosts = 2};
  REQUIRE(link.seconds(20000) == Approx(0.01));
  for (const Stepped& got : step(world, {.link = link}, 50000, 5000)) {
    REQUIRE(got.outcome.buckets.size() == 10);
    const double first = got.outcome.buckets.front().start_s;
    for (size_t k = 0; k < 10; ++k) CHECK(got.outcome.buckets[k].end_s >= first + 0.01 * double(k + 1) - 1e-6);
    CHECK(got.outcome.communication_s >= 0.1 - 1e-6);
  }
}

TEST_CASE("what backward hides is not exposed") {
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
  std::vector<StepOutcome> outcomes(2);
  std::vector<double> waited_s(2);
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, 20000 * sizeof(float));
    const LinkModel link{.gbit_s = 0.0032, .latency_us = 0, .hosts = 2};  // 50 ms per bucket
    Engine engine(comm, arena, {.hierarchical = false, .link = link, .max_in_flight = 1});
    GradientBuckets buckets(engine, own_floats(arena), {20000, 5000});
    // Backward goes on until the link has delivered the buckets before, as a sum begins when the one before has ended.
    const auto delivered = [&](int number) {
      found.expect(world.wait_until([&] { return world.has_part(number + 1, comm.rank()); }), "a bucket was delivered");
    };
    buckets.mark_ready(10000, 20000);
    delivered(0);
    buckets.mark_ready(0, 10000);
    delivered(2);
    const double start = now_s();
    buckets.finish();
    waited_s[size_t(comm.rank())] = now_s() - start;
    outcomes[size_t(comm.rank())] = buckets.last_step();
  });
  CHECK(found.failed().empty());
  for (size_t rank = 0; rank < 2; ++rank) {
    const StepOutcome& o = outcomes[rank];
    CHECK(o.communication_s >= 0.2 - 1e-6);
    CHECK(o.exposed_s > 0);
    CHECK(o.exposed_s <= waited_s[rank]);  // for the last bucket alone
    CHECK(o.hidden_s() == Approx(std::max(0.0, o.communication_s - o.exposed_s)));
  }
}

TEST_CASE("a rank that does not come ends the wait with its name") {
  ThreadWorld world{.ranks = 3, .ranks_per_node = 3};
  std::vector<std::string> errors(3);
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, 20000 * sizeof(float));
    Engine engine(comm, arena, {});
    GradientBuckets buckets(engine, own_floats(arena), {20000, 5000});
    if (comm.rank() != 2) buckets.start_all();
    comm.barrier();
    comm.tell_arrivals();
    world.wait_until([&world] { return world.told.size() == 3; });  // a barrier would count
    if (comm.rank() != 2) {
      const TimeoutScope limit(comm, 0.1);
      try {
        buckets.finish();
      } catch (const RunError& error) {
        errors[size_t(comm.rank())] = error.what();
      }
    }
    comm.barrier();
    if (comm.rank() == 2) buckets.start_all();  // so that no rank waits for ever in a destructor
  });
  for (const int rank : {0, 1}) {
    CAPTURE(errors[size_t(rank)]);
    CHECK(errors[size_t(rank)].find("gradient bucket 1 of 4 did not finish in 0.1 s") != std::string::npos);
    CHECK(errors[size_t(rank)].find("not arrived: rank 2 (") != std::string::npos);
    CHECK(errors[size_t(rank)].find("rank 0") == std::string::npos);
  }
}

TEST_CASE("an error of the library reaches the thread that waits") {
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2, .failing_sum = 1};
  std::vector<int> caught(2);
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    std::vector<float> x(30);
    NodeMemory arena(comm, 64);
    Engine engine(comm, arena, {.hierarchical = false});
    std::vector<std::unique_ptr<Request>> requests;
    for (int i = 0; i < 3; ++i) requests.push_back(engine.start_allreduce_sum(x.data() + 10 * i, 10));
    for (const auto& request : requests) try {
        request->wait();
      } catch (const RunError& error) {
        found.expect(std::string(error.what()).find("the link is cut") != std::string::npos, "its text");
        found.expect(!request->outcome(), "no outcome");
        ++caught[size_t(comm.rank())];
      }
  });
  CHECK(found.failed().empty());
  for (const int times : caught) CHECK(times >= 2);  // the second one and the third
}

TEST_CASE("after an error nothing waits for a sum whose other ranks are gone") {
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2, .failing_sum = 1};
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, 64);
    if (comm.rank() == 1) return;
    std::vector<float> x(20);
    Engine engine(comm, arena, {.hierarchical = false});
    const auto waits = engine.start_allreduce_sum(x.data(), 10), fails = engine.start_allreduce_sum(x.data() + 10, 10);
    found.expect(throws<RunError>([&] { fails->wait(); }), "the one that cannot be started");
    found.expect(throws<RunError>([&] { waits->wait(); }), "the one that is under way");
    found.expect(throws<RunError>([&] { engine.start_allreduce_sum(x.data(), 10)->wait(); }), "one started later");
    found.expect(world.dropped == 0, "what is under way stays");
  });
  CHECK(found.failed() == std::set<std::string>{});
}

TEST_CASE("one rank: no thread, no sums, no outcome") {
  const auto comm = make_null_communicator();
  NodeMemory arena(*comm, 100 * sizeof(float));
  CHECK_FALSE(arena.shared());
  CHECK(arena.note().empty());
  Engine engine(*comm, arena, {});
  CHECK(comm->progress_thread() == nullptr);
  own_floats(arena)[3] = 5;
  GradientBuckets buckets(engine, own_floats(arena), {100, 30});
  buckets.start_all();
  buckets.finish();
  CHECK(own_floats(arena)[3] == 5);
  CHECK_FALSE(buckets.last_step().sum_squares);
}

TEST_CASE("mistakes are found: gradients outside of the arena, bf16 without nodes") {
  ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory arena(comm, 100 * sizeof(float));
    const EngineConfig odd{.hierarchical = false, .wire = DType::kBF16};
    found.expect(throws<LogicFault>([&] { Engine(comm, arena, odd); }), "flat in bf16");
    Engine engine(comm, arena, {});
    std::vector<float> elsewhere(10);
    found.expect(throws<LogicFault>([&] { engine.start_allreduce_sum(elsewhere.data(), 10)->wait(); }), "elsewhere");
  });
  CHECK(found.failed() == std::set<std::string>{});
}

TEST_CASE("parts of a node's memory are seen by all of its ranks, and by no other node") {
  ThreadWorld world{.ranks = 4, .ranks_per_node = 2};
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory memory(comm, 5000);
    found.expect(memory.shared() && memory.num_parts() == 2 && memory.own_part() == comm.local_rank(), "parts");
    for (int i = 0; i < memory.num_parts(); ++i)
      found.expect(reinterpret_cast<uintptr_t>(memory.part(i)) % 4096 == 0, "aligned to pages");
    const auto zero = [](std::byte b) { return b == std::byte{0}; };
    found.expect(std::all_of(memory.part(0), memory.part(0) + 5000, zero), "zero");
    comm.barrier();
    auto* mine = static_cast<char*>(memory.allocate(5000));
    found.expect(mine == reinterpret_cast<char*>(memory.part(memory.own_part())), "allocates the own part");
    found.expect(throws<LogicFault>([&] { memory.allocate(1); }), "only once");
    std::memset(mine, 'a' + comm.rank(), 5000);
    comm.barrier();
    const int first = comm.rank() / 2 * 2;
    for (int i = 0; i < memory.num_parts(); ++i)
      found.expect(char(memory.part(i)[4999]) == 'a' + first + i, "the neighbour's bytes");
    comm.barrier();
    memory.deallocate(mine, 5000);
    found.expect(memory.allocate(10) == mine, "again once it was given back");
  });
  CHECK(found.failed() == std::set<std::string>{});
}

TEST_CASE("a node's memory has the pages that were asked for, and ranks reach each other's parts in all of them") {
  using platform::PagePolicy;
  constexpr size_t kBytes = platform::kHugePageBytes + 5000;
  for (const auto& [word, policy] : platform::kPagePolicies) {
    INFO(std::string(word));
    ThreadWorld world{.ranks = 2, .ranks_per_node = 2};
    Findings found;
    run_ranks(world, [&, policy = policy](ThreadCommunicator& comm) {
      NodeMemory memory(comm, kBytes, true, policy);
      found.expect(memory.shared(), "shared");
      auto* mine = static_cast<char*>(memory.allocate(kBytes));
      mine[kBytes - 1] = char('a' + comm.rank());
      comm.barrier();
      for (int i = 0; i < 2; ++i) found.expect(char(memory.part(i)[kBytes - 1]) == 'a' + i, "the neighbour's bytes");
      const std::string pages = memory.describe_pages();
      if (policy == PagePolicy::kPlain) found.expect(pages.starts_with("pages of 4 KiB"), pages);
      const bool is_explicit = pages.starts_with("explicit");
      if (policy == PagePolicy::kExplicit && comm.rank() == 0)
        found.expect(is_explicit == memory.page_note().empty(), "explicit pages or a note: " + memory.page_note());
      if (policy == PagePolicy::kTransparent) found.expect(!is_explicit, pages);
      comm.barrier();
    });
    CHECK(found.failed() == std::set<std::string>{});
  }
}

TEST_CASE("where memory cannot be shared, all ranks get their own and sums go by messages") {
  // Holds for memfd too; counters alone would fit.
  const FileSizeLimit limit(100000);
  ThreadWorld world{.ranks = 3, .ranks_per_node = 3};
  Findings found;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    NodeMemory memory(comm, 50000 * sizeof(float));
    found.expect(!memory.shared() && memory.name() == "system", "private");
    found.expect(memory.note().find("share no memory") != std::string::npos, "note");
    Engine engine(comm, memory, {});
    found.expect(engine.description().find("by messages") != std::string::npos, engine.description());
  });
  CHECK(found.failed() == std::set<std::string>{});
  const std::vector<float> expected = promised_sum(3, 1, 50000);
  for (const Stepped& got : step(world, {}, 50000, 20000)) CHECK(got.sum == expected);
}
