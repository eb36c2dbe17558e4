// Bandwidth and latency of each tier, which lies where a run's would.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <numeric>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/bench/memory.hpp"
#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/memory/fast_pool.hpp"
#include "ditrain/memory/tiers.hpp"
#include "reach.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

using memory::Direction;

Row row_of(const std::string& name, const std::vector<double>& seconds, size_t bytes) {
  Row row = timed_row(name, "-", seconds);
  row.gb_s = double(bytes) / std::max(row.time.median_s, 1e-9) * 1e-9;
  return row;
}

// Each cluster works in its own cut of the pool.
void bench_fast(Harness& harness, memory::FastPool& pool, const std::vector<int>& cluster_sizes) {
  pool.place(0, pool.bytes(), /*divided=*/true);
  const auto seconds = [&](const kernels::StreamMix& mix) {
    return pass_seconds(harness.ctx(), mix, pool.data(), pool.bytes(), harness.effort());
  };
  const Row written = row_of("write to fast", seconds({.writes = 1}), pool.bytes());  // first: it places the pages
  Row read = row_of("read from fast", seconds({.reads = 1}), pool.bytes());
  const int workers = std::accumulate(cluster_sizes.begin(), cluster_sizes.end(), 0);
  const size_t near = pool.bytes() / size_t(workers) * size_t(cluster_sizes.front());  // to the first worker
  read.details = {{"latency_s", quantile(load_seconds(pool.data(), near, harness.effort()), 0.5)}};
  harness.add(read);
  harness.add(written);
}

double seconds_of(memory::CopyEngine& engine, memory::Copy copy) {
  std::promise<std::string> done;
  copy.done = [&](const std::string& problem) { done.set_value(problem); };
  const double start = now_s();
  engine.submit(std::move(copy));
  if (const std::string problem = done.get_future().get(); !problem.empty())
    throw RunError({.where = "memory", .what = problem});
  return now_s() - start;
}

void bench_slow(Harness& harness, memory::Backing& tier, std::byte* fast,
                const std::optional<memory::SimulatedBulk>& link) {
  memory::CopyEngine engine({.pus = harness.placement().pus_of_copies(), .simulate = link});
  for (const auto& [direction, name] : {std::pair{Direction::kOut, "out to "}, {Direction::kIn, "in from "}}) {
    std::vector<double> large, small;
    for (int64_t i = 0; i <= harness.effort().repeats; ++i) {
      const memory::Copy copy{.direction = direction, .backing = &tier, .fast = fast, .bytes = tier.bytes()};
      memory::Copy block = copy;
      block.bytes = memory::kBlock;
      check_stop();
      const double large_s = seconds_of(engine, copy), small_s = seconds_of(engine, block);
      if (i > 0) large.push_back(large_s), small.push_back(small_s);
    }
    Row row = row_of(name + tier.name(), large, tier.bytes());
    row.details = {{"latency_s", quantile(small, 0.5)}};
    harness.add(row);
  }
}

void note_tier(Harness& harness, const std::string& what, const std::vector<std::string>& notes) {
  harness.note(what);
  harness.note(notes);
}

}  // namespace

void bench_tiers(Harness& harness, const config::MemoryConfig& config, const plan::RankPlace& place,
                 const std::string& disk_folder) {
  const size_t bytes = harness.effort().cold_arrays ? size_t{256} << 20 : size_t{4} << 20;
  memory::FastPool pool({.bytes = std::max(bytes, harness.cold_bytes()),
                         .pages = config.pages,
                         .clusters = plan::fast_shares(place),
                         .free_memory = place.free_memory});
  bench_fast(harness, pool, place.cluster_sizes);
  note_tier(harness, fmt::format("fast tier: {}; {}", pool.describe(), pool.describe_places()), pool.notes());
  for (const memory::TierRow& row : memory::kTiers) {
    const auto tier = row.make({.bytes = bytes,
                                .pages = config.pages,
                                .nodes = place.bulk_nodes,
                                .free_memory = place.free_memory,
                                .folder = disk_folder});
    bench_slow(harness, *tier, pool.data(), row.in_memory ? config.simulate_bulk : std::nullopt);
    const std::string what = tier->describe();
    note_tier(harness, fmt::format("{} tier: {}", row.name, what.empty() ? disk_folder : what), tier->notes());
  }
}

}  // namespace ditrain::bench
