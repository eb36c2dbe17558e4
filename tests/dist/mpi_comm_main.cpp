// Checks of the MPI communicator on real ranks: `mpirun -np N test_mpi_comm MODE EXPECTED_RANKS`. Exit code 0: all
// held. Modes: all; funneled (as if the library granted no more); nodes_of_2 (pretended nodes);
//        abort CODE: the last rank ends the job; hang, stop: the last rank does not come, or its process stands still,
//        and the others have to find out; late 0, late 1: it does not come, rank 1 knows first and ends the run, or (1)
//        is on its way to that for as long as it takes.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/dist/placement.hpp"
#include "ditrain/platform/affinity.hpp"

using namespace ditrain;
using namespace ditrain::dist;

namespace {

constexpr int64_t kMaxCount = 5000;  // so small that longer operations are cut into pieces

int failures = 0;

void expect(bool holds, const std::string& what, const Communicator& comm) {
  if (holds) return;
  ++failures;
  fmt::print(stderr, "rank {} of {}: FAILED: {}\n", comm.rank(), comm.world_size(), what);
}

std::vector<float> gradients_of(int rank, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  RandomKey(1, Stream::kTest, uint64_t(rank)).fill_normal(x.data(), n);
  return x;
}

/// Everyone's bytes are those of rank 0.
bool same_on_all_ranks(Communicator& comm, const std::vector<float>& x) {
  std::vector<float> of_root = x;
  comm.broadcast(of_root.data(), of_root.size() * sizeof(float), 0);
  double differs = !x.empty() && std::memcmp(of_root.data(), x.data(), x.size() * sizeof(float)) != 0;
  comm.allreduce_max(&differs, 1);
  return differs == 0;
}

/// The sum over ranks within `wider` times the rounding of any order of world_size terms.
bool is_sum(const std::vector<float>& x, const Communicator& comm, double wider = 1) {
  const int64_t n = int64_t(x.size());
  std::vector<double> sum(x.size()), magnitude(x.size());
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const std::vector<float> part = gradients_of(rank, n);
    for (size_t i = 0; i < x.size(); ++i) sum[i] += part[i], magnitude[i] += std::fabs(part[i]);
  }
  for (size_t i = 0; i < x.size(); ++i)
    if (!(std::fabs(x[i] - sum[i]) <= magnitude[i] * comm.world_size() * 0x1p-24 * wider)) return false;
  return true;
}

/// Sizes on both sides of the borders where Open MPI changes its algorithm, and of our own pieces.
void check_gradient_sums(Communicator& comm) {
  for (const int64_t n : {0, 1, 3, 1000, 4999, 5000, 5001, 300000}) {
    std::vector<float> x = gradients_of(comm.rank(), n), again = x;
    comm.start_allreduce_sum(x.data(), n)->wait();
    expect(is_sum(x, comm), fmt::format("sum of {} floats", n), comm);
    expect(same_on_all_ranks(comm, x), fmt::format("sum of {} floats: the same bits on all ranks", n), comm);
    const auto request = comm.start_allreduce_sum(again.data(), n);
    while (!request->test()) std::this_thread::yield();
    request->wait();
    expect(again == x, fmt::format("sum of {} floats: the same bits twice", n), comm);
  }
}

void check_unwaited_request(Communicator& comm) {
  std::vector<float> x = gradients_of(comm.rank(), 15000);
  { const auto request = comm.start_allreduce_sum(x.data(), 15000); }
  expect(is_sum(x, comm), "a request that goes out of scope is finished", comm);
}

void check_buckets(Communicator& comm) {
  constexpr int64_t kElements = 70001;
  std::vector<float> arena = gradients_of(comm.rank(), kElements);
  GradientBuckets buckets(comm, arena.data(), {kElements, 9000});
  for (int64_t end = kElements; end > 0; end -= 1234) buckets.mark_ready(std::max<int64_t>(0, end - 1234), end);
  comm.barrier();  // other calls may come between: they travel on their own communicator
  buckets.finish();
  expect(is_sum(arena, comm), "buckets sum the arena", comm);
  expect(same_on_all_ranks(comm, arena), "buckets: the same bits on all ranks", comm);
}

