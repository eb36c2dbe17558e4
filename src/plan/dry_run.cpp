#include "ditrain/plan/dry_run.hpp"

#include <fmt/format.h>

#include "ditrain/base/log.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/nn/dit.hpp"
#include "ditrain/plan/cut.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/memory_plan.hpp"
#include "ditrain/plan/placement.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::plan {

namespace {

platform::Topology allowed_part(const platform::Topology& machine) {
  return machine.is_this_machine ? with_mask(machine, platform::affinity_mask()) : machine;
}

// Ranks assumed by a dry run.
int ranks_per_node(const config::Config& config, int ranks) {
  return suppose_ranks(config, allowed_part(platform::probe_machine()), ranks).per_node;
}

// The memory of another machine is not known: there one rank of it is held against this one's.
int ranks_that_share_memory(const config::Config& config, int ranks, const dist::Communicator& comm) {
  if (ranks == 0) return comm.local_size();
  return platform::probe_machine().is_this_machine ? ranks_per_node(config, ranks) : 1;
}

struct DescribedPlacement {
  std::string text;
  std::vector<int> clusters;  // of the first rank: their sizes
  int nodes;                  // NUMA nodes of these
};

// The placement of the ranks that run, or of those that the dry run assumes.
DescribedPlacement describe_placement(const config::Config& config, int ranks, dist::Communicator& comm) {
  const platform::Topology machine = platform::probe_machine();
  if (ranks > 0 || !machine.is_this_machine) {
    const int supposed = ranks > 0 ? ranks : comm.world_size();
    const platform::Topology allowed = allowed_part(machine);
    const SupposedRanks s = suppose_ranks(config, allowed, supposed);
    return {describe(s, allowed, supposed), s.on_node.front().plan.cluster_sizes,
            int(nodes_of_clusters(s.on_node.front()).size())};
  }
  const Placement placement = plan_placement(config, comm);
  std::string text = describe(placement, comm);
  for (const std::string& note : placement.notes) text += "note: " + note + "\n";
  return {text, placement.plan.cluster_sizes, int(nodes_of_clusters(placement).size())};
}

// Plans are made before any data is there; a path that is set must be right.
bool is_without_data(const config::Config& config) {
  return !config.data.kind->path.empty() && config.data.path.empty();
}

std::string describe_data(const dataset::Dataset* data) {
  if (data != nullptr) return "data: " + data->describe();
  return "data: data.path is not set; with --set data.path=DIR the data is checked too and the epochs are counted";
}

std::string describe_steps(const config::Config& config, const dataset::Dataset* data, int world, int replicas) {
  const config::TrainConfig& t = config.train;
  return fmt::format("{} rank(s): {} sample(s) per rank and step in micro-batches of {}, {} steps", world,
                     t.global_batch / replicas, config::micro_batch_of(config, replicas), t.steps) +
         (data != nullptr ? fmt::format(" = {:.2f} epochs", double(t.steps * t.global_batch) / double(data->size()))
                          : "");
}

}  // namespace

void print_dry_run(const config::Config& wanted, int ranks, dist::Communicator& comm) {
  is_without_data(wanted) ? config::validate_without_data(wanted) : config::validate(wanted);
  const int world = ranks > 0 ? ranks : comm.world_size();
  const config::Config config =
      ranks > 0 ? config::with_tensor_ranks(wanted, ranks_per_node(wanted, ranks)) : with_tensor_ranks(wanted, comm);
  config::validate_for_ranks(config, world);
  const DescribedPlacement placement = describe_placement(config, ranks, comm);
  const auto data = is_without_data(config) ? nullptr : open_data(config);
  const int shares = config::replicas(config, world);
  log::info_lines(placement.text);
  log::info_lines(describe_model(config));
  log::info_line(describe_data(data.get()));
  if (const std::string ignored = data ? data->describe_ignored() : ""; !ignored.empty())
    log::info("data: {}", ignored);
  if (shares < world) log::info("{} rank(s) share a replica and its samples", config::tensor_ranks(config));
  log::info_line(describe_steps(config, data.get(), world, shares));
  if (placement.clusters.size() > 1)
    log::info("cut: {}{}", plan_cut(config, config::micro_batch_of(config, shares), placement.clusters).why,
              config.parallel.cut == config::Cut::kAuto && placement.nodes > 1
                  ? "; a run measures the bandwidth between NUMA domains first"
                  : "");
  nn::Dit model(config.model, {.size = config::tensor_ranks(config)});
  log::info_lines(describe_factors(plan_gradients(config, model.parameters(), shares), config));
  const MemoryPlan plan = plan_memory(config, world);
  log::info_lines(describe(plan));
  const size_t limit = platform::memory_limit().bytes;
  log::info("a node like this one ({}) holds {} such rank(s)", format_bytes(limit), limit / plan.total());
  check_memory(plan, config, world, ranks_that_share_memory(config, ranks, comm));
}

}  // namespace ditrain::plan
