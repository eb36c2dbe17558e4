// The item `messages` of the memory plan against what the engine allocates for sums.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "dist/thread_world.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "support/small_config.hpp"

using namespace ditrain;

namespace {

// What progress threads hold: allocations of a page and more, each thread's highest sum, and those sums together. The
// copies that ThreadCommunicator keeps of messages are the network's.
constexpr size_t kCounted = 4096;
std::atomic<bool> watched = false;
std::atomic<int64_t> held = 0;
thread_local bool is_rank = false;
thread_local int64_t live = 0, highest = 0;

void count(int64_t bytes) {
  live += bytes;
  if (live > highest) held += live - highest, highest = live;
}

struct Header {
  size_t bytes;
  bool counted;
};
constexpr size_t kHeader = 64;

}  // namespace

void* operator new(size_t bytes) {
  void* block = std::malloc(bytes + kHeader);
  if (block == nullptr) throw std::bad_alloc();
  const bool counted = bytes >= kCounted && watched && !is_rank && !copies_message;
  if (counted) count(int64_t(bytes));
  *static_cast<Header*>(block) = {bytes, counted};
  return static_cast<std::byte*>(block) + kHeader;
}
// std::stable_sort takes its buffer so; AddressSanitizer has an allocation of its own for it otherwise.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return operator new(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* p) noexcept {
  if (p == nullptr) return;
  void* block = static_cast<std::byte*>(p) - kHeader;
  if (const Header& h = *static_cast<Header*>(block); h.counted) live -= int64_t(h.bytes);
  std::free(block);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }

namespace {

/// Bytes that all ranks together hold at most for the sums of two steps of that plan.
int64_t held_bytes(const plan::RunPlan& plan, int ranks_per_node) {
  ThreadWorld world{.ranks = plan.world_size, .ranks_per_node = ranks_per_node};
  const dist::BucketGrid& grid = plan.gradients.buckets;
  held = 0;
  run_ranks(world, [&](ThreadCommunicator& comm) {
    is_rank = true;
    dist::NodeMemory arena(comm, size_t(grid.n()) * sizeof(float));
    dist::Engine engine(comm, arena, {.wire = plan.config.dist.wire});
    dist::GradientBuckets buckets(engine, reinterpret_cast<float*>(arena.part(arena.own_part())), grid);
    comm.barrier();
    watched = true;
    for (int step = 0; step < 2; ++step) {
      buckets.start_all();
      buckets.finish();
      comm.barrier();
    }
    watched = false;
    comm.barrier();
  });
  return held;
}

int64_t planned_bytes(const plan::RunPlan& plan) {
  for (const plan::MemoryItem& item : plan.memory.items)
    if (item.name == "messages") return int64_t(item.bytes) * plan.world_size;
  return -1;
}

}  // namespace

TEST_CASE("messages: the plan has what the engine allocates, by ranks, nodes, wire and buckets") {
  config::Config config = test::small_config();
  config.train.global_batch = 12, config.dist.adaln = config::AdalnExchange::kReduce;
  for (const auto& [ranks, per_node] : {std::pair{1, 1}, {2, 2}, {2, 1}, {4, 2}, {3, 1}, {4, 4}})
    for (const DType wire : {DType::kF32, DType::kBF16})
      for (const double mib : {0.03, 0.1, 25.0}) {
        CAPTURE(ranks, per_node, dtype_name(wire), mib);
        config.dist.wire = wire, config.dist.bucket_mib = mib;
        const plan::RunPlan plan = plan::plan_run(config, ranks, {.ranks_on_node = per_node});
        const int64_t planned = planned_bytes(plan), allocated = held_bytes(plan, per_node);
        CHECK(double(planned) == Approx(double(allocated)).epsilon(0.01));
        CHECK((planned > 0) == (ranks > per_node));
      }
}

TEST_CASE("messages: outer steps have an exchange of their own, and MPI copies what it sums") {
  config::Config config = test::small_config();
  config.dist.outer = optim::OuterConfig{.groups = 2};
  const auto bytes = [&](int ranks, int per_node) {
    return planned_bytes(plan::plan_run(config, ranks, {.ranks_on_node = per_node})) / ranks;
  };
  nn::Model model(config.model);
  const int64_t arena = model.parameters().arena_size() * int64_t(sizeof(float));
  CHECK(bytes(2, 1) == Approx(arena).epsilon(0.01));
  CHECK(bytes(4, 2) == Approx(arena / 2).epsilon(0.01));  // groups are nodes: the first rank of each has it
  CHECK(bytes(2, 2) == 0);                                // simulated hosts share the memory of the node
  config.dist.outer.reset();
  config.dist.allreduce = config::AllReduce::kFlat;
  CHECK(bytes(2, 2) < arena / 2);  // the adaLN layers are gathered, not summed
  config.dist.adaln = config::AdalnExchange::kReduce;
  CHECK(bytes(2, 2) == 2 * arena);
  config.dist.bucket_mib = 0.1;
  CHECK(double(bytes(2, 2)) == Approx(2 * 0.1 * 0x1p20).epsilon(0.01));
  CHECK(bytes(1, 1) == 0);
}
