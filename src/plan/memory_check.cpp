#include "ditrain/plan/memory_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::plan {
namespace {

// The largest micro-batch of at most `most` samples with which the ranks of a node fit; 0: none does.
int64_t fitting_micro_batch(config::Config config, int world_size, const RankPlace& place, const InputFacts& facts,
                            int64_t most) {
  const int ranks = place.ranks_on_node;
  const size_t limit = platform::memory_limit(ranks).bytes;
  const int64_t share = config.train.global_batch / config::replicas(config, world_size);
  for (int64_t micro = std::min(most, share); micro >= 1; --micro) {
    if (share % micro != 0) continue;
    config.train.micro_batch = micro;
    try {
      const MemoryPlan memory = planned_memory(config, world_size, place, facts);
      if (memory.outside_huge_pages() <= rank_limit(memory, ranks, limit)) return micro;
    } catch (const InputError&) {  // tiers that would be too small for it
    }
  }
  return 0;
}

// The modes that keep less than config.train.recompute, each with the largest micro-batch that fits; only if that is
// above `without`, the largest that fits as it is.
std::string what_fits_recomputing(config::Config config, int world_size, const RankPlace& place,
                                  const InputFacts& facts, int64_t without) {
  std::string s;
  const int64_t micro = config::micro_batch_of(config, config::replicas(config, world_size));
  if (!config.train.recompute) return "";  // it has tried all of them
  const nn::Recompute now = *config.train.recompute;
  for (const auto& [word, mode] : nn::words_of(now)) {
    if (mode <= now) continue;
    config.train.recompute = mode;
    const int64_t fits = fitting_micro_batch(config, world_size, place, facts, micro);
    if (fits <= without) continue;
    s += fmt::format("\n  --set train.recompute={}", word);
    if (fits < micro) s += fmt::format(" --set train.micro_batch={}", fits);
  }
  return s;
}

// The same for states that are shared out over the ranks, where that is possible.
std::string what_fits_sharded(config::Config config, int world_size, const RankPlace& place, const InputFacts& facts,
                              int64_t without) {
  if (world_size == 1 || config.dist.shard_optimizer || !config.dist.engine || config.dist.outer ||
      config.parallel.strategy == config::Strategy::kDpTp)
    return "";
  config.dist.shard_optimizer = true;
  const int64_t micro = config::micro_batch_of(config, world_size);
  const int64_t fits = fitting_micro_batch(config, world_size, place, facts, micro);
  if (fits <= without || (config.dist.reproducible && fits < micro)) return "";
  return "\n  --set dist.shard_optimizer=true" + (fits < micro ? fmt::format(" --set train.micro_batch={}", fits) : "");
}

// Tensors on disk while they are not used, if that can fit; where tensors move already, with other tiers.
std::string what_fits_on_disk(config::Config config, int world_size, const RankPlace& place, const InputFacts& facts) {
  if (config.parallel.strategy == config::Strategy::kDpTp) return "";
  const std::string bulk =
      config.memory.tier_gib[memory::tier("bulk")].value_or(0) > 0 ? " --set memory.bulk_gib=0" : "";
  config.memory.automem = config::AutoMem::kOff;
  const RunPlan off = plan_run(config, world_size, place, {}, facts);
  const size_t limit = rank_limit(off.memory, place.ranks_on_node, platform::memory_limit(place.ranks_on_node).bytes);
  const automem::Uses uses = record_step(config, off.gradients, off.samples, off.micro_batch);
  const size_t fixed = fixed_fast_bytes(config, off.gradients, off.micro_batch) + uses.small_bytes;
  const size_t beside = off.memory.total() - std::min(off.memory.total(), fixed + uses.total_bytes());
  const size_t least = fixed + uses.bytes_of(uses.largest());
  if (limit < beside + least + least / 20) return "";
  return fmt::format(
      "\n  --set memory.automem=planned --set memory.fast_gib={:.2f}{} --set memory.disk_gib={:.2f} --set "
      "memory.disk_path=FOLDER of a local disk",
      double(limit - beside) / 0x1p30 * 0.98, bulk, double(uses.total_bytes()) / 0x1p30 * 1.01 + 0.01);
}

// Changes that would fit, those that cost least time first, as lines for a person.
std::string what_fits(const RunPlan& plan) {
  const auto& [config, world_size, place, facts] = std::tie(plan.config, plan.world_size, plan.place, plan.facts);
  std::string s;
  const int64_t micro = config::micro_batch_of(config, config::replicas(config, world_size));
  // Reproducible sums depend on the size of the micro-batches, so that stays.
  const int64_t smaller =
      config.dist.reproducible ? 0 : fitting_micro_batch(config, world_size, place, facts, micro - 1);
  if (smaller > 0) s += fmt::format("\n  --set train.micro_batch={}", smaller);
  s += what_fits_recomputing(config, world_size, place, facts, smaller);
  s += what_fits_sharded(config, world_size, place, facts, smaller);
  RankPlace fewer_ranks = place;
  fewer_ranks.rank = 0;
  for (int& ranks = fewer_ranks.ranks_on_node; --ranks >= 1;) {
    const int world = std::max(1, world_size / place.ranks_on_node * ranks);
    const bool divides = world % config::tensor_ranks(config) == 0 && world % config::outer_groups(config) == 0 &&
                         config.train.global_batch % config::replicas(config, world) == 0 &&
                         (!config.dist.reproducible || std::has_single_bit(unsigned(world)));
    const int64_t fewer = divides ? fitting_micro_batch(config, world, fewer_ranks, facts, micro) : 0;
    if (fewer == 0) continue;
    s += fmt::format("\n  {} rank(s) per node with --set train.micro_batch={}", ranks, fewer);
    break;
  }
  s += what_fits_on_disk(config, world_size, place, facts);
  return s.empty() ? "\n  a smaller model, or a node with more memory" : s;
}

void expect_room(const RunPlan& plan, size_t needed, const platform::MemoryLimit& limit, const std::string& what,
                 const MemoryPlan& memory) {
  if (needed <= limit.bytes) return;
  std::string items = describe(memory);
  items.pop_back();  // its last newline
  throw InputError({.where = "memory",
                    .what = what,
                    .got = format_bytes(needed),
                    .expected = fmt::format("at most {} ({})\n{}", format_bytes(limit.bytes), limit.source, items),
                    .hint = "what fits:" + what_fits(plan)});
}

}  // namespace

