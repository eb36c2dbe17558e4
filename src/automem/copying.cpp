#include "ditrain/automem/copying.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <latch>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::automem {
namespace {

using memory::CopyBy, memory::CopyEngine, memory::Direction;

constexpr size_t kBytes = size_t{8} << 20;  // each way
constexpr int kPieces = 8;                  // that they are copied in, as tensors are
constexpr int kPhases = 16;                 // of computing, between which the workers meet, as in products
constexpr double kPhase_s = 250e-6;
constexpr int kRounds = 5;
constexpr size_t kBulk = memory::tier("bulk");

// Keeps a core busy in its own cache.
class Load {
 public:
  // Once more over the array. What it computes stays finite.
  void sweep() {
    for (float& x : values_) x = 0.999f * x + 0.001f;
  }
  void sweep(int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      sweep();
      std::atomic_signal_fence(std::memory_order_seq_cst);  // each sweep is done
    }
  }

 private:
  alignas(64) std::array<float, 2048> values_{};
};

int64_t sweeps_of_phase() {
  Load load;
  double shortest_s = 1;
  for (int i = 0; i < 5; ++i) {
    const double start = now_s();
    load.sweep(64);
    shortest_s = std::min(shortest_s, now_s() - start);
  }
  return std::max<int64_t>(1, int64_t(64 * kPhase_s / std::max(shortest_s, 1e-9)));
}

memory::TierRates rates_of(const CopyEngine& engine, size_t tier) {
  const auto totals = engine.totals_of(tier);
  const auto rate = [&](Direction d) { return totals[size_t(d)].bytes / std::max(1e-9, totals[size_t(d)].busy_s); };
  return {.in_bytes_s = rate(Direction::kIn), .out_bytes_s = rate(Direction::kOut)};
}

// Computing of a team beside copies out of and into a tier.
class Trial {
 public:
  Trial(parallel::Team& team, const TrialSetup& setup)
      : team_(team),
        loads_(size_t(team.num_workers())),
        fast_(2 * kBytes, platform::PagePolicy::kTransparent),
        tier_(memory::make_bulk_memory({.bytes = 2 * kBytes, .nodes = setup.bulk_nodes})),
        threads_({.pus = setup.pus, .simulate = setup.simulate}),
        workers_({.simulate = setup.simulate, .by = CopyBy::kWorkers}) {
    if (!setup.fast_nodes.empty())  // a refusal is told where the tiers themselves are made
      static_cast<void>(platform::place_on_nodes(fast_.data(), fast_.bytes(), setup.fast_nodes,
                                                 platform::policy_for(setup.fast_nodes)));
    std::fill_n(fast_.data(), fast_.bytes(), std::byte{1});
    std::fill_n(tier_->in_place(0), tier_->bytes(), std::byte{1});
  }

  double compute() {
    const double start = now_s();
    team_.run([&](const parallel::Worker& w) {
      for (int i = 0; i < kPhases; ++i) {
        loads_[size_t(w.worker)].sweep(sweeps_);
        team_.barrier(w);
      }
    });
    return now_s() - start;
  }

  double compute_while_threads_copy() {
    std::latch copies(2 * kPieces);
    const double start = now_s();
    submit(threads_, copies);
    compute();
    copies.wait();
    return now_s() - start;
  }

  // Also the seconds of the copies alone.
  double compute_then_copy(double& copy_s) {
    std::latch copies(2 * kPieces);
    const double start = now_s();
    compute();
    const double copy_start = now_s();
    submit(workers_, copies);
    team_.run([&](const parallel::Worker&) {
      while (workers_.help()) continue;
    });
    copies.wait();
    copy_s = now_s() - copy_start;
    return now_s() - start;
  }

  // Means of all rounds.
  memory::TierRates rates_of_threads() const { return rates_of(threads_, kBulk); }

