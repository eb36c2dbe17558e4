#include "ditrain/memory/copy_engine.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/platform/affinity.hpp"

namespace ditrain::memory {
namespace {

// Long enough for the rate of a disk, short enough for an urgent copy behind it.
constexpr size_t kChunk = size_t{8} << 20;
// What a worker copies at once: short enough for all of them to end at about the same time.
constexpr size_t kSlice = size_t{256} << 10;
constexpr size_t kMaxSpans = 1 << 20;

void sleep_until(double time_s) {
  const double left = time_s - now_s();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

}  // namespace

struct CopyEngine::State {
  explicit State(const Setup& wanted) : setup(wanted), order(wanted.by) {}

  struct TierWork {
    StreamTotals totals;
    int movers = 0;
    double busy_since_s = 0;  // with movers
  };
  struct Stream {
    PerTier<TierWork> tiers;
    double link_free_s = 0;  // of the simulated link
    std::condition_variable changed;
    std::thread thread;
  };
  using Lock = std::unique_lock<std::mutex>;

  // The simulated link is busy with these bytes from its last ones on, or from when they were asked for: a thread that
  // wakes up late is not its fault. Returns when they have passed; `busy_s` gets how long they take.
  double occupy_link(Stream& stream, double asked_s, size_t bytes, bool first, double& busy_s) const {
    busy_s = double(bytes) / (setup.simulate->gb_s * 1e9) + (first ? setup.simulate->latency_us * 1e-6 : 0);
    return stream.link_free_s = std::max(stream.link_free_s, asked_s) + busy_s;
  }

  void serve(size_t direction) {
    Lock lock(mutex);
    for (;;) {
      CopyJob* job = nullptr;
      streams[direction].changed.wait(lock, [&] { return stopped || (job = order.next(direction)) != nullptr; });
      if (stopped) return;
      move_part(*job, kChunk, lock);
    }
  }

  bool help() {
    Lock lock(mutex);
    CopyJob* job = order.next(CopyOrder::kWorkersRow);
    if (job != nullptr) move_part(*job, kSlice, lock);
    return job != nullptr;
  }

  // The job stays in its row, at its place, until all of it has been moved; other threads may move parts meanwhile.
  void move_part(CopyJob& job, size_t most, Lock& lock) {
    Stream& stream = streams[size_t(job.copy.direction)];
    const size_t at = job.begun, bytes = std::min(most, job.copy.bytes - at);
    const double start = now_s(), asked = job.submitted_s;
    const bool over_link = setup.simulate && kTiers[job.copy.tier].in_memory;
    TierWork& work = stream.tiers[job.copy.tier];
    if (at == 0) job.begin_s = start;
    if (work.movers++ == 0) work.busy_since_s = start;
    job.begun += bytes, ++job.movers;
    lock.unlock();
    const std::string problem = move(job.copy, at, bytes);
    lock.lock();
    if (over_link) {
      double link_s = 0;
      const double end = occupy_link(stream, asked, bytes, at == 0, link_s);
      work.totals.busy_s += std::max(now_s() - start, link_s);
      lock.unlock();
      sleep_until(end);
      lock.lock();
    }
    const double end = now_s();
    if (--work.movers == 0 && !over_link) work.totals.busy_s += end - work.busy_since_s;
    work.totals.bytes += double(bytes);
    if (job.problem.empty()) job.problem = problem;
    if (--job.movers > 0 || job.has_more()) return;
    finish(job, end, lock);
  }

  void finish(CopyJob& job, double end_s, Lock& lock) noexcept {
    ++streams[size_t(job.copy.direction)].tiers[job.copy.tier].totals.copies;
    if (records && spans.size() < kMaxSpans) spans.push_back({job.copy.name, job.copy.direction, job.begin_s, end_s});
    const CopyJob ended = order.take(job);
    lock.unlock();
    if (ended.copy.done) ended.copy.done(ended.problem);
    lock.lock();
  }

