// The simulation on SimGrid's S4U. Each rank (or each node as one, see SimulationOptions::every_die) has an actor for
// its main thread, and one for each stage through which the engine takes a bucket: sum in the node, exchange between
// nodes (first ranks only), copies to the ranks. Stages hand buckets on by semaphores, so that they overlap as in
// dist/engine.cpp: one bucket per stage, two under way.
//
// Every host pair that talks has its route: up through the switches to the lowest common one, and down.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xbt/log.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <simgrid/s4u.hpp>

#include "cluster_simulation.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"

namespace ditrain::bench {
namespace {

namespace sg = simgrid::s4u;

double clock_s() { return sg::Engine::get_clock(); }
void sleep_s(double seconds) {
  constexpr double kLeast_s = 1e-9;  // SimGrid's precision
  if (seconds > kLeast_s) sg::this_actor::sleep_for(seconds);
}
double uniform_of(int64_t seed, uint64_t kind, uint64_t i) {
  return RandomKey(uint64_t(seed), Stream::kTimestep, kind, i).uniform(0);
}

// The hosts and links of a platform.
class Network {
 public:
  Network(const plan::ClusterDescription& cluster, const SimulationOptions& options)
      : cluster_(cluster), options_(options), zone_(sg::create_full_zone("cluster")) {
    for (int node = 0; node < cluster.nodes; ++node) nodes_.push_back(zone_->create_host(name("node", node), 1e9));
    if (cluster.nodes > 1) make_links();
  }
  sg::Host* node(int i) const { return nodes_[size_t(i)]; }

  /// Before seal(), once per pair.
  void connect(int from, int to) {
    std::vector<sg::LinkInRoute> route;
    const int top = cluster_.level_between(from, to);
    for (int level = 0; level <= top; ++level) route.emplace_back(link(up_, level, from));
    for (int level = top; level >= 0; --level) route.emplace_back(link(down_, level, to));
    zone_->add_route(node(from)->get_netpoint(), node(to)->get_netpoint(), nullptr, nullptr, route, false);
  }
  /// Dies of a node, each reaching the others over links of its own.
  std::vector<sg::Host*> add_dies(int node, int dies, double bytes_per_s, double latency_s) {
    std::vector<sg::Host*> hosts;
    std::vector<sg::Link*> out, in;
    for (int die = 0; die < dies; ++die) {
      const std::string id = name("die", node) + "." + std::to_string(die);
      hosts.push_back(zone_->create_host(id, 1e9));
      out.push_back(make_link(id + ".out", bytes_per_s, latency_s));
      in.push_back(make_link(id + ".in", bytes_per_s, 0));
    }
    for (int a = 0; a < dies; ++a)
      for (int b = 0; b < dies; ++b)
        if (a != b)
          zone_->add_route(hosts[size_t(a)]->get_netpoint(), hosts[size_t(b)]->get_netpoint(), nullptr, nullptr,
                           {sg::LinkInRoute(out[size_t(a)]), sg::LinkInRoute(in[size_t(b)])}, false);
    return hosts;
  }
  void seal() { zone_->seal(); }

 private:
  using Links = std::vector<std::vector<sg::Link*>>;  // of each level: those of its children, below

  static std::string name(const char* kind, int64_t i) { return kind + std::to_string(i); }
  sg::Link* make_link(const std::string& id, double bytes_per_s, double latency_s) {
    sg::Link* link = zone_->create_link(id, bytes_per_s);
    link->set_latency(latency_s);
    link->seal();
    return link;
  }
  // Level l has the links from its switches to their children: nodes (l = 0) or the switches of level l - 1.
  void make_links() {
    uint64_t number = 0;
    for (int level = 0; level < cluster_.num_levels(); ++level) {
      const int64_t below = cluster_.nodes_below(level - 1), count = (cluster_.nodes + below - 1) / below;
      const double rate = cluster_.uplink_bytes_per_s(level - 1),
                   latency = cluster_.tree[size_t(level)].latency_us * 1e-6;
      for (const auto& [links, kind] : {std::pair{&up_, "up"}, std::pair{&down_, "down"}}) {
        links->emplace_back();
        for (int64_t i = 0; i < count; ++i) {
          const bool busy = uniform_of(options_.seed, 1, number++) < options_.busy_links;
          links->back().push_back(make_link(name(kind, level) + "." + std::to_string(i),
                                            rate * (busy ? 1 - options_.busy_share : 1), latency));
        }
      }
    }
  }
  sg::Link* link(const Links& links, int level, int node) const {
    return links[size_t(level)][size_t(node / cluster_.nodes_below(level - 1))];
  }

