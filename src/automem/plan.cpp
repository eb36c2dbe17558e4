#include "ditrain/automem/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"

namespace ditrain::automem {
namespace {

using memory::whole_blocks;

// How often a step uses each tensor.
std::vector<int> counts_of(const Uses& uses) {
  std::vector<int> counts(uses.tensors.size());
  for (const Point& point : uses.points)
    for (const int id : point.uses) ++counts[size_t(id)];
  return counts;
}

// A tier that says where its bytes would be.
class NoBacking final : public memory::Backing {
 public:
  explicit NoBacking(bool in_memory) : in_memory_(in_memory) {}
  std::string name() const override { return "simulated"; }
  size_t bytes() const override { return SIZE_MAX; }
  void read(size_t, std::byte*, size_t) override {}
  void write(size_t, const std::byte*, size_t) override {}
  std::byte* in_place(size_t) override { return in_memory_ ? &nothing_ : nullptr; }

 private:
  const bool in_memory_;
  std::byte nothing_{};
};

void assign_slots(Plan& plan) {
  const std::vector<int> counts = counts_of(plan.uses);
  std::vector<size_t> order(plan.uses.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  plan.backing_slots.assign(order.size(), {});
  for (const size_t id : order) {
    const size_t bytes = whole_blocks(plan.uses.tensors[id].bytes);
    size_t tier = 0;  // the slowest one, if none has room: what is missing is told below
    while (tier + 1 < memory::kTiers.size() && plan.tier_bytes[tier] + bytes > plan.capacity.tier_bytes[tier]) ++tier;
    plan.backing_slots[id] = {.tier = tier, .offset = plan.tier_bytes[tier]};
    plan.tier_bytes[tier] += bytes;
  }
  constexpr size_t kLast = memory::kTiers.size() - 1;
  if (plan.tier_bytes[kLast] <= plan.capacity.tier_bytes[kLast]) return;
  std::string limits;
  for (size_t i = 0; i <= kLast; ++i)
    limits += fmt::format("{}{} (memory.{}_gib)", i == 0 ? "at most " : " and ",
                          format_bytes(plan.capacity.tier_bytes[i]), memory::kTiers[i].name);
  throw InputError({.where = "memory",
                    .what = "the tensors that move do not fit the slow tiers",
                    .got = format_bytes(std::accumulate(plan.tier_bytes.begin(), plan.tier_bytes.end(), size_t{0})),
                    .expected = limits,
                    .hint = fmt::format("--set memory.{}_gib={:.1f}", memory::kTiers[kLast].name,
                                        double(plan.tier_bytes[kLast]) / 0x1p30 + 0.05)});
}

// Uses tensors of tiers in memory in place, those first that a step uses least, until at most `moving` bytes are left.
void use_in_place(Plan& plan, size_t moving) {
  const std::vector<int> counts = counts_of(plan.uses);
  std::vector<size_t> order;
  size_t left = 0;
  for (size_t id = 0; id < plan.backing_slots.size(); ++id) {
    left += whole_blocks(plan.uses.tensors[id].bytes);
    if (memory::kTiers[plan.backing_slots[id].tier].in_memory) order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] < counts[b]; });
  for (const size_t id : order) {
    if (left <= moving) return;
    plan.backing_slots[id].in_place = true;
    left -= whole_blocks(plan.uses.tensors[id].bytes);
  }
}

size_t bytes_of_states(const Uses& uses) {
  const std::vector<int> counts = counts_of(uses);
  size_t bytes = 0;
  for (size_t id = 0; id < uses.tensors.size(); ++id)
    if (counts[id] == 1) bytes += whole_blocks(uses.tensors[id].bytes);
  return bytes;
}

// Time of a step, to compare choices by. Of many micro-batches the first two and the last two are simulated, and the
// third of these counts for those between them.
double estimated_step_s(const Plan& plan) {
  constexpr int64_t kSimulated = 4;
  const int64_t each = plan.uses.order.points_of_micro_batch();
  const int64_t left_out = plan.uses.order.micro_batches() - kSimulated;
  if (left_out <= 1) return forecast_of(plan).step_s;
  Plan few = plan;
  const auto leave_out = [&](auto& of_points) {
    of_points.erase(of_points.begin() + 2 * each, of_points.begin() + (2 + left_out) * each);
  };
  leave_out(few.uses.points), leave_out(few.machine.point_s);
  const Forecast forecast = forecast_of(few);
  const auto end_of = [&](int64_t micro_batch) {
    return forecast.occupancy[size_t(each * (micro_batch + 1)) - 1].end_s;
  };
  return forecast.step_s + double(left_out) * (end_of(2) - end_of(1));
}

// `step_s`: the time with the present margin; 0: it is not a candidate.
void choose_margin(Plan& plan, double step_s) {
  double best_margin = plan.margin;
  for (const double margin : {1.2, 2.0, 4.0, 16.0}) {
    plan.margin = margin;
    const double other_s = estimated_step_s(plan);
    if (step_s > 0 && other_s >= 0.999 * step_s) continue;
    step_s = other_s, best_margin = margin;
  }
  plan.margin = best_margin;
  plan.forecast = forecast_of(plan);
}

}  // namespace

size_t Plan::in_place_bytes(std::optional<size_t> tier) const {
  size_t bytes = 0;
  for (size_t id = 0; id < backing_slots.size(); ++id)
    if (backing_slots[id].in_place && backing_slots[id].tier == tier.value_or(backing_slots[id].tier))
      bytes += whole_blocks(uses.tensors[id].bytes);
  return bytes;
}

