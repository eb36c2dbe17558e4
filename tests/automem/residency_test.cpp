// The manager of the fast tier: what comes, what leaves, and that no byte is lost on the way. The step is one that is
// easy to follow: points with a few tensors each, and contents that say which write they are of.
#include "ditrain/automem/residency.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "automem/layered.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/memory/allocator.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/platform/pages.hpp"
#include "ditrain/tensor/tensor.hpp"
#include "support/threads.hpp"

using namespace ditrain;
using namespace ditrain::automem;
using memory::CopyBy;

namespace {

// A pool, slow tiers and threads that copy.
struct Rig {
  Rig(const Uses& wanted, size_t pool_bytes, Strategy strategy, bool in_place = false, CopyBy by = CopyBy::kThreads,
      double patience_s = 60)
      : uses(wanted),
        pool(pool_bytes, platform::PagePolicy::kPlain),
        bulk(memory::make_bulk_memory({.bytes = 1 << 24})) {
    Residency::Setup setup{.strategy = strategy, .pool = pool.data(), .pool_bytes = pool_bytes};
    setup.patience_s = patience_s;
    setup.place = [this](int64_t, size_t, size_t bytes) { in_pool.add(bytes); };
    setup.release = [this](size_t bytes) { in_pool.remove(bytes); };
    size_t at = 0;
    for (const MovableTensor& tensor : uses.tensors) {
      setup.backing_slots.push_back({bulk.get(), at, in_place && tensor.name.starts_with("moment")});
      at += (tensor.bytes + memory::kBlock - 1) / memory::kBlock * memory::kBlock;
    }
    engine = std::make_unique<memory::CopyEngine>(memory::CopyEngine::Setup{.by = by});
    residency = std::make_unique<Residency>(uses, setup, *engine);
    for (const MovableTensor& t : uses.tensors)
      tensors.emplace_back(Shape{int64_t(t.bytes / 4)}, DType::kF32, residency->make(t.name, t.bytes));
  }
  ~Rig() { engine.reset(); }

  void fill(int id, float value) {
    const Pin<float> p(tensors[size_t(id)]);
    std::fill_n(p.get(), tensors[size_t(id)].size(), value);
  }
  bool holds(int id, float value) {
    const Pin<float> p(tensors[size_t(id)]);
    return std::all_of(p.get(), p.get() + tensors[size_t(id)].size(), [&](float x) { return x == value; });
  }

  // One step in which forward writes activations, backward reads them and weights, and the update adds one to both
  // of its tensors.
  void step(int number, int layers) {
    for (size_t i = 0; i < uses.points.size(); ++i) {
      const Point& p = uses.points[i];
      residency->enter(int(i));
      const float stamp = float(number * 1000);
      CHECK(
          std::all_of(p.uses.begin(), p.uses.end(), [&](int id) { return tensors[size_t(id)].storage().is_placed(); }));
      for (const int id : p.uses) {
        const bool parameter = id < 2 * layers;
        if (p.phase == Phase::kUpdate) {
          CHECK(holds(id, float(number)));
          fill(id, float(number + 1));
        } else if (parameter) {
          CHECK(holds(id, float(number)));
        } else if (p.phase == Phase::kBackward) {
          CHECK(holds(id, stamp + float(id)));
        } else if (id == p.uses.back() || p.name == "0") {
          fill(id, stamp + float(id));
        } else {
          CHECK(holds(id, stamp + float(id)));
        }
      }
      residency->leave(int(i));
    }
  }

  Uses uses;
  platform::PageBlock pool;
  memory::ByteCount in_pool;
  std::unique_ptr<memory::Backing> bulk;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<memory::CopyEngine> engine;
  std::vector<Tensor> tensors;
};

}  // namespace