  const plan::ClusterDescription& cluster_;
  const SimulationOptions& options_;
  sg::NetZone* zone_;
  std::vector<sg::Host*> nodes_;
  Links up_, down_;
};

// What exchanges of all nodes share.
struct World {
  const plan::ClusterDescription& cluster;
  const StepSchedule& schedule;
  const SimulationOptions& options;
  std::vector<std::vector<Flow>> flows;  // of each node
  std::vector<int> incoming;             // flows that end at a node
  int64_t messages = 0;

  bool sampled() const { return options.rounds > 0 && options.rounds < cluster.nodes - 1; }
  int parts_per_node() const { return options.every_die ? schedule.ranks_per_node : 1; }
  int parts() const { return cluster.nodes * parts_per_node(); }
};

sg::CommPtr put(World& world, const std::string& box, double bytes) {
  static char payload;
  ++world.messages;
  return sg::Mailbox::by_name(box)->put_async(&payload, uint64_t(std::llround(std::max(1.0, bytes))));
}
sg::CommPtr get(const std::string& box, char** into) { return sg::Mailbox::by_name(box)->get_async<char>(into); }

// The engine's way of a bucket, for all ranks.
class Engine {
 public:
  Engine(World& world, const std::string& name, bool between_nodes, const Network& network,
         const std::vector<std::vector<sg::Host*>>& dies)
      : world_(world),
        name_(name),
        between_nodes_(between_nodes),
        all_nodes_(sg::Barrier::create(world.cluster.nodes)) {
    const int per_node = world.parts_per_node();
    for (int node = 0; node < world.cluster.nodes; ++node) {
      nodes_.push_back({sg::Semaphore::create(0), sg::Barrier::create(per_node), sg::Barrier::create(per_node)});
      for (int i = 0; i < per_node; ++i) {
        ranks_.push_back({node,
                          i,
                          {},
                          sg::Semaphore::create(0),
                          sg::Semaphore::create(2),
                          sg::Semaphore::create(0),
                          sg::Semaphore::create(0)});
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      sg::Host* host = dies.empty() ? network.node(rank.node) : dies[size_t(rank.node)][size_t(rank.local)];
      add_stage("sum", host, [this, &rank] { sum_in_node(rank); });
      add_stage("copy", host, [this, &rank] { copy_to_ranks(rank); });
      if (rank.local == 0) add_stage("exchange", network.node(rank.node), [this, &rank] { exchange_with_nodes(rank); });
    }
  }

  void start(int rank, const Exchange& exchange) {
    ranks_[size_t(rank)].started.push_back(&exchange);
    ranks_[size_t(rank)].ready->release();
  }
  /// Returns when the next one has arrived, in the order of the starts.
  void await(int rank) { ranks_[size_t(rank)].arrived->acquire(); }

 private:
  struct Rank {
    int node, local;
    std::deque<const Exchange*> started;
    sg::SemaphorePtr ready, slots, exchanged, arrived;
  };
  struct Node {
    sg::SemaphorePtr summed;
    sg::BarrierPtr before, after;
  };
  enum Phase { kScatter, kGather };

  template <class F>
  void add_stage(const char* stage, sg::Host* host, F f) {
    sg::Actor::create(name_ + stage, host, f)->daemonize();
  }
  Node& node_of(const Rank& rank) { return nodes_[size_t(rank.node)]; }
  static void meet(const sg::BarrierPtr& barrier, int of) {
    if (of > 1) barrier->wait();
  }
  bool whole_ring() const { return world_.options.algorithm == SumAlgorithm::kRing; }

  void sum_in_node(Rank& rank) {
    for (size_t k = 0;; ++k) {
      rank.slots->acquire();
      rank.ready->acquire();
      meet(node_of(rank).before, world_.parts_per_node());
      move_in_node(rank, *rank.started[k], "sum");
      meet(node_of(rank).before, world_.parts_per_node());
      if (rank.local == 0) node_of(rank).summed->release();
    }
  }
  void exchange_with_nodes(Rank& first) {
    for (size_t k = 0;; ++k) {
      node_of(first).summed->acquire();
      if (between_nodes_ && world_.cluster.nodes > 1) exchange(first.node, *first.started[k]);
      for (int i = 0; i < world_.parts_per_node(); ++i)
        ranks_[size_t(first.node * world_.parts_per_node() + i)].exchanged->release();
    }
  }
  void copy_to_ranks(Rank& rank) {
    for (size_t k = 0;; ++k) {
      rank.exchanged->acquire();
      move_in_node(rank, *rank.started[k], "copy");
      meet(node_of(rank).after, world_.parts_per_node());
      rank.slots->release();
      rank.arrived->release();
    }
  }

  // Each rank gets (or sends) its slice from (to) each other rank of the node.
  void move_in_node(const Rank& rank, const Exchange& e, const std::string& stage) {
    const StepSchedule& s = world_.schedule;
    const int ranks = s.ranks_per_node;
    if (ranks == 1 || whole_ring()) return;
    const double slice = e.node_bytes / ranks;
    if (!world_.options.every_die) return sleep_s(s.node_latency_s + (ranks - 1) * slice / s.node_bytes_per_s);
    std::vector<sg::CommPtr> comms;
    std::vector<char*> got(static_cast<size_t>(ranks));
    const auto box = [&](int local) { return fmt::format("{}{}.{}.{}", name_, stage, rank.node, local); };
    for (int i = 1; i < ranks; ++i) {
      comms.push_back(get(box(rank.local), &got[size_t(i)]));
      comms.push_back(put(world_, box((rank.local + i) % ranks), slice));
    }
    sg::Comm::wait_all(comms);
  }

  void exchange(int node, const Exchange& e) {
    if (whole_ring()) return ring(node, e);
    const double nodes = world_.cluster.nodes,
                 others = world_.schedule.leaders_per_node * e.wire_bytes * (nodes - 1) / nodes;
    if (e.gathers) return all_to_all(node, others, kGather);
    all_to_all(node, others, kScatter);
    sleep_s(e.node_bytes / world_.schedule.node_bytes_per_s);  // adds the slices
    if (world_.options.algorithm != SumAlgorithm::kReduceScatter) all_to_all(node, others, kGather);
  }

  // A node is done when it has the slices of all others. Where some rounds stand for all, the slowest of them does.
  void all_to_all(int node, double bytes, Phase phase) {
    const std::vector<Flow>& flows = world_.flows[size_t(node)];
    const auto box = [&](int of) { return fmt::format("{}{}.{}", name_, int(phase), of); };
    std::vector<char*> got(size_t(world_.incoming[size_t(node)]));
    std::vector<sg::CommPtr> comms;
    for (char*& into : got) comms.push_back(get(box(node), &into));
    for (const Flow& flow : flows) comms.push_back(put(world_, box(flow.to), flow.share * bytes));
    sleep_s(2e-6 * world_.options.message_us * (world_.cluster.nodes - 1));  // beside the messages
    sg::Comm::wait_all(comms);
    if (world_.sampled()) all_nodes_->wait();
  }

  // All ranks, node after node: one message per node and turn crosses to the next node, the others stay inside.
  void ring(int node, const Exchange& e) {
    const StepSchedule& s = world_.schedule;
    const int nodes = world_.cluster.nodes, ranks = nodes * s.ranks_per_node, turns = (e.gathers ? 1 : 2) * (ranks - 1);
    const int simulated = world_.sampled() ? std::min(turns, 8 * world_.options.rounds) : turns;
    const double slice = s.leaders_per_node * e.wire_bytes / ranks,
                 inside_s = s.ranks_per_node > 1 ? s.node_latency_s + slice / s.node_bytes_per_s : 0;
    const auto box = [&](int of) { return fmt::format("{}ring.{}", name_, of); };
    const double start = clock_s();
    for (int turn = 0; turn < simulated; ++turn) {
      const double turn_start = clock_s();
      char* got = nullptr;
      std::vector<sg::CommPtr> comms = {get(box(node), &got), put(world_, box((node + 1) % nodes), slice)};
      sleep_s(2e-6 * world_.options.message_us);
      sg::Comm::wait_all(comms);
      sleep_s(turn_start + inside_s - clock_s());
    }
    sleep_s((clock_s() - start) * double(turns - simulated) / double(simulated));
  }

  World& world_;
  const std::string name_;
  const bool between_nodes_;
  sg::BarrierPtr all_nodes_;
  std::deque<Rank> ranks_;
  std::deque<Node> nodes_;
};

// What main threads tell of a step.
struct Tally {
  double end_s = 0;
  double compute_s = 0, waited_s = 0;  // of all ranks together
  double least_waited_s = INFINITY;
};

class Simulation {
 public:
  /// `done` is called by the last rank, inside the simulation: what is under way then never ends.
  Simulation(const plan::ClusterDescription& cluster, const StepSchedule& schedule, const SimulationOptions& options,
             std::function<void(const SimulatedStep&)> done)
      : done_(std::move(done)),
        world_{cluster,
               schedule,
               options,
               std::vector<std::vector<Flow>>(size_t(cluster.nodes)),
               std::vector<int>(size_t(cluster.nodes)),
               0},
        network_(cluster, options),
        everybody_(sg::Barrier::create(world_.parts())),
        steps_(size_t((1 + counted(options)) * every())),
        slow_(size_t(cluster.nodes), false) {
    lay_out();
    choose_slow_nodes();
    const bool local_sums = !outer() || schedule.ranks_per_node > 1;
    if (local_sums) gradients_.emplace(world_, "gradients.", !outer(), network_, dies_);
    if (outer()) parameters_.emplace(world_, "parameters.", true, network_, dies_);
    for (int rank = 0; rank < world_.parts(); ++rank)
      sg::Actor::create("main", network_.node(rank / world_.parts_per_node()), [this, rank] { main_thread(rank); });
  }