/// Two steps on the engine; with what is promised of the sum of squares and, flat or not, of the bits.
void check_engine(Communicator& comm, const EngineConfig& config) {
  constexpr int64_t kElements = 170001;
  const double wider = config.wire == DType::kBF16 ? 0x1p18 : 1;  // bf16 has 16 bits less than f32
  NodeMemory memory(comm, kElements * sizeof(float));
  auto* arena = reinterpret_cast<float*>(memory.part(memory.own_part()));
  Engine engine(comm, memory, config);
  GradientBuckets buckets(engine, arena, {kElements, 30000});
  const std::string what = engine.description();
  for (int step = 0; step < 2; ++step) {
    const std::vector<float> mine = gradients_of(comm.rank(), kElements);
    std::copy(mine.begin(), mine.end(), arena);
    for (int64_t end = kElements; end > 0; end -= 1234) buckets.mark_ready(std::max<int64_t>(0, end - 1234), end);
    double one = 1;
    comm.allreduce_sum(&one, 1);  // other calls may come between: they travel on their own communicator
    buckets.finish();
    const std::vector<float> sum(arena, arena + kElements);
    expect(is_sum(sum, comm, wider), what + ": sum", comm);
    expect(same_on_all_ranks(comm, sum), what + ": the same bits on all ranks", comm);
    if (comm.world_size() == 1) continue;
    double squares = buckets.last_step().sum_squares.value(), exact = 0, differs = squares;
    for (const float x : sum) exact += double(x) * double(x);
    expect(std::fabs(squares - exact) <= 1e-12 * exact, what + ": sum of squares", comm);
    comm.broadcast(&differs, sizeof(differs), 0);
    expect(differs == squares, what + ": the same sum of squares on all ranks", comm);
    comm.barrier();
  }
}

/// Parts of any size, one of each rank, come to all.
void check_gather(Communicator& comm, const EngineConfig& config) {
  constexpr int64_t kPart = 30011;
  NodeMemory memory(comm, size_t(kPart * comm.world_size()) * sizeof(float));
  auto* arena = reinterpret_cast<float*>(memory.part(memory.own_part()));
  Engine engine(comm, memory, config);
  const std::vector<float> mine = gradients_of(comm.rank(), kPart);
  std::copy(mine.begin(), mine.end(), arena + comm.rank() * kPart);
  engine.start_allgather(arena, kPart * comm.world_size(), {.grain = kPart})->wait();
  bool right = true;
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const std::vector<float> theirs = gradients_of(rank, kPart);
    right = right && std::equal(theirs.begin(), theirs.end(), arena + rank * kPart);
  }
  expect(right, engine.description() + ": parts of all ranks", comm);
  comm.barrier();
}

/// Every rank finds the sums in its shards, puts something else there, and gets that of all.
void check_shards(Communicator& comm, const EngineConfig& config) {
  constexpr int64_t kElements = 170001;
  NodeMemory memory(comm, kElements * sizeof(float));
  auto* arena = reinterpret_cast<float*>(memory.part(memory.own_part()));
  Engine engine(comm, memory, config);
  GradientBuckets buckets(engine, arena, {kElements, 70000});
  const Shards shards({kElements, 70000}, comm.rank(), comm.world_size());
  std::vector<float> sum(kElements);
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const std::vector<float> part = gradients_of(rank, kElements);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  const std::vector<float> mine = gradients_of(comm.rank(), kElements);
  std::copy(mine.begin(), mine.end(), arena);
  buckets.start_all();
  std::vector<std::unique_ptr<Request>> gathers;
  bool right = true;
  for (int64_t k = 0; buckets.finish_next(); ++k) {
    const auto own = shards.parts()[size_t(k)];
    for (int64_t i = own.begin; i < own.end; ++i) {
      right = right && std::fabs(arena[i] - sum[size_t(i)]) < 1e-5;
      arena[i] = float(i);
    }
    gathers.push_back(engine.start_allgather(arena + buckets.bucket(k).begin, buckets.bucket(k).size()));
  }
  for (const auto& gather : gathers) gather->wait();
  buckets.finish();
  expect(right, engine.description() + ": sums of the own shards", comm);
  for (int64_t i = 0; i < kElements; ++i) right = right && arena[i] == float(i);
  expect(right, engine.description() + ": shards of all ranks", comm);
  comm.barrier();
}