std::vector<bool> Plan::in_place() const {
  std::vector<bool> all;
  for (const PlannedSlot& slot : backing_slots) all.push_back(slot.in_place);
  return all;
}

Residency::Setup Plan::setup(const memory::PerTier<memory::Backing*>& tiers) const {
  Residency::Setup setup{.strategy = strategy,
                         .pool_bytes = capacity.pool_bytes / memory::kBlock * memory::kBlock,
                         .times = {machine.point_s, machine.tiers, margin}};
  for (const PlannedSlot& slot : backing_slots)
    setup.backing_slots.push_back({tiers[slot.tier], slot.offset, slot.in_place, slot.tier});
  return setup;
}

Forecast forecast_of(const Plan& plan) {
  NoBacking memory(true), other(false);
  memory::PerTier<memory::Backing*> tiers;
  for (size_t i = 0; i < tiers.size(); ++i) tiers[i] = memory::kTiers[i].in_memory ? &memory : &other;
  return simulate(plan.uses, plan.setup(tiers), plan.machine);
}

Plan place_tensors(Uses uses, Strategy strategy, const Capacity& capacity, const Machine& machine) {
  Plan plan{
      .uses = std::move(uses), .strategy = strategy, .capacity = capacity, .backing_slots = {}, .machine = machine};
  assign_slots(plan);
  return plan;
}

void choose_fastest(Plan& plan) {
  if (plan.strategy == Strategy::kPaper) {
    plan.forecast = forecast_of(plan);
    return;
  }
  // What a step uses once (moments, EMA) in place, or as much as it takes for the rest to stay where it is.
  std::vector<Plan> candidates{plan};
  const size_t all = plan.uses.total_bytes(), states = bytes_of_states(plan.uses);
  for (const size_t moving : {all - std::min(all, states), plan.capacity.pool_bytes / 20 * 19}) {
    Plan other = plan;
    use_in_place(other, moving);
    if (other.in_place_bytes() > 0) candidates.push_back(std::move(other));
  }
  std::optional<Plan> best;
  double best_s = 0;
  std::exception_ptr refusal;
  for (Plan& candidate : candidates) try {
      const double step_s = estimated_step_s(candidate);
      if (!best || step_s < 0.999 * best_s) best = std::move(candidate), best_s = step_s;
    } catch (const InputError&) {
      refusal = std::current_exception();
    }
  if (!best) std::rethrow_exception(refusal);
  choose_margin(*best, best_s);
  plan = std::move(*best);
}

bool plan_again(Plan& plan, const Machine& machine) {
  constexpr double kClearly = 0.98;  // of the time that the present choice takes
  plan.machine = machine;
  plan.assumed.clear();
  if (plan.strategy == Strategy::kPaper) {
    plan.forecast = forecast_of(plan);
    return false;
  }
  choose_margin(plan, 0);
  Plan other = plan;
  for (PlannedSlot& slot : other.backing_slots) slot.in_place = false;
  choose_fastest(other);
  if (other.forecast.step_s >= kClearly * plan.forecast.step_s || other.in_place() == plan.in_place()) return false;
  plan = std::move(other);
  return true;
}

memory::TierRates measured_rates(const memory::TierRates& expected, const memory::TierTotals& since,
                                 const memory::TierTotals& until) {
  const auto rate = [&](memory::Direction direction, double expected_rate) {
    const memory::StreamTotals &a = since[size_t(direction)], &b = until[size_t(direction)];
    return b.busy_s > a.busy_s ? (b.bytes - a.bytes) / (b.busy_s - a.busy_s) : expected_rate;
  };
  return {.in_bytes_s = rate(memory::Direction::kIn, expected.in_bytes_s),
          .out_bytes_s = rate(memory::Direction::kOut, expected.out_bytes_s),
          .latency_s = expected.latency_s};
}

std::string describe_copying(const Plan& plan) {
  if (plan.copying.empty()) return "";
  const bool workers = plan.machine.copy_by == memory::CopyBy::kWorkers;
  return fmt::format("automem: copies in memory by {} ({})\n",
                     workers ? "the workers, at the borders of nodes" : "threads on the cores of the workers",
                     plan.copying);
}

std::string describe(const Plan& plan) {
  const double compute_s = std::accumulate(plan.machine.point_s.begin(), plan.machine.point_s.end(), 0.0);
  const Forecast& f = plan.forecast;
  std::string tiers;
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    if (plan.tier_bytes[i] > 0)
      tiers += fmt::format(", {} in the {} tier", format_bytes(plan.tier_bytes[i]), memory::kTiers[i].name);
  const std::string text =
      fmt::format("automem: {} of tensors in {} points per step, a pool of {}{} ({} used in place)\n",
                  format_bytes(plan.uses.total_bytes()), plan.uses.points.size(),
                  format_bytes(plan.capacity.pool_bytes), tiers, format_bytes(plan.in_place_bytes()));
  const std::string assumed =
      plan.assumed.empty()
          ? ""
          : fmt::format("automem: assumed each way, as a plan alone measures nothing: {}\n", plan.assumed);
  return text + describe_copying(plan) + assumed +
         fmt::format("automem: expected per step: {} in, {} out, {:.2f} s ({:.2f} x of all in the fast tier)\n",
                     format_bytes(size_t(f.bytes_in)), format_bytes(size_t(f.bytes_out)), f.step_s,
                     compute_s > 0 ? f.step_s / compute_s : 1.0);
}

}  // namespace ditrain::automem
