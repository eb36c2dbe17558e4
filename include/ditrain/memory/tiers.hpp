// The one table of slow tiers, from fast to slow. A new tier is a Backing (backing.hpp) and a row here: its key
// memory.NAME_gib, its place in the plan, its lines in reports and its metrics follow. The fast tier, in which cores
// compute, is FastPool (fast_pool.hpp).
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "ditrain/memory/backing.hpp"

namespace ditrain::memory {

struct TierRow {
  const char* name;
  const char* help;           ///< help text of its key
  std::optional<double> gib;  ///< default of its key; none: auto, see config::MemoryConfig
  bool in_memory;             ///< takes memory of the machine, and cores can use it in place
  double bytes_s;             ///< expected rate of a copy, bytes per second, until a run has measured it
  std::unique_ptr<Backing> (*make)(const TierSetup&);
  /// Refuses at planning time what `make` would refuse, for `ranks` ranks of a node; null: the memory plan counts the
  /// tier as memory.
  void (*check)(const TierSetup&, int ranks);
};

inline constexpr std::array<TierRow, 2> kTiers{{
    {"bulk",
     "[GiB per rank] bulk tier: ordinary memory for offloaded tensors; auto: as much as they need, or none if a "
     "slower tier has a size",
     {},
     true,
     6e9,  // half of what a core copies in memory
     make_bulk_memory,
     nullptr},
    {"disk",
     "[GiB per rank] disk tier: space for tensors that have no place in memory; auto: what memory.bulk_gib leaves, "
     "which has to be a number then",
     0.0, false,
     1.5e9,  // a typical NVMe disk
     make_disk, check_disk},
}};
template <class T>
using PerTier = std::array<T, kTiers.size()>;

/// Rates of copies into and out of the fast tier.
struct TierRates {
  double in_bytes_s = 0, out_bytes_s = 0;
  double latency_s = 0;  ///< per copy
};

/// Defaults of all keys.
constexpr PerTier<std::optional<double>> default_gib() {
  PerTier<std::optional<double>> gib;
  for (size_t i = 0; i < gib.size(); ++i) gib[i] = kTiers[i].gib;
  return gib;
}

/// The row of a tier.
constexpr size_t tier(std::string_view name) {
  size_t i = 0;
  while (kTiers.at(i).name != name) ++i;
  return i;
}

}  // namespace ditrain::memory
