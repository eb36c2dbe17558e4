#include "ditrain/train/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dist/clock_offset.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/ops/gemm.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/memory_plan.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::train {
namespace {

constexpr int kLinkTag = 2;  // 0 and 1 are those of the clocks

// Calls of `work` by all ranks at once for so many seconds; per second, in the best of three parts.
template <class F>
double calls_per_second(dist::Communicator& comm, double seconds, const F& work) {
  work();  // takes the memory
  double best = 0;
  for (int part = 0; part < 3; ++part) {
    comm.barrier();
    const double start = now_s();
    int calls = 0;
    do work(), ++calls;
    while (now_s() - start < seconds / 3);
    best = std::max(best, calls / (now_s() - start));
  }
  return best;
}

double gemm_gflops(dist::Communicator& comm, ops::Context& ctx, DType precision, double seconds) {
  constexpr int64_t n = 1024;
  const Tensor a({n, n}, precision), b({n, n}, precision), c({n, n});
  for (const Tensor* t : {&a, &b, &c}) fill_zero(*t);
  const auto product = [&](const auto* x, const auto* y) {
    const Pin<float> out(c);
    ops::gemm(ctx, {.m = n,
                    .n = n,
                    .k = n,
                    .a = x,
                    .lda = n,
                    .b = y,
                    .ldb = n,
                    .c = out,
                    .ldc = n,
                    .a_type = precision,
                    .b_type = precision,
                    .arithmetic = precision});
  };
  const double rate = calls_per_second(comm, seconds, [&] {
    if (precision == DType::kBF16) {
      const Pin<BFloat16> x(a), y(b);
      product(x.get(), y.get());
    } else {
      const Pin<float> x(a), y(b);
      product(x.get(), y.get());
    }
  });
  return rate * 2 * double(n * n * n) / 1e9;
}

double memory_gb_s(dist::Communicator& comm, ops::Context& ctx, double seconds) {
  constexpr int64_t kElements = int64_t{64} << 20;  // 256 MiB: more than the caches of a rank
  const Tensor array({kElements});
  const Pin<float> values(array);
  ctx.for_range(kElements, 1 << 12, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::fill(values + begin, values + end, 1.0f);  // pages lie near those who read them
  });
  const double rate = calls_per_second(comm, seconds, [&] {
    ctx.for_range(kElements, 1 << 12, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      float* part = values + begin;
      kernels::stream_pass({.reads = 1}, &part, end - begin);
    });
  });
  return rate * double(kElements) * sizeof(float) / 1e9;
}

// Between the first ranks of the nodes, in pairs that all send and receive at once; the best of all partners, so that a
// slow node is not taken for its neighbours.
double link_gbit_s(dist::Communicator& comm) {
  constexpr size_t kBytes = size_t{8} << 20;
  constexpr int kMessages = 5;
  const std::vector<int> nodes = comm.nodes();
  const int mine = nodes[size_t(comm.rank())], num_nodes = comm.num_nodes();
  const auto leader = [&](int node) { return int(std::find(nodes.begin(), nodes.end(), node) - nodes.begin()); };
  double best = 0;
  for (int round = 0; num_nodes > 1 && round < link_rounds(num_nodes); ++round) {
    const int partner = leader(mine) == comm.rank() ? link_partner(mine, round, num_nodes) : -1;
    std::vector<std::byte> out(partner >= 0 ? kBytes : 0), in(partner >= 0 ? kBytes : 0);
    for (int i = 0; i < kMessages; ++i) {
      comm.barrier();
      if (partner < 0) continue;
      const double start = now_s();
      const auto receive = comm.start_receive(in.data(), kBytes, leader(partner), kLinkTag);
      const auto send = comm.start_send(out.data(), kBytes, leader(partner), kLinkTag);
      comm.await(*send, "a message to another node");
      comm.await(*receive, "a message from another node");
      best = std::max(best, double(kBytes) * 8e-9 / (now_s() - start));
    }
  }
  return best;
}

double free_memory_gib(const plan::Placement& placement) {
  double bytes = 0;
  for (const auto& [node, available] : placement.free_memory)
    bytes += double(available.free_bytes + available.cached_bytes);
  return bytes / 0x1p30;
}

