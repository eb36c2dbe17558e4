// Ranks that are threads of this process: the engine under test, without MPI, where sanitizers see everything.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"

/// This thread copies a message, as a network would.
inline thread_local bool copies_message = false;

/// What the ranks of a world have in common.
struct ThreadWorld {
  int ranks = 1, ranks_per_node = 1, failing_sum = -1;  // number of the sum that cannot be started
  std::mutex mutex = {};
  std::condition_variable changed = {};
  // The collective under way: one text per rank; `round` counts those that are over.
  std::vector<std::string> texts = {};
  int arrived = 0, round = 0;
  std::vector<std::string> result = {};
  // From, to, tag: messages in the order of the sends, which receives take in the order of their starts, as MPI's do.
  struct Mail {
    std::deque<std::string> messages = {};
    size_t receives = 0;
  };
  std::map<std::tuple<int, int, int>, Mail> mail = {};
  std::map<int, std::vector<std::vector<float>>> sums = {};  // by number: what ranks brought
  std::set<int> under_way = {};                              // sums of rank 0 that it has not seen the end of
  size_t most_under_way = 0;
  std::map<int, ditrain::dist::Arrivals> told = {};
  std::atomic<int> dropped = 0;  // requests destroyed before they were done: MPI's would wait

  /// Waits until `holds()`, which is asked with the mutex held after sums and arrivals; false after 30 s.
  template <class F>
  bool wait_until(F holds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), holds);
  }
  /// Whether that rank has brought its part of sum `number`. With the mutex held.
  bool has_part(int number, int rank) const {
    const auto found = sums.find(number);
    return found != sums.end() && !found->second[size_t(rank)].empty();
  }
};

class ThreadCommunicator final : public ditrain::dist::Communicator {
  using Request = ditrain::dist::Request;