TEST_CASE("every tensor keeps its contents through steps in a pool that is too small for all") {
  constexpr int kLayers = 7;
  const Uses uses = layered(kLayers);
  const Strategy strategy = GENERATE(Strategy::kPaper, Strategy::kPlanned);
  const double share = GENERATE(0.35, 0.6, 1.1);
  const bool in_place = GENERATE(false, true);
  const CopyBy by = GENERATE(CopyBy::kThreads, CopyBy::kWorkers);
  INFO("share " << share << " paper " << (strategy == Strategy::kPaper) << " workers " << (by == CopyBy::kWorkers));
  const size_t pool = size_t(share * double(uses.total_bytes())) / memory::kBlock * memory::kBlock;
  Rig rig(uses, pool, strategy, in_place, by);
  for (int id = 0; id < 2 * kLayers; ++id) rig.fill(id, 0);
  for (int number = 0; number < 6; ++number) {
    rig.step(number, kLayers);
    if (number == 3) {  // something else comes in between: it reads, and one tensor is written
      rig.residency->begin_reading();
      for (int id = 0; id < 2 * kLayers; ++id) CHECK(rig.holds(id, 4));
      rig.residency->end_reading();
      rig.fill(2, 4);
    }
  }
  for (int id = 0; id < 2 * kLayers; ++id) CHECK(rig.holds(id, 6));
  CHECK(rig.in_pool.peak() <= pool);
  if (share > 1 && strategy == Strategy::kPlanned) CHECK(rig.residency->totals().bytes_in == 0);
}

TEST_CASE("what a cluster writes stays while another one is still in an earlier point") {
  enum { kX, kV, kF };
  enum { kForward0, kForward1, kForward2, kBackward1, kUpdateF };
  Uses uses;
  uses.tensors = {{"x", kTensor, Written::kInForward},
                  {"v", 2 * kTensor, Written::kInForward},
                  {"f", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {}},
                 {Phase::kForward, "1", {kX}},
                 {Phase::kForward, "2", {kV}},
                 {Phase::kBackward, "1", {kX}},
                 {Phase::kUpdate, "f", {kF}}};
  Rig rig(uses, 2 * kTensor, Strategy::kPlanned);
  Residency& residency = *rig.residency;
  const auto point = [&](int number, const auto& f) {
    residency.enter(number);
    f();
    residency.leave(number);
  };
  point(kForward0, [] {});
  point(kForward1, [&] { rig.fill(kX, 1); });
  point(kForward2, [&] { rig.fill(kV, 1); });
  point(kBackward1, [&] { CHECK(rig.holds(kX, 1)); });
  {
    std::optional<Pin<float>> held;  // so that x stays in the pool until the next step
    point(kUpdateF, [&] { held.emplace(rig.tensors[kF]); });
    residency.enter(kForward0);  // one cluster stays in it
    residency.enter(kForward1);
    rig.fill(kX, 2);
  }
  // v takes the whole pool. Each time copies are over before it is tried again.
  for (int i = 0; i < 10; ++i) {
    REQUIRE_FALSE(residency.try_enter(kForward2));
    REQUIRE(test::others_sleep());
  }
  CHECK(rig.holds(kX, 2));
  residency.leave(kForward0);
  residency.leave(kForward1);
  point(kForward2, [&] { rig.fill(kV, 2); });
  point(kBackward1, [&] { CHECK(rig.holds(kX, 2)); });
}

