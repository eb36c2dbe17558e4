#include "ditrain/parallel/core_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::parallel {
namespace {

using platform::Pu;
using platform::Topology;

/// The hardware threads of a core that may be used; the first one stands for the core.
using Core = std::vector<Pu>;
using Cores = std::vector<Core>;

/// Cores of the mask in machine order.
Cores usable_cores(const Topology& topology, bool smt) {
  Cores cores;
  std::map<int, size_t> place;  // of a core in `cores`
  for (const Pu& pu : topology.allowed) {
    const auto [it, is_new] = place.try_emplace(pu.core, cores.size());
    if (is_new)
      cores.push_back({pu});
    else if (smt)
      cores[it->second].push_back(pu);
  }
  return cores;
}

/// This rank's run of the cores that it shares with others; the runs of all ranks are of one length.
Cores share_of(const Cores& cores, const CoreRequest& r) {
  DITRAIN_CHECK(r.ranks_on_mask >= 1 && r.rank_on_mask >= 0 && r.rank_on_mask < r.ranks_on_mask,
                fmt::format("rank {} of {}", r.rank_on_mask, r.ranks_on_mask));
  const auto each = std::ptrdiff_t(cores.size() / size_t(r.ranks_on_mask));
  return Cores(cores.begin() + r.rank_on_mask * each, cores.begin() + (r.rank_on_mask + 1) * each);
}

/// The fewest cores from the front that hold this many threads; all of them if they hold fewer.
int cores_for(const Cores& cores, int threads) {
  int held = 0, count = 0;
  while (held < threads && count < int(cores.size())) held += int(cores[size_t(count++)].size());
  return count;
}

int count_threads(const Cores& cores) {
  return std::accumulate(cores.begin(), cores.end(), 0, [](int n, const Core& core) { return n + int(core.size()); });
}

/// How many cores do what.
struct Counts {
  int comm = 0, copy = 0;
  int cores = 0;    // of workers
  int threads = 0;  // workers
};

[[noreturn]] void refuse_set_aside(const CoreRequest& r, int aside, int threads, int cores) {
  const bool wanted = r.threads > 0;
  throw InputError(
      {.where = "placement",
       .what = "parallel.comm_cores and memory.copy_cores set aside more cores than " +
               std::string(wanted ? "the workers leave" : "a rank can spare"),
       .got = fmt::format("{} core(s) set aside{}", aside, wanted ? fmt::format(" beside {} worker(s)", threads) : ""),
       .expected = wanted ? fmt::format("at most the {} core(s) of this rank in all", cores)
                          : fmt::format("fewer than the {} core(s) of this rank", cores),
       .hint = wanted ? "fewer parallel.threads, or parallel.comm_cores: auto and memory.copy_cores: auto"
                      : "parallel.comm_cores: auto and memory.copy_cores: auto, or more cores per rank"});
}

/// With automatic threads: what is set aside comes out of the budget. Else it comes beside the workers, and what is
/// automatic gives way to them.
Counts count_cores(const Cores& share, const CoreRequest& r) {
  const bool wanted = r.threads > 0;
  const int threads = wanted ? r.threads : std::max(1, r.budget);
  const int needed = cores_for(share, threads), cores = wanted ? int(share.size()) : needed;
  const int spare = wanted ? cores - needed : cores - 1;
  Counts c{std::max(0, r.comm_cores), std::max(0, r.copy_cores), 0, 0};
  if (c.comm + c.copy > 0 && (c.comm + c.copy > spare || (wanted && count_threads(share) < threads)))
    refuse_set_aside(r, c.comm + c.copy, threads, cores);
  for (const auto& [asked, count] : {std::pair(r.comm_cores, &c.comm), std::pair(r.copy_cores, &c.copy)})
    if (asked == kAutoCores && cores >= kCoresToSetAside && c.comm + c.copy < spare) *count = 1;
  c.cores = wanted ? needed : cores - c.comm - c.copy;
  const int held = count_threads(Cores(share.begin(), share.begin() + c.cores));
  c.threads = wanted ? threads : std::min(std::max(1, held), threads);
  return c;
}

/// Runs of cores with equal keys, in order of their first core.
template <class Key>
std::vector<Cores> group_by(const Cores& cores, Key key) {
  std::vector<Cores> groups;
  std::map<int, size_t> place;
  for (const Core& core : cores) {
    const auto [it, is_new] = place.try_emplace(key(core.front()), groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].push_back(core);
  }
  return groups;
}

int domain_key(const Pu& pu) { return pu.domain; }
int l3_key(const Pu& pu) { return pu.l3; }

/// The last core of the largest group, of several the last group.
Pu take_core(std::vector<Cores>& groups) {
  auto largest = groups.begin();
  for (auto it = groups.begin(); it != groups.end(); ++it)
    if (it->size() >= largest->size()) largest = it;
  const Pu pu = largest->back().front();
  largest->pop_back();
  if (largest->empty()) groups.erase(largest);
  return pu;
}

Cores joined(const std::vector<Cores>& groups) {
  Cores all;
  for (const Cores& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

size_t smallest(const std::vector<Cores>& groups) {
  return std::min_element(groups.begin(), groups.end(), [](auto& a, auto& b) { return a.size() < b.size(); })->size();
}

/// By how many hardware threads the largest group exceeds the smallest.
int spread(const std::vector<Cores>& groups) {
  std::vector<int> threads;
  for (const Cores& group : groups) threads.push_back(count_threads(group));
  const auto [least, most] = std::minmax_element(threads.begin(), threads.end());
  return *most - *least;
}

/// Hardware threads of the core that has most: equal clusters may differ by a core.
int widest(const Cores& cores) {
  size_t most = 1;
  for (const Core& core : cores) most = std::max(most, core.size());
  return int(most);
}

/// Groups to take cores from so that clusters stay equal: those that are going to be the clusters.
std::vector<Cores> natural_groups(const Cores& cores, int clusters) {
  std::vector<Cores> domains = group_by(cores, domain_key), caches = group_by(cores, l3_key);
  const bool by_cache = domains.size() == 1 || (clusters != int(domains.size()) && clusters == int(caches.size()));
  return by_cache ? caches : domains;
}

/// Clusters as runs of cores. Several small L3 caches, or unequal ones, make bad clusters, because work is divided
/// evenly.
std::vector<Cores> automatic_clusters(const Cores& cores, CorePlan& plan) {
  const std::vector<Cores> domains = group_by(cores, domain_key), caches = group_by(cores, l3_key);
  plan.clusters_from = "NUMA domains";
  if (domains.size() > 1) return domains;
  plan.clusters_from = "L3 caches";
  if (caches.size() > 1 && smallest(caches) >= 2 && spread(caches) <= widest(cores)) return caches;
  plan.clusters_from = caches.size() <= 1 ? "one NUMA domain" : "one NUMA domain; L3 caches of single or unequal cores";
  return {cores};
}

std::vector<Cores> wanted_clusters(const Cores& cores, int clusters, CorePlan& plan) {
  plan.clusters_from = "parallel.clusters";
  const std::vector<Cores> domains = group_by(cores, domain_key), caches = group_by(cores, l3_key);
  for (const auto& [groups, name] : {std::pair(&domains, "NUMA domains"), std::pair(&caches, "L3 caches")})
    if (clusters > 1 && int(groups->size()) == clusters) {
      plan.clusters_from += std::string(", ") + name;
      return *groups;
    }
  std::vector<Cores> runs;
  for (int i = 0; i < clusters; ++i) {
    const Range range = partition(int64_t(cores.size()), i, clusters);
    runs.emplace_back(cores.begin() + range.begin, cores.begin() + range.end);
    const size_t spanned = group_by(runs.back(), domain_key).size();
    if (clusters >= int(domains.size()) && spanned > 1)
      plan.notes.push_back(
          fmt::format("cluster {} spans {} NUMA domains; parallel.clusters: {} or a multiple follows "
                      "them",
                      i, spanned, domains.size()));
  }
  return runs;
}

/// Work is dealt out evenly, so a number of clusters that was asked for has to divide the workers; or `without_aside`,
/// the workers that there would be if no core were set aside.
void check_clusters(int clusters, int threads, int without_aside) {
  if (clusters > threads)
    throw InputError({.where = "placement",
                      .what = "parallel.clusters",
                      .got = std::to_string(clusters),
                      .expected = fmt::format("at most the number of threads, {}", threads),
                      .hint = "parallel.clusters: auto"});
  if (clusters == 0 || threads % clusters == 0 || without_aside % clusters == 0) return;
  int fits = clusters;
  while (threads % fits != 0) --fits;
  throw InputError({.where = "placement",
                    .what = "parallel.clusters does not divide the workers: the smaller clusters would rule",
                    .got = fmt::format("{} for {} worker(s)", clusters, threads),
                    .expected = "a divisor",
                    .hint = fmt::format("parallel.clusters: {} or auto, or parallel.threads: {}", fits,
                                        threads / clusters * clusters)});
}

/// Where no number was wanted, clusters may differ by a core of `widest` workers; else by a core that was set aside.
void note_unequal(const CoreRequest& r, int aside, int widest, CorePlan& plan) {
  const auto [least, most] = std::minmax_element(plan.cluster_sizes.begin(), plan.cluster_sizes.end());
  if (r.clusters == 0 && *most - *least > widest)
    plan.notes.push_back(
        fmt::format("clusters have {} to {} {}, because this rank has only a part of some {}: the smaller ones rule; "
                    "an affinity mask of whole ones, or parallel.clusters: 1",
                    *least, *most, widest > 1 ? "hardware threads" : "cores", plan.clusters_from));
  if (r.clusters < 2 || *most - *least <= (aside > 0 ? 1 : 0)) return;
  plan.notes.push_back(
      fmt::format("parallel.clusters: {} follows unequal parts of the machine: clusters have {} to {} worker(s), the "
                  "smaller ones rule; an affinity mask of equal parts, or auto",
                  r.clusters, *least, *most));
}

/// More workers than cores, or no cores of its own: no worker is bound, and a cluster is a number of threads.
CorePlan unbound(const CoreRequest& r, int threads, int cores_of_mask) {
  CorePlan plan;
  const int clusters = std::max(1, r.clusters);
  for (int i = 0; i < clusters; ++i) plan.cluster_sizes.push_back(int(partition(threads, i, clusters).size()));
  plan.clusters_from = r.clusters > 0 ? "parallel.clusters" : "workers are not bound";
  if (!r.equal_masks)
    plan.notes.push_back(fmt::format(
        "the affinity masks of {} ranks overlap in part: workers are not pinned and slower; equal masks, or "
        "masks without a common core",
        r.ranks_on_mask));
  else
    plan.notes.push_back(fmt::format("{} threads of {} rank(s) share {} core(s): workers are not pinned and slower",
                                     r.ranks_on_mask * threads, r.ranks_on_mask, cores_of_mask));
  return plan;
}

/// Clusters of cores become clusters of workers; `threads` may leave some hardware threads of the last cores over.
void place_workers(const std::vector<Cores>& clusters, int threads, const Topology& topology, CorePlan& plan) {
  for (const Cores& cluster : clusters) {
    int size = 0;
    for (const Core& core : cluster)
      for (const Pu& pu : core) {
        if (int(plan.workers.size()) == threads) break;
        plan.workers.push_back(pu);
        ++size;
      }
    if (size == 0) continue;
    plan.cluster_sizes.push_back(size);
    const auto domain = size_t(cluster.front().front().domain);
    plan.domain_of.push_back(domain < topology.domains.size() ? topology.domains[domain] : platform::Domain{});
  }
}

/// Halves of cores as clusters, where clusters are more than cores (smt): as many hardware threads as workers.
Cores single_threads(const Cores& cores, int workers) {
  Cores threads;
  for (const Core& core : cores)
    for (const Pu& pu : core)
      if (int(threads.size()) < workers) threads.push_back({pu});
  return threads;
}

}  // namespace

int CorePlan::num_workers() const { return std::accumulate(cluster_sizes.begin(), cluster_sizes.end(), 0); }

Team::Config CorePlan::team() const {
  Team::Config config{.num_workers = num_workers(), .num_clusters = int(cluster_sizes.size())};
  config.cluster_sizes = cluster_sizes;
  for (const Pu& pu : workers) config.pus.push_back(pu.os);
  if (workers.empty()) config.spin_pauses = Team::kFewPauses;  // the mask is large enough, but other ranks share it
  return config;
}

CorePlan plan_cores(const Topology& topology, const CoreRequest& asked) {
  DITRAIN_CHECK(!topology.allowed.empty(), "no hardware thread is allowed");
  CoreRequest request = asked;
  if (!request.equal_masks) request.comm_cores = request.copy_cores = 0;
  const Cores all = usable_cores(topology, request.smt), share = share_of(all, request);
  const Counts counts = count_cores(share, request);
  const int used = counts.cores + counts.comm + counts.copy;
  const Cores mine(share.begin(), share.begin() + used);
  const bool wanted = request.threads > 0;  // then cores set aside lie beside them
  const int budget = std::max(1, request.budget);
  check_clusters(request.clusters, counts.threads, wanted ? counts.threads : std::min(budget, count_threads(mine)));
  if (!request.equal_masks || count_threads(share) < counts.threads)
    return unbound(request, counts.threads, int(all.size()));

  CorePlan plan;
  std::vector<Cores> groups = natural_groups(mine, request.clusters);
  for (int i = 0; i < counts.comm; ++i) plan.comm.push_back(take_core(groups));
  for (int i = 0; i < counts.copy; ++i) plan.copy.push_back(take_core(groups));
  for (auto core = share.begin() + used; core != share.end(); ++core) plan.unused.push_back(core->front());
  if (request.rank_on_mask == request.ranks_on_mask - 1)  // what does not divide over the ranks
    for (size_t i = share.size() * size_t(request.ranks_on_mask); i < all.size(); ++i)
      plan.unused.push_back(all[i].front());

  Cores cores = joined(groups);
  if (request.clusters > int(cores.size())) cores = single_threads(cores, counts.threads);
  place_workers(request.clusters > 0 ? wanted_clusters(cores, request.clusters, plan) : automatic_clusters(cores, plan),
                counts.threads, topology, plan);
  note_unequal(request, counts.comm + counts.copy, widest(mine), plan);
  return plan;
}

namespace {

MapRow row_of(std::string role, const std::vector<Pu>& pus) {
  const auto numbers = [&pus](int Pu::*member) {
    std::vector<int> values;
    for (const Pu& pu : pus)
      if (pu.*member >= 0) values.push_back(pu.*member);
    return values.empty() ? "-" : platform::format_pus(values);
  };
  return {std::move(role),  std::to_string(pus.size()), numbers(&Pu::os),  numbers(&Pu::core),   numbers(&Pu::l2),
          numbers(&Pu::l3), numbers(&Pu::domain),       numbers(&Pu::die), numbers(&Pu::package)};
}

}  // namespace

std::vector<MapRow> map_of(const CorePlan& plan) {
  std::vector<MapRow> rows;
  auto next = plan.workers.begin();
  for (size_t i = 0; i < plan.cluster_sizes.size(); ++i) {
    const std::string role = "cluster " + std::to_string(i);
    const int size = plan.cluster_sizes[i];
    if (plan.workers.empty()) {
      rows.push_back({role, std::to_string(size), "any", "any", "-", "-", "-", "-", "-"});
      continue;
    }
    rows.push_back(row_of(role, {next, next + size}));
    next += size;
  }
  if (!plan.comm.empty()) rows.push_back(row_of("communication", plan.comm));
  if (!plan.copy.empty()) rows.push_back(row_of("copies", plan.copy));
  if (!plan.unused.empty()) rows.push_back(row_of("unused", plan.unused));
  return rows;
}

}  // namespace ditrain::parallel