 private:
  struct Mine {
    double compute_s = 0, waited_s = 0;
  };

  static int64_t counted(const SimulationOptions& o) { return o.steps > 0 ? o.steps : o.jitter > 0 ? 2 : 1; }
  int64_t every() const { return outer() ? world_.options.outer_every : 1; }
  bool outer() const {
    return world_.options.algorithm == SumAlgorithm::kOuter ||
           world_.options.algorithm == SumAlgorithm::kOuterOverlapped;
  }

  void lay_out() {
    const plan::ClusterDescription& cluster = world_.cluster;
    const StepSchedule& s = world_.schedule;
    const bool ring = world_.options.algorithm == SumAlgorithm::kRing;
    std::vector<Flow> flows;
    if (!ring)
      flows = flows_of(cluster, world_.options.rounds);
    else if (cluster.nodes > 1)
      for (int node = 0; node < cluster.nodes; ++node) flows.push_back({node, (node + 1) % cluster.nodes, 1});
    std::map<std::pair<int, int>, bool> connected;
    for (const Flow& flow : flows) {
      world_.flows[size_t(flow.from)].push_back(flow);
      ++world_.incoming[size_t(flow.to)];
      if (!std::exchange(connected[{flow.from, flow.to}], true)) network_.connect(flow.from, flow.to);
    }
    if (world_.options.every_die)
      for (int node = 0; node < cluster.nodes; ++node)
        dies_.push_back(network_.add_dies(node, s.ranks_per_node, s.node_bytes_per_s, s.node_latency_s));
    network_.seal();
  }

