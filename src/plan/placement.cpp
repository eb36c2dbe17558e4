#include "ditrain/plan/placement.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/placement.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/platform/numa.hpp"

namespace ditrain::plan {
namespace {

using platform::Topology;

/// A rank among those of its node and of the run.
struct Neighbours {
  int on_mask = 1, number_on_mask = 0;
  bool equal_masks = true;
  int on_node = 1, in_world = 1;
};

std::vector<int> numbers(const std::vector<platform::Pu>& pus) {
  std::vector<int> out;
  for (const platform::Pu& pu : pus) out.push_back(pu.os);
  return out;
}

/// Every hardware thread of the cores that are neither set aside nor another rank's; of the mask, where workers are not
/// bound.
std::vector<int> free_pus(const Topology& topology, const parallel::CorePlan& plan) {
  if (plan.workers.empty()) return topology.allowed_pus;
  std::set<int> cores;
  for (const auto* pus : {&plan.workers, &plan.unused})
    for (const platform::Pu& pu : *pus) cores.insert(pu.core);
  std::vector<int> free;
  for (const platform::Pu& pu : topology.allowed)
    if (cores.count(pu.core) > 0) free.push_back(pu.os);
  return free;
}

/// "communication: ...": how many cores of its own, or why none. `idle` says why none is needed.
std::string set_aside_line(const std::string& who, const char* key, int64_t asked, size_t cores, const char* idle) {
  std::string what = fmt::format("{} core(s) of its own", cores);
  if (cores == 0) {
    const char* automatic = *idle ? idle : "the rank has fewer than 8 cores, or its workers take them all";
    what = fmt::format("shares the cores of the workers ({})", asked == 0 ? key : automatic);
  }
  return fmt::format("{}: {}\n", who, what);
}

/// NUMA nodes near a rank's clusters.
std::set<int> nodes_of(const parallel::CorePlan& plan) {
  std::set<int> nodes;
  for (const platform::Domain& domain : plan.domain_of)
    for (const int node : {domain.bulk_node, domain.fast_node})
      if (node >= 0) nodes.insert(node);
  return nodes;
}

/// With one cluster per rank by parallel.strategy: what the cores would be cut into otherwise, and how to have that.
void check_single_cluster(Placement& p, config::Strategy strategy, parallel::CoreRequest request, int ranks) {
  p.plan.clusters_from = fmt::format("parallel.strategy: {}, one per rank", strategy);
  request.clusters = 0;
  const int clusters = int(parallel::plan_cores(p.topology, request).cluster_sizes.size());
  if (clusters == 1) return;
  std::set<int> cores;  // workers may be hardware threads
  for (const platform::Pu& worker : p.plan.workers) cores.insert(worker.core);
  const int count = cores.empty() ? p.threads : int(cores.size());
  p.notes.push_back(
      fmt::format("parallel.strategy: {} has one rank per cluster, and the cores of this rank hold {} clusters; for a "
                  "rank on each: {} -np {} --map-by slot:PE={} --bind-to core ditrain ...",
                  strategy, clusters, mpirun(), clusters * ranks, std::max(1, count / clusters)));
}

/// Container images and module files set OMP_NUM_THREADS, often to 1, meant for other programs.
void add_omp_note(Placement& p, const platform::Sharing& sharing, int threads) {
  if (p.ruled_by != "OMP_NUM_THREADS") return;
  const auto unset = [](const char* name) {
    return std::string_view(name) == "OMP_NUM_THREADS" ? nullptr : std::getenv(name);
  };
  const int a_core = sharing.smt ? int(p.topology.allowed_pus.size()) / p.topology.allowed_cores : 1;
  const auto cores_of = [&](int count) { return (count + a_core - 1) / a_core; };
  const int used = cores_of(threads),
            cores = cores_of(platform::default_threads(p.topology, sharing, "", unset).threads);
  if (2 * used >= cores) return;
  p.notes.push_back(
      fmt::format("OMP_NUM_THREADS={} leaves {} of the {} core(s) of this rank idle; unset it, or set parallel.threads",
                  threads, cores - used, cores));
}

Placement place(const config::Config& config, Topology topology, const Neighbours& n) {
  const config::ParallelConfig& c = config.parallel;
  const char* unequal = n.equal_masks ? "" : "affinity masks that overlap in part";
  const char* alone = n.in_world == 1 ? "one rank" : unequal;
  const char* no_copies = !config.memory.moves()                         ? "memory.automem: off"
                          : config.memory.copy == config::Copy::kWorkers ? "memory.copy: workers"
                                                                         : unequal;
  const platform::Sharing sharing{.ranks_on_mask = n.on_mask, .ranks_on_quota = n.on_node, .smt = c.smt};
  const platform::ThreadCount automatic = platform::default_threads(topology, sharing);
  const bool single = c.strategy != config::Strategy::kCftp;
  const parallel::CoreRequest request{
      .threads = int(c.threads),
      .budget = automatic.threads,
      .clusters = single ? 1 : int(c.clusters),
      .comm_cores = c.comm_cores == parallel::kAutoCores && *alone ? 0 : int(c.comm_cores),
      .copy_cores = *no_copies ? 0 : int(config.memory.copy_cores),
      .smt = c.smt,
      .ranks_on_mask = n.on_mask,
      .rank_on_mask = n.number_on_mask,
      .equal_masks = n.equal_masks};
  Placement p;
  p.plan = parallel::plan_cores(topology, request);
  p.topology = std::move(topology);
  p.threads = p.plan.num_workers();
  p.clusters = int(p.plan.cluster_sizes.size());
  p.ruled_by = c.threads > 0 ? "parallel.threads" : automatic.ruled_by;
  p.pus = numbers(p.plan.workers), p.comm_pus = numbers(p.plan.comm), p.copy_pus = numbers(p.plan.copy);
  p.helper_pus = free_pus(p.topology, p.plan);
  p.set_aside =
      set_aside_line("communication", "parallel.comm_cores: 0", c.comm_cores, p.comm_pus.size(), alone) +
      set_aside_line("copies", "memory.copy_cores: 0", config.memory.copy_cores, p.copy_pus.size(), no_copies);
  p.notes = p.plan.notes;
  const auto note_unused = [&](const char* key, int64_t cores, const char* why) {
    if (*why && cores > 0)
      p.notes.push_back(fmt::format("{}: {} has no effect: with {} no core is set aside", key, cores, why));
  };
  note_unused("memory.copy_cores", config.memory.copy_cores, no_copies);
  note_unused("parallel.comm_cores", c.comm_cores, unequal);
  add_omp_note(p, sharing, automatic.threads);
  if (single) check_single_cluster(p, c.strategy, request, n.in_world);
  return p;
}

/// Rows as lines of cells between tabs: what ranks send to rank 0.
std::string map_lines(const parallel::CorePlan& plan) {
  std::string lines;
  for (const parallel::MapRow& r : parallel::map_of(plan))
    lines += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", r.role, r.threads, r.pus, r.cores, r.l2, r.l3, r.numa,
                         r.die, r.package);
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '\t');) cells.push_back(cell);
  return cells;
}