 public:
  ThreadCommunicator(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_.ranks; }
  int local_rank() const override { return rank_ % world_.ranks_per_node; }
  int local_size() const override {
    const int first = rank_ - local_rank();
    return std::min(world_.ranks_per_node, world_.ranks - first);
  }
  int num_nodes() const override { return (world_.ranks - 1) / world_.ranks_per_node + 1; }
  std::vector<int> nodes() const override {
    std::vector<int> all;
    for (int i = 0; i < world_.ranks; ++i) all.push_back(i / world_.ranks_per_node);
    return all;
  }
  std::string description() const override { return "threads"; }
  ditrain::dist::ProgressThread* progress_thread() override { return &thread_; }

  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) override {
    const std::lock_guard lock(world_.mutex);
    const int number = sums_++;
    if (number == world_.failing_sum) throw ditrain::RunError({.where = "test", .what = "the link is cut"});
    auto& parts = world_.sums[number];
    parts.resize(size_t(world_.ranks));
    parts[size_t(rank_)] = std::vector<float>(data, data + n);
    parts[size_t(rank_)].push_back(1);  // it is there, even if n is 0
    if (rank_ == 0) world_.under_way.insert(number);
    world_.most_under_way = std::max(world_.most_under_way, world_.under_way.size());
    world_.changed.notify_all();
    return std::make_unique<Poll>(world_, [=, this] { return sum_is_there(number, data, n); });
  }
  std::unique_ptr<Request> start_send(const void* data, size_t bytes, int to, int tag) override {
    const std::lock_guard lock(world_.mutex);
    copies_message = true;
    world_.mail[{rank_, to, tag}].messages.emplace_back(static_cast<const char*>(data), bytes);
    copies_message = false;
    return std::make_unique<Poll>(world_, [] { return true; });
  }
  std::unique_ptr<Request> start_receive(void* data, size_t bytes, int from, int tag) override {
    const std::lock_guard lock(world_.mutex);
    ThreadWorld::Mail& mail = world_.mail[{from, rank_, tag}];
    return std::make_unique<Poll>(world_, [=, this, &mail, number = mail.receives++] {
      const std::lock_guard lock(world_.mutex);
      if (number >= mail.messages.size()) return false;
      DITRAIN_CHECK(mail.messages[number].size() == bytes, "a message of another size");
      std::memcpy(data, mail.messages[number].data(), bytes);
      mail.messages[number].clear();
      return true;
    });
  }

  void allreduce_sum(double* data, int64_t n) override {
    reduce(data, n, [](double a, double b) { return a + b; });
  }
  void allreduce_max(double* data, int64_t n) override {
    reduce(data, n, [](double a, double b) { return std::max(a, b); });
  }
  uint64_t allreduce_or(uint64_t flags) override {
    uint64_t all = 0;
    for (const std::string& text : all_texts(std::to_string(flags))) all |= std::stoull(text);
    return all;
  }
  void broadcast(void* data, size_t bytes, int root) override {
    const std::vector<std::string> all = all_texts(std::string(static_cast<char*>(data), bytes));
    std::memcpy(data, all[size_t(root)].data(), bytes);
  }
  void barrier() override { all_texts(""); }
  std::vector<std::string> gather_strings(const std::string& text, int root) override {
    std::vector<std::string> all = all_texts(text);
    return rank_ == root ? all : std::vector<std::string>{};
  }
  std::vector<double> gather(const double* values, int64_t n, int root) override {
    std::vector<double> all;
    for (const std::string& text : all_texts(std::string(reinterpret_cast<const char*>(values), size_t(n) * 8))) {
      all.resize(all.size() + size_t(n));
      std::memcpy(all.data() + all.size() - n, text.data(), text.size());
    }
    return rank_ == root ? all : std::vector<double>{};
  }

  /// What ask_arrivals() of others says of this rank.
  void tell_arrivals() {
    const std::lock_guard lock(world_.mutex);
    world_.told[rank_] = arrivals();
    world_.changed.notify_all();
  }

 private:
  class Poll final : public Request {
   public:
    Poll(ThreadWorld& world, std::function<bool()> look) : world_(world), look_(std::move(look)) {}
    ~Poll() override { world_.dropped += done_ ? 0 : 1; }
    bool test() override { return done_ = done_ || look_(); }
    bool wait_for(double seconds) override {
      const double end = ditrain::now_s() + seconds;
      for (ditrain::dist::Backoff backoff; !test(); backoff.pause())
        if (ditrain::now_s() > end) return false;
      return true;
    }

   private:
    ThreadWorld& world_;
    std::function<bool()> look_;
    bool done_ = false;
  };

  void end_all_ranks(int) override {}
  std::vector<ditrain::dist::Arrivals> ask_arrivals() override {
    tell_arrivals();
    std::vector<ditrain::dist::Arrivals> all;
    const std::lock_guard lock(world_.mutex);
    for (int i = 0; i < world_.ranks; ++i)
      all.push_back(world_.told.count(i) ? world_.told[i] : ditrain::dist::Arrivals{.answered = false});
    return all;
  }

  bool sum_is_there(int number, float* data, int64_t n) {
    const std::lock_guard lock(world_.mutex);
    const auto& parts = world_.sums[number];
    for (const auto& part : parts)
      if (part.empty()) return false;
    for (int64_t i = 0; i < n; ++i) {
      data[i] = parts[0][size_t(i)];
      for (int rank = 1; rank < world_.ranks; ++rank) data[i] += parts[size_t(rank)][size_t(i)];
    }
    if (rank_ == 0) world_.under_way.erase(number);
    return true;
  }

  template <class F>
  void reduce(double* data, int64_t n, F f) {
    std::vector<std::string> all = all_texts(std::string(reinterpret_cast<char*>(data), size_t(n) * 8));
    for (size_t rank = 0; rank < all.size(); ++rank)
      for (int64_t i = 0; i < n; ++i) {
        double value;
        std::memcpy(&value, all[rank].data() + 8 * i, 8);
        data[i] = rank == 0 ? value : f(data[i], value);
      }
  }

  /// What all ranks brought to this collective.
  std::vector<std::string> all_texts(const std::string& own) {
    count_control();
    std::unique_lock lock(world_.mutex);
    const int round = world_.round;
    world_.texts.resize(size_t(world_.ranks));
    world_.texts[size_t(rank_)] = own;
    if (++world_.arrived == world_.ranks) {
      world_.result = world_.texts, world_.arrived = 0, ++world_.round;
      world_.changed.notify_all();
    }
    world_.changed.wait(lock, [&] { return world_.round != round; });
    return world_.result;
  }

  ThreadWorld& world_;
  const int rank_;
  int sums_ = 0;
  ditrain::dist::ProgressThread thread_;
};

/// What ranks find wrong; assertions of Catch2 are for one thread.
class Findings {
 public:
  void expect(bool holds, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (!holds) failed_.insert(what);
  }
  const std::set<std::string>& failed() const { return failed_; }

 private:
  std::mutex mutex_;
  std::set<std::string> failed_;
};

template <class E, class F>
bool throws(F f) {
  try {
    f();
  } catch (const E&) {
    return true;
  }
  return false;
}

/// Runs f(communicator) on every rank of a world; rethrows what the lowest rank threw. A rank that throws must be the
/// last thing that the others wait for.
inline void run_ranks(ThreadWorld& world, const std::function<void(ThreadCommunicator&)>& f) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(world, rank);
      try {
        f(communicator);
      } catch (...) {
        errors[size_t(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}
