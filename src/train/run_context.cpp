#include "run_context.hpp"

#include <fmt/format.h>

#include <sstream>

#include "ditrain/kernels/measure.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/plan/memory_check.hpp"

namespace ditrain::train {
namespace {

DType peak_type_of(const config::Config& config) {
  const bool has_bf16 = kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  return has_bf16 ? config.train.precision : DType::kF32;
}

}  // namespace

RunContext::RunContext(const plan::Settled& settled_config, const TrainOptions& run_options, dist::Communicator& world)
    : settled(settled_config),
      config(settled.config),
      options(run_options),
      comm(world),
      placement(plan::plan_placement(config, comm)),
      groups(config, comm),
      team(placement.team()),
      ctx(team),
      products(plan::apply_kernel_settings(config, placement.topology, ctx)),
      plan(make_plan()),
      peak_type(peak_type_of(config)) {
  plan::check_memory(plan);
  if (comm.local_rank() == 0) note(plan::memory_warning(plan));
  plan::check_tiers(plan, options.out);  // ranks meet before the first one makes its file
  if (config.train.precision == DType::kBF16 && peak_type == DType::kF32)
    note("train.precision: bf16, but this CPU has no bf16 products: less memory, but f32 would be faster");
}

// With what is measured: the bandwidth between NUMA domains, where clusters lie in several, and that of copies.
plan::RunPlan RunContext::make_plan() {
  plan::RankPlace place = plan::place_of(placement, comm.local_size());
  place.rank = groups.data().rank();
  place.copying = plan::plan_copying(config, placement, place, disk_folder(), &team);
  if (groups.tensor() && !config.train.recompute)
    place.recompute_degree = plan::agreed_recompute_degree(config, place, settled.facts, comm);
  const auto bandwidth = place.nodes.size() > 1 ? plan::measure_domains(ctx) : plan::DomainBandwidth{};
  return plan::plan_run(config, comm.world_size(), place, bandwidth, settled.facts);
}

const std::string& RunContext::disk_folder() const {
  return config.memory.disk_path.empty() ? options.out : config.memory.disk_path;
}

std::map<std::string, int> RunContext::lines_of_ranks(const std::string& mine) {
  std::map<std::string, int> ranks_with;
  for (const std::string& of_rank : comm.gather_strings(mine)) {
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) ++ranks_with[line];
  }
  return ranks_with;
}

std::string RunContext::of_ranks(const std::string& line, int ranks) const {
  return comm.world_size() == 1 ? line : fmt::format("{} of {} ranks: {}", ranks, comm.world_size(), line);
}

}  // namespace ditrain::train
