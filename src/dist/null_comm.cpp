// The communicator of a run with one rank and without MPI, and what all communicators share.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {
namespace {

void check_count(int64_t n) { DITRAIN_CHECK(n >= 0, "count " + std::to_string(n)); }
void check_root(int root) { DITRAIN_CHECK(root == 0, "root " + std::to_string(root) + " of 1 rank"); }

class NullCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  int num_nodes() const override { return 1; }
  std::string description() const override { return "one rank, without MPI"; }

  std::unique_ptr<Request> start_allreduce_sum(float*, int64_t n) override {
    check_count(n);
    return std::make_unique<DoneRequest>();
  }
  void allreduce_sum(double*, int64_t n) override { check_count(n); }
  void allreduce_max(double*, int64_t n) override { check_count(n); }
  uint64_t allreduce_or(uint64_t flags) override { return flags; }
  void broadcast(void*, size_t, int root) override { check_root(root); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int) override {
    DITRAIN_CHECK(color >= 0, "color " + std::to_string(color));
    return make_null_communicator();
  }
  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    check_root(root);
    return {text};
  }
  std::vector<double> gather(const double* values, int64_t n, int root) override {
    check_count(n);
    check_root(root);
    return {values, values + n};
  }

 private:
  void end_all_ranks(int) override {}
};

}  // namespace

void Request::wait() {
  // A wait of MPI returns early only after its time; this one has none.
  DITRAIN_CHECK(wait_for(std::numeric_limits<double>::infinity()), "a wait without end has ended");
}

std::string Communicator::host(int) const {
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::unique_ptr<Communicator> Communicator::split(int, int) {
  throw LogicFault({.where = "dist", .what = "these ranks cannot be split: " + description()});
}

std::unique_ptr<Request> Communicator::start_send(const void*, size_t, int to, int) {
  throw LogicFault({.where = "dist", .what = "there is no rank " + std::to_string(to) + " to send to"});
}
std::unique_ptr<Request> Communicator::start_receive(void*, size_t, int from, int) {
  throw LogicFault({.where = "dist", .what = "there is no rank " + std::to_string(from) + " to receive from"});
}

void Communicator::await(Request& request, const std::string& what) {
  constexpr double kLook_s = 0.5;
  double patience_s = timeout_s();
  for (double before = now_s(); !request.wait_for(std::min(patience_s, kLook_s));) {
    // Time in which nobody looked, because this process was stopped, does not count.
    const double now = now_s();
    patience_s -= std::min(now - before, 2 * kLook_s);
    before = now;
    if (patience_s > 0) continue;
    patience_s = patience_with_disks(what);
    if (patience_s <= 0) give_up(what);
    before = now_s();
  }
}

// What is left of the timeout if it counts from the last time that another rank worked for its disk.
double Communicator::patience_with_disks(const std::string& what) {
  const std::vector<Arrivals> run = ask_run();
  const int self = rank_in_run(rank());
  double idle_s = std::numeric_limits<double>::infinity();
  std::string working;
  int first_idle = -1;  // the rank that says so in the log
  for (int other = 0; other < int(run.size()); ++other) {
    const Arrivals& of = run[size_t(other)];
    if (!of.answered) return 0;
    if (other != self) idle_s = std::min(idle_s, of.disk_idle_s);
    if (of.disk_idle_s > 0)
      first_idle = first_idle < 0 ? other : first_idle;
    else
      working += (working.empty() ? "" : ", ") + std::to_string(other);
  }
  if (idle_s == 0 && self == std::max(first_idle, 0)) log::warn("{} waits: rank {} writes to its disk", what, working);
  return timeout_s() - idle_s;
}

Arrivals Counts::now() const {
  return {.control = control,
          .gradients = gradients,
          .disk_idle_s = disk_work > 0 ? 0 : std::max(0.0, now_s() - disk_work_end_s)};
}

double Counts::disk_still_s() const { return watched_work > 0 ? std::max(0.0, now_s() - disk_moved_s) : 0; }

DiskWork::DiskWork(Communicator& communicator, Kind kind) : counts_(communicator.counts_), kind_(kind) {
  moved();
  ++counts_->disk_work;
  if (kind_ == Kind::kWatched) ++counts_->watched_work;
}

void DiskWork::moved() const { counts_->disk_moved_s = now_s(); }

DiskWork::~DiskWork() {
  moved();
  counts_->disk_work_end_s = now_s();
  if (kind_ == Kind::kWatched) --counts_->watched_work;
  --counts_->disk_work;
}

void Communicator::give_up(const std::string& what) {
  const double waited_s = timeout_s();
  const Arrivals own = arrivals();
  const std::vector<Arrivals> all = ask_arrivals();
  std::string late, silent;
  const auto add = [this](std::string& list, size_t rank) {
    list += (list.empty() ? "" : ", ") + std::to_string(rank_in_run(int(rank))) + " (" + host(int(rank)) + ")";
  };
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].answered)
      add(silent, rank);
    else if (all[rank].control < own.control || all[rank].gradients < own.gradients)
      add(late, rank);
  }
  std::string got;
  if (!late.empty()) got = "not arrived: rank " + late + (is_part_of_run() ? ", or a rank that it waits for" : "");
  if (!silent.empty()) got += (got.empty() ? "" : "; ") + std::string("no answer at all: rank ") + silent;
  if (got.empty()) got = "all ranks arrived: the network or one of them is slow";
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g s", waited_s);
  throw TimeoutError(
      {.where = "watchdog",
       .what = what + " did not finish in " + seconds,
       .got = got,
       .hint =
           "a larger dist.timeout_s if those ranks were only slow; --resume auto goes on from the last checkpoint"});
}

std::string broadcast_text(Communicator& communicator, std::string text, int root) {
  uint64_t size = text.size();
  communicator.broadcast(&size, sizeof(size), root);
  text.resize(size);
  communicator.broadcast(text.data(), size, root);
  return text;
}

std::vector<float> gather_floats(Communicator& communicator, std::vector<float> mine, int root) {
  if (communicator.world_size() == 1) return mine;
  std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float));
  mine = {};
  const std::vector<std::string> parts = communicator.gather_strings(bytes, root);
  bytes = {};
  for (const std::string& part : parts) {
    const size_t at = mine.size();
    mine.resize(at + part.size() / sizeof(float));
    if (!part.empty()) std::memcpy(mine.data() + at, part.data(), part.size());
  }
  return mine;
}

TimeoutScope::TimeoutScope(Communicator& communicator, double seconds)
    : communicator_(communicator), before_(communicator.timeout_s()) {
  communicator.set_timeout(seconds > 0 ? seconds : std::numeric_limits<double>::infinity());
}

void Communicator::abort(int exit_code) {
  std::fflush(nullptr);
  end_all_ranks(exit_code);
  std::_Exit(exit_code);  // no destructors: other threads may still be at work
}

std::unique_ptr<Communicator> make_null_communicator() { return std::make_unique<NullCommunicator>(); }

}  // namespace ditrain::dist
