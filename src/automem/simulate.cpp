#include "ditrain/automem/simulate.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/memory/allocator.hpp"

namespace ditrain::automem {
namespace {

using memory::Copy;
using memory::Direction;

class SimulatedQueue final : public memory::CopyQueue {
 public:
  explicit SimulatedQueue(const Machine& machine) : machine_(machine), order_(machine.copy_by) {}

  int64_t submit(Copy copy) override {
    const size_t row = order_.row_of(copy);
    const int64_t ticket = order_.add(std::move(copy), now_);
    begin(row);
    return ticket;
  }
  void make_urgent(int64_t ticket) override { order_.make_urgent(ticket); }
  bool needs_help(memory::Backing* tier) const override { return memory::workers_copy(machine_.copy_by, tier); }
  void charge_in_place(size_t) override {}  // simulate() does

  double now() const { return now_; }
  bool workers_copy() const { return streams_[kWorkers].busy; }
  /// The workers compute until then: all copies of threads that end meanwhile, in order.
  void run_until(double time) {
    size_t next = kRows;
    while ((next = first_to_end(kWorkers)) < kRows && now_ + streams_[next].left_s <= time) end(next, kWorkers);
    pass(std::max(now_, time), kWorkers);
  }
  /// The workers wait for the next end of a copy. False if nothing is under way.
  bool run_to_next_end() {
    const size_t next = first_to_end(kRows);
    if (next == kRows) return false;
    end(next, kRows);
    return true;
  }

 private:
  static constexpr size_t kWorkers = memory::CopyOrder::kWorkersRow, kRows = memory::CopyOrder::kRows;
  // Carries out the copies of a row, one after the other. In the functions below only the first `rows` rows move on:
  // kWorkers while the workers compute, all kRows while they wait.
  struct Stream {
    bool busy = false;
    Copy current;
    double left_s = 0;
  };

  void begin(size_t row) {
    Stream& stream = streams_[row];
    memory::CopyJob* job = stream.busy ? nullptr : order_.next(row);
    if (job == nullptr) return;
    stream = {true, order_.take(*job).copy};
    const memory::TierRates& tier = machine_.tiers[stream.current.tier];
    const double rate = stream.current.direction == Direction::kIn ? tier.in_bytes_s : tier.out_bytes_s;
    stream.left_s = tier.latency_s + double(stream.current.bytes) / rate;
  }
  void pass(double until, size_t rows) {
    for (size_t row = 0; row < rows; ++row)
      if (streams_[row].busy) streams_[row].left_s -= until - now_;
    now_ = until;
  }
  void end(size_t row, size_t rows) {
    Stream& stream = streams_[row];
    pass(now_ + std::max(0.0, stream.left_s), rows);
    stream.busy = false;
    const Copy copy = std::move(stream.current);
    begin(row);
    copy.done("");
    begin(row);
  }
  size_t first_to_end(size_t rows) const {
    size_t first = kRows;
    for (size_t row = 0; row < rows; ++row)
      if (streams_[row].busy && (first == kRows || streams_[row].left_s < streams_[first].left_s)) first = row;
    return first;
  }

  const Machine& machine_;
  memory::CopyOrder order_;
  std::array<Stream, kRows> streams_;
  double now_ = 0;
};

}  // namespace

Forecast simulate(const Uses& uses, const Residency::Setup& wanted, const Machine& machine, int steps) {
  Residency::Setup setup = wanted;
  memory::ByteCount in_pool;
  setup.simulated = true, setup.pool = nullptr;
  setup.place = [&](int64_t, size_t, size_t bytes) { in_pool.add(bytes); };
  setup.release = [&](size_t bytes) { in_pool.remove(bytes); };
  setup.times.point_s = machine.point_s, setup.times.rates = machine.tiers;
  SimulatedQueue queue(machine);
  Residency residency(uses, setup, queue);
  std::vector<std::shared_ptr<Storage>> storages;
  for (const MovableTensor& tensor : uses.tensors) storages.push_back(residency.make(tensor.name, tensor.bytes));
  // Weights and states have been written when the first step begins.
  for (size_t i = 0; i < uses.tensors.size(); ++i)
    if (uses.tensors[i].written == Written::kInUpdates) residency.pretend_written(*storages[i]);
  std::vector<double> in_place_s(uses.points.size(), 0.0);
  if (machine.in_place_bytes_s > 0)
    for (size_t p = 0; p < uses.points.size(); ++p)
      for (const int id : uses.points[p].uses)
        if (setup.backing_slots[size_t(id)].in_place)
          in_place_s[p] += double(uses.tensors[size_t(id)].bytes) / machine.in_place_bytes_s;
  Forecast forecast;
  for (int step = 0; step < steps; ++step) {
    const ResidencyTotals before = residency.totals();
    const double start = queue.now();
    forecast = {};
    for (size_t p = 0; p < uses.points.size(); ++p) {
      const double before_s = queue.now();
      while (!residency.try_enter(int(p)) || queue.workers_copy())
        DITRAIN_CHECK(queue.run_to_next_end(), "a simulated step that waits for nothing");
      forecast.stall_s += queue.now() - before_s;
      queue.run_until(queue.now() + in_place_s[p]);
      queue.run_until(queue.now() + machine.point_s[p]);
      forecast.occupancy.push_back({queue.now() - start, in_pool.in_use()});
      residency.leave(int(p));
    }
    const ResidencyTotals after = residency.totals();
    forecast.step_s = queue.now() - start;
    forecast.bytes_in = after.bytes_in - before.bytes_in, forecast.bytes_out = after.bytes_out - before.bytes_out;
    forecast.peak_bytes = in_pool.peak();
  }
  return forecast;
}

}  // namespace ditrain::automem