/// Columns as wide as their widest cell.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], width[i] + 1);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

/// The table of all ranks; ranks with the same cores, on different nodes, are one entry.
std::string map_table(const std::vector<std::string>& lines_of_ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> entries;  // lines and the ranks that have them
  std::map<std::string, size_t> place;
  for (size_t rank = 0; rank < lines_of_ranks.size(); ++rank) {
    const auto [it, is_new] = place.try_emplace(lines_of_ranks[rank], entries.size());
    if (is_new) entries.emplace_back(lines_of_ranks[rank], std::vector<int>{});
    entries[it->second].second.push_back(int(rank));
  }
  std::vector<std::vector<std::string>> rows = {
      {"rank", "role", "threads", "PU", "core", "L2", "L3", "NUMA", "die", "package"}};
  for (const auto& [lines, ranks] : entries) {
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
      rows.push_back(cells_of(line));
      rows.back().insert(rows.back().begin(), platform::format_pus(ranks));
    }
  }
  return aligned(rows);
}

/// As many ranks of that many threads as a node has cores for.
std::string mpirun_line(const dist::Communicator& comm, int cores, int threads) {
  const int ranks = std::clamp(cores / threads, 1, comm.local_size());
  return fmt::format("{} -np {} --map-by ppr:{}:node:PE={} --bind-to core ditrain ...", mpirun(),
                     ranks * comm.num_nodes(), ranks, threads);
}