TEST_CASE("a cluster that waits for room ends with the cluster that holds it and fails") {
  Uses uses;
  uses.tensors = {{"x", kTensor, Written::kInUpdates}, {"y", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {0}}, {Phase::kForward, "1", {1}}};
  parallel::Team team({.num_workers = 2, .num_clusters = 2});
  const platform::PageBlock pool(kTensor, platform::PagePolicy::kPlain);
  const auto bulk = memory::make_bulk_memory({.bytes = 2 * kTensor});
  auto engine = std::make_unique<memory::CopyEngine>(memory::CopyEngine::Setup{});
  std::atomic<bool> holds{false}, waits{false};
  Residency residency(uses,
                      {.backing_slots = {{bulk.get(), 0}, {bulk.get(), kTensor}},
                       .pool = pool.data(),
                       .pool_bytes = kTensor,
                       .while_waiting =
                           [&] {
                             waits = true;
                             waits.notify_one();
                             team.end_if_failed();
                           }},
                      *engine);
  std::vector<Tensor> tensors;
  for (const MovableTensor& t : uses.tensors)
    tensors.emplace_back(Shape{int64_t(t.bytes / 4)}, DType::kF32, residency.make(t.name, t.bytes));
  const bool pins = GENERATE(false, true);
  CHECK_THROWS_WITH(team.run([&](const parallel::Worker& w) {
    if (w.worker == 1) {
      residency.enter(0);
      holds = true;
      holds.notify_one();
      waits.wait(false);
      throw RunError({.where = "cluster 1", .what = "failed"});
    }
    holds.wait(false);
    pins ? void(Pin<float>(tensors[1]).get()) : residency.enter(1);
  }),
                    Catch::Contains("[cluster 1] failed"));
  engine.reset();
}

TEST_CASE("what is written before its point begins is kept, also where the updates before it are left out") {
  enum { kImage, kF };
  Uses uses;
  uses.tensors = {{"image", kTensor, Written::kInForward}, {"f", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {kImage}}, {Phase::kBackward, "0", {kImage}}, {Phase::kUpdate, "f", {kF}}};
  Rig rig(uses, kTensor, GENERATE(Strategy::kPlanned, Strategy::kPaper));
  const bool stays = GENERATE(false, true);  // in the pool, from one step to the next
  const auto step = [&](float image, bool updates) {
    rig.fill(kImage, image);
    rig.residency->use_in_place({false, false});  // copies begin where they can
    for (const int point : {0, 1}) {
      rig.residency->enter(point);
      CHECK(rig.holds(kImage, image));
      std::optional<Pin<float>> held;
      if (stays) held.emplace(rig.tensors[kImage]);
      rig.residency->leave(point);
    }
    if (!updates) return;
    rig.residency->enter(2);
    rig.fill(kF, -image);
    rig.residency->leave(2);
  };
  step(1, true);
  step(2, false);
  step(3, false);
  step(4, true);
  CHECK(rig.holds(kF, -4));
}

TEST_CASE("who reads between the points of a step leaves a tensor clean, who may write does not") {
  const Access access = GENERATE(Access::kRead, Access::kReadWrite);
  Uses uses;
  uses.tensors = {{"a", kTensor, Written::kInUpdates}, {"b", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "a", {0}}, {Phase::kForward, "b", {1}}};
  Rig rig(uses, kTensor, Strategy::kPlanned);
  for (const int id : {0, 1}) rig.fill(id, 1);
  rig.residency->enter(0), rig.residency->leave(0);
  const double before = rig.residency->totals().bytes_out;
  Pin<float>(rig.tensors[0], access).get();
  rig.residency->enter(1), rig.residency->leave(1);
  const double out = rig.residency->totals().bytes_out - before;
  CHECK(out == (access == Access::kRead ? 0 : kTensor));
}

TEST_CASE("a tensor that is brought takes one place, also where that has to be copied out first") {
  enum { kNext, kWanted, kLater };
  Uses uses;
  uses.tensors = {{"next", kTensor, Written::kInUpdates},
                  {"wanted", kTensor, Written::kInUpdates},
                  {"later", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {kNext}}, {Phase::kForward, "1", {kWanted}}, {Phase::kForward, "2", {kLater}}};
  Rig rig(uses, 2 * kTensor, Strategy::kPlanned);
  for (const int id : {kNext, kWanted, kLater}) rig.fill(id, float(id));
  REQUIRE(rig.tensors[kNext].storage().is_placed());
  REQUIRE(rig.tensors[kLater].storage().is_placed());
  rig.residency->begin_reading();
  const double before = rig.residency->totals().bytes_out;
  CHECK(rig.holds(kWanted, float(kWanted)));
  CHECK(rig.tensors[kNext].storage().is_placed());
  CHECK(rig.residency->totals().bytes_out == before + kTensor);
}

