#include "ditrain/plan/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <tuple>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/memory_plan.hpp"

namespace ditrain::plan {
namespace {

constexpr size_t kBest = 5;
constexpr size_t kMostTiers = 12;
constexpr double kSameTime = 0.005;  // a share of the time

// ---- what is tried ----

/// Whole dies for each rank, or two ranks on a die.
std::vector<int> ranks_per_node(const ClusterDescription& platform) {
  std::vector<int> all;
  for (int ranks = platform.dies_per_node; ranks >= 1; --ranks)
    if (platform.dies_per_node % ranks == 0) all.push_back(ranks);
  if (platform.die.cores % 2 == 0) all.push_back(2 * platform.dies_per_node);
  return all;
}

/// Powers of two of the ranks of a node; only where no rank has several dies.
std::vector<int> tensor_ranks(const config::Config& wanted, const ClusterDescription& platform, int per_node) {
  std::vector<int> all = {1};
  for (int t = 2; t <= per_node && per_node >= platform.dies_per_node; t *= 2)
    if (per_node % t == 0 && wanted.model.num_heads % t == 0) all.push_back(t);
  return all;
}

/// The share of a rank in some 1, 2, 4, ... parts that divide it, in single samples, and as the config has it.
/// Reproducible sums depend on the size of the parts, so that stays.
std::vector<int64_t> micro_batches(const config::Config& wanted, int64_t replicas) {
  const int64_t share = std::max<int64_t>(1, wanted.train.global_batch / replicas);
  if (wanted.dist.reproducible) return {config::micro_batch_of(wanted, int(replicas))};
  std::set<int64_t, std::greater<>> all = {share, 1};
  if (const int64_t asked = config::micro_batch_of(wanted, int(replicas)); share % asked == 0) all.insert(asked);
  int64_t parts = 1;  // the least divisor from each power of two on
  for (int64_t least = 2; least < share; least *= 2) {
    for (parts = std::max(parts, least); share % parts != 0;) ++parts;
    all.insert(share / parts);
  }
  return {all.begin(), all.end()};
}

std::vector<double> bucket_sizes(const config::Config& wanted) {
  std::set<double> all = {4, 25, 100};
  all.insert(wanted.dist.bucket_mib);
  return {all.begin(), all.end()};
}

// ---- one of them ----

int cores_of_rank(const ClusterDescription& platform, int per_node) {
  return std::max(1, platform.die.cores * platform.dies_per_node / per_node);
}

/// Workers of each cluster: the cores of the rank without those set aside, as parallel::plan_cores has them.
std::vector<int> cluster_sizes(const config::Config& config, int clusters, int cores, int world_size) {
  const auto aside = [&](int64_t asked, bool needed) {
    const int automatic = cores >= parallel::kCoresToSetAside ? 1 : 0;
    return needed ? asked == parallel::kAutoCores ? automatic : int(asked) : 0;
  };
  const int free_cores = cores - aside(config.parallel.comm_cores, world_size > 1) -
                         aside(config.memory.copy_cores, config.memory.moves());
  const int64_t asked = config.parallel.threads;
  const int workers = std::max(clusters, asked > 0 ? int(std::min<int64_t>(asked, cores)) : free_cores);
  std::vector<int> sizes(size_t(clusters), workers / clusters);
  for (int i = 0; i < workers % clusters; ++i) ++sizes[size_t(i)];
  return sizes;
}

size_t bytes_of_dies(double gb, const PlannedRun& run, const ClusterDescription& platform) {
  return size_t(gb * 1e9 * platform.dies_per_node / run.choice.ranks_per_node);
}

config::Config with_choice(const config::Config& wanted, const Choice& choice, const PlannedMachine& machine) {
  config::Config c = wanted;
  c.train.micro_batch = choice.micro_batch, c.train.recompute = choice.recompute;
  c.dist.bucket_mib = choice.bucket_mib, c.dist.shard_optimizer = choice.shards;
  if (choice.tensor_ranks > 1)
    c.parallel.strategy = config::Strategy::kDpTp, c.parallel.tensor_ranks = choice.tensor_ranks;
  else if (c.parallel.strategy == config::Strategy::kDpTp || choice.ranks_per_node < machine.platform.dies_per_node)
    c.parallel.strategy = config::Strategy::kCftp, c.parallel.tensor_ranks = 0;  // clusters of a rank are its dies
  // One micro-batch is written as it stands in most configs.
  if (c.train.micro_batch ==
      c.train.global_batch * choice.tensor_ranks / machine.platform.nodes / choice.ranks_per_node)
    c.train.micro_batch = wanted.train.micro_batch == 0 ? 0 : c.train.micro_batch;
  if (!choice.tiers) {
    c.memory.automem = config::AutoMem::kOff;
    return c;
  }
  if (!c.memory.moves()) c.memory.automem = config::AutoMem::kPlanned;
  const double fast_gib = machine.platform.die.memory_gb * 1e9 / 0x1p30 * machine.platform.dies_per_node /
                          choice.ranks_per_node * 0.9;  // the rest for what is beside the tensors of a step
  if (wanted.memory.fast_gib == 0) c.memory.fast_gib = std::floor(fast_gib * 100) / 100;
  return c;
}

class Planner {
 public:
  Planner(const config::Config& wanted, const InputFacts& facts, const PlannedMachine& machine)
      : facts_(facts), plan_{.wanted = wanted, .machine = machine} {}