void add_mask_note(Placement& p, const dist::Communicator& comm, int wanted) {
  if (dist::mpi_launcher().empty() || p.topology.allowed_cores >= wanted) return;
  p.notes.push_back(fmt::format(
      "the affinity mask gives this rank {} core(s) where {} are wanted (mpirun binds a rank to one core by default); "
      "to use them: {}",
      p.topology.allowed_cores, wanted, mpirun_line(comm, p.topology.cores, wanted)));
}

/// Where nobody placed this process, and another such run would choose the same cores.
std::string second_run_line(const Placement& p, const dist::Communicator& comm) {
  const bool placed = comm.world_size() > 1 || int(p.topology.allowed_pus.size()) < p.topology.pus;
  if (placed || p.pus.empty() || p.plan.unused.empty()) return "";
  std::set<int> unused;
  for (const platform::Pu& pu : p.plan.unused) unused.insert(pu.core);
  std::vector<int> mine = p.pus, others;
  mine.insert(mine.end(), p.copy_pus.begin(), p.copy_pus.end());
  for (const platform::Pu& pu : p.topology.allowed)
    if (unused.contains(pu.core)) others.push_back(pu.os);
  return fmt::format(
      "workers are pinned to PU(s) {} of {}; a second run here would take the same: for others, taskset -c {} ...",
      platform::format_pus(mine), p.topology.pus, platform::format_pus(others));
}

/// A batch script that forgot the launcher: the allocation has room for several ranks, and this is the only one.
void add_launcher_note(Placement& p) {
  const char* tasks = std::getenv("SLURM_NTASKS");
  if (!dist::mpi_launcher().empty() || tasks == nullptr || std::atoi(tasks) <= 1) return;
  p.notes.push_back(fmt::format(
      "one rank, but the Slurm allocation is for {} tasks: to start them all, srun ditrain ... or mpirun ditrain ...",
      tasks));
}

std::string describe_threads(const Placement& p) {
  return fmt::format("threads: {} per rank in {} cluster(s) ({}), set by {}; {}\n{}", p.threads, p.clusters,
                     p.plan.clusters_from, p.ruled_by, p.pus.empty() ? "not pinned" : "pinned", p.set_aside);
}

/// Allowed PUs of each die that has any.
std::vector<std::vector<int>> masks_of_dies(const Topology& machine) {
  std::map<int, std::vector<int>> dies;
  for (const platform::Pu& pu : machine.allowed) dies[pu.die].push_back(pu.os);
  std::vector<std::vector<int>> masks;
  for (const auto& [die, mask] : dies) masks.push_back(mask);
  return masks;
}

struct RanksPerNode {
  int ranks = 0;  // 0: no variable says
  std::string said_by;
};

/// What the allocation says. One of a single node is where people ask about larger jobs: its node is not counted.
RanksPerNode ranks_per_node_of_slurm(int ranks) {
  const auto number = [](const char* variable) {
    const char* text = std::getenv(variable);
    return text == nullptr ? 0 : std::atoi(text);
  };
  constexpr const char *kTasks = "SLURM_NTASKS_PER_NODE", *kNodes = "SLURM_NNODES";
  if (const int tasks = number(kTasks); tasks > 0) return {std::min(tasks, ranks), kTasks};
  if (const int nodes = number(kNodes); nodes > 1) return {(ranks - 1) / nodes + 1, kNodes};
  return {};
}

}  // namespace

std::string mpirun() {
  std::string words = "mpirun";
  if (geteuid() != 0) return words;
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_ALLOW_RUN_AS_ROOT"})
    if (std::getenv(name) == nullptr) words = fmt::format("{}=1 {}", name, words);
  return words;
}