TEST_CASE("a tensor for which the tensors of a point leave no room is an error that names it, not a wait for ever") {
  Uses uses;
  uses.tensors = {{"used", kTensor, Written::kInUpdates}, {"not announced", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {0}}, {Phase::kForward, "1", {1}}};
  Rig rig(uses, kTensor, Strategy::kPlanned, /*in_place=*/false, CopyBy::kThreads, /*patience_s=*/0.02);
  for (const int id : {0, 1}) rig.fill(id, 1);
  rig.residency->enter(0);
  CHECK_THROWS_WITH(rig.holds(1, 1), Catch::Contains("no room for not announced") && Catch::Contains("beside"));
  rig.residency->leave(0);
  CHECK(rig.holds(1, 1));
}

TEST_CASE("a point that is not of the step is an error") {
  Rig rig(layered(2), layered(2).total_bytes(), Strategy::kPlanned);
  for (const int point : {-1, 6}) CHECK_THROWS_WITH(rig.residency->enter(point), Catch::Contains("no point"));
}

TEST_CASE("the seconds of a point are those of the step in which it was shortest") {
  Rig rig(layered(1), layered(1).total_bytes(), Strategy::kPlanned);
  Residency& residency = *rig.residency;
  double longest_s = 1e9;  // that the point can have taken
  for (const int ms : {4, 2, 6}) {
    residency.enter(0), residency.leave(0);
    const double start_s = now_s();
    residency.enter(2);
    for (const double end_s = now_s() + 1e-3 * ms; now_s() < end_s;) continue;
    residency.leave(2);
    longest_s = std::min(longest_s, now_s() - start_s);
  }
  CHECK(residency.point_seconds().back() >= 2e-3);
  CHECK(residency.point_seconds().back() <= longest_s);
}

TEST_CASE("a stall is the time in which any cluster waits, counted once") {
  struct Queue final : memory::CopyQueue {
    int64_t submit(memory::Copy copy) override {
      const std::lock_guard lock(mutex);
      copies.push_back(std::move(copy));
      return int64_t(copies.size()) - 1;
    }
    void make_urgent(int64_t ticket) override {
      const std::lock_guard lock(mutex);
      urgent.insert(ticket);
    }
    bool help() override { return false; }
    void charge_in_place(size_t) override {}
    // Returns when so many copies are waited for.
    void expect_waiting(size_t wanted) {
      for (size_t waiting = 0; waiting != wanted; std::this_thread::yield()) {
        const std::lock_guard lock(mutex);
        waiting = urgent.size();
      }
    }
    std::vector<memory::Copy> take() {
      const std::lock_guard lock(mutex);
      return std::move(copies);
    }
    std::mutex mutex;
    std::vector<memory::Copy> copies;
    std::set<int64_t> urgent;
  } queue;
  Uses uses;
  uses.tensors = {{"x", kTensor, Written::kInUpdates}, {"y", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {0}}, {Phase::kForward, "1", {1}}};
  Residency residency(
      uses, {.backing_slots = std::vector<BackingSlot>(2), .pool_bytes = 2 * kTensor, .simulated = true}, queue);
  for (const MovableTensor& t : uses.tensors) residency.pretend_written(*residency.make(t.name, t.bytes));
  const double start_s = now_s();
  std::thread first([&] { residency.enter(0); });
  queue.expect_waiting(1);
  std::thread second([&] { residency.enter(1); });
  queue.expect_waiting(2);
  const double wait_s = now_s();
  while (now_s() - wait_s < 20e-3) continue;
  const double end_wait_s = now_s();
  for (const memory::Copy& copy : queue.take()) copy.done("");
  first.join(), second.join();
  CHECK(residency.totals().stall_s >= end_wait_s - wait_s);
  CHECK(residency.totals().stall_s <= now_s() - start_s);
}