  ClusterPlan take() && { return std::move(plan_); }

  void try_all() {
    const config::Config& wanted = plan_.wanted;
    const ClusterDescription& platform = plan_.machine.platform;
    for (const int per_node : ranks_per_node(platform))
      for (const int sharing : tensor_ranks(wanted, platform, per_node)) {
        const int64_t replicas = int64_t(platform.nodes) * per_node / sharing;
        for (const int64_t micro : micro_batches(wanted, replicas))
          for (const auto& [word, recompute] : nn::words_of(nn::Recompute{}))
            for (const bool shards : {false, true})
              if (!shards || replicas > 1)
                try_buckets({.ranks_per_node = per_node,
                             .tensor_ranks = sharing,
                             .micro_batch = micro,
                             .recompute = recompute,
                             .shards = shards,
                             .bucket_mib = wanted.dist.bucket_mib});
      }
    try_tiers();
    // Times that differ by less than a prediction can tell count as equal: then what changes least comes first.
    const auto key = [&](const PlannedRun& run) {
      return std::tuple(std::llround(std::log(run.step.total_s) / kSameTime),
                        config::differences(wanted, run.config).size(), run.step.total_s);
    };
    std::stable_sort(plan_.fitting.begin(), plan_.fitting.end(),
                     [&](const PlannedRun& a, const PlannedRun& b) { return key(a) < key(b); });
    std::stable_sort(plan_.too_large.begin(), plan_.too_large.end(), [](const PlannedRun& a, const PlannedRun& b) {
      return a.bytes - a.limit_bytes < b.bytes - b.limit_bytes;
    });
  }

  /// The time of the best run's choice in bf16.
  void try_bf16() {
    if (!plan_.machine.bf16_rates || plan_.fitting.empty()) return;
    config::Config wanted = plan_.wanted;
    wanted.train.precision = DType::kBF16;
    PlannedMachine machine = plan_.machine;
    machine.rates = *machine.bf16_rates;
    const auto run = Planner(wanted, facts_, machine).planned(plan_.fitting.front().choice);
    if (run && run->fits()) plan_.bf16_s = run->step.total_s;
  }

 private:
  /// Memory hardly depends on the buckets, so other sizes are tried if one fits.
  void try_buckets(Choice choice) {
    const std::optional<PlannedRun> run = planned(choice);
    if (!run) return;
    (run->fits() ? plan_.fitting : plan_.too_large).push_back(*run);
    const bool sums = plan_.machine.platform.nodes * choice.ranks_per_node > choice.tensor_ranks;
    for (const double mib : bucket_sizes(plan_.wanted)) {
      choice.bucket_mib = mib;
      if (mib == plan_.wanted.dist.bucket_mib || !sums || !run->fits()) continue;
      if (const auto other = planned(choice); other && other->fits()) plan_.fitting.push_back(*other);
    }
  }

