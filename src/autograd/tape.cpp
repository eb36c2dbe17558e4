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

ActivationRef Tape::keep(Node& owner, const std::string& name, Shape shape, KeepPolicy policy, DType dtype) {
  if (mode_ == Mode::kInference || policy == KeepPolicy::kRecompute) {
    ActivationRef shared = temporary("shared." + name, std::move(shape), dtype);
    shared->policy = policy;
    owner.recomputed_.push_back(shared);
    return shared;
  }
  auto a = std::make_shared<Activation>(Activation{owner.name() + "." + name, std::move(shape), policy, dtype});
  owner.kept_.push_back(a);
  kept_.push_back(a);
  return a;
}

ActivationRef Tape::carry(Node& owner, const std::string& name, Shape shape, DType dtype) {
  DITRAIN_CHECK(mode_ == Mode::kTraining, "a gradient of a tape that was recorded for inference");
  return keep(owner, name, std::move(shape), KeepPolicy::kKeep, dtype);
}

ActivationRef Tape::temporary(const std::string& name, Shape shape, DType dtype) {
  Temporary& memory = temporaries_[name];
  const auto known = std::find_if(memory.shapes.begin(), memory.shapes.end(),
                                  [&](const ActivationRef& a) { return a->shape == shape; });
  const ActivationRef a =
      known != memory.shapes.end()
          ? *known
          : std::make_shared<Activation>(Activation{name, std::move(shape), KeepPolicy::kKeep, dtype});
  if (memory.last != nullptr) {
    DITRAIN_CHECK(a->dtype == dtype && memory.last->dtype == dtype, "two types for the temporary " + name);
    DITRAIN_CHECK(a == memory.last || clusters_meet_behind(memory.asked_by), "two shapes for the temporary " + name);
  }
  if (known == memory.shapes.end()) {
    a->written_by = memory.shapes.empty() ? std::make_shared<const Node*>(nullptr) : memory.last->written_by;
    memory.shapes.push_back(a);
  }
  memory.last = a, memory.asked_by = nodes_.size();
  return a;
}

// Whether some node from this one on, before the one that is recorded now, has clusters meet in forward: until then
// one of them may still use the memory of samples in another shape, where others have theirs in the new one.
bool Tape::clusters_meet_behind(size_t node) const {
  return std::any_of(nodes_.begin() + std::ptrdiff_t(std::min(node, nodes_.size())), nodes_.end(),
                     [](const auto& n) { return n->samples() == 0; });
}

const ActivationRef& Tape::Temporary::largest() const {
  return *std::max_element(shapes.begin(), shapes.end(),
                           [](const auto& a, const auto& b) { return a->bytes() < b->bytes(); });
}

void Tape::allocate(memory::Allocator& home, StorageSource* kept) {
  for (const ActivationRef& a : kept_)
    a->tensor = kept != nullptr ? Tensor(a->shape, a->dtype, kept->make(a->name, a->bytes()))
                                : Tensor(a->shape, a->dtype, home);
  for (const auto& [name, memory] : temporaries_) {
    const ActivationRef& largest = memory.largest();
    const Tensor all(largest->shape, largest->dtype, home);
    for (const ActivationRef& a : memory.shapes) a->tensor = all.slice(0, a->shape);
  }
}

size_t Tape::kept_bytes() const {
  size_t sum = 0;
  for (const ActivationRef& a : kept_) sum += a->bytes();
  return sum;
}

size_t Tape::temporary_bytes() const {
  size_t sum = 0;
  for (const auto& [name, memory] : temporaries_) sum += memory.largest()->bytes();
  return sum;
}

std::vector<Tensor> Tape::temporaries() const {
  std::vector<Tensor> tensors;
  for (const auto& [name, memory] : temporaries_) tensors.push_back(memory.largest()->tensor);
  return tensors;
}

void Tape::call_hooks(HookPoint point, const Node& node) const {
  if (const auto it = hooks_.find(point); it != hooks_.end())
    for (const Hook& hook : it->second) hook(node);
}

