// Which tensors a training step uses, and when: the tensors that can move, and the points of the step (forward or
// backward of a node of the tape, update of a piece of the arenas) with the tensors that each point holds in place. The
// points have numbers, which the planned, the simulated and the real step share. Nothing is listed by hand: before its
// memory is allocated the step runs once with operators that take their tensors but compute nothing, and the recorder
// notes what they hold.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ditrain/tensor/storage.hpp"

namespace ditrain::automem {

/// When a tensor gets new contents.
enum class Written {
  kInUpdates,   ///< weights, their bf16 copies, optimiser state, EMA
  kInForward,   ///< activations: from the first point of forward that uses them; dead after the last of backward
  kInBackward,  ///< gradients between distant nodes: from the first point of backward that uses them to the last
};

struct MovableTensor {
  std::string name;
  size_t bytes = 0;
  Written written = Written::kInForward;
};

enum class Phase { kForward, kBackward, kUpdate };
const char* phase_name(Phase phase);

struct Point {
  Phase phase = Phase::kForward;
  std::string name;       ///< name of the node, or of the parameter in which the piece begins
  std::vector<int> uses;  ///< tensors, each once, increasing
};

/// Numbers the points of a step in the order in which they run: per micro-batch, forward of all nodes, then backward of
/// all nodes in reverse. In the last micro-batch, backward of a node is followed by the updates that begin there. The
/// updates that wait for all gradients come at the end.
class StepOrder {
 public:
  StepOrder() = default;
  /// updates_behind[i]: how many updates follow the last backward of node i; updates_at_end: how many wait for all
  /// gradients.
  StepOrder(int64_t micro_batches, const std::vector<int64_t>& updates_behind, int64_t updates_at_end);
  int size() const { return size_; }
  int64_t micro_batches() const { return micro_batches_; }
  int64_t points_of_micro_batch() const { return 2 * nodes(); }  ///< without the updates in the last one
  int forward(int64_t micro_batch, int64_t node) const { return int(2 * nodes() * micro_batch + node); }
  int backward(int64_t micro_batch, int64_t node) const;
  int update(int64_t number) const { return updates_[size_t(number)]; }  ///< updates count from 0 in their order

 private:
  int64_t nodes() const { return int64_t(last_backward_.size()); }
  int64_t micro_batches_ = 0;
  std::vector<int> last_backward_;  // of each node
  std::vector<int> updates_;
  int size_ = 0;
};

struct Uses {
  StepOrder order = {};
  std::vector<MovableTensor> tensors;
  std::vector<Point> points;  ///< points of one step, in order
  size_t small_bytes = 0;     ///< total of tensors below kSmallest, which are not listed
  size_t bytes_of(const Point& point) const;
  size_t total_bytes() const;
  const Point& largest() const;  ///< the point whose tensors have most bytes
  /// Whether each cluster uses only its own part of the tensor, as with activations and with tensors that only updates
  /// use. (Every cluster reads all weights of GEMMs.)
  bool is_divided(int tensor) const;
};

/// A clock that counts points. Steps repeat their points for ever, so the next use of each tensor is known. "Now" is
/// the earliest point that is not over, because a cluster may be ahead of another one.
class StepClock {
 public:
  explicit StepClock(const Uses& uses);  ///< `uses` must outlive the clock

  // Times count points over all steps.
  int64_t now() const { return now_; }
  int64_t last_begun() const { return last_begun_; }
  int64_t points() const { return int64_t(uses_.points.size()); }  ///< number of points of a step
  int position(int64_t time) const { return int(time % points()); }
  const Point& at(int64_t time) const { return uses_.points[size_t(position(time))]; }

  /// The time of a point that is under way; nullopt: it is not under way.
  std::optional<int64_t> time_of(int point) const;
  /// Begins a point that is not under way, and skips the points between it and the last one. Returns its time.
  int64_t begin(int point);
  void end(int64_t time);
  bool is_between_points() const { return active_.empty(); }

  int64_t next_use(int64_t tensor) const;  ///< points from now; at least 0
  bool is_written_at(int64_t tensor, int64_t time) const;
  /// Whether the point at that time overwrites the tensor without reading it: activations in the first point of a
  /// forward pass that uses them, gradients between distant nodes in the first of a backward pass.
  bool is_overwritten_at(int64_t tensor, int64_t time) const;
  bool is_used_now(int64_t tensor) const;  ///< by any point that is under way
  bool is_written_now(int64_t tensor) const;

 private:
  const Uses& uses_;
  std::vector<std::vector<int>> points_of_;  // per tensor
  std::vector<int> pass_of_;                 // per point; forward and backward of one micro-batch are two passes
  int64_t now_ = 0, last_begun_ = -1;
  std::set<int64_t> active_;  // begun, and not over
};

/// Tensors below this size never move: a copy would cost more than the memory is worth.
inline constexpr size_t kSmallest = size_t{64} << 10;  // bytes

/// Makes storages without memory, and records which of them each point holds.
class Recorder final : public Mover, public StorageSource {
 public:
  explicit Recorder(Written written_first) : written_(written_first) { set_watches(true); }
  /// Call it before the first point. Points that come in another order are a LogicFault later.
  void set_order(StepOrder order) { uses_.order = std::move(order); }

  std::shared_ptr<Storage> make(const std::string& name, size_t bytes) override;
  void bring(Storage& storage) override;
  void note_use(Storage& storage) override;

  void set_written(Written written) { written_ = written; }  ///< for tensors made from now on
  void begin(int point, Phase phase, const std::string& name);
  const Uses& uses() const { return uses_; }

 private:
  std::mutex mutex_;
  Written written_;
  std::vector<bool> used_;  // by any point
  Uses uses_;
};

}  // namespace ditrain::automem