  /// Tiers where memory does not hold all: they never make a step shorter. To simulate one takes seconds for a large
  /// model, so the fastest without waiting come first, until none can be among the best any more.
  void try_tiers() {
    std::vector<PlannedRun> without = plan_.too_large;
    std::erase_if(without, [&](const PlannedRun& run) {
      return plan_.machine.platform.die.bulk_gb == 0 || run.choice.tensor_ranks > 1;
    });
    std::stable_sort(without.begin(), without.end(),
                     [](const PlannedRun& a, const PlannedRun& b) { return a.step.total_s < b.step.total_s; });
    std::vector<double> best_s;
    for (const PlannedRun& run : plan_.fitting) best_s.push_back(run.step.total_s);
    for (size_t i = 0; i < without.size() && i < kMostTiers; ++i) {
      std::sort(best_s.begin(), best_s.end());
      if (best_s.size() >= kBest && without[i].step.total_s > best_s[kBest - 1]) break;
      Choice choice = without[i].choice;
      choice.tiers = true;
      const std::optional<PlannedRun> run = planned(choice);
      if (!run) continue;
      (run->fits() ? plan_.fitting : plan_.too_large).push_back(*run);
      if (run->fits()) best_s.push_back(run->step.total_s);
    }
  }

  /// None if a rule excludes it.
  std::optional<PlannedRun> planned(const Choice& choice) {
    const PlannedMachine& machine = plan_.machine;
    const ClusterDescription& platform = machine.platform;
    const int per_node = choice.ranks_per_node, world_size = platform.nodes * per_node;
    PlannedRun run{.choice = choice, .config = with_choice(plan_.wanted, choice, machine)};
    const int64_t clusters = choice.tensor_ranks > 1 ? 1 : run.config.parallel.clusters;
    run.clusters = clusters > 0 ? int(clusters) : std::max(1, platform.dies_per_node / per_node);
    run.cores = cores_of_rank(platform, per_node);
    const size_t fast = bytes_of_dies(platform.die.memory_gb, run, platform);
    RankPlace place{.cluster_sizes = cluster_sizes(run.config, run.clusters, run.cores, world_size)};
    place.ranks_on_node = per_node, place.fast_bytes = fast;
    run.limit_bytes = machine.node_bytes > 0 ? machine.node_bytes / size_t(per_node) : fast;
    if (choice.tiers) run.limit_bytes += bytes_of_dies(platform.die.bulk_gb, run, platform);
    try {
      config::validate_without_data(run.config);
      const Settled settled = settle(run.config, facts_, {.world_size = world_size, .per_node = per_node});
      const RunPlan plan = plan_briefly(settled.config, world_size, place, facts_);
      run.bytes = plan.memory.total();
      if (run.fits() || !choice.tiers) run.step = predict_step(plan, machine.rates, platform, run.cores);
    } catch (const InputError& error) {
      ++plan_.not_allowed;
      if (plan_.refusal.empty()) plan_.refusal = error.what();
      return std::nullopt;
    }
    return run;
  }