 private:
  void submit(CopyEngine& engine, std::latch& done) {
    constexpr size_t kPiece = kBytes / kPieces;
    for (size_t i = 0; i < kPieces; ++i)
      for (const Direction d : {Direction::kOut, Direction::kIn}) {
        const size_t at = size_t(d) * kBytes + i * kPiece;
        engine.submit({.direction = d,
                       .backing = tier_.get(),
                       .tier = kBulk,
                       .offset = at,
                       .fast = fast_.data() + at,
                       .bytes = kPiece,
                       .done = [&done](const std::string&) { done.count_down(); }});
      }
  }

  parallel::Team& team_;
  std::vector<Load> loads_;
  const int64_t sweeps_ = sweeps_of_phase();
  platform::PageBlock fast_;
  std::unique_ptr<memory::Backing> tier_;
  CopyEngine threads_, workers_;
};

// A link that is slower would only make the start longer: both ways wait for it.
std::optional<memory::SimulatedBulk> fast_enough(std::optional<memory::SimulatedBulk> link) {
  constexpr double kLeastGb_s = 0.25, kMostLatency_us = 1000;
  if (link)
    link->gb_s = std::max(link->gb_s, kLeastGb_s), link->latency_us = std::min(link->latency_us, kMostLatency_us);
  return link;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + kRounds / 2, values.end());
  return values[kRounds / 2];
}

}  // namespace

CopyTrial measure_copying(parallel::Team& team, const TrialSetup& wanted) {
  TrialSetup setup = wanted;
  setup.simulate = fast_enough(wanted.simulate);
  Trial trial(team, setup);
  std::vector<double> compute, threads, workers, copies;
  for (int round = -1; round < kRounds; ++round) {  // the first one warms up
    double copy_s = 0;
    const double compute_s = trial.compute(), threads_s = trial.compute_while_threads_copy(),
                 workers_s = trial.compute_then_copy(copy_s);
    if (round < 0) continue;
    compute.push_back(compute_s), threads.push_back(threads_s);
    workers.push_back(workers_s), copies.push_back(copy_s);
  }
  const double both_ways = 2 * kBytes / median(copies);  // the workers bring and take away at the same time
  return {.bytes = 2 * kBytes,
          .compute_s = median(compute),
          .threads_s = median(threads),
          .workers_s = median(workers),
          .by_threads = trial.rates_of_threads(),
          .by_workers = {.in_bytes_s = both_ways, .out_bytes_s = both_ways}};
}

memory::TierRates measure_tier(memory::Backing& backing, size_t tier, size_t bytes, const std::vector<int>& pus) {
  platform::PageBlock fast(bytes, platform::PagePolicy::kTransparent);
  std::fill_n(fast.data(), bytes, std::byte{1});
  CopyEngine engine({.pus = pus});
  std::string problem;
  for (const Direction d : {Direction::kOut, Direction::kIn}) {
    std::latch over(1);
    engine.submit({.direction = d,
                   .backing = &backing,
                   .tier = tier,
                   .fast = fast.data(),
                   .bytes = bytes,
                   .done = [&](const std::string& what) {
                     if (problem.empty()) problem = what;
                     over.count_down();
                   }});
    over.wait();
  }
  if (!problem.empty()) throw RunError({.where = "memory", .what = problem});
  return rates_of(engine, tier);
}

Copying copying_by(CopyBy by, const std::string& why, const CopyTrial& trial) {
  Copying copying{.by = by, .why = why};
  copying.rates[kBulk] = by == CopyBy::kWorkers ? trial.by_workers : trial.by_threads;
  return copying;
}

Copying choose_copying(const CopyTrial& trial) {
  const bool workers = trial.workers_s < trial.threads_s;
  return copying_by(
      workers ? CopyBy::kWorkers : CopyBy::kThreads,
      fmt::format("measured: {:.1f} ms of computing and copies of {} take {:.1f} ms by workers at the borders "
                  "of nodes, {:.1f} ms by threads on the same cores",
                  1e3 * trial.compute_s, format_bytes(trial.bytes), 1e3 * trial.workers_s, 1e3 * trial.threads_s),
      trial);
}