/// The engine's thread runs on the core that is its own.
void check_binding(Communicator& comm) {
  const std::vector<int> core = {platform::affinity_mask().back()};
  NodeMemory memory(comm, 64 * sizeof(float));
  const Engine engine(comm, memory, {.pus = core});
  if (comm.world_size() == 1) return;
  std::vector<int> bound;
  comm.progress_thread()->call([&] { bound = platform::affinity_mask(); });
  expect(engine.binding_failure().empty() && bound == core, "the engine's thread is bound to its core", comm);
}

void check_engines(Communicator& comm) {
  check_binding(comm);
  check_gather(comm, {.gathers = true});
  check_gather(comm, {.hierarchical = false, .gathers = true});
  check_shards(comm, {.shards = true});
  check_shards(comm, {.hierarchical = false, .shards = true});
  check_engine(comm, {.hierarchical = false});
  check_engine(comm, {});
  check_engine(comm, {.wire = DType::kBF16});
  if (std::has_single_bit(unsigned(comm.world_size()))) check_engine(comm, {.tree = true});
  check_engine(comm, {.link = LinkModel{.gbit_s = 1, .latency_us = 50, .hosts = 2}, .pus = {0}});
}

void check_double_reductions(Communicator& comm) {
  const int rank = comm.rank(), size = comm.world_size();
  std::vector<double> sum(12500, rank + 1.0), largest(12500, rank);
  comm.allreduce_sum(sum.data(), 12500);
  comm.allreduce_max(largest.data(), 12500);
  expect(sum == std::vector<double>(12500, size * (size + 1) / 2), "sum of doubles", comm);
  expect(largest == std::vector<double>(12500, size - 1), "max of doubles", comm);
  expect(comm.allreduce_or(uint64_t{1} << (rank + 60 - size)) == ((uint64_t{1} << size) - 1) << (60 - size), "or",
         comm);
  expect(comm.allreduce_or(0) == 0, "or of nothing", comm);
}

void check_gathers(Communicator& comm) {
  for (int root = 0; root < comm.world_size(); ++root) {
    const bool is_root = comm.rank() == root;
    std::vector<std::string> texts;
    std::vector<double> values;
    for (int rank = 0; rank < comm.world_size(); ++rank) {
      texts.push_back(std::string(size_t(rank * 700), char('a' + rank)));  // of rank 0: empty
      values.insert(values.end(), {rank + 0.5, rank * 2.0});
    }
    const size_t own = size_t(comm.rank());
    expect(comm.gather_strings(texts[own], root) == (is_root ? texts : std::vector<std::string>{}), "strings", comm);
    expect(comm.gather(&values[2 * own], 2, root) == (is_root ? values : std::vector<double>{}), "gather", comm);
    const std::vector<float> floats(own, float(own));  // of rank 0: none
    std::vector<float> all;
    for (int rank = 0; rank < comm.world_size() && is_root; ++rank) all.insert(all.end(), size_t(rank), float(rank));
    expect(gather_floats(comm, floats, root) == all, "floats", comm);
    std::vector<char> bytes(16666, is_root ? 'x' : ' ');
    comm.broadcast(bytes.data(), bytes.size(), root);
    expect(bytes == std::vector<char>(16666, 'x'), "broadcast", comm);
  }
  bool refused = false;
  try {
    comm.broadcast(nullptr, 0, comm.world_size());
  } catch (const LogicFault&) {
    refused = true;
  }
  expect(refused, "a root out of range is refused", comm);
}

