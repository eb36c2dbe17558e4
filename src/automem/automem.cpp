#include "ditrain/automem/automem.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"

namespace ditrain::automem {
namespace {

constexpr int kWarmUpSteps = 3;  // before times are taken as those of all steps

// Points were measured with what they use in place; the simulation adds the time of that.
void subtract_in_place(Machine& machine, const Plan& plan) {
  if (machine.in_place_bytes_s <= 0) return;
  constexpr double kLeast = 0.2;  // of what was measured
  for (size_t p = 0; p < machine.point_s.size(); ++p) {
    double bytes = 0;
    for (const int id : plan.uses.points[p].uses)
      if (plan.backing_slots[size_t(id)].in_place) bytes += double(plan.uses.tensors[size_t(id)].bytes);
    double& seconds = machine.point_s[p];
    seconds = std::max(kLeast * seconds, seconds - bytes / machine.in_place_bytes_s);
  }
}

void help_or_yield(memory::CopyQueue& queue) {
  if (!queue.help()) std::this_thread::yield();
}

}  // namespace

AutoMem::AutoMem(Plan plan, const Setup& setup)
    : plan_(std::move(plan)),
      simulates_(setup.simulate.has_value()),
      pool_({.bytes = plan_.capacity.pool_bytes,
             .pages = setup.pages,
             .clusters = setup.clusters,
             .beside_bytes = plan_.capacity.fixed_bytes,
             .free_memory = setup.free_memory}) {
  notes_at_start_ = pool_.notes().size();
  memory::PerTier<memory::Backing*> tiers{};
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (plan_.tier_bytes[i] == 0) continue;
    tiers_[i] = memory::kTiers[i].make({.bytes = plan_.tier_bytes[i],
                                        .pages = setup.pages,
                                        .nodes = setup.bulk_nodes,
                                        .free_memory = setup.free_memory,
                                        .folder = setup.disk_folder});
    tiers[i] = tiers_[i].get();
  }
  engine_ = std::make_unique<memory::CopyEngine>(
      memory::CopyEngine::Setup{.pus = setup.copy_pus, .simulate = setup.simulate, .by = plan_.machine.copy_by});
  Residency::Setup residency = plan_.setup(tiers);
  residency.pool = pool_.data();
  // Copy threads ask while the plan is made again: what they ask does not change.
  std::vector<bool> divided;
  for (size_t id = 0; id < plan_.uses.tensors.size(); ++id) divided.push_back(plan_.uses.is_divided(int(id)));
  residency.place = [this, divided](int64_t tensor, size_t offset, size_t bytes) {
    pool_.place(offset, bytes, divided[size_t(tensor)]);
  };
  residency.release = [this](size_t bytes) { pool_.release(bytes); };
  residency.small = &beside();
  residency.while_waiting = [this] {
    if (team_ != nullptr) team_->end_if_failed();
  };
  residency_ = std::make_unique<Residency>(plan_.uses, std::move(residency), *engine_);
}

AutoMem::~AutoMem() { engine_.reset(); }  // it calls the residency

void AutoMem::watch(autograd::Tape& tape, parallel::Team& team) {
  team_ = &team;
  using autograd::HookPoint, autograd::Node;
  const auto forward = [this](const Node& node) { return plan_.uses.order.forward(micro_batch_, node.number()); };
  const auto backward = [this](const Node& node) { return plan_.uses.order.backward(micro_batch_, node.number()); };
  tape.add_hook(HookPoint::kEnterForward, [=, this](const Node& node) { enter(forward(node)); });
  tape.add_hook(HookPoint::kLeaveForward, [=, this](const Node& node) { residency_->leave(forward(node)); });
  tape.add_hook(HookPoint::kPreBackward, [=, this](const Node& node) { enter(backward(node)); });
  tape.add_hook(HookPoint::kPostBackward, [=, this](const Node& node) { residency_->leave(backward(node)); });
  if (copies_by_workers())
    tape.add_hook(HookPoint::kHelpForward, [this](const autograd::Node&) { help_or_yield(*engine_); });
}

// Between jobs of the team its first worker enters, and all of them carry out what that waits for. Inside a job the
// tape tells the others when to help.
void AutoMem::enter(int point) {
  if (!copies_by_workers() || team_->is_running()) return residency_->enter(point);
  std::atomic<bool> over{false};
  team_->run([&](const parallel::Worker& w) {
    if (w.worker > 0) {
      while (!over) help_or_yield(*engine_);
      return;
    }
    struct EndsHelp {
      std::atomic<bool>& over;
      ~EndsHelp() { over = true; }
    } ends{over};
    residency_->enter(point);
  });
}

void AutoMem::end_step() {
  // Rates are those of the last step of the warm-up: the first copies also touch pages for the first time.
  if (++steps_ == kWarmUpSteps - 1)
    for (size_t i = 0; i < memory::kTiers.size(); ++i) copied_before_[i] = engine_->totals_of(i);
  if (steps_ != kWarmUpSteps) return;
  Machine machine = plan_.machine;
  machine.point_s = residency_->point_seconds();
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    machine.tiers[i] = measured_rates(machine.tiers[i], copied_before_[i], engine_->totals_of(i));
  if (!simulates_) subtract_in_place(machine, plan_);
  if (plan_again(plan_, machine)) residency_->use_in_place(plan_.in_place());
  residency_->set_times({machine.point_s, machine.tiers, plan_.margin});
  log::info_lines(automem::describe(plan_));
}

bool AutoMem::is_settled() const { return steps_ >= kWarmUpSteps; }

std::string AutoMem::describe() const {
  std::string text = "fast tier: " + format_bytes(pool_.bytes()) + " for tensors that move, " + pool_.describe() + "\n";
  for (const auto& tier : tiers_)
    if (tier) text += tier->name() + " tier: " + format_bytes(tier->bytes()) + "\n";
  return text;
}

std::vector<std::string> AutoMem::late_notes() const {
  const std::vector<std::string> notes = pool_.notes();
  return {notes.begin() + std::ptrdiff_t(notes_at_start_), notes.end()};
}

std::string AutoMem::describe_places() const {
  std::string text = "fast tier: " + pool_.describe();
  if (const std::string places = pool_.describe_places(); !places.empty()) text += "; " + places;
  for (const auto& tier : tiers_)
    if (tier && !tier->describe().empty()) text += "\n" + tier->name() + " tier: " + tier->describe();
  return text + "\n";
}

std::vector<std::string> AutoMem::notes() const {
  std::vector<std::string> all = pool_.notes();
  const auto add = [&](const std::vector<std::string>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const auto& tier : tiers_)
    if (tier) add(tier->notes());
  add(engine_->notes());
  return all;
}

}  // namespace ditrain::automem