TEST_CASE("a cluster that waits where another one did not has stalled") {
  struct Queue final : memory::CopyQueue {
    int64_t submit(memory::Copy) override { throw LogicFault({.where = "test", .what = "nothing has to be copied"}); }
    void make_urgent(int64_t) override {}
    bool needs_help(memory::Backing*) const override { return true; }
    bool help() override {
      for (const double end_s = now_s() + std::exchange(copying_s, 0); now_s() < end_s;) continue;
      return false;
    }
    void charge_in_place(size_t) override {}
    double copying_s = 0;
  } queue;
  Uses uses;
  uses.tensors = {{"x", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {0}}};
  Residency residency(uses, {.backing_slots = {BackingSlot()}, .pool_bytes = kTensor, .simulated = true}, queue);
  const auto storage = residency.make("x", kTensor);
  residency.enter(0);
  queue.copying_s = 5e-3;
  residency.enter(0);
  CHECK(residency.totals().stall_s >= 5e-3);
}

TEST_CASE("a tensor that moves and is held is waited for before it is used in place") {
  Uses uses;
  uses.tensors = {{"x", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kUpdate, "0", {0}}};
  const platform::PageBlock pool(kTensor, platform::PagePolicy::kPlain);
  const auto bulk = memory::make_bulk_memory({.bytes = kTensor});
  memory::CopyEngine engine({});
  std::atomic<bool> waits{false};
  Residency residency(uses,
                      {.backing_slots = {{bulk.get(), 0}},
                       .pool = pool.data(),
                       .pool_bytes = kTensor,
                       .while_waiting = [&] { waits = true; }},
                      engine);
  const Tensor x({int64_t(kTensor / 4)}, DType::kF32, residency.make("x", kTensor));
  std::optional<Pin<float>> held(std::in_place, x);
  std::thread between_steps([&] { residency.use_in_place({true}); });
  while (!waits) std::this_thread::yield();
  held->get()[7] = 5;
  held.reset();
  between_steps.join();
  CHECK(Pin<float>(x).get() == reinterpret_cast<float*>(bulk->in_place(0)));
  CHECK(Pin<float>(x).get()[7] == 5);
}

TEST_CASE("a tensor that is held too long shows in the peak of the pool") {
  constexpr int kLayers = 6;
  const auto peak_of_step = [](int held) {
    const Uses uses = layered(kLayers);
    Rig rig(uses, uses.total_bytes(), Strategy::kPaper);
    std::optional<Pin<float>> pin;
    for (size_t point = 0; point < uses.points.size(); ++point) {
      const Point& p = uses.points[point];
      rig.residency->enter(int(point));
      if (std::count(p.uses.begin(), p.uses.end(), held) > 0) pin.emplace(rig.tensors[size_t(held)]);
      REQUIRE(test::others_sleep());  // copies ahead are over
      rig.residency->leave(int(point));
      REQUIRE(test::others_sleep());
    }
    return rig.in_pool.peak();
  };
  CHECK(peak_of_step(/*held=*/0) == peak_of_step(/*held=*/-1) + kTensor);
}

TEST_CASE("what was never written reads as zeros") {
  const Uses uses = layered(3);
  Rig rig(uses, uses.total_bytes() / 2, Strategy::kPlanned);
  std::memset(rig.pool.data(), 0xAB, rig.pool.bytes());
  for (int id = 0; id < 6; ++id) CHECK(rig.holds(id, 0));
}