/// The test runs on one node, or on pretended nodes of this many ranks.
void check_placement(Communicator& comm, int expected_ranks, const MpiConfig& config) {
  const int size = comm.world_size(), rank = comm.rank();
  const int per_node = config.ranks_per_node > 0 ? config.ranks_per_node : size;
  expect(size == expected_ranks, "world size", comm);
  expect(comm.num_nodes() == (size - 1) / per_node + 1 && comm.local_rank() == rank % per_node &&
             comm.local_size() == std::min(per_node, size - rank / per_node * per_node),
         "placement", comm);
  for (int i = 0; i < size; ++i) {
    expect(comm.nodes()[size_t(i)] == i / per_node, "node of a rank", comm);
    expect(comm.host(i) == comm.host(rank) && !comm.host(i).empty(), "host", comm);
  }
  const std::string sign = mpi_launcher().empty() ? "without MPI"
                           : config.funneled      ? "thread level funneled"
                                                  : "thread level multiple";
  expect(comm.description().find(sign) != std::string::npos, "description: " + comm.description(), comm);
}

/// On a node the same mask for even ranks, another one for odd ranks, and one PU more that ranks 0 and 1 have in
/// common.
void check_shared_masks(Communicator& comm) {
  const int rank = comm.local_rank(), size = comm.local_size();
  std::vector<int> mask = {rank % 2 ? 7 : 3};
  expect(share_mask(comm, mask).ranks == (rank % 2 ? size / 2 : (size + 1) / 2), "ranks with the same mask", comm);
  expect(share_mask(comm, mask).number == rank / 2, "number among the ranks with the same mask", comm);
  expect(share_mask(comm, mask).equal, "equal masks", comm);
  if (rank < 2) mask.push_back(100);
  const int same_parity = rank % 2 ? size / 2 : (size + 1) / 2;
  expect(share_mask(comm, mask).ranks == same_parity + (rank < 2 && size > 1), "overlapping masks", comm);
  expect(share_mask(comm, mask).equal == (size == 1), "unequal masks", comm);
  expect(share_mask(comm, {rank}).ranks == 1, "ranks with a PU of their own", comm);
}

/// Gradients on one thread while another one gathers, whatever the library allows.
void check_two_threads(Communicator& comm) {
  std::vector<float> x = gradients_of(comm.rank(), 300000);
  std::thread gradients([&] { comm.start_allreduce_sum(x.data(), 300000)->wait(); });
  for (int i = 0; i < 20; ++i) {
    double one = 1;
    comm.allreduce_sum(&one, 1);
    expect(one == comm.world_size(), "a sum beside gradients", comm);
  }
  gradients.join();
  expect(is_sum(x, comm), "gradients on their own thread", comm);
}

/// Messages of one tag keep their order, those of another may overtake; longer ones travel in pieces.
void check_messages(Communicator& comm) {
  const int to = (comm.rank() + 1) % comm.world_size(),
            from = (comm.rank() + comm.world_size() - 1) % comm.world_size();
  if (to == comm.rank()) return;
  const std::vector<float> long_one = gradients_of(comm.rank(), 5000);
  std::vector<float> got(5000);
  int first = 1, second = 2, third = 3, a = 0, b = 0, c = 0;
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(comm.start_receive(&c, sizeof(c), from, 8));
  requests.push_back(comm.start_receive(&a, sizeof(a), from, 7));
  requests.push_back(comm.start_receive(&b, sizeof(b), from, 7));
  requests.push_back(comm.start_receive(got.data(), 20000, from, 9));
  requests.push_back(comm.start_send(&first, sizeof(first), to, 7));
  requests.push_back(comm.start_send(&second, sizeof(second), to, 7));
  requests.push_back(comm.start_send(&third, sizeof(third), to, 8));
  requests.push_back(comm.start_send(long_one.data(), 20000, to, 9));
  for (const auto& request : requests) request->wait();
  expect(a == 1 && b == 2 && c == 3, "messages in order", comm);
  expect(got == gradients_of(from, 5000), "a message in pieces", comm);
}

