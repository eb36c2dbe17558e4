#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/plan/automem_plan.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::plan {
namespace {

// Long against the start of a transfer, short against that of a run on a disk of 100 MB/s.
constexpr size_t kDiskBytes = size_t{32} << 20;
// Per node of ordinary memory, in plans without a team: a quarter of a socket has 60 GB/s of DDR5 beside 250 of HBM.
constexpr double kInPlaceUnmeasured = 80e9;
constexpr int64_t kValues = int64_t{64} << 20;  // more than caches hold

// Bytes per second that the team reads from nodes.
double measure_reading(parallel::Team& team, const std::vector<int>& nodes) {
  platform::PageBlock block(size_t(kValues) * sizeof(float), platform::PageWish::kAuto);
  if (!platform::place_on_nodes(block.data(), block.bytes(), nodes, platform::policy_for(nodes))) return 0;
  auto* values = reinterpret_cast<float*>(block.data());
  const auto each = [&](const auto& use) {
    team.run([&](const parallel::Worker& w) {
      const parallel::Range mine = parallel::partition(kValues, w.worker, w.num_workers, 1024);
      if (!mine.empty()) use(values + mine.begin, mine.size());
    });
  };
  each([](float* at, int64_t n) { std::fill_n(at, n, 1.0f); });
  double shortest_s = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now_s();
    each([](float* at, int64_t n) {
      volatile float sum = kernels::stream_pass({.reads = 1}, &at, n);
      static_cast<void>(sum);
    });
    shortest_s = std::min(shortest_s, now_s() - start);
  }
  return double(block.bytes()) / shortest_s;
}

// Rates of the tiers that the workers' trial does not copy to. Where none can be made, check_tiers refuses a run that
// needs it.
void measure_disks(automem::Copying& copying, const memory::PerTier<size_t>& wanted, const std::string& folder,
                   const std::vector<int>& pus) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (memory::kTiers[i].in_memory || wanted[i] == 0) continue;
    std::unique_ptr<memory::Backing> disk;
    try {
      disk = memory::kTiers[i].make({.bytes = kDiskBytes, .folder = existing_part(folder)});
    } catch (const InputError&) {
      continue;
    }
    copying.rates[i] = automem::measure_tier(*disk, i, kDiskBytes, pus);
  }
}

automem::Copying copying_in_memory(const config::MemoryConfig& m, const Placement& placement, const RankPlace& place,
                                   parallel::Team* team) {
  using memory::CopyBy;
  const bool chosen = !placement.copy_pus.empty() || m.copy != config::Copy::kAuto;
  const CopyBy by =
      placement.copy_pus.empty() && m.copy == config::Copy::kWorkers ? CopyBy::kWorkers : CopyBy::kThreads;
  const std::string why = !placement.copy_pus.empty() ? ""
                          : chosen                    ? fmt::format("memory.copy: {}", m.copy)
                                                      : "a run measures whether the workers are faster";
  const bool two_kinds = !place.bulk_nodes.empty();
  if (team == nullptr)
    return {.by = by, .why = why, .in_place_bytes_s = kInPlaceUnmeasured * double(place.bulk_nodes.size())};
  const automem::CopyTrial trial = automem::measure_copying(*team, {.pus = placement.pus_of_copies(),
                                                                    .fast_nodes = distinct_fast_nodes(place),
                                                                    .bulk_nodes = place.bulk_nodes,
                                                                    .simulate = m.simulate_bulk});
  automem::Copying copying = chosen ? automem::copying_by(by, why, trial) : automem::choose_copying(trial);
  if (two_kinds)
    copying.in_place_bytes_s = extra_of_slow_node(measure_reading(*team, distinct_fast_nodes(place)),
                                                  measure_reading(*team, place.bulk_nodes));
  return copying;
}

}  // namespace

std::string existing_part(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path part = folder;
  for (std::error_code error; !part.empty() && !fs::exists(part, error);) part = part.parent_path();
  return part.empty() ? "." : part.string();
}

double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s) {
  if (slow_bytes_s <= 0 || fast_bytes_s <= slow_bytes_s) return 0;
  return 1 / (1 / slow_bytes_s - 1 / fast_bytes_s);
}

automem::Copying plan_copying(const config::Config& config, const Placement& placement, const RankPlace& place,
                              const std::string& disk_folder, parallel::Team* team) {
  if (!config.memory.moves()) return {};
  const memory::PerTier<size_t> wanted = tier_capacities(config.memory);
  bool in_memory = false;
  for (size_t i = 0; i < wanted.size(); ++i) in_memory = in_memory || (memory::kTiers[i].in_memory && wanted[i] > 0);
  automem::Copying copying;
  if (in_memory) copying = copying_in_memory(config.memory, placement, place, team);
  if (team != nullptr) measure_disks(copying, wanted, disk_folder, placement.pus_of_copies());
  return copying;
}

}  // namespace ditrain::plan