TEST_CASE("threads that hold tensors at the same time get their own contents, whatever else moves") {
  constexpr int kLayers = 6;
  const Uses uses = layered(kLayers);
  Rig rig(uses, uses.total_bytes() * 2 / 5, Strategy::kPlanned, false, GENERATE(CopyBy::kThreads, CopyBy::kWorkers));
  for (int id = 0; id < 2 * kLayers; ++id) rig.fill(id, float(id));
  rig.residency->begin_reading();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const int id = (i * 5 + t * 3) % (2 * kLayers);
        if (!rig.holds(id, float(id))) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("what is used in place may change between steps, and contents stay") {
  constexpr int kLayers = 6;
  const Uses uses = layered(kLayers);
  const CopyBy by = GENERATE(CopyBy::kThreads, CopyBy::kWorkers);
  const size_t pool = uses.total_bytes() * 2 / 5 / memory::kBlock * memory::kBlock;
  Rig rig(uses, pool, GENERATE(Strategy::kPaper, Strategy::kPlanned), /*in_place=*/true, by);
  for (int id = 0; id < 2 * kLayers; ++id) rig.fill(id, 0);
  const std::vector<bool> none(uses.tensors.size(), false), all(uses.tensors.size(), true);
  std::vector<bool> moments = none, weights = none;
  for (int i = 0; i < kLayers; ++i) weights[size_t(i)] = moments[size_t(kLayers + i)] = true;
  int number = 0;
  for (const std::vector<bool>& in_place : {none, weights, moments, all, none, all, moments}) {
    rig.step(number++, kLayers);
    rig.residency->use_in_place(in_place);
    const double before = rig.residency->totals().bytes_in;
    rig.step(number++, kLayers);
    if (in_place == all) CHECK(rig.residency->totals().bytes_in == before);
    if (in_place == none) CHECK(rig.residency->totals().bytes_in > before);
  }
  for (int id = 0; id < 2 * kLayers; ++id) CHECK(rig.holds(id, float(number)));
}

TEST_CASE("a tensor that something holds stays where it is used") {
  const Uses uses = layered(3);
  Rig rig(uses, uses.total_bytes() / 2 / memory::kBlock * memory::kBlock, Strategy::kPlanned, /*in_place=*/true);
  rig.fill(3, 5);  // a moment
  {
    const Pin<float> held(rig.tensors[3]);
    rig.residency->use_in_place(std::vector<bool>(uses.tensors.size(), false));
    CHECK(held.get() == reinterpret_cast<float*>(rig.bulk->in_place(3 * kTensor)));
    CHECK(held.get()[7] == 5);
  }
  CHECK(rig.holds(3, 5));
}

TEST_CASE("outside a step nothing is written while a copy reads it") {
  struct Slow final : memory::Backing {
    std::string name() const override { return "slow"; }
    size_t bytes() const override { return SIZE_MAX; }
    void read(size_t, std::byte* to, size_t bytes) override { std::memset(to, 0, bytes); }
    void write(size_t, const std::byte* from, size_t) override {
      const std::byte exponent = from[3];  // of the first value
      begun = true;
      if (!test::others_sleep()) torn = true;  // the writer waits, or has written and waits for the end
      if (from[3] != exponent) torn = true;
    }
    std::atomic<bool> begun{false}, torn{false};
  } slow;
  Uses uses;
  uses.tensors = {{"a", kTensor, Written::kInUpdates}, {"b", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kUpdate, "a", {0}}, {Phase::kUpdate, "b", {1}}};
  const platform::PageBlock pool(kTensor, platform::PagePolicy::kPlain);
  memory::CopyEngine engine({});
  Residency residency(
      uses, {.backing_slots = {{&slow, 0}, {&slow, kTensor}}, .pool = pool.data(), .pool_bytes = pool.bytes()}, engine);
  const Tensor a({int64_t(kTensor / 4)}, DType::kF32, residency.make("a", kTensor));
  const Tensor b({int64_t(kTensor / 4)}, DType::kF32, residency.make("b", kTensor));
  Pin<float>(a).get()[0] = 1;
  std::thread other([&] { Pin<float>(b).get()[0] = 1; });  // a has to leave for that
  while (!slow.begun) std::this_thread::yield();
  Pin<float>(a).get()[0] = 2;
  other.join();
  CHECK_FALSE(slow.torn);
}

TEST_CASE("what is used in place is charged once for all clusters, and not as time of the point") {
  struct Queue final : memory::CopyQueue {
    int64_t submit(memory::Copy) override { throw LogicFault({.where = "test", .what = "nothing has to be copied"}); }
    void make_urgent(int64_t) override {}
    void charge_in_place(size_t bytes) override {
      charged += bytes;
      const ScopedTimer timer(&charged_s);
      for (const double end_s = now_s() + 5e-3; now_s() < end_s;) continue;
    }
    size_t charged = 0;
    double charged_s = 0;
  } queue;
  const auto bulk = memory::make_bulk_memory({.bytes = kTensor});
  Uses uses;
  uses.tensors = {{"moment", kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kUpdate, "0", {0}}};
  Residency residency(uses, {.backing_slots = {{bulk.get(), 0, true}}}, queue);
  const auto storage = residency.make("moment", kTensor);
  const double start_s = now_s();
  residency.enter(0);
  residency.enter(0);  // the second cluster
  residency.leave(0);
  CHECK(queue.charged == kTensor);
  CHECK(residency.point_seconds()[0] <= now_s() - start_s - queue.charged_s);
}

#ifdef DITRAIN_DEBUG
TEST_CASE("in debug builds what has left is NaN") {
  constexpr int kLayers = 4;
  const Uses uses = layered(kLayers);
  Rig rig(uses, uses.total_bytes() * 2 / 5 / memory::kBlock * memory::kBlock, Strategy::kPlanned);
  for (int id = 0; id < 2 * kLayers; ++id) rig.fill(id, 0);
  std::vector<const float*> seen(uses.tensors.size(), nullptr);
  int left = 0;
  for (int number = 0; number < 3; ++number) {
    rig.step(number, kLayers);
    const auto* pool = reinterpret_cast<const float*>(rig.pool.data());
    left += int(std::count_if(pool, pool + rig.pool.bytes() / sizeof(float), [](float x) { return std::isnan(x); }));
  }
  CHECK(left > 0);
}
#endif

TEST_CASE("a pool below what one point uses is refused with its name and bytes") {
  const Uses uses = layered(4);
  CHECK_THROWS_WITH(Rig(uses, 3 * kTensor, Strategy::kPlanned),
                    Catch::Contains("forward of 0 does not fit the fast tier") && Catch::Contains("memory.fast_gib"));
}

TEST_CASE("a copy that fails ends the step with its reason") {
  struct Broken final : memory::Backing {
    std::string name() const override { return "broken"; }
    size_t bytes() const override { return SIZE_MAX; }
    void read(size_t, std::byte*, size_t) override { fail_if(reads_fail); }
    void write(size_t, const std::byte*, size_t) override { fail_if(!reads_fail); }
    static void fail_if(bool fails) {
      if (fails) throw RunError({.where = "disk", .what = "input/output error"});
    }
    bool reads_fail = true;
  } broken;
  broken.reads_fail = GENERATE(true, false);
  const Uses uses = layered(4);
  const size_t pool_bytes = uses.total_bytes() / 2 / memory::kBlock * memory::kBlock;
  const platform::PageBlock pool(pool_bytes, platform::PagePolicy::kPlain);
  auto engine = std::make_unique<memory::CopyEngine>(memory::CopyEngine::Setup{});
  Residency residency(uses,
                      {.backing_slots = std::vector<BackingSlot>(uses.tensors.size(), {&broken, 0}),
                       .pool = pool.data(),
                       .pool_bytes = pool_bytes},
                      *engine);
  std::vector<Tensor> tensors;
  for (const MovableTensor& t : uses.tensors)
    tensors.emplace_back(Shape{int64_t(t.bytes / 4)}, DType::kF32, residency.make(t.name, t.bytes));
  const auto steps = [&] {
    for (int i = 0; i < 3; ++i)
      for (size_t point = 0; point < uses.points.size(); ++point) {
        residency.enter(int(point));
        for (const int id : uses.points[point].uses) Pin<float>(tensors[size_t(id)]).get()[0] = 1;
        residency.leave(int(point));
      }
  };
  CHECK_THROWS_WITH(steps(), Catch::Contains("input/output error"));
  engine.reset();
}
