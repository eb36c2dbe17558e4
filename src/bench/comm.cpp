#include "ditrain/bench/comm.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/engine.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

std::string size_text(int64_t kib) {
  return kib >= 1024 ? fmt::format("{} MiB", kib / 1024) : fmt::format("{} KiB", kib);
}

class CommMeter {
 public:
  CommMeter(Harness& harness, dist::Communicator& comm, const CommBench& bench)
      : harness_(harness),
        comm_(comm),
        memory_(comm, size_t(*std::max_element(bench.kib.begin(), bench.kib.end())) << 10),
        hierarchical_(comm, memory_, {}),
        flat_(comm, memory_, {.hierarchical = false}) {
    harness_.note(hierarchical_.description());
    if (!memory_.note().empty()) harness_.note(memory_.note());
  }

  void measure(int64_t kib) {
    const int64_t n = kib * 1024 / int64_t(sizeof(float));
    auto* data = reinterpret_cast<float*>(memory_.part(memory_.own_part()));
    std::vector<Contender> contenders = {{"hierarchical", [&] { hierarchical_.start_allreduce_sum(data, n)->wait(); }},
                                         {"flat", [&] { flat_.start_allreduce_sum(data, n)->wait(); }}};
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);  // beside the progress thread this one may call MPI only if the library grants it
    if (level == MPI_THREAD_MULTIPLE && n <= std::numeric_limits<int>::max())
      contenders.push_back(
          {"mpi_blocking", [&] { MPI_Allreduce(MPI_IN_PLACE, data, int(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }});
    for (Contender& c : contenders) c.before = [=] { std::fill(data, data + n, 1e-3f); };
    take_turns(contenders, harness_.effort().repeats, &comm_);
    add_row(kib, contenders, 0);
    add_row(kib, contenders, 1);
  }

 private:
  void add_row(int64_t kib, const std::vector<Contender>& contenders, size_t ours) {
    const Contender& c = contenders[ours];
    Row row = timed_row("allreduce " + size_text(kib) + " " + c.name, "f32", c.seconds);
    row.gb_s = 1e-9 * double(kib) * 1024 / row.time.median_s;
    row.details = {{"algorithm", c.name, false},
                   {"ranks", int64_t(comm_.world_size())},
                   {"nodes", int64_t(comm_.num_nodes())},
                   {"sum_bytes", kib * 1024, false}};
    for (size_t i = ours + 1; i < contenders.size(); ++i)
      row.peers.emplace_back(contenders[i].name, quantile(contenders[i].seconds, 0.5) / row.time.median_s);
    harness_.add(std::move(row));
  }

  Harness& harness_;
  dist::Communicator& comm_;
  dist::NodeMemory memory_;
  dist::Engine hierarchical_, flat_;
};

}  // namespace

void bench_comm(Harness& harness, dist::Communicator& comm, const CommBench& bench) {
  if (comm.world_size() == 1) refuse("ditbench", "comm needs several ranks", "", "", "mpirun -np 2 ditbench comm");
  CommMeter meter(harness, comm, bench);
  for (const int64_t kib : bench.kib) meter.measure(kib);
}

}  // namespace ditrain::bench