  void choose_slow_nodes() {
    std::vector<int> order(slow_.size());
    std::iota(order.begin(), order.end(), 0);
    const int64_t seed = world_.options.seed;
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return uniform_of(seed, 2, uint64_t(a)) < uniform_of(seed, 2, uint64_t(b)); });
    for (int64_t i = 0; i < world_.options.slow_nodes; ++i) slow_[size_t(order[size_t(i)])] = true;
  }

  // A rank is as slow as the slowest of its dies.
  double factor(int rank, int64_t step) const {
    const SimulationOptions& o = world_.options;
    const int dies = world_.cluster.dies_per_node / world_.parts_per_node();
    double slowest = o.jitter > 0 ? 0 : 1;
    for (int die = rank * dies; o.jitter > 0 && die < (rank + 1) * dies; ++die) {
      const double normal = RandomKey(uint64_t(o.seed), Stream::kNoise, uint64_t(step), uint64_t(die)).normal(0);
      slowest = std::max(slowest, std::exp(o.jitter * normal - 0.5 * o.jitter * o.jitter));
    }
    return slowest * (slow_[size_t(rank / world_.parts_per_node())] ? o.slow_factor : 1);
  }

  void main_thread(int rank) {
    bool travelling = false;
    for (size_t step = 0; step < steps_.size(); ++step) {
      Mine mine;
      train(rank, factor(rank, int64_t(step)), mine);
      if (outer() && (int64_t(step) + 1) % every() == 0) {
        if (travelling) apply_outer_sums(rank, mine);
        sleep_s(world_.schedule.take_s);
        for (const Exchange& e : world_.schedule.outer) parameters_->start(rank, e);
        travelling = world_.options.algorithm == SumAlgorithm::kOuterOverlapped;
        if (!travelling) apply_outer_sums(rank, mine);
      }
      tell_facts(mine);
      Tally& t = steps_[step];
      t.end_s = clock_s();
      t.compute_s += mine.compute_s, t.waited_s += mine.waited_s;
      t.least_waited_s = std::min(t.least_waited_s, mine.waited_s);
    }
    if (++ended_ == world_.parts()) done_(result());
  }