/// An exception in the middle of communication must leave at once, not wait for the other ranks.
[[noreturn]] void abort_while_others_wait(Communicator& comm, int exit_code) {
  std::vector<float> x = gradients_of(comm.rank(), 5000);
  try {
    const auto request = comm.start_allreduce_sum(x.data(), 5000);
    if (comm.rank() == comm.world_size() - 1) throw std::runtime_error("this rank fails");
    comm.barrier();  // never completed
  } catch (const std::runtime_error&) {
    comm.abort(exit_code);
  }
  comm.abort(1);
}

/// Until another rank ends the job; a test that fails may take a minute for that.
[[noreturn]] void wait_for_the_end() {
  alarm(60);
  for (;;) pause();
}

/// All ranks but the last one meet; that one waits (and its progress thread answers), or its process is stopped.
/// Exit code 0 on rank 0 if the error says so; it ends the job.
[[noreturn]] void wait_for_who_does_not_come(Communicator& comm, bool stopped) {
  NodeMemory memory(comm, 40000 * sizeof(float));
  Engine engine(comm, memory, {});
  GradientBuckets buckets(engine, reinterpret_cast<float*>(memory.part(memory.own_part())), {40000, 10000});
  NodeMemory verdicts(comm, sizeof(int));
  const auto verdict = [&](int rank) { return std::atomic_ref<int>(*reinterpret_cast<int*>(verdicts.part(rank))); };
  const int last = comm.world_size() - 1;
  comm.barrier();
  if (comm.rank() == last && stopped) raise(SIGSTOP);
  if (comm.rank() == last) wait_for_the_end();
  comm.set_timeout(0.5);
  const std::string name = std::to_string(last) + " (" + comm.host(last) + ")";
  const std::string expected = (stopped ? "no answer at all: rank " : "not arrived: rank ") + name;
  std::string got;
  try {
    buckets.start_all();
    buckets.finish();
  } catch (const RunError& error) {
    got = error.what();
  }
  const bool named = got.find(expected) != std::string::npos && got.find("bucket 1 of 4") != std::string::npos;
  if (!named) fmt::print(stderr, "rank {}: FAILED: expected '{}' in '{}'\n", comm.rank(), expected, got);
  if (comm.rank() == 0) {
    fmt::print("{}\n", got);
    alarm(60);
    for (int rank = 1; rank < std::min(last, verdicts.num_parts()); ++rank)  // a wrong verdict ends the job
      while (verdict(rank) == 0) std::this_thread::yield();
  } else if (named) {
    verdict(verdicts.own_part()) = 1;
    wait_for_the_end();
  }
  comm.abort(named ? 75 : 1);
}

/// The last one of three ranks does not come to a part of the run. Rank 1 is the first to know and gives up after
/// some 3.5 s. `slow`: its destructors take until rank 0, which asks after 4 s, has spoken, and all that time it must
/// not seem dead to rank 0. Else it ends the run at once.
int give_up_one_after_the_other(Communicator& comm, bool slow) {
  struct Slow {
    bool waits;
    ~Slow() {  // much memory to free, say
      if (waits) wait_for_the_end();
    }
  };
  const auto part = comm.split(0, 0);
  const Slow destructor{slow && comm.rank() == 1};
  comm.barrier();
  if (comm.rank() == 2) wait_for_the_end();
  part->set_timeout(comm.rank() == 0 ? 4 : 0.5);
  part->barrier();
  return 0;
}