Placement plan_placement(const config::Config& config, dist::Communicator& comm) {
  Topology topology = platform::probe_topology();
  const dist::MaskSharing overlap = dist::share_mask(comm, topology.allowed_pus);
  Placement p = place(config, std::move(topology),
                      {.on_mask = overlap.ranks,
                       .number_on_mask = overlap.number,
                       .equal_masks = overlap.equal,
                       .on_node = comm.local_size(),
                       .in_world = comm.world_size()});
  const int node_share = std::max(1, p.topology.cores / std::max(1, comm.local_size()));
  // parallel.threads are hardware threads, and a mask that has as many is wide enough.
  const int64_t threads = config.parallel.threads,
                per_core = std::max(1, p.topology.pus / std::max(1, p.topology.cores));
  const int64_t cores = config.parallel.smt ? (threads + per_core - 1) / per_core : threads;
  add_mask_note(p, comm, threads > 0 ? int(std::min<int64_t>(cores, p.topology.cores)) : node_share);
  add_launcher_note(p);
  p.second_run = second_run_line(p, comm);
  p.free_memory = free_memory_of_rank(p.plan, comm);
  const std::set<int> nodes = nodes_of(p.plan);
  p.sharers = dist::count_sharers(comm, {nodes.begin(), nodes.end()});
  const std::string lines = map_lines(p.plan);
  const std::vector<std::string> all = comm.gather_strings(lines);
  p.map = map_table(all.empty() ? std::vector<std::string>{lines} : all);
  return p;
}

std::map<int, platform::NodeFreeMemory> free_memory_of_rank(const parallel::CorePlan& plan, dist::Communicator& comm,
                                                            const std::string& root) {
  const std::set<int> nodes = nodes_of(plan);
  std::map<int, platform::NodeFreeMemory> free_memory;
  for (const int node : nodes)
    if (const auto available = platform::free_memory_on_node(node, root)) free_memory[node] = *available;
  for (const auto& [node, ranks] : dist::count_sharers(comm, {nodes.begin(), nodes.end()}))
    if (const auto it = free_memory.find(node); it != free_memory.end()) it->second = it->second / size_t(ranks);
  return free_memory;
}

std::string describe(const Placement& p, const dist::Communicator& comm) {
  return platform::describe(p.topology) +
         fmt::format("ranks: {} on {} node(s); {}\n", comm.world_size(), comm.num_nodes(), comm.description()) +
         describe_threads(p) + (p.second_run.empty() ? "" : p.second_run + "\n") + p.map;
}

DryRunRanks dry_run_ranks(const config::Config& config, const Topology& machine, int ranks) {
  const std::vector<std::vector<int>> dies = masks_of_dies(machine);
  const int num_dies = int(dies.size());
  DryRunRanks s;
  const RanksPerNode told = ranks_per_node_of_slurm(ranks);
  const bool fills_nodes = num_dies > 1 && ranks % num_dies == 0;
  s.one_per_die =
      told.ranks > 0 ? num_dies > 1 && told.ranks == num_dies : fills_nodes || ranks > machine.allowed_cores;
  s.per_node = told.ranks > 0 ? told.ranks : s.one_per_die ? num_dies : ranks;
  s.per_node_from = told.said_by;
  s.nodes = (ranks + s.per_node - 1) / s.per_node;
  for (int i = 0; i < s.per_node; ++i) {
    Neighbours n{.on_node = s.per_node, .in_world = ranks};
    if (!s.one_per_die) n.on_mask = s.per_node, n.number_on_mask = i;
    s.on_node.push_back(place(config, s.one_per_die ? with_mask(machine, dies[size_t(i)]) : machine, n));
  }
  std::map<int, int> sharers;
  for (const Placement& p : s.on_node)
    for (const int node : nodes_of(p.plan)) ++sharers[node];
  for (Placement& p : s.on_node) p.sharers = sharers;
  return s;
}