  /// Means over the steps behind the first one (or the first `outer_every`).
  SimulatedStep result() const {
    SimulatedStep mean{.messages = world_.messages};
    const double counted = double(steps_.size()) - double(every());
    const double ranks = world_.parts();
    for (size_t i = size_t(every()); i < steps_.size(); ++i) {
      const Tally& t = steps_[i];
      mean.compute_s += t.compute_s / ranks / counted;
      mean.exposed_s += t.least_waited_s / counted;
      mean.slower_s += std::max(0.0, t.waited_s / ranks - t.least_waited_s) / counted;
    }
    mean.step_s = (steps_.back().end_s - steps_[size_t(every() - 1)].end_s) / counted;
    return mean;
  }

  void await(Engine& engine, int rank, Mine& mine) {
    const double start = clock_s();
    engine.await(rank);
    mine.waited_s += clock_s() - start;
  }

  // As train/train_step.cpp and train/gradient_sync.cpp.
  void train(int rank, double slower, Mine& mine) {
    const StepSchedule& s = world_.schedule;
    const double start = clock_s();
    mine.compute_s = slower * s.compute_s;
    if (!gradients_) return sleep_s(mine.compute_s + s.update_s() + s.rest_s);
    for (const Exchange& e : s.sums) {
      sleep_s(start + slower * (s.overlap ? e.ready_s : s.compute_s) - clock_s());
      gradients_->start(rank, e);
    }
    sleep_s(start + slower * s.compute_s - clock_s());
    const auto update = [&](size_t k) {
      sleep_s(s.sums[k].update_s);
      if (!s.new_weights.empty()) gradients_->start(rank, s.new_weights[k]);
    };
    for (size_t k = 0; k < s.sums.size(); ++k) {
      await(*gradients_, rank, mine);
      if (s.early) update(k);
    }
    for (size_t k = 0; !s.early && k < s.sums.size(); ++k) update(k);
    for (size_t k = 0; k < s.new_weights.size(); ++k) await(*gradients_, rank, mine);
    sleep_s(s.lone_update_s + s.rest_s);
  }

  // As train/outer_sync.cpp.
  void apply_outer_sums(int rank, Mine& mine) {
    for (size_t k = 0; k < world_.schedule.outer.size(); ++k) await(*parameters_, rank, mine);
    sleep_s(world_.schedule.apply_s);
  }

