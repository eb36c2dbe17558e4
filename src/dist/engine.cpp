#include "ditrain/dist/engine.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "reduction.hpp"

namespace ditrain::dist {
namespace {

/// One sum (or gathering), as its request and the progress thread see it.
struct Sum {
  float* data;
  int64_t n;
  uint32_t sequence;
  bool only_shards;                // need its result
  std::optional<ShardCut> gather;  // none: a sum
  // Under the engine's mutex:
  bool done = false;
  std::exception_ptr error = {};
  ReductionOutcome outcome = {};
};

}  // namespace

double LinkModel::seconds(double bytes) const {
  const double others = double(hosts - 1);
  return 2 * others * latency_us * 1e-6 + 2 * others / double(hosts) * bytes * 8 / (gbit_s * 1e9);
}

struct Engine::State final : Task {
  /// A sum that was started, and when the link will have delivered it.
  struct InFlight {
    std::shared_ptr<Sum> sum;
    std::unique_ptr<Reduction> reduction;
    double start_s, delivered_s;
    bool finished = false;
  };

  State(Communicator& c, const EngineConfig& config_in) : communicator(c), config(config_in) {}

  Communicator& communicator;
  const EngineConfig config;
  std::string binding_failure;
  uint32_t next_sequence = 0;

  std::mutex mutex;  // of the queue and of the sums' results
  std::condition_variable some_done;
  std::deque<std::shared_ptr<Sum>> queue;

  // Only of the progress thread:
  std::unique_ptr<NodeGroup> group;  // if hierarchical, or if there is something to gather
  std::deque<InFlight> in_flight;
  double link_free_s = 0;
  std::exception_ptr broken = {};

  bool alone() const { return communicator.world_size() == 1; }
  // A gathering takes half of what a link takes for a sum: nothing comes back.
  double link_seconds(const Sum& sum) const {
    if (sum.gather) return 0.5 * config.link->seconds(double(sum.n) * sizeof(float));
    return config.link->seconds(double(sum.n) * double(dtype_bytes(config.wire)));
  }
  std::unique_ptr<Reduction> make_reduction(const Sum& sum) {
    if (sum.gather) return group->start_gather(sum.sequence, sum.data, sum.n, *sum.gather);
    if (!config.hierarchical) return make_flat_reduction(communicator, sum.data, sum.n);
    return group->start_sum(sum.sequence, sum.data, sum.n, sum.only_shards);
  }

  PollResult advance() override;
  bool start_next();
  void advance_operation(size_t i, PollResult& result);
  void complete(PollResult& result);
  void finish(const std::shared_ptr<Sum>& sum, const ReductionOutcome& outcome, std::exception_ptr error);
  void fail(std::exception_ptr error);
};

PollResult Engine::State::advance() {
  PollResult result;
  try {
    while ((broken || int(in_flight.size()) < config.max_in_flight) && start_next()) result.progressed = true;
    if (broken) return result;
    for (size_t i = 0; i < in_flight.size(); ++i) advance_operation(i, result);
    complete(result);
  } catch (...) {
    fail(std::current_exception());
    result.progressed = true;  // what is queued already has to hear of it, too
  }
  return result;
}

bool Engine::State::start_next() {
  std::shared_ptr<Sum> sum;
  {
    const std::lock_guard lock(mutex);
    if (queue.empty()) return false;
    sum = queue.front();
    queue.pop_front();
  }
  if (broken) {
    finish(sum, {}, broken);
    return true;
  }
  InFlight operation{.sum = sum, .reduction = {}, .start_s = now_s(), .delivered_s = 0};
  if (config.link) {
    link_free_s = std::max(link_free_s, operation.start_s) + link_seconds(*sum);
    operation.delivered_s = link_free_s;
  }
  in_flight.push_back(std::move(operation));  // first: if it cannot be started, fail() has to know of it
  in_flight.back().reduction = make_reduction(*sum);
  return true;
}

void Engine::State::advance_operation(size_t i, PollResult& result) {
  InFlight& operation = in_flight[i];
  if (!operation.reduction->done())
    result.merge(operation.reduction->advance(i > 0 ? in_flight[i - 1].reduction.get() : nullptr));
  if (!operation.reduction->done()) return;
  if (now_s() >= operation.delivered_s)
    operation.finished = true;
  else
    result.wake_s = std::min(result.wake_s, operation.delivered_s);
}

/// Results come in the order of the starts.
void Engine::State::complete(PollResult& result) {
  while (!in_flight.empty() && in_flight.front().finished) {
    const InFlight& operation = in_flight.front();
    finish(operation.sum, {operation.reduction->sum_squares(), operation.start_s, now_s()}, nullptr);
    in_flight.pop_front();
    result.progressed = true;  // another one may start
  }
}

void Engine::State::finish(const std::shared_ptr<Sum>& sum, const ReductionOutcome& outcome, std::exception_ptr error) {
  const std::lock_guard lock(mutex);
  sum->done = true, sum->outcome = outcome, sum->error = std::move(error);
  some_done.notify_all();
}

/// The error reaches whoever waits for a sum, now or later. What is under way stays as it is: it cannot be taken back
/// without waiting for ranks that may be gone.
void Engine::State::fail(std::exception_ptr error) {
  broken = std::move(error);
  for (const InFlight& operation : in_flight) finish(operation.sum, {}, broken);
}

/// A template because Engine::State is private.
template <class State>
class EngineRequest final : public Request {
 public:
  EngineRequest(std::shared_ptr<State> state, std::shared_ptr<Sum> sum)
      : state_(std::move(state)), sum_(std::move(sum)), exceptions_(std::uncaught_exceptions()) {}
  ~EngineRequest() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    std::unique_lock lock(state_->mutex);
    state_->some_done.wait(lock, [this] { return sum_->done; });
  }

