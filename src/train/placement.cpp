#include "ditrain/train/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/placement.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::train {
namespace {

// As many ranks of that many threads as a node has cores for.
std::string mpirun_line(const dist::Communicator& comm, int cores, int threads) {
  const int ranks = std::clamp(cores / threads, 1, comm.local_size());
  return fmt::format("mpirun -np {} --map-by ppr:{}:node:PE={} --bind-to core ditrain ...", ranks * comm.num_nodes(),
                     ranks, threads);
}

void add_mask_note(Placement& p, const dist::Communicator& comm, int wanted) {
  if (dist::mpi_launcher().empty() || p.topology.allowed_cores >= wanted) return;
  p.notes.push_back(fmt::format(
      "the affinity mask gives this rank {} core(s) where {} are wanted (mpirun binds a rank to one core by default); "
      "to use them: {}",
      p.topology.allowed_cores, wanted, mpirun_line(comm, p.topology.cores, wanted)));
}

}  // namespace

Placement plan_placement(const ParallelConfig& config, dist::Communicator& comm) {
  Placement p;
  p.topology = platform::probe_topology();
  const dist::MaskSharing overlap = dist::share_mask(comm, p.topology.allowed_pus);
  const auto automatic =
      platform::default_threads(p.topology, {.ranks_on_mask = overlap.ranks, .ranks_on_quota = comm.local_size()});
  p.threads = config.threads > 0 ? int(config.threads) : automatic.threads;
  p.ruled_by = config.threads > 0 ? "parallel.threads" : automatic.ruled_by;
  p.clusters = config.clusters > 0 ? int(config.clusters) : 1;
  if (p.clusters > p.threads)
    throw InputError({.where = "config",
                      .what = "parallel.clusters",
                      .got = std::to_string(p.clusters),
                      .expected = "at most the number of threads, " + std::to_string(p.threads)});
  const int node_share = std::max(1, p.topology.cores / std::max(1, comm.local_size()));
  add_mask_note(p, comm, config.threads > 0 ? std::min(int(config.threads), p.topology.cores) : node_share);

  const int first = overlap.number * p.threads, cores = p.topology.allowed_cores;
  if (overlap.ranks * p.threads <= cores)
    p.pus.assign(p.topology.allowed_pus.begin() + first, p.topology.allowed_pus.begin() + first + p.threads);
  else
    p.notes.push_back(fmt::format("{} threads of {} rank(s) share {} core(s): workers are not pinned and slower",
                                  overlap.ranks * p.threads, overlap.ranks, cores));
  return p;
}

std::string describe(const Placement& p, const dist::Communicator& comm) {
  std::string s = platform::describe(p.topology);
  s += fmt::format("ranks: {} on {} node(s); {}\n", comm.world_size(), comm.num_nodes(), comm.description());
  s += fmt::format("threads: {} a rank in {} cluster(s), set by {}; ", p.threads, p.clusters, p.ruled_by);
  s += p.pus.empty() ? "not pinned\n" : "pinned to PU " + platform::format_pus(p.pus) + "\n";
  return s;
}

}  // namespace ditrain::train