  // The small all-reduce with which a step ends.
  void tell_facts(Mine& mine) {
    const plan::ClusterDescription& cluster = world_.cluster;
    const double start = clock_s();
    if (world_.parts() > 1) everybody_->wait();
    if (cluster.nodes > 1)
      sleep_s(2 * std::ceil(std::log2(double(cluster.nodes))) *
              cluster.latency_s(cluster.level_between(0, cluster.nodes - 1)));
    mine.waited_s += clock_s() - start;
  }

  const std::function<void(const SimulatedStep&)> done_;
  int ended_ = 0;  // ranks
  World world_;
  Network network_;
  std::vector<std::vector<sg::Host*>> dies_;  // of each node; none: nodes are simulated as one rank
  sg::BarrierPtr everybody_;
  std::vector<Tally> steps_;
  std::vector<bool> slow_;
  std::optional<Engine> gradients_, parameters_;
};

// In a process of its own, whose end it is.
[[noreturn]] void run(const plan::ClusterDescription& cluster, const StepSchedule& schedule,
                      const SimulationOptions& options, int pipe_end) {
  char name[] = "ditbench";
  char* arguments[] = {name, nullptr};
  int count = 1;
  xbt_log_control_set("root.thresh:error");
  sg::Engine engine(&count, arguments);
  // Flows share links max-min fairly, at their whole rate whatever the window of TCP and its acknowledgements.
  for (const char* setting : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                              "contexts/stack-size:64", "contexts/guard-size:0"})
    sg::Engine::set_config(setting);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  sg::Engine::set_config("contexts/factory:thread");  // they know threads, not SimGrid's own stacks
#endif
  const Simulation simulation(cluster, schedule, options, [pipe_end](const SimulatedStep& step) {
    const bool told = ::write(pipe_end, &step, sizeof step) == ssize_t(sizeof step);
    ::_exit(told ? 0 : 1);
  });
  engine.run();
  ::_exit(1);
}

void check(const plan::ClusterDescription& cluster, const SimulationOptions& o) {
  if (o.algorithm == SumAlgorithm::kRing && cluster.nodes > kMostRingNodes)
    refuse("ditbench", "a ring over all ranks has too many dependent messages to simulate",
           fmt::format("{} nodes", cluster.nodes), fmt::format("at most {}", kMostRingNodes),
           "--ways two_level, which is what the engine does");
  if (o.slow_nodes > cluster.nodes)
    refuse("ditbench", "more slow nodes than nodes", fmt::format("{} of {}", o.slow_nodes, cluster.nodes), "",
           "--slow with fewer nodes");
}

}  // namespace

bool has_simgrid() { return true; }

SimulatedStep simulate(const plan::ClusterDescription& cluster, const StepSchedule& schedule,
                       const SimulationOptions& options) {
  check(cluster, options);
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw RunError({.where = "ditbench", .what = "no pipe", .got = std::strerror(errno)});
  const double start = now_s();
  const pid_t child = ::fork();
  if (child < 0) throw RunError({.where = "ditbench", .what = "no process", .got = std::strerror(errno)});
  if (child == 0) {
    ::close(pipe_ends[0]);
    try {
      run(cluster, schedule, options, pipe_ends[1]);
    } catch (...) {  // no memory, or an error of SimGrid: it must not go on as a second ditbench
      ::_exit(1);
    }
  }
  ::close(pipe_ends[1]);
  SimulatedStep step;
  const bool heard = ::read(pipe_ends[0], &step, sizeof step) == ssize_t(sizeof step);
  ::close(pipe_ends[0]);
  int status = 0;
  rusage used{};
  while (::wait4(child, &status, 0, &used) < 0 && errno == EINTR) {
  }
  if (!heard || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw RunError({.where = "ditbench",
                    .what = fmt::format("the simulation of {} nodes ended without a result", cluster.nodes),
                    .got = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : "an error of SimGrid"});
  step.wall_s = now_s() - start;
  step.peak_bytes = int64_t(used.ru_maxrss) * 1024;
  return step;
}

}  // namespace ditrain::bench
