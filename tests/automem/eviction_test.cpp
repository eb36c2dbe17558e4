// What may be evicted, what is prefetched and when copies begin, without threads or memory. The step is that of two
// layers: forward 0 and 1, backward 1 and 0, update 1 and 0.
#include "ditrain/automem/eviction.hpp"

#include <catch2/catch.hpp>

#include "automem/layered.hpp"

using namespace ditrain;
using namespace ditrain::automem;

namespace {

enum { kWeight0, kWeight1, kMoment0, kMoment1, kActivation0, kActivation1 };
enum { kForward0, kForward1, kBackward1, kBackward0, kUpdate1, kUpdate0 };

struct Rig {
  explicit Rig(Strategy strategy = Strategy::kPlanned, const Times& times = {})
      : policy(strategy, clock, tensors, times) {
    for (const MovableTensor& t : uses.tensors)
      tensors.push_back({.id = int64_t(tensors.size()),
                         .name = t.name,
                         .bytes = t.bytes,
                         .written = t.written,
                         .backing_slot = {},
                         .state = ResidencyState::kResident,
                         .contents = {.exist = true}});
  }
  std::optional<double> cost(int id, int64_t distance, Victims victims) {
    return policy.eviction_cost(tensors[size_t(id)], distance, victims);
  }
  const Uses uses = layered(2);
  StepClock clock{uses};
  std::vector<Movable> tensors;
  EvictionPolicy policy;
};

}  // namespace

TEST_CASE("the clock knows the next use of each tensor, into the next step, and the earliest point that is not over") {
  Rig rig;
  StepClock& clock = rig.clock;
  CHECK(clock.next_use(kWeight1) == 1);
  CHECK(clock.next_use(kMoment1) == 4);
  const int64_t first = clock.begin(kForward0), second = clock.begin(kForward1);
  CHECK(clock.now() == first);
  CHECK(clock.is_used_now(kWeight1));
  CHECK(clock.is_written_now(kActivation1));
  CHECK_FALSE(clock.is_written_now(kWeight1));
  clock.end(first);
  CHECK(clock.now() == second);
  CHECK(clock.next_use(kWeight1) == 0);
  clock.end(second);
  const int64_t update = clock.begin(kUpdate0);  // others are left out
  CHECK(update == kUpdate0);
  CHECK(clock.is_written_now(kMoment0));
  CHECK(clock.next_use(kWeight1) == 2);
  clock.end(update);
  CHECK(clock.is_between_points());
  CHECK(clock.begin(kForward0) == clock.points());
  CHECK_FALSE(clock.time_of(kUpdate0));
}

// Two micro-batches of three nodes; node 2 writes the gradient that node 0 reads, and updates run in backward.
TEST_CASE("a gradient between distant nodes lives from the first to the last point of each backward pass") {
  Uses uses;
  uses.tensors = {{"gradient", kTensor, Written::kInBackward}, {"moment", kTensor, Written::kInUpdates}};
  const auto add = [&](Phase phase, const std::vector<int>& uses_of_point) {
    uses.points.push_back({phase, std::to_string(uses.points.size()), uses_of_point});
  };
  for (int micro = 0; micro < 2; ++micro) {
    for (int node = 0; node < 3; ++node) add(Phase::kForward, {});
    for (int node = 2; node >= 0; --node) {
      add(Phase::kBackward, node == 1 ? std::vector<int>{} : std::vector<int>{0});
      if (micro == 1) add(Phase::kUpdate, {1});
    }
  }
  StepClock clock(uses);
  const std::vector<Movable> tensors{{.id = 0,
                                      .name = "gradient",
                                      .bytes = kTensor,
                                      .written = Written::kInBackward,
                                      .backing_slot = {},
                                      .state = ResidencyState::kResident,
                                      .contents = {.exist = true, .dirty = true}}};
  const EvictionPolicy policy(Strategy::kPlanned, clock, tensors, {});
  const auto at = [&](int point) {
    clock.begin(point);
    const bool written = clock.is_written_now(0), overwritten = clock.is_overwritten_at(0, clock.now());
    clock.end(clock.now());
    return std::tuple(written, overwritten, policy.needs_copy(tensors[0]));
  };
  CHECK(uses.is_divided(0));
  CHECK(at(1) == std::tuple(false, false, false));
  CHECK(at(3) == std::tuple(true, true, true));    // node 2 of the first micro-batch
  CHECK(at(4) == std::tuple(false, false, true));  // node 1 leaves it alone
  CHECK(at(5) == std::tuple(true, false, false));  // node 0: dead behind it
  CHECK(at(7) == std::tuple(false, false, false));
  CHECK(at(9) == std::tuple(true, true, true));
  CHECK(at(10) == std::tuple(false, false, true));  // an update between both
  CHECK(at(13) == std::tuple(true, false, false));
  CHECK_FALSE(clock.is_overwritten_at(1, clock.now() + 1));
}