  static std::string move(const Copy& copy, size_t at, size_t bytes) try {
    if (copy.direction == Direction::kIn)
      copy.backing->read(copy.offset + at, copy.fast + at, bytes);
    else
      copy.backing->write(copy.offset + at, copy.fast + at, bytes);
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }

  Setup setup;
  mutable std::mutex mutex;
  CopyOrder order;
  std::array<Stream, kDirections> streams;
  bool stopped = false, records = false;
  std::vector<CopySpan> spans;
  std::vector<std::string> notes;
};

CopyEngine::CopyEngine(const Setup& setup) : state_(std::make_unique<State>(setup)) {
  try {
    for (size_t d = 0; d < kDirections; ++d) {
      std::latch bound(1);  // so that notes() has all there will be
      state_->streams[d].thread = std::thread([this, d, &bound] {
        if (!state_->setup.pus.empty())
          if (const auto result = platform::set_affinity_mask(state_->setup.pus); !result) {
            const std::lock_guard lock(state_->mutex);
            state_->notes.push_back("a copy stream is not bound: " + result.reason);
          }
        bound.count_down();
        state_->serve(d);
      });
      bound.wait();
    }
  } catch (const std::system_error& e) {
    stop();
    throw RunError({.where = "memory",
                    .what = std::string("cannot start a thread that copies between tiers: ") + e.what(),
                    .hint = "a higher limit of processes (ulimit -u, pids.max of the job's cgroup)"});
  }
}

CopyEngine::~CopyEngine() { stop(); }

void CopyEngine::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    for (State::Stream& stream : state_->streams) stream.changed.notify_all();
  }
  for (State::Stream& stream : state_->streams)
    if (stream.thread.joinable()) stream.thread.join();
}

int64_t CopyEngine::submit(Copy copy) {
  DITRAIN_CHECK(copy.bytes > 0 && copy.bytes % kBlock == 0 && copy.offset % kBlock == 0, "a copy of whole blocks");
  const std::lock_guard lock(state_->mutex);
  const size_t row = state_->order.row_of(copy);
  const int64_t ticket = state_->order.add(std::move(copy), now_s());
  if (row != CopyOrder::kWorkersRow) state_->streams[row].changed.notify_one();
  return ticket;
}

void CopyEngine::make_urgent(int64_t ticket) {
  const std::lock_guard lock(state_->mutex);
  state_->order.make_urgent(ticket);
}

bool CopyEngine::needs_help(Backing* tier) const { return workers_copy(state_->setup.by, tier); }

bool CopyEngine::help() { return state_->setup.by == CopyBy::kWorkers && state_->help(); }

void CopyEngine::charge_in_place(size_t bytes) {
  if (!state_->setup.simulate) return;
  double end = 0;
  {
    const std::lock_guard lock(state_->mutex);
    double busy_s = 0;
    end = state_->occupy_link(state_->streams[size_t(Direction::kIn)], now_s(), bytes, true, busy_s);
  }
  sleep_until(end);
}

TierTotals CopyEngine::totals_of(size_t tier) const {
  const std::lock_guard lock(state_->mutex);
  return {state_->streams[0].tiers[tier].totals, state_->streams[1].tiers[tier].totals};
}

TierTotals CopyEngine::totals() const {
  TierTotals sums;
  for (size_t tier = 0; tier < kTiers.size(); ++tier) {
    const auto totals = totals_of(tier);
    for (size_t d = 0; d < kDirections; ++d) {
      sums[d].bytes += totals[d].bytes, sums[d].busy_s += totals[d].busy_s;
      sums[d].copies += totals[d].copies;
    }
  }
  return sums;
}

void CopyEngine::record_spans(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->records = on;
}

std::vector<CopySpan> CopyEngine::take_spans() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->spans, {});
}

std::vector<std::string> CopyEngine::notes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->notes;
}

}  // namespace ditrain::memory