namespace {

// Long against the start of a transfer, short against that of a run on a disk of 100 MB/s.
constexpr size_t kDiskBytes = size_t{32} << 20;
// Per node of ordinary memory, in plans without a team: a quarter of a socket has 60 GB/s of DDR5 beside 250 of HBM.
constexpr double kInPlaceUnmeasured = 80e9;
constexpr int64_t kValues = int64_t{64} << 20;  // more than caches hold

// Bytes per second that the team reads from nodes.
double measure_reading(parallel::Team& team, const std::vector<int>& nodes) {
  platform::PageBlock block(size_t(kValues) * sizeof(float), platform::PagePolicy::kTransparent);
  if (!platform::place_on_nodes(block.data(), block.bytes(), nodes, platform::policy_for(nodes))) return 0;
  auto* values = reinterpret_cast<float*>(block.data());
  const auto each = [&](const auto& use) {
    team.run([&](const parallel::Worker& w) {
      const parallel::Range mine = parallel::partition(kValues, w.worker, w.num_workers, 1024);
      if (!mine.empty()) use(values + mine.begin, mine.size());
    });
  };
  each([](float* at, int64_t n) { std::fill_n(at, n, 1.0f); });
  double shortest_s = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = now_s();
    each([](float* at, int64_t n) {
      volatile float sum = kernels::stream_pass({.reads = 1}, &at, n);
      static_cast<void>(sum);
    });
    shortest_s = std::min(shortest_s, now_s() - start);
  }
  return double(block.bytes()) / shortest_s;
}

// Rates of the tiers that the workers' trial does not copy to. Where none can be made, check_tiers refuses a run that
// needs it.
void measure_disks(Copying& copying, const CopyingRequest& request) {
  for (size_t i = 0; i < memory::kTiers.size(); ++i) {
    if (memory::kTiers[i].in_memory || request.tier_bytes[i] == 0) continue;
    std::unique_ptr<memory::Backing> disk;
    try {
      disk = memory::kTiers[i].make({.bytes = kDiskBytes, .folder = existing_part(request.disk_folder)});
    } catch (const InputError&) {
      continue;
    }
    copying.rates[i] = measure_tier(*disk, i, kDiskBytes, request.trial.pus);
  }
}

Copying copying_in_memory(const CopyingRequest& request, parallel::Team* team) {
  const std::vector<int>&fast = request.trial.fast_nodes, &bulk = request.trial.bulk_nodes;
  if (team == nullptr)
    return {.by = request.by.value_or(CopyBy::kThreads),
            .why = request.by ? request.why : "a run measures whether the workers are faster",
            .in_place_bytes_s = kInPlaceUnmeasured * double(bulk.size())};
  const CopyTrial trial = measure_copying(*team, request.trial);
  Copying copying = request.by ? copying_by(*request.by, request.why, trial) : choose_copying(trial);
  if (!bulk.empty())  // two kinds of memory
    copying.in_place_bytes_s = extra_of_slow_node(measure_reading(*team, fast), measure_reading(*team, bulk));
  return copying;
}

}  // namespace

std::string existing_part(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path part = folder;
  for (std::error_code error; !part.empty() && !fs::exists(part, error);) part = part.parent_path();
  return part.empty() ? "." : part.string();
}

double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s) {
  if (slow_bytes_s <= 0 || fast_bytes_s <= slow_bytes_s) return 0;
  return 1 / (1 / slow_bytes_s - 1 / fast_bytes_s);
}

Copying plan_copying(const CopyingRequest& request, parallel::Team* team) {
  bool in_memory = false;  // is any tier that is used
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    in_memory = in_memory || (memory::kTiers[i].in_memory && request.tier_bytes[i] > 0);
  Copying copying = in_memory ? copying_in_memory(request, team) : Copying();
  if (team != nullptr) measure_disks(copying, request);
  return copying;
}

}  // namespace ditrain::automem