// A launcher that binds each rank to one core leaves the rest of the node idle.
void check_mask(const plan::Placement& placement, dist::Communicator& comm) {
  const int cores = placement.topology.allowed_cores, wanted = placement.topology.cores / comm.local_size();
  double starved = placement.pus.empty() || cores > 1 || wanted <= 1 ? 0 : 1;
  comm.allreduce_sum(&starved, 1);
  if (starved == 0) return;
  throw InputError({.where = "preflight",
                    .what = fmt::format("{} of {} rank(s) have one core each", starved, comm.world_size()),
                    .got = fmt::format("{} of the {} cores of {} for {} rank(s)", cores, placement.topology.cores,
                                       comm.host(comm.rank()), comm.local_size()),
                    .expected = fmt::format("about {} cores per rank", wanted),
                    .hint = fmt::format("mpirun --map-by slot:PE={} --bind-to core, or srun --cpus-per-task={}", wanted,
                                        wanted * std::max(1, placement.topology.pus / placement.topology.cores))});
}

std::string table_of(const std::vector<NodeFacts>& nodes) {
  size_t width = 4;
  for (const NodeFacts& n : nodes) width = std::max(width, n.host.size());
  std::string text =
      fmt::format("{:<{}}  ranks  cores  {:>12}  {:>11}  {:>12}  {:>10}  {:>8}  {:>9}  {:>9}\n", "node", width,
                  "GEMM GFLOP/s", "memory GB/s", "link Gbit/s", "latency us", "clock s", "RAM GiB", "disk GiB");
  const auto known = [](double value, int digits) {
    return value == 0 ? std::string("-") : fmt::format("{:.{}f}", value, digits);
  };
  for (const NodeFacts& n : nodes)
    text += fmt::format("{:<{}}  {:>5}  {:>5}  {:>12.1f}  {:>11.1f}  {:>12}  {:>10}  {:>8.3f}  {:>9}  {:>9}\n", n.host,
                        width, n.ranks, n.cores_of_rank, n.gemm_gflops, n.memory_gb_s, known(n.link_gbit_s, 2),
                        known(n.latency_us, 1), n.clock_s, known(n.free_memory_gib, 1), known(n.free_disk_gib, 1));
  return text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// On rank 0, from the numbers of all ranks.
std::vector<NodeFacts> gather_nodes(dist::Communicator& comm, const NodeFacts& mine) {
  const double numbers[] = {double(mine.cores_of_rank), mine.gemm_gflops,  mine.memory_gb_s,
                            mine.link_gbit_s,           mine.latency_us,   mine.clock_s,
                            mine.free_memory_gib,       mine.free_disk_gib};
  constexpr int64_t kNumbers = std::size(numbers);
  const std::vector<double> all = comm.gather(numbers, kNumbers);
  const std::vector<int> node_of = comm.nodes();
  std::vector<NodeFacts> nodes(comm.rank() == 0 ? size_t(comm.num_nodes()) : 0);
  for (size_t rank = 0; rank < all.size() / size_t(kNumbers); ++rank) {
    NodeFacts& node = nodes[size_t(node_of[rank])];
    const double* of = all.data() + rank * size_t(kNumbers);
    const bool first = node.host.empty();
    if (first)
      node.host = comm.host(int(rank)), node.latency_us = of[4], node.clock_s = of[5], node.free_disk_gib = of[7];
    node.ranks = first ? 1 : node.ranks + 1;
    node.cores_of_rank = first ? int(of[0]) : std::min(node.cores_of_rank, int(of[0]));
    node.gemm_gflops += of[1], node.memory_gb_s += of[2], node.free_memory_gib += of[6];
    node.link_gbit_s = std::max(node.link_gbit_s, of[3]);
  }
  return nodes;
}

}  // namespace

int link_rounds(int num_nodes) { return num_nodes % 2 == 0 ? 2 : 3; }

int link_partner(int node, int round, int num_nodes) {
  const int last = num_nodes - 1;
  if (round == 2) return node == 0 ? last : node == last ? 0 : -1;
  const int place = (node + num_nodes - round) % num_nodes;
  if (place == last && place % 2 == 0) return -1;
  return (node + (place % 2 == 0 ? 1 : last)) % num_nodes;
}