std::string describe(const DryRunRanks& s, const Topology& machine, int ranks) {
  std::vector<std::string> lines;
  int cores = machine.cores;
  for (const Placement& p : s.on_node) {
    lines.push_back(map_lines(p.plan));
    cores = std::min(cores, s.one_per_die ? p.topology.allowed_cores : std::max(1, machine.allowed_cores / s.per_node));
  }
  std::string text = platform::describe(machine);
  const std::string from = s.per_node_from.empty() ? "" : fmt::format(" ({})", s.per_node_from);
  text += fmt::format("ranks: {} on {} node(s), {} per node{}, assumed to have {}\n", ranks, s.nodes, s.per_node, from,
                      s.one_per_die     ? "one die each"
                      : s.per_node == 1 ? "all its cores"
                                        : "equal shares of the cores");
  text += fmt::format("launch: {} -np {} --map-by ppr:{}:node:PE={} --bind-to core ditrain ...\n", mpirun(), ranks,
                      s.per_node, cores);
  text += fmt::format(
      "    or: srun --nodes={} --ntasks={} --ntasks-per-node={} --cpus-per-task={} --cpu-bind=cores "
      "--wait=20 ditrain ...\n",
      s.nodes, ranks, s.per_node, cores * std::max(1, machine.pus / machine.cores));
  text += describe_threads(s.on_node.front()) + map_table(lines);
  std::set<std::string> notes;
  for (const Placement& p : s.on_node) notes.insert(p.notes.begin(), p.notes.end());
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

RankPlace place_of(const Placement& placement, int ranks_on_node) {
  std::set<int> nodes;
  for (const platform::Domain& domain : placement.plan.domain_of)
    if (domain.bulk_node >= 0) nodes.insert(domain.bulk_node);
  RankPlace place{placement.plan.cluster_sizes, {nodes.begin(), nodes.end()}, ranks_on_node};
  place.free_memory = placement.free_memory;
  std::map<int, int> fast;  // clusters by node
  std::set<int> bulk;
  for (const platform::Domain& domain : placement.plan.domain_of) {
    place.fast_nodes.push_back(domain.fast_node >= 0 ? domain.fast_node : domain.bulk_node);
    if (domain.fast_node < 0) continue;
    ++fast[domain.fast_node];
    if (domain.bulk_node >= 0) bulk.insert(domain.bulk_node);
  }
  place.bulk_nodes.assign(bulk.begin(), bulk.end());
  for (const platform::MemoryNode& node : placement.topology.memory)
    if (const auto it = fast.find(node.os); it != fast.end()) {
      // Domains of other ranks have their part of a node that is local to several; clusters and ranks share a domain's.
      const int domains = std::max(1, int(node.domains.size())), own = std::min(it->second, domains);
      const auto shared = placement.sharers.find(node.os);
      const int ranks = shared != placement.sharers.end() ? shared->second : 1;
      place.fast_bytes += std::min(node.bytes / size_t(domains) * size_t(own), node.bytes / size_t(ranks));
    }
  return place;
}

std::vector<int> distinct_fast_nodes(const RankPlace& place) {
  const std::set<int> nodes(place.fast_nodes.begin(), place.fast_nodes.end());
  return {nodes.begin(), nodes.end()};
}

std::vector<memory::ClusterShare> fast_shares(const RankPlace& place) {
  const std::vector<int> distinct = distinct_fast_nodes(place);
  if (place.fast_nodes.size() != place.cluster_sizes.size() || (distinct.size() < 2 && place.bulk_nodes.empty()))
    return {};
  std::vector<memory::ClusterShare> shares;
  for (size_t c = 0; c < place.fast_nodes.size(); ++c)
    shares.push_back({.node = place.fast_nodes[c], .workers = place.cluster_sizes[c]});
  return shares;
}

std::vector<int> nodes_of_fixed(const RankPlace& place, bool move) {
  if (move && !place.bulk_nodes.empty()) return distinct_fast_nodes(place);
  return place.nodes.size() > 1 ? place.nodes : std::vector<int>();
}

std::string spread_over_nodes(const std::vector<int>& nodes, const std::vector<Tensor>& tensors) {
  if (nodes.empty()) return "";
  std::string reason;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const auto result =
        platform::place_on_nodes(Pin<void>(tensor).get(), tensor.bytes(), nodes, platform::policy_for(nodes));
    if (!result) reason = result.reason;
  }
  return reason;
}

}  // namespace ditrain::plan