/// Sums over pairs of ranks and over every second rank, in between and beside each other, also on an engine.
void check_split(Communicator& comm, const MpiConfig& config) {
  const int rank = comm.rank(), size = comm.world_size();
  const auto pair = comm.split(rank / 2, 0), reversed = comm.split(rank % 2, -rank);
  const int in_pair = std::min(2, size - rank / 2 * 2), same_parity = rank % 2 ? size / 2 : (size + 1) / 2;
  expect(pair->world_size() == in_pair && pair->rank() == rank % 2, "a pair", comm);
  expect(reversed->world_size() == same_parity && reversed->rank() == same_parity - 1 - rank / 2, "keys", comm);
  for (int i = 0; i < in_pair; ++i) {
    const int in_run = rank / 2 * 2 + i;
    expect(pair->rank_in_run(i) == in_run && pair->host(i) == comm.host(in_run), "rank of a pair", comm);
  }
  expect(pair->num_nodes() == 1 && pair->local_size() == in_pair, "node of a pair", comm);
  const int nodes = config.ranks_per_node == 2 ? same_parity : 1;
  expect(reversed->num_nodes() == nodes && reversed->local_size() * nodes == same_parity, "nodes of a split", comm);

  std::vector<float> x(12345, float(rank + 1)), y = x;
  const auto sum_x = pair->start_allreduce_sum(x.data(), 12345), sum_y = reversed->start_allreduce_sum(y.data(), 12345);
  comm.barrier();
  sum_y->wait(), sum_x->wait();
  double parity_sum = 0;
  for (int i = rank % 2; i < size; i += 2) parity_sum += i + 1;
  expect(x == std::vector<float>(12345, float(in_pair == 2 ? rank / 2 * 4 + 3 : rank + 1)), "sum over a pair", comm);
  expect(y == std::vector<float>(12345, float(parity_sum)), "sum over every second rank", comm);
  double one = 1;
  pair->split(0, 0)->allreduce_sum(&one, 1);
  expect(one == in_pair, "a split of a split", comm);
  check_engine(*reversed, {});
}

/// The last rank takes longer for its disk than ranks of a part of the run wait for each other.
void check_disk_work(Communicator& comm) {
  const auto part = comm.split(0, 0);
  const TimeoutScope limit(*part, 1);
  if (comm.rank() == comm.world_size() - 1) {
    const DiskWork work(comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  }
  part->barrier();
}

void check_all(Communicator& comm, int expected_ranks, const MpiConfig& config) {
  check_placement(comm, expected_ranks, config);
  check_shared_masks(comm);
  check_gradient_sums(comm);
  check_unwaited_request(comm);
  check_buckets(comm);
  check_engines(comm);
  check_double_reductions(comm);
  check_gathers(comm);
  check_two_threads(comm);
  check_messages(comm);
  check_split(comm, config);
  if (comm.world_size() == 3 && config.ranks_per_node == 0) check_disk_work(comm);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  const int number = argc > 2 ? std::atoi(argv[2]) : 1;
  const MpiConfig config{
      .max_count = kMaxCount, .funneled = mode == "funneled", .ranks_per_node = mode == "nodes_of_2" ? 2 : 0};
  if (mode == "late")
    return config::run_mpi_program("late", argc, argv,
                                   [&](Communicator& comm) { return give_up_one_after_the_other(comm, number == 1); });
  const auto comm = make_communicator(&argc, &argv, config);
  if (mode == "abort") abort_while_others_wait(*comm, number);
  if (mode == "hang" || mode == "stop") wait_for_who_does_not_come(*comm, mode == "stop");
  check_all(*comm, number, config);
  double total = failures;
  comm->allreduce_sum(&total, 1);
  if (comm->rank() == 0) fmt::print("{} ranks, {}: {} failures\n", comm->world_size(), comm->description(), total);
  return total == 0 ? 0 : 1;
}
