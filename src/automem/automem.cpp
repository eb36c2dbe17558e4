#include "ditrain/automem/automem.hpp"

#include <algorithm>

#include "ditrain/base/bytes.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/platform/numa.hpp"

namespace ditrain::automem {
namespace {

constexpr int kWarmUpSteps = 3;  // before times are taken as those of all steps

}  // namespace

AutoMem::AutoMem(Plan plan, const Setup& setup)
    : plan_(std::move(plan)), pool_(plan_.capacity.pool_bytes, setup.pages) {
  const auto place = [&] {
    if (setup.fast_nodes.empty()) return;
    const auto placed =
        platform::place_on_nodes(pool_.data(), pool_.bytes(), setup.fast_nodes, platform::NodePolicy::kInterleave);
    if (!placed && notes_.empty()) notes_.push_back(placed.reason);
  };
  place();
  if (pool_.take_pages()) place();
  if (!pool_.note().empty()) notes_.push_back(pool_.note());
  if (plan_.bulk_bytes > 0)
    bulk_ = memory::make_bulk_memory({.bytes = plan_.bulk_bytes, .pages = setup.pages, .node = setup.bulk_node});
  if (plan_.disk_bytes > 0) disk_ = memory::make_disk(setup.disk_folder, plan_.disk_bytes);
  for (const auto* tier : {bulk_.get(), disk_.get()})
    if (tier != nullptr)
      for (const std::string& note : tier->notes()) notes_.push_back(note);
  engine_ = std::make_unique<memory::CopyEngine>(
      memory::CopyEngine::Setup{.pus = setup.copy_pus, .simulate = setup.simulate});
  Residency::Setup residency = plan_.setup(bulk_.get(), disk_.get());
  residency.pool = pool_.data();
  residency_ = std::make_unique<Residency>(plan_.uses, std::move(residency), *engine_);
}

AutoMem::~AutoMem() { engine_.reset(); }  // it calls the residency

void AutoMem::watch(autograd::Tape& tape) {
  using autograd::HookPoint;
  const auto add = [&](HookPoint point, Phase phase, bool begins) {
    tape.add_hook(point, [this, phase, begins](const autograd::Node& node) {
      begins ? residency_->enter(phase, node.name()) : residency_->leave(phase, node.name());
    });
  };
  add(HookPoint::kEnterForward, Phase::kForward, true);
  add(HookPoint::kLeaveForward, Phase::kForward, false);
  add(HookPoint::kPreBackward, Phase::kBackward, true);
  add(HookPoint::kPostBackward, Phase::kBackward, false);
}

void AutoMem::end_step() {
  if (++steps_ != kWarmUpSteps) return;
  Machine machine = plan_.machine;
  machine.point_s = residency_->point_seconds();
  const auto totals = engine_->totals();
  for (const memory::Direction d : {memory::Direction::kIn, memory::Direction::kOut}) {
    const memory::StreamTotals& t = totals[size_t(d)];
    if (t.busy_s > 0) (d == memory::Direction::kIn ? machine.in_bytes_s : machine.out_bytes_s) = t.bytes / t.busy_s;
  }
  forecast_again(plan_, machine);
  residency_->set_times(machine.point_s, machine.in_bytes_s, machine.out_bytes_s, plan_.margin);
  log::info_lines(automem::describe(plan_));
}

std::string AutoMem::describe() const {
  std::string text = "fast tier: " + format_bytes(pool_.bytes()) + " for tensors that move, " + pool_.describe() + "\n";
  for (const auto* tier : {bulk_.get(), disk_.get()})
    if (tier != nullptr) text += tier->name() + " tier: " + format_bytes(tier->bytes()) + "\n";
  return text;
}

std::vector<std::string> AutoMem::notes() const {
  std::vector<std::string> all = notes_;
  for (const std::string& note : engine_->notes()) all.push_back(note);
  return all;
}

}  // namespace ditrain::automem