void check_memory(const RunPlan& plan) {
  const int ranks = plan.place.ranks_on_node;
  expect_room(plan, plan.memory.outside_huge_pages() * size_t(ranks), platform::memory_limit(ranks),
              fmt::format("{} rank(s) on this node do not fit", ranks), plan.memory);
  const MemoryPlan first = plan.memory.of_first_rank();
  expect_room(plan, first.outside_huge_pages(), platform::process_memory_limit(),
              "the first rank of this node does not fit the limit of a process: it takes more than others", first);
}

std::string memory_warning(const RunPlan& plan) {
  const int ranks = plan.place.ranks_on_node;
  const size_t needed = plan.memory.outside_huge_pages() * size_t(ranks), usable = usable_bytes(ranks);
  if (needed <= usable)
    return plan.config.memory.moves() && !plan.automem
               ? fmt::format(
                     "memory.automem: {} has no effect: all tensors are below {}, and tensors that small do not move",
                     plan.config.memory.automem, format_bytes(automem::kSmallest))
               : "";
  return fmt::format(
      "memory: this run needs up to {}, and {} were available when it began: end what holds the rest, or the system "
      "may end the run",
      format_bytes(needed), format_bytes(usable));
}

void check_memory(size_t bytes_of_rank, int ranks_on_node, const std::string& what, const std::string& hint) {
  const platform::MemoryLimit limit = platform::memory_limit(ranks_on_node);
  const size_t needed = (bytes_of_rank + kProgramBytes) * size_t(ranks_on_node);
  if (needed <= limit.bytes) return;
  throw InputError({.where = "memory",
                    .what = fmt::format("{} on {} rank(s) of this node do not fit", what, ranks_on_node),
                    .got = format_bytes(needed),
                    .expected = fmt::format("at most {} ({})", format_bytes(limit.bytes), limit.source),
                    .hint = hint});
}

void check_tiers(const RunPlan& plan, const std::string& run_folder) {
  if (!plan.automem) return;
  const std::string& path = plan.config.memory.disk_path;
  const std::string folder = path.empty() ? automem::existing_part(run_folder) : path;
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    if (const size_t bytes = plan.automem->tier_bytes[i]; bytes > 0 && memory::kTiers[i].check != nullptr)
      memory::kTiers[i].check({.bytes = bytes, .folder = folder}, plan.place.ranks_on_node);
}

}  // namespace ditrain::plan
