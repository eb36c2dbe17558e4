#include "ditrain/plan/dry_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dist/placement.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/plan/step_time.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::plan {

namespace {

platform::Topology allowed_part(const platform::Topology& machine) {
  return machine.is_this_machine ? with_mask(machine, platform::affinity_mask()) : machine;
}

// How many of the assumed ranks a node has.
int ranks_per_node(const config::Config& config, int ranks) {
  return dry_run_ranks(config, allowed_part(platform::probe_machine()), ranks).per_node;
}

// Where the ranks lie that run, or those that the dry run assumes. The memory of another machine is not known: there
// one rank is held against this one's.
struct KnownPlace {
  RankPlace place;  // of the first rank
  std::string text;
};

RankPlace place_in_dry_run(const config::Config& config, const Placement& placement, int ranks_on_node) {
  set_blocking(config.kernels, placement.topology);
  RankPlace place = place_of(placement, ranks_on_node);
  place.copying = plan_copying(config, placement, place, /*disk_folder=*/"", /*team=*/nullptr);
  return place;
}

KnownPlace find_place(const config::Config& config, int ranks, dist::Communicator& comm) {
  const platform::Topology machine = platform::probe_machine();
  if (ranks == 0 && machine.is_this_machine) {
    const Placement placement = plan_placement(config, comm);
    std::string text = describe(placement, comm);
    for (const std::string& note : placement.notes) text += "note: " + note + "\n";
    return {place_in_dry_run(config, placement, comm.local_size()), text};
  }
  const int assumed = ranks > 0 ? ranks : comm.world_size();
  const platform::Topology allowed = allowed_part(machine);
  const DryRunRanks s = dry_run_ranks(config, allowed, assumed);
  return {place_in_dry_run(config, s.on_node.front(), machine.is_this_machine ? s.per_node : 1),
          describe(s, allowed, assumed)};
}

// Plans are made before any data is there; a path that is set must be right.
bool is_without_data(const config::Config& config) {
  return !config.data.kind->path.empty() && config.data.path.empty();
}

std::string describe_data(const dataset::Dataset* data, bool classes_of_data) {
  if (data != nullptr) return "data: " + data->describe();
  return "data: data.path is not set; with --set data.path=DIR the data is checked too and the epochs are counted" +
         (classes_of_data
              ? fmt::format(" (model.num_classes: auto: {} classes are assumed until then)", kAssumedClasses)
              : "");
}

std::string describe_steps(const RunPlan& plan, const dataset::Dataset* data, int64_t done) {
  const config::TrainConfig& t = plan.config.train;
  return fmt::format("{} rank(s): {} sample(s) per rank and step in micro-batches of {}, {} steps", plan.world_size,
                     plan.samples, plan.micro_batch, t.steps) +
         (data != nullptr ? fmt::format(" = {:.2f} epochs", double(t.steps * t.global_batch) / double(data->size()))
                          : "") +
         (done >= t.steps ? fmt::format("; the run has {}: nothing to do", done)
          : done > 0      ? fmt::format(", of which {} are done", done)
                          : "");
}

// The time that a run would take on this machine; of another one the rates are not known.
std::string time_here(const RunPlan& plan, int ranks, const std::string& run_folder, const dataset::Dataset* data,
                      int64_t done, dist::Communicator& comm) {
  if (!platform::probe_machine().is_this_machine) return "time: not predicted, because this is not the machine\n";
  const platform::Topology machine = platform::probe_machine();
  const Placement placement = ranks > 0 ? dry_run_ranks(plan.config, allowed_part(machine), ranks).on_node.front()
                                        : plan_placement(plan.config, comm);
  Loading loading = data != nullptr ? measure_loading(*data) : Loading{};
  loading.cores = int(placement.plan.unused.size());
  if (!loading.problem.empty()) log::warn("data: {}", loading.problem);
  const std::vector<int> pus = platform::probe_topology().allowed_pus;  // before the team is bound to some of them
  const int sharing = ranks > 0 ? plan.place.ranks_on_node : dist::share_mask(comm, pus).ranks;
  parallel::Team team(placement.team());
  const double workers_per_core = std::max(1.0, double(team.num_workers()) * sharing / double(pus.size()));
  const auto measured = [&](DType precision) {
    MachineRates rates = measure_rates(team, precision);
    share_cores(rates, workers_per_core);
    return rates;
  };
  const MachineRates rates = measured(plan.config.train.precision);
  const bool has_bf16 = kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  std::optional<MachineRates> bf16;
  if (has_bf16 && plan.config.train.precision == DType::kF32) bf16 = measured(DType::kBF16);
  return describe_time(plan, rates, bf16 ? &*bf16 : nullptr, run_folder, loading, done);
}

}  // namespace

