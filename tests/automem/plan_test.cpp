// What is used in place: chosen before the first step, and again with the times that steps have shown.
#include "ditrain/automem/plan.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;
using namespace ditrain::automem;

namespace {

constexpr size_t kTensor = size_t{1} << 20;

// A pass over `n` weights and back, then their updates with a moment each.
Uses there_and_back(int n) {
  Uses uses;
  for (const char* kind : {"weight", "moment"})
    for (int i = 0; i < n; ++i) uses.tensors.push_back({kind + std::to_string(i), kTensor, Written::kInUpdates});
  for (int i = 0; i < n; ++i) uses.points.push_back({Phase::kForward, std::to_string(i), {i}});
  for (int i = n; i-- > 0;) uses.points.push_back({Phase::kBackward, std::to_string(i), {i}});
  for (int i = n; i-- > 0;) uses.points.push_back({Phase::kUpdate, std::to_string(i), {i, n + i}});
  return uses;
}

Machine machine_of(const Uses& uses, double link_bytes_s, double in_place_bytes_s) {
  Machine machine;
  machine.tiers.fill({.in_bytes_s = link_bytes_s, .out_bytes_s = link_bytes_s});
  machine.in_place_bytes_s = in_place_bytes_s;
  machine.point_s.assign(uses.points.size(), 1e-3);
  return machine;
}

// The same with activations in several micro-batches.
Uses micro_batched(int n, int64_t micro_batches) {
  Uses uses;
  uses.order = StepOrder(micro_batches, std::vector<int64_t>(size_t(n), 0), n);
  for (const char* kind : {"weight", "moment"})
    for (int i = 0; i < n; ++i) uses.tensors.push_back({kind + std::to_string(i), kTensor, Written::kInUpdates});
  for (int i = 0; i < n; ++i) uses.tensors.push_back({"activation" + std::to_string(i), kTensor, Written::kInForward});
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int i = 0; i < n; ++i) uses.points.push_back({Phase::kForward, std::to_string(i), {i, 2 * n + i}});
    for (int i = n; i-- > 0;) uses.points.push_back({Phase::kBackward, std::to_string(i), {i, 2 * n + i}});
  }
  for (int i = n; i-- > 0;) uses.points.push_back({Phase::kUpdate, std::to_string(i), {i, n + i}});
  return uses;
}

}  // namespace

TEST_CASE("many micro-batches: the choice made from four of them is as fast as one made from all") {
  for (const double link : {2e8, 1e9, 4e9}) {
    const Uses uses = micro_batched(8, 40);
    Capacity capacity{.pool_bytes = uses.total_bytes() / 3};
    capacity.tier_bytes.fill(SIZE_MAX);
    Plan plan = place_tensors(uses, Strategy::kPlanned, capacity, machine_of(uses, link, 4e9));
    Plan whole = plan;
    whole.uses.order = {};  // of which no micro-batches are known
    choose_fastest(plan), choose_fastest(whole);
    INFO("link " << link << ": " << plan.forecast.step_s << " s, " << whole.forecast.step_s << " s from all");
    CHECK(plan.forecast.step_s > 0);
    CHECK(plan.forecast.step_s <= 1.01 * whole.forecast.step_s);
    CHECK(plan.forecast.occupancy.size() == uses.points.size());
  }
}

TEST_CASE("rates are those between two moments, and those expected where nothing was copied") {
  const memory::TierTotals first{{{.bytes = 4e9, .busy_s = 8}, {.bytes = 1e9, .busy_s = 5}}};  // pages touched first
  memory::TierTotals then = first;
  then[0].bytes += 6e9, then[0].busy_s += 2;
  const memory::TierRates rates = measured_rates({.in_bytes_s = 1, .out_bytes_s = 7, .latency_s = 0.5}, first, then);
  CHECK(rates.in_bytes_s == 3e9);
  CHECK(rates.out_bytes_s == 7);
  CHECK(rates.latency_s == 0.5);
}

TEST_CASE("the choice of what is used in place follows the times that are measured") {
  const Uses uses = there_and_back(8);
  Capacity capacity{.pool_bytes = uses.total_bytes() / 4};
  capacity.tier_bytes.fill(SIZE_MAX);
  const Machine slow_link = machine_of(uses, 1e8, 0), slow_in_place = machine_of(uses, 1e11, 1e8);
  Plan plan = place_tensors(uses, Strategy::kPlanned, capacity, slow_link);
  choose_fastest(plan);
  CHECK(plan.in_place_bytes() > 0);
  const std::vector<PlannedSlot> backing_slots = plan.backing_slots;
  CHECK_FALSE(plan_again(plan, slow_link));
  CHECK(plan_again(plan, slow_in_place));
  CHECK(plan.in_place_bytes() == 0);
  CHECK(plan.machine.in_place_bytes_s == 1e8);
  CHECK(plan_again(plan, slow_link));
  CHECK(plan.in_place_bytes() > 0);
  for (size_t i = 0; i < backing_slots.size(); ++i)
    CHECK((plan.backing_slots[i].tier == backing_slots[i].tier &&
           plan.backing_slots[i].offset == backing_slots[i].offset));
  Plan paper = place_tensors(uses, Strategy::kPaper, capacity, slow_link);
  choose_fastest(paper);
  CHECK_FALSE(plan_again(paper, slow_in_place));
}

TEST_CASE("points of a step have numbers in the order in which they run") {
  const StepOrder order(2, {0, 2}, 3);  // of two nodes, the second with two updates in backward
  const std::vector<int> first{order.forward(0, 0), order.forward(0, 1), order.backward(0, 1), order.backward(0, 0)};
  CHECK(first == std::vector<int>{0, 1, 2, 3});
  const std::vector<int> last{order.forward(1, 0), order.forward(1, 1),  order.backward(1, 1), order.update(0),
                              order.update(1),     order.backward(1, 0), order.update(2),      order.update(4)};
  CHECK(last == std::vector<int>{4, 5, 6, 7, 8, 9, 10, 12});
  CHECK(order.size() == 13);
}
