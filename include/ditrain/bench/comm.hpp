// Times the all-reduce of gradients over the ranks of this run by the engine, with its flat and its hierarchical
// algorithm.
#pragma once
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::bench {

struct CommBench {
  std::vector<int64_t> kib = {64, 1024, 8192, 25 * 1024, 128 * 1024};  ///< sizes of the buffers, KiB
};

/// One row per size and algorithm, on rank 0's harness. Collective. The algorithms take turns. The time is that of the
/// slowest rank, from a barrier to the end of its wait.
/// gb_s      bytes summed / median
/// Details   algorithm (hierarchical, flat), ranks, nodes, sum_bytes
/// Peers     of hierarchical rows: flat, and mpi_blocking = MPI_Allreduce in the calling thread
/// Errors:   InputError for a single rank
void bench_comm(Harness& harness, dist::Communicator& comm, const CommBench& bench);

}  // namespace ditrain::bench