DryRun plan_dry_run(const config::Config& wanted, int ranks, dist::Communicator& comm) {
  is_without_data(wanted) ? config::validate_without_data(wanted) : config::validate(wanted);
  const int per_node = ranks > 0 ? ranks_per_node(wanted, ranks) : 1;
  const Ranks of_run = ranks > 0 ? Ranks{ranks, per_node, ranks % per_node == 0} : ranks_of(comm);
  Inputs inputs = open_inputs(wanted);
  const Settled settled = settle(wanted, inputs.facts, of_run);
  const KnownPlace known = find_place(settled.config, ranks, comm);
  return {plan_run(settled.config, of_run.world_size, known.place, {}, settled.facts), settled.describe(), known.text,
          std::move(inputs.data)};
}

void print_dry_run(const config::Config& wanted, const DryRun& dry_run, int ranks, const std::string& run_folder,
                   int64_t done, dist::Communicator& comm) {
  const auto& [plan, settled, placement, data] = dry_run;
  const config::Config& config = plan.config;
  log::info_lines(placement);
  log::info_lines(settled);
  log::info_lines(describe_model(config));
  log::info_line(describe_data(data.get(), wanted.model.num_classes == nn::kClassesOfData));
  for (const std::string& warning : data ? data->warnings() : std::vector<std::string>())
    log::warn("data: {}", warning);
  if (const std::string ignored = data ? data->describe_ignored() : ""; !ignored.empty())
    log::info("data: {}", ignored);
  if (const std::string lost = data ? data->describe_unlearnt(config.model.num_classes) : ""; !lost.empty())
    log::info("data: {}", lost);
  if (const std::string unused = data ? data->describe_unused(config.model.num_classes) : ""; !unused.empty())
    log::warn("data: there are no samples of {}", unused);
  if (plan.replicas < plan.world_size)
    log::info("{} rank(s) share a replica and its samples", config::tensor_ranks(config));
  log::info_line(describe_steps(plan, data.get(), done));
  const bool measures = config.parallel.cut == config::ClusterSplitChoice::kAuto && plan.place.nodes.size() > 1;
  if (plan.place.cluster_sizes.size() > 1)
    log::info("cut: {}{}", plan.cut.why, measures ? "; a run measures the bandwidth between NUMA domains first" : "");
  log::info_lines(describe_factors(plan.gradients, config));
  check_memory(plan);  // its error has the plan of memory
  log::info_lines(describe(plan.memory));
  if (plan.automem) log::info_lines(automem::describe(*plan.automem));
  const size_t limit = platform::memory_limit().bytes;
  log::info("a node like this one ({}) holds {} such rank(s)", format_bytes(limit),
            limit / plan.memory.outside_huge_pages());
  if (const std::string warning = memory_warning(plan); !warning.empty()) log::warn_line(warning);
  if (comm.rank() == 0)
    for (const std::string& warning : config::warnings(config)) log::warn_line(warning);
  check_tiers(plan, run_folder);
  log::info_lines(time_here(plan, ranks, run_folder, data.get(), done, comm));
}

}  // namespace ditrain::plan