  bool test() override { return wait_for(0); }
  bool wait_for(double seconds) override {
    constexpr double kLongest_s = 1e8;  // three years: what a clock can add
    std::unique_lock lock(state_->mutex);
    const auto done = [this] { return sum_->done; };
    if (!state_->some_done.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kLongest_s)), done))
      return false;
    if (sum_->error) std::rethrow_exception(sum_->error);
    return true;
  }
  std::optional<ReductionOutcome> outcome() const override {
    const std::lock_guard lock(state_->mutex);
    return sum_->done && !sum_->error ? std::optional(sum_->outcome) : std::nullopt;
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Sum> sum_;
  const int exceptions_;
};

Engine::Engine(Communicator& communicator, NodeMemory& arena, const EngineConfig& config)
    : state_(std::make_shared<State>(communicator, config)), exceptions_(std::uncaught_exceptions()) {
  DITRAIN_CHECK(config.max_in_flight >= 1 && config.max_in_flight <= EngineConfig::kMostInFlight,
                std::to_string(config.max_in_flight));
  DITRAIN_CHECK(config.hierarchical || config.wire == DType::kF32, "MPI sums f32 only");
  DITRAIN_CHECK(!config.tree || (config.hierarchical && config.wire == DType::kF32), "a tree of hierarchical f32 sums");
  if (state_->alone()) return;
  if (config.tree) expect_subtrees(communicator);
  if (config.hierarchical || config.shards || config.gathers)
    state_->group = std::make_unique<NodeGroup>(communicator, arena, config.wire, config.tree,
                                                int64_t(arena.part_bytes() / sizeof(float)));
  const platform::BindResult bound = communicator.progress_thread()->bind(config.pus);
  if (!bound) state_->binding_failure = "the communication thread is not bound to its core: " + bound.reason;
  communicator.progress_thread()->add(*state_);
}

Engine::~Engine() {
  if (state_->alone()) return;
  ProgressThread& thread = *state_->communicator.progress_thread();
  std::uncaught_exceptions() > exceptions_ ? thread.halt() : thread.remove(*state_);
  // Here, not when the last request goes: in this thread one can tell whether an exception unwinds the stack, and what
  // is under way must not be waited for then.
  state_->in_flight.clear();
  state_->group.reset();
}

std::unique_ptr<Request> Engine::start_allreduce_sum(float* data, int64_t n, bool whole) {
  return start(data, n, state_->config.shards && !whole, std::nullopt);
}

std::unique_ptr<Request> Engine::start_allgather(float* data, int64_t n, const ShardCut& cut) {
  DITRAIN_CHECK(cut.grain >= 1 && (state_->config.shards || state_->config.gathers), "an engine that gathers nothing");
  return start(data, n, false, cut);
}

std::unique_ptr<Request> Engine::start(float* data, int64_t n, bool only_shards,
                                       const std::optional<ShardCut>& gather) {
  DITRAIN_CHECK(n >= 0, "count " + std::to_string(n));
  if (state_->alone()) return std::make_unique<DoneRequest>();
  auto sum = std::make_shared<Sum>(
      Sum{.data = data, .n = n, .sequence = state_->next_sequence++, .only_shards = only_shards, .gather = gather});
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(sum);
  }
  state_->communicator.progress_thread()->wake();
  return std::make_unique<EngineRequest<State>>(state_, std::move(sum));
}

Communicator& Engine::communicator() const { return state_->communicator; }
const std::string& Engine::binding_failure() const { return state_->binding_failure; }

std::string Engine::description() const {
  if (state_->alone()) return "gradients: one rank, nothing to sum";
  const EngineConfig& c = state_->config;
  std::string s = "gradients: summed by the communication thread, ";
  if (!c.hierarchical)
    s += "flat (MPI)";
  else
    s += state_->group->num_parts() > 1 ? "in the memory of the node" : "by messages";
  if (c.hierarchical && state_->group->leaders().size() > 1)
    s += ", " + std::to_string(state_->group->leaders().size()) + " ranks exchange " + dtype_name(c.wire) + " slices";
  if (c.shards) s += ", for ranks that update a shard each";
  if (c.tree) s += ", as a tree that does not depend on the number of ranks";
  if (c.link) {
    char text[96];
    std::snprintf(text, sizeof(text), ", held back as by a link of %g Gbit/s and %g us between %d hosts",
                  c.link->gbit_s, c.link->latency_us, c.link->hosts);
    s += text;
  }
  return s;
}

}  // namespace ditrain::dist