  const InputFacts& facts_;
  ClusterPlan plan_;
};

// ---- what is told ----

std::string sets_of(const ClusterPlan& plan, const PlannedRun& run) {
  std::string text;
  for (const config::Difference& d : config::differences(plan.wanted, run.config))
    text += fmt::format(" --set {}={}", d.key, d.new_value);
  return text;
}

/// The batch job of scripts/slurm, from the root of a clone or of the installation that has this program.
std::string batch_job() {
  namespace fs = std::filesystem;
  std::error_code unreadable;
  const fs::path clone = fs::path("scripts/slurm/many_nodes.sbatch");
  const fs::path program = fs::read_symlink("/proc/self/exe", unreadable);
  const fs::path installed = program.parent_path().parent_path() / "share/ditrain/slurm" / clone.filename();
  return (!fs::exists(clone, unreadable) && fs::exists(installed, unreadable) ? installed : clone).string();
}

std::string launch_lines(const ClusterPlan& plan, const PlannedRun& run, const std::string& arguments) {
  const int nodes = plan.machine.platform.nodes, per_node = run.choice.ranks_per_node;
  const std::string all = arguments + sets_of(plan, run);
  return fmt::format("     {} -np {} --map-by ppr:{}:node:PE={} --bind-to core ditrain {}\n", mpirun(),
                     nodes * per_node, per_node, run.cores, all) +
         fmt::format("     sbatch --nodes={} --ntasks-per-node={} --cpus-per-task={} {} {}\n", nodes, per_node,
                     run.cores * plan.machine.threads_per_core, batch_job(), all);
}

struct Part {
  const char* name;
  double ClusterStep::*seconds;
  const char* more;  ///< why a step with more of it is slower
};
constexpr Part kParts[] = {
    {"compute", &ClusterStep::compute_s, "computes more"},
    {"weights", &ClusterStep::weights_s, "reads weights more often or from other dies"},
    {"activations", &ClusterStep::tensor_s, "ranks sum activations"},
    {"tiers", &ClusterStep::stall_s, "waits for tensors of slower memory"},
    {"update", &ClusterStep::update_s, "updates more weights per rank"},
    {"outer steps", &ClusterStep::outer_s, "passes over more weights in outer steps"},
    {"exposed", &ClusterStep::exposed_s, "more communication that nothing hides"},
};

std::string parts_of(const ClusterStep& step) {
  std::string text;
  for (const Part& part : kParts)
    if (const double share = step.*part.seconds / step.total_s; share >= 0.001)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", part.name, 100 * share);
  return text;
}

std::string text_of(const Choice& c) {
  return fmt::format("{} rank(s) per node{}, micro-batch {}, recompute {}{}{}, buckets of {} MiB", c.ranks_per_node,
                     c.tensor_ranks > 1 ? fmt::format(", {} per replica", c.tensor_ranks) : "", c.micro_batch,
                     word_of(c.recompute), c.tiers ? ", tiers" : "", c.shards ? ", shards" : "", c.bucket_mib);
}

std::string outer_line(const PlannedRun& run) {
  if (!run.step.outer) return "";
  const OuterStepCost& outer = *run.step.outer;
  return fmt::format(
      "     every {} steps an outer step: {:.3g} s on the wire; a rank waits {:.3g} s{} and "
      "passes over the weights for {:.3g} s\n",
      run.config.dist.outer->every, outer.wire_s, outer.exposed_s,
      run.config.dist.outer->overlap ? " (the rest hides behind the next steps)" : "", outer.passes_s);
}

std::string text_of(const ClusterPlan& plan, const PlannedRun& run, const std::string& arguments, size_t number) {
  return fmt::format("  {}. {:.4g} s per step, {:.4g} images/s; {} of {} per rank\n", number, run.step.total_s,
                     double(plan.wanted.train.global_batch) / run.step.total_s, format_bytes(run.bytes),
                     format_bytes(run.limit_bytes)) +
         fmt::format("     {}; {} core(s) in {} cluster(s) each\n", text_of(run.choice), run.cores, run.clusters) +
         fmt::format("     {}\n", parts_of(run.step)) + outer_line(run) + launch_lines(plan, run, arguments);
}

/// Runs that differ by more than the buckets.
std::vector<const PlannedRun*> best_of(const ClusterPlan& plan) {
  std::vector<const PlannedRun*> best;
  const auto without_buckets = [](const PlannedRun& r) {
    const Choice& c = r.choice;
    return std::tuple(c.ranks_per_node, c.tensor_ranks, c.micro_batch, c.recompute, c.tiers, c.shards);
  };
  for (const PlannedRun& run : plan.fitting) {
    const bool known = std::any_of(best.begin(), best.end(), [&](const PlannedRun* other) {
      return without_buckets(*other) == without_buckets(run);
    });
    if (!known && best.size() < kBest) best.push_back(&run);
  }
  return best;
}

/// A setting, and its value as text.
struct Setting {
  const char* name;
  std::function<std::string(const Choice&)> value;
};
const std::vector<Setting> kSettings = {
    {"ranks per node", [](const Choice& c) { return std::to_string(c.ranks_per_node); }},
    {"ranks per replica", [](const Choice& c) { return std::to_string(c.tensor_ranks); }},
    {"micro-batch", [](const Choice& c) { return std::to_string(c.micro_batch); }},
    {"recompute", [](const Choice& c) { return std::string(word_of(c.recompute)); }},
    {"tiers", [](const Choice& c) { return std::string(c.tiers ? "on" : "off"); }},
    {"shards", [](const Choice& c) { return std::string(c.shards ? "on" : "off"); }},
    {"buckets of MiB", [](const Choice& c) { return fmt::format("{}", c.bucket_mib); }},
};

std::string why_slower(const ClusterStep& best, const ClusterStep& other) {
  const Part* most = &kParts[0];
  const auto more = [&](const Part& part) { return other.*part.seconds - best.*part.seconds; };
  for (const Part& part : kParts)
    if (more(part) > more(*most)) most = &part;
  if (other.total_s <= best.total_s * (1 + kSameTime)) return "the same time";
  return fmt::format("+{:.3g} %: {} (+{:.3g} s)", 100 * (other.total_s / best.total_s - 1), most->more, more(*most));
}

/// For each setting the values that the best run does not have: the fastest run with each of them, or what is missing.
std::string why_others_lose(const ClusterPlan& plan) {
  const PlannedRun& best = plan.fitting.front();
  std::string text = "why not otherwise (the fastest run with each other value):\n";
  for (const Setting& setting : kSettings) {
    std::vector<std::string> told = {setting.value(best.choice)};
    const auto is_new = [&](const PlannedRun& run) {
      const std::string value = setting.value(run.choice);
      if (std::find(told.begin(), told.end(), value) != told.end()) return false;
      told.push_back(value);
      return true;
    };
    const auto add = [&](const std::string& why) {
      text += fmt::format("  {:<18}{:<10}{}\n", setting.name, told.back(), why);
    };
    for (const PlannedRun& run : plan.fitting)
      if (is_new(run)) add(why_slower(best.step, run.step));
    for (const PlannedRun& run : plan.too_large)
      if (is_new(run))
        add(fmt::format("does not fit: {} per rank, {} too much", format_bytes(run.bytes),
                        format_bytes(run.bytes - run.limit_bytes)));
  }
  return text;
}

}  // namespace

PlannedMachine machine_of(const ClusterDescription& platform, DType precision) {
  PlannedMachine machine{.platform = platform, .rates = rates_of(platform.die, precision)};
  machine.threads_per_core = platform.die.threads_per_core;
  if (precision == DType::kF32 && platform.die.flop_bf16_per_s > platform.die.flop_f32_per_s)
    machine.bf16_rates = rates_of(platform.die, DType::kBF16);
  return machine;
}

PlannedMachine measure_this_machine(const config::Config& config) {
  const auto alone = dist::make_null_communicator();
  const Placement placement = plan_placement(config, *alone);
  const platform::Topology& topology = placement.topology;
  if (!topology.is_this_machine)
    refuse("platform", "the topology is not that of this machine, whose rates can be measured", "", "",
           "--platform FILE");
  parallel::Team team(placement.team());
  const DType precision = config.train.precision;
  PlannedMachine machine;
  machine.rates = measure_rates(team, precision);
  machine.node_bytes = platform::memory_limit().bytes;
  machine.threads_per_core = std::max(1, topology.pus / std::max(1, topology.cores));
  ClusterDescription& p = machine.platform;
  p.name = topology.machine;
  const std::set<int> domains(topology.allowed_domains.begin(), topology.allowed_domains.end());
  p.dies_per_node = std::max(1, int(domains.size()));
  Die& die = p.die;
  platform::ThreadCount limit = platform::default_threads(topology, {});  // as ranks of this job obey it
  if (limit.ruled_by == "SLURM_CPUS_PER_TASK")                            // of one rank of several on this node
    if (const char* tasks = std::getenv("SLURM_NTASKS_PER_NODE")) limit.threads *= std::max(1, std::atoi(tasks));
  die.cores = std::max(1, std::min(topology.allowed_cores, limit.threads) / p.dies_per_node);
  if (limit.threads < topology.allowed_cores)
    p.name += fmt::format(" ({} of {} cores: {})", limit.threads, topology.allowed_cores, limit.ruled_by);
  const double cores = die.cores;
  const auto peak = [&](DType type) {  // other programs can only lower it
    double highest = 0;
    for (int i = 0; i < 20; ++i) highest = std::max(highest, kernels::measure_fma_peak(type, 1e-3));
    return cores * highest;
  };
  die.flop_f32_per_s = peak(DType::kF32), die.flop_bf16_per_s = peak(DType::kBF16);
  const double of_peak =
      precision == DType::kBF16 && die.flop_bf16_per_s > 0 ? die.flop_bf16_per_s : die.flop_f32_per_s;
  if (precision == DType::kF32 && die.flop_bf16_per_s > die.flop_f32_per_s)
    machine.bf16_rates = measure_rates(team, DType::kBF16);
  const WorkerRates& rates = machine.rates.in_team;
  die.share = cores / (rates.gemm_s * rates.overhead) / of_peak;
  die.memory_gb = double(machine.node_bytes) / 1e9 / p.dies_per_node;
  const double pass_bytes_per_s = kPassesOfUpdate * sizeof(float) / rates.parameter_s / rates.overhead * cores;
  die.memory_gb_per_s = pass_bytes_per_s / 1e9;
  p.inside = {.gb_per_s = pass_bytes_per_s / kPassesOfSum / 1e9, .latency_us = 1};
  return machine;
}

namespace {

// Groups of dist.outer are the nodes of the platform here, and links are those of its tree.
void check_outer(const config::Config& wanted, const ClusterDescription& platform) {
  if (!wanted.dist.outer) return;
  if (platform.nodes == 1)
    refuse("plan", "dist.outer averages over nodes", "1 node", "2 or more",
           "--platform FILE --nodes N, or --set dist.outer=off");
  if (wanted.dist.simulate_link)
    refuse("plan", "with dist.outer the nodes and links are those of the platform", "dist.simulate_link is set", "off",
           "--set dist.simulate_link=off");
}

}  // namespace

ClusterPlan plan_cluster(const config::Config& wanted, const InputFacts& facts, const PlannedMachine& machine) {
  check_outer(wanted, machine.platform);
  Planner planner(wanted, facts, machine);
  planner.try_all();
  planner.try_bf16();
  ClusterPlan plan = std::move(planner).take();
  if (plan.fitting.empty() && plan.too_large.empty())
    refuse("plan", "no placement on this cluster is allowed; the first refusal: " + plan.refusal);
  return plan;
}

std::string describe(const ClusterPlan& plan, const std::string& arguments) {
  if (plan.fitting.empty()) {
    const PlannedRun& nearest = plan.too_large.front();
    refuse("plan",
           fmt::format("none of {} placements fits the memory; nearest is {}", plan.too_large.size(),
                       text_of(nearest.choice)),
           format_bytes(nearest.bytes) + " per rank", "at most " + format_bytes(nearest.limit_bytes),
           "more nodes, or dies with more memory");
  }
  std::string text = describe(plan.machine.platform);
  text += fmt::format("{} placements of a global batch of {}: {} fit, {} do not, {} are not allowed\n",
                      plan.fitting.size() + plan.too_large.size() + size_t(plan.not_allowed),
                      plan.wanted.train.global_batch, plan.fitting.size(), plan.too_large.size(), plan.not_allowed);
  text += fmt::format("times within {:g} % count as equal: of those, what changes the config least comes first\n",
                      100 * kSameTime);
  size_t number = 0;
  for (const PlannedRun* run : best_of(plan)) text += text_of(plan, *run, arguments, ++number);
  if (plan.bf16_s > 0 && plan.bf16_s < plan.fitting.front().step.total_s)
    text += fmt::format("  with --set train.precision=bf16 the first takes {:.4g} s per step\n", plan.bf16_s);
  return text + why_others_lose(plan);
}

std::string list_all(const ClusterPlan& plan) {
  std::string text = "  s per step  of it exposed  bytes per rank  placement\n";
  for (const PlannedRun& run : plan.fitting)
    text += fmt::format("  {:<12.4g}{:<15.4g}{:<16}{}\n", run.step.total_s, run.step.exposed_s, format_bytes(run.bytes),
                        text_of(run.choice));
  for (const PlannedRun& run : plan.too_large)
    text += fmt::format("  {:<27}{:<16}{}\n", "does not fit", format_bytes(run.bytes), text_of(run.choice));
  return text;
}

}  // namespace ditrain::plan
