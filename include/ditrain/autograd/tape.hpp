// The tape: fused half-layers in the order of the forward pass, each with a hand-written backward.
//
// Problem:      a generic graph of small ops stores too many activations, passes over memory too often and hides what
//               backward needs.
// Abstractions: Node (a half-layer: attention half, MLP half, embedder, final layer), Activation (a tensor that a node
//               keeps for backward, declared by name, shape and policy before anything is allocated, or a temporary
//               that all nodes share), Tape (nodes in order, hooks at their borders).
//
//   Tape tape(Mode::kTraining);
//   tape.record<AttentionHalf>(...);  tape.record<MlpHalf>(...);
//   tape.allocate();
//   tape.forward(ctx);  tape.backward(ctx);
//
// A tape is recorded once for a batch size and replayed every step. If a node declares a tensor with kRecompute, its
// memory is shared by all nodes that use the same name, and the tape calls Node::recompute before backward (activation
// checkpointing). In inference nothing is stored: every declared activation is shared like that.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::autograd {

enum class Mode { kTraining, kInference };

/// What happens to a tensor between forward and backward. kKeep: its contents are stored (the storage that
/// Tape::allocate gives it decides in which memory tier). kRecompute: the next node overwrites its memory, and its
/// contents are recomputed (activation checkpointing).
enum class KeepPolicy { kKeep, kRecompute };

/// What backward does with the gradients of parameters: the first micro-batch of a step overwrites those of the last
/// step, so that the arena need not be zeroed; the others add.
enum class Gradients { kOverwrite, kAdd };

class Node;

struct Activation {
  std::string name;
  Shape shape;
  KeepPolicy policy = KeepPolicy::kKeep;
  DType dtype = DType::kF32;
  Tensor tensor = {};  ///< defined after Tape::allocate
  /// kRecompute: the node whose contents the memory holds; shared by all shapes of the same memory.
  std::shared_ptr<const Node*> written_by = {};
  size_t bytes() const { return size_t(num_elements(shape)) * dtype_bytes(dtype); }
};
using ActivationRef = std::shared_ptr<Activation>;

class Node {
 public:
  explicit Node(std::string name, std::vector<Parameter*> parameters)
      : name_(std::move(name)), parameters_(std::move(parameters)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// 0: the node computes its whole batch at once. Otherwise the number of samples of the batch, which may be computed
  /// some at a time: samples must be independent, and all tensors that nodes share (temporaries, activations of
  /// inference) must have the samples as their first dimension. Neighbouring nodes with equal samples() run as one
  /// stretch: each cluster of the team takes its samples through all of them without a barrier between clusters.
  virtual int64_t samples() const { return 0; }
  virtual void forward(ops::Context& ctx);                                        ///< called if samples() is 0
  virtual void forward_of(ops::Context& ctx, const parallel::Range& of_samples);  ///< called otherwise
  /// Recomputes, bit-identically and from stored tensors, all tensors that the node declared with kRecompute. Called
  /// before backward unless the contents of forward are still there. It may rely on backward of the next node having
  /// run just before, and may recompute tensors of the previous node.
  virtual void recompute(ops::Context&) {}
  /// Writes or adds to the gradients of its parameters and turns the gradient of its output into that of its input.
  virtual void backward(ops::Context& ctx, Gradients gradients) = 0;

  const std::string& name() const { return name_; }
  int64_t number() const { return number_; }  ///< in the order of its tape, from 0
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// The part of the gradient arena that is final after this node's backward.
  ArenaSlice parameter_slice() const;
  const std::vector<ActivationRef>& kept() const { return kept_; }

 private:
  friend class Tape;
  std::string name_;
  int64_t number_ = 0;
  std::vector<Parameter*> parameters_;
  std::vector<ActivationRef> kept_, recomputed_;
};

/// Where hooks are called. A recomputation is part of a node's backward, between kPreBackward and kPostBackward. Where
/// clusters go through forward on their own, worker 0 calls kPreForward and kPostForward inside the job: they may call
/// no op, and only the samples of its cluster are written. There the first worker of every cluster calls kEnterForward,
/// while the others of the cluster wait and call kHelpForward again and again; the last cluster that leaves a node
/// calls kLeaveForward once. Elsewhere kEnterForward and kLeaveForward are the same as kPreForward and kPostForward.
enum class HookPoint {
  kPreForward,
  kPostForward,
  kPreBackward,
  kPostBackward,
  kEnterForward,
  kLeaveForward,
  kHelpForward
};
using Hook = std::function<void(const Node&)>;

class Tape {
 public:
  explicit Tape(Mode mode) : mode_(mode) {}

  Mode mode() const { return mode_; }

  /// Declares a tensor that `owner` writes in forward and needs in backward, called "owner.name" in the memory plan.
  /// With kRecompute all nodes that recompute the same name share it. Errors: as `temporary`
  ActivationRef keep(Node& owner, const std::string& name, Shape shape, KeepPolicy policy = KeepPolicy::kKeep,
                     DType dtype = DType::kF32);
  /// Declares a gradient that `owner` writes in backward and an earlier node reads in its backward, as for a skip
  /// connection. Nodes between them leave it alone: it counts as a stored activation and may move between memory tiers.
  /// Errors: LogicFault in inference
  ActivationRef carry(Node& owner, const std::string& name, Shape shape, DType dtype = DType::kF32);
  /// Declares a tensor whose contents last only within a node, or from one node to the next. All nodes that ask for the
  /// same name share it. Nodes with a node without samples() between them may ask for different shapes, which share the
  /// memory of the largest.
  /// Errors: LogicFault if other nodes ask for different shapes, and for different types
  ActivationRef temporary(const std::string& name, Shape shape, DType dtype = DType::kF32);

  template <class N, class... A>
  N& record(A&&... args) {
    auto node = std::make_unique<N>(*this, std::forward<A>(args)...);
    N& ref = *node;
    node->number_ = int64_t(nodes_.size());
    nodes_.push_back(std::move(node));
    return ref;
  }

  /// Allocates all declared tensors. `kept` makes the storages of kept tensors and must outlive the tape; null: they
  /// come from `home`, too.
  void allocate(memory::Allocator& home = memory::system_memory(), StorageSource* kept = nullptr);
  size_t kept_bytes() const;
  size_t temporary_bytes() const;  ///< including recomputed tensors
  std::vector<Tensor> temporaries() const;

  void forward(ops::Context& ctx);
  void backward(ops::Context& ctx, Gradients gradients = Gradients::kAdd);
  void add_hook(HookPoint point, Hook hook) { hooks_[point].push_back(std::move(hook)); }
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }

 private:
  // The memory of one name, in each of the shapes that nodes have asked for.
  struct Temporary {
    std::vector<ActivationRef> shapes = {};
    ActivationRef last = {};  // the one that was asked for last, by node number `asked_by`
    size_t asked_by = 0;
    const ActivationRef& largest() const;
  };
  bool clusters_meet_behind(size_t node) const;
  void call_hooks(HookPoint point, const Node& node) const;
  void enter(const Node& node, ops::Context& part, std::atomic<size_t>& entered, size_t number) const;
  size_t forward_stretch(size_t first, ops::Context& ctx);
  void recompute(Node& node, ops::Context& ctx) const;

  Mode mode_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<ActivationRef> kept_;
  std::map<std::string, Temporary> temporaries_;
  std::map<HookPoint, std::vector<Hook>> hooks_;
};

}  // namespace ditrain::autograd
