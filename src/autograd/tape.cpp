#include "ditrain/autograd/tape.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::autograd {

ArenaSlice Node::parameter_slice() const {
  ArenaSlice all{INT64_MAX, 0};
  for (const Parameter* p : parameters_)
    if (p->trainable) all = {std::min(all.begin, p->slice.begin), std::max(all.end, p->slice.end)};
  return all.end == 0 ? ArenaSlice{} : all;
}

ActivationRef Tape::keep(Node& owner, const std::string& name, Shape shape, KeepPolicy policy) {
  DITRAIN_CHECK(policy == KeepPolicy::kKeep, "nothing offloads or recomputes a declared activation yet");
  if (mode_ == Mode::kInference) return temporary("kept." + name, std::move(shape));
  auto a = std::make_shared<Activation>(Activation{owner.name() + "." + name, std::move(shape), policy, {}});
  owner.kept_.push_back(a);
  kept_.push_back(a);
  return a;
}

ActivationRef Tape::temporary(const std::string& name, Shape shape) {
  auto& slot = temporaries_[name];
  if (slot == nullptr)
    slot = std::make_shared<Activation>(Activation{name, std::move(shape), KeepPolicy::kKeep, {}});
  else
    DITRAIN_CHECK(slot->shape == shape, "two shapes for the temporary " + name);
  return slot;
}

void Tape::allocate(memory::Allocator& home) {
  for (const ActivationRef& a : kept_) a->tensor = Tensor(a->shape, DType::kF32, home);
  for (const auto& [name, a] : temporaries_) a->tensor = Tensor(a->shape, DType::kF32, home);
}

size_t Tape::kept_bytes() const {
  size_t sum = 0;
  for (const ActivationRef& a : kept_) sum += a->bytes();
  return sum;
}

size_t Tape::temporary_bytes() const {
  size_t sum = 0;
  for (const auto& [name, a] : temporaries_) sum += a->bytes();
  return sum;
}

void Tape::call_hooks(HookPoint point, const Node& node) const {
  if (const auto it = hooks_.find(point); it != hooks_.end())
    for (const Hook& hook : it->second) hook(node);
}

void Tape::forward(ops::Context& ctx) {
  for (const auto& node : nodes_) {
    call_hooks(HookPoint::kPreForward, *node);
    node->forward(ctx);
    call_hooks(HookPoint::kPostForward, *node);
  }
}

void Tape::backward(ops::Context& ctx) {
  DITRAIN_CHECK(mode_ == Mode::kTraining, "backward of a tape that was recorded for inference");
  for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
    call_hooks(HookPoint::kPreBackward, **it);
    (*it)->backward(ctx);
    call_hooks(HookPoint::kPostBackward, **it);
  }
}

}  // namespace ditrain::autograd