TEST_CASE("what is worth nothing costs nothing, then what is needed late, and a copy counts twice") {
  Rig rig;
  rig.clock.begin(kUpdate1);  // after the last backward
  CHECK(rig.cost(kActivation0, 0, Victims::kDead) == 0.0);
  CHECK_FALSE(rig.cost(kWeight0, 0, Victims::kDead));
  CHECK(rig.cost(kWeight0, 0, Victims::kLater) == 1.0 / 2);
  CHECK_FALSE(rig.cost(kWeight0, 1, Victims::kLater));  // is needed as soon
  CHECK(rig.cost(kWeight0, 1, Victims::kAny) == 1.0 / 2);
  rig.tensors[kWeight0].contents.dirty = true;
  CHECK(rig.cost(kWeight0, 0, Victims::kLater) == 2.0 / 2);
  CHECK(rig.policy.needs_copy(rig.tensors[kWeight0]));
  rig.tensors[kActivation0].contents.dirty = true;
  CHECK_FALSE(rig.policy.needs_copy(rig.tensors[kActivation0]));
  for (const int id : {kWeight1, kMoment1}) CHECK_FALSE(rig.cost(id, 0, Victims::kAny));  // are used now
  for (const ResidencyState state : {ResidencyState::kNotResident, ResidencyState::kCopyingIn,
                                     ResidencyState::kEvicting, ResidencyState::kInPlace}) {
    rig.tensors[kActivation0].state = state;
    CHECK_FALSE(rig.cost(kActivation0, 0, Victims::kAny));
  }
  rig.tensors[kWeight0].waiting_threads = 1;
  CHECK_FALSE(rig.cost(kWeight0, 0, Victims::kAny));
}

TEST_CASE("an activation is worth nothing until its next forward, unless it was written for that before it began") {
  Rig rig;
  Movable& activation = rig.tensors[kActivation0];
  rig.clock.end(rig.clock.begin(kForward1));
  CHECK_FALSE(rig.policy.is_dead(activation));  // backward reads it
  rig.clock.begin(kUpdate1);
  CHECK(rig.policy.is_dead(activation));
  CHECK_FALSE(rig.policy.is_dead(rig.tensors[kWeight0]));
  activation.contents.overwritten_at = rig.clock.points() + kForward0;
  CHECK_FALSE(rig.policy.is_dead(activation));
  activation.contents = {};
  CHECK(rig.policy.is_overwritten(activation, kBackward0));  // there is nothing to lose
}

TEST_CASE("Algorithm 1 looks one point ahead and evicts the rest, a plan looks at the whole step") {
  Rig paper(Strategy::kPaper), planned;
  for (Rig* rig : {&paper, &planned}) rig->clock.begin(kForward0);
  CHECK(paper.policy.prefetch_horizon() == 2);
  CHECK(planned.policy.prefetch_horizon() == 6);
  paper.clock.end(kForward0), planned.clock.end(kForward0);
  CHECK(paper.policy.evicts_after_use(paper.tensors[kWeight0]));
  CHECK_FALSE(paper.policy.evicts_after_use(paper.tensors[kWeight1]));
  CHECK_FALSE(planned.policy.evicts_after_use(planned.tensors[kWeight0]));
  paper.tensors[kWeight0].state = ResidencyState::kEvicting;
  CHECK_FALSE(paper.policy.evicts_after_use(paper.tensors[kWeight0]));
}

TEST_CASE("copies begin when the way to a point is as short as what has to come until then, with a margin") {
  const double way_s = 4e-3;  // to the updates
  const auto victims = [&](double copy_s, double margin, bool needs_help, size_t free_bytes) {
    Times times{.point_s = std::vector<double>(6, way_s / 4), .margin = margin};
    times.rates.fill({.in_bytes_s = double(kTensor) / copy_s, .out_bytes_s = double(kTensor) / copy_s});
    Rig rig(Strategy::kPlanned, times);
    rig.clock.begin(kForward0);
    rig.tensors[kMoment1].state = ResidencyState::kNotResident;
    rig.tensors[kMoment1].needs_help = needs_help;
    return rig.policy.prefetch_victims(free_bytes);
  };
  CHECK(victims(0.9 * way_s, 1, false, kTensor) == Victims::kDead);
  CHECK(victims(1.1 * way_s, 1, false, kTensor) == Victims::kLater);
  CHECK(victims(0.9 * way_s, 1.5, false, kTensor) == Victims::kLater);
  CHECK(victims(0.9 * way_s, 1, false, kTensor - 1) == Victims::kLater);  // its slot has to be emptied first
  CHECK(victims(1.1 * way_s, 1, true, kTensor) == Victims::kDead);        // workers bring it when they are there
}