PreflightVerdict find_problems(const std::vector<NodeFacts>& nodes, double needed_gib, double slow_share) {
  PreflightVerdict verdict{.shares = std::vector<double>(nodes.size(), 1)};
  struct Rate {
    const char* name;
    double NodeFacts::*of;
  };
  for (const auto& [name, of] : {Rate{"GEMM", &NodeFacts::gemm_gflops}, Rate{"memory", &NodeFacts::memory_gb_s},
                                 Rate{"link", &NodeFacts::link_gbit_s}}) {
    std::vector<double> values;
    for (const NodeFacts& node : nodes) values.push_back(node.*of);
    const double middle = median(values);
    for (size_t i = 0; i < nodes.size() && middle > 0; ++i) {
      const NodeFacts& node = nodes[i];
      verdict.shares[i] = std::min(verdict.shares[i], node.*of / middle);
      if (node.*of >= slow_share * middle) continue;
      verdict.problems.push_back(fmt::format("{} is slow: {} at {:.0f} % of the median of all nodes", node.host, name,
                                             100 * node.*of / middle));
      if (std::find(verdict.slow_hosts.begin(), verdict.slow_hosts.end(), node.host) == verdict.slow_hosts.end())
        verdict.slow_hosts.push_back(node.host);
    }
  }
  for (const NodeFacts& node : nodes) {
    if (std::abs(node.clock_s) > kMostClockSkew_s)
      verdict.problems.push_back(
          fmt::format("the clock of {} is {:+.1f} s from that of {}: dates of files and logs will "
                      "mislead; let chrony or ntpd set it",
                      node.host, node.clock_s, nodes.front().host));
    if (node.free_disk_gib > 0 && node.free_disk_gib < needed_gib)
      verdict.problems.push_back(
          fmt::format("{} has {:.1f} GiB free where the run folder will be; checkpoints take {:.1f} "
                      "GiB: another --out, or a smaller checkpoint.keep_last",
                      node.host, node.free_disk_gib, needed_gib));
  }
  return verdict;
}

std::string to_json(const std::vector<NodeFacts>& nodes, const PreflightVerdict& verdict) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeFacts& n = nodes[i];
    const nlohmann::ordered_json line = {
        {"host", n.host},
        {"ranks", n.ranks},
        {"cores_of_rank", n.cores_of_rank},
        {"gemm_gflops", n.gemm_gflops},
        {"memory_gb_s", n.memory_gb_s},
        {"link_gbit_s", n.link_gbit_s},
        {"latency_us", n.latency_us},
        {"clock_s", n.clock_s},
        {"free_memory_gib", n.free_memory_gib},
        {"free_disk_gib", n.free_disk_gib},
        {"share", verdict.shares[i]},
        {"slow", std::find(verdict.slow_hosts.begin(), verdict.slow_hosts.end(), n.host) != verdict.slow_hosts.end()}};
    lines.push_back(files::json_text(line));
  }
  return fmt::format("{{\n\"nodes\": [\n{}\n],\n\"slow\": {},\n\"problems\": {}\n}}\n", fmt::join(lines, ",\n"),
                     files::json_text(nlohmann::json(verdict.slow_hosts)),
                     files::json_text(nlohmann::json(verdict.problems)));
}

bool run_preflight(const config::Config& config, const std::string& out, dist::Communicator& comm,
                   const PreflightOptions& options) {
  const double seconds = options.seconds;
  const plan::Placement placement = plan::plan_placement(config, comm);
  check_mask(placement, comm);
  config::Config of_run = config;  // with dist.outer every node writes a state of its own
  if (config.dist.outer) of_run = plan::settle(config, {}, plan::ranks_of(comm)).config;
  const double needed_gib = plan::more_disk(plan::checkpoint_disk(of_run), out, 0) / 0x1p30;
  parallel::Team team(placement.team());
  ops::Context ctx(team);
  const bool bf16 = config.train.precision == DType::kBF16 && kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  NodeFacts mine{.cores_of_rank = placement.threads};
  mine.gemm_gflops = gemm_gflops(comm, ctx, bf16 ? DType::kBF16 : DType::kF32, seconds);
  mine.memory_gb_s = memory_gb_s(comm, ctx, seconds);
  mine.link_gbit_s = link_gbit_s(comm);
  const dist::ClockOffset clock = dist::measure_clock_offset(
      comm, [] { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); });
  mine.clock_s = clock.offset_s, mine.latency_us = clock.error_s * 1e6;
  mine.free_memory_gib = free_memory_gib(placement);
  if (const auto free = files::free_bytes(out)) mine.free_disk_gib = std::max(*free, 1.0) / 0x1p30;
  const std::vector<NodeFacts> nodes = gather_nodes(comm, mine);
  double good = 1;
  if (comm.rank() == 0) {
    log::info_lines(describe(placement, comm));
    for (const std::string& note : placement.notes) log::info("note: {}", note);
    log::info_lines(table_of(nodes));
    const PreflightVerdict verdict = find_problems(nodes, needed_gib, options.slow_share);
    for (const std::string& problem : verdict.problems) log::warn_line(problem);
    if (!verdict.slow_hosts.empty())
      log::info("without the slow node(s): sbatch --exclude={}", fmt::join(verdict.slow_hosts, ","));
    if (!options.json.empty()) files::write_file_atomically(options.json, to_json(nodes, verdict));
    if (verdict.problems.empty()) log::info("preflight: nothing is wrong with {} node(s)", nodes.size());
    good = verdict.problems.empty() ? 1 : 0;
  }
  comm.broadcast(&good, sizeof good, 0);
  return good != 0;
}

}  // namespace ditrain::train
