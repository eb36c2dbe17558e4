// Checks of the MPI communicator on real ranks: `mpirun -np N test_mpi_comm [EXPECTED_RANKS]`. Exit code 0: all held.
// With `abort CODE`, the last rank ends the job instead.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/dist/placement.hpp"

using namespace ditrain;
using namespace ditrain::dist;

namespace {

constexpr int64_t kMaxCount = 1000;  // so small that longer operations are cut into pieces

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
  double differs = std::memcmp(of_root.data(), x.data(), x.size() * sizeof(float)) != 0;
  comm.allreduce_max(&differs, 1);
  return differs == 0;
}

/// The sum over ranks within the rounding of any order of world_size terms.
bool is_sum(const std::vector<float>& x, const Communicator& comm) {
  const int64_t n = int64_t(x.size());
  std::vector<double> sum(x.size()), magnitude(x.size());
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const std::vector<float> part = gradients_of(rank, n);
    for (size_t i = 0; i < x.size(); ++i) sum[i] += part[i], magnitude[i] += std::fabs(part[i]);
  }
  for (size_t i = 0; i < x.size(); ++i)
    if (!(std::fabs(x[i] - sum[i]) <= magnitude[i] * comm.world_size() * 0x1p-24)) return false;
  return true;
}

/// Sizes on both sides of the borders where Open MPI changes its algorithm, and of our own pieces.
void check_gradient_sums(Communicator& comm) {
  for (const int64_t n : {0, 1, 3, 999, 1000, 1001, 5000, 300000}) {
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
  std::vector<float> x = gradients_of(comm.rank(), 5000);
  { const auto request = comm.start_allreduce_sum(x.data(), 5000); }
  expect(is_sum(x, comm), "a request that goes out of scope is finished", comm);
}

void check_buckets(Communicator& comm) {
  constexpr int64_t kElements = 70001;
  std::vector<float> arena = gradients_of(comm.rank(), kElements);
  GradientBuckets buckets(comm, arena.data(), kElements, 9000);
  for (int64_t end = kElements; end > 0; end -= 1234) buckets.mark_ready(std::max<int64_t>(0, end - 1234), end);
  comm.barrier();  // other calls may come between: they travel on their own communicator
  buckets.finish();
  expect(is_sum(arena, comm), "buckets sum the arena", comm);
  expect(same_on_all_ranks(comm, arena), "buckets: the same bits on all ranks", comm);
}

void check_double_reductions(Communicator& comm) {
  const int rank = comm.rank(), size = comm.world_size();
  std::vector<double> sum(2500, rank + 1.0), largest(2500, rank), smallest(2500, rank);
  comm.allreduce_sum(sum.data(), 2500);
  comm.allreduce_max(largest.data(), 2500);
  comm.allreduce_min(smallest.data(), 2500);
  expect(sum == std::vector<double>(2500, size * (size + 1) / 2), "sum of doubles", comm);
  expect(largest == std::vector<double>(2500, size - 1), "max of doubles", comm);
  expect(smallest == std::vector<double>(2500, 0.0), "min of doubles", comm);
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
    std::vector<char> bytes(3333, is_root ? 'x' : ' ');
    comm.broadcast(bytes.data(), bytes.size(), root);
    expect(bytes == std::vector<char>(3333, 'x'), "broadcast", comm);
  }
  bool refused = false;
  try {
    comm.broadcast(nullptr, 0, comm.world_size());
  } catch (const LogicFault&) {
    refused = true;
  }
  expect(refused, "a root out of range is refused", comm);
}

void check_placement(Communicator& comm, int expected_ranks) {
  expect(expected_ranks == 0 || comm.world_size() == expected_ranks, "world size", comm);
  // The test runs on one node.
  expect(comm.num_nodes() == 1 && comm.local_size() == comm.world_size() && comm.local_rank() == comm.rank(),
         "placement", comm);
  const std::string sign = mpi_launcher().empty() ? "without MPI" : "thread level";
  expect(comm.description().find(sign) != std::string::npos, "description: " + comm.description(), comm);
}

/// The same mask for even ranks, another one for odd ranks, and one PU more that ranks 0 and 1 have in common.
void check_shared_masks(Communicator& comm) {
  const int rank = comm.rank(), size = comm.world_size();
  std::vector<int> mask = {rank % 2 ? 7 : 3};
  expect(share_mask(comm, mask).ranks == (rank % 2 ? size / 2 : (size + 1) / 2), "ranks with the same mask", comm);
  expect(share_mask(comm, mask).number == rank / 2, "number among the ranks with the same mask", comm);
  if (rank < 2) mask.push_back(100);
  const int same_parity = rank % 2 ? size / 2 : (size + 1) / 2;
  expect(share_mask(comm, mask).ranks == same_parity + (rank < 2 && size > 1), "overlapping masks", comm);
  expect(share_mask(comm, {rank}).ranks == 1, "ranks with a PU of their own", comm);
}

/// Gradients on one thread while another one gathers, if the library allows it.
void check_two_threads(Communicator& comm) {
  if (!comm.concurrent_calls()) return;
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

}  // namespace

int main(int argc, char** argv) {
  const auto comm = make_communicator(&argc, &argv, kMaxCount);
  if (argc == 3 && std::strcmp(argv[1], "abort") == 0) abort_while_others_wait(*comm, std::atoi(argv[2]));
  check_placement(*comm, argc == 2 ? std::atoi(argv[1]) : 0);
  check_shared_masks(*comm);
  check_gradient_sums(*comm);
  check_unwaited_request(*comm);
  check_buckets(*comm);
  check_double_reductions(*comm);
  check_gathers(*comm);
  check_two_threads(*comm);
  double total = failures;
  comm->allreduce_sum(&total, 1);
  if (comm->rank() == 0) fmt::print("{} ranks, {}: {} failures\n", comm->world_size(), comm->description(), total);
  return total == 0 ? 0 : 1;
}