void Node::forward(ops::Context&) { DITRAIN_CHECK(false, name() + " computes nothing"); }
void Node::forward_of(ops::Context&, const parallel::Range&) { DITRAIN_CHECK(false, name() + " takes no samples"); }

// At a node that clusters enter on their own. `entered`: nodes so far, by the first worker of the cluster; it counts
// even if a hook throws, so that nobody waits for that.
void Tape::enter(const Node& node, ops::Context& part, std::atomic<size_t>& entered, size_t number) const {
  if (part.leads_cluster()) {
    struct CountsAtEnd {
      std::atomic<size_t>& nodes;
      ~CountsAtEnd() { ++nodes; }
    } counts{entered};
    call_hooks(HookPoint::kEnterForward, node);
  } else if (hooks_.contains(HookPoint::kHelpForward)) {
    while (entered <= number) call_hooks(HookPoint::kHelpForward, node);
  }
  if (hooks_.contains(HookPoint::kEnterForward)) part.meet_cluster();
}

void Tape::forward(ops::Context& ctx) {
  for (size_t next = 0; next < nodes_.size();) next = forward_stretch(next, ctx);
}

// Forward of one node, or of all neighbours with the same samples; returns the node behind.
size_t Tape::forward_stretch(size_t first, ops::Context& ctx) {
  const int64_t samples = nodes_[first]->samples();
  size_t end = first + 1;
  while (samples > 0 && end < nodes_.size() && nodes_[end]->samples() == samples) ++end;
  const int clusters = samples > 0 ? ctx.clusters_over_samples(samples) : 1;
  std::vector<std::atomic<int>> left(end - first);
  std::vector<std::atomic<size_t>> entered(static_cast<size_t>(clusters));
  const auto run = [&](ops::Context& part, const auto& compute) {
    const bool leads = part.leads(), leads_cluster = part.leads_cluster();
    // Also where it fails: those who help at the next node would wait for it for ever.
    struct EndsHelp {
      std::atomic<size_t>* nodes;
      ~EndsHelp() {
        if (nodes != nullptr) *nodes = SIZE_MAX;
      }
    } ends{leads_cluster ? &entered[size_t(part.cluster())] : nullptr};
    for (size_t i = first; i < end; ++i) {
      enter(*nodes_[i], part, entered[size_t(part.cluster())], i - first);
      if (leads) call_hooks(HookPoint::kPreForward, *nodes_[i]);
      compute(*nodes_[i]);
      if (leads) call_hooks(HookPoint::kPostForward, *nodes_[i]);
      if (leads_cluster && ++left[i - first] == clusters) call_hooks(HookPoint::kLeaveForward, *nodes_[i]);
    }
  };
  if (samples == 0)
    run(ctx, [&](Node& node) { node.forward(ctx); });
  else
    ctx.over_samples(samples, [&](ops::Context& part, const parallel::Range& some) {
      run(part, [&](Node& node) { node.forward_of(part, some); });
    });
  for (size_t i = first; i < end; ++i)
    for (const ActivationRef& a : nodes_[i]->recomputed_) *a->written_by = nodes_[i].get();
  return end;
}

// The last node that used a shared tensor in forward finds its own contents there.
void Tape::recompute(Node& node, ops::Context& ctx) const {
  const auto lost = [&](const ActivationRef& a) { return *a->written_by != &node; };
  if (std::none_of(node.recomputed_.begin(), node.recomputed_.end(), lost)) return;
  node.recompute(ctx);
  for (const ActivationRef& a : node.recomputed_) *a->written_by = &node;
}

void Tape::backward(ops::Context& ctx, Gradients gradients) {
  DITRAIN_CHECK(mode_ == Mode::kTraining, "backward of a tape that was recorded for inference");
  for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
    call_hooks(HookPoint::kPreBackward, **it);
    recompute(**it, ctx);
    (*it)->backward(ctx, gradients);
    call_hooks(HookPoint::kPostBackward, **it);
  }
}

}  // namespace ditrain::autograd
