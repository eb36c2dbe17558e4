// Writes checkpoints while training continues. Weights, optimiser state and EMA do not change during forward and
// backward, so each rank streams its part of them into the files of the checkpoint while the next step computes. An
// update of the weights waits, slice by slice, only for data that is not written yet and does not fit into a bounded
// copy-on-write buffer (after DataStates-LLM, https://arxiv.org/abs/2406.10707). The state is never copied as a whole.
// One with a number that is not finite, from which no run could resume, becomes no checkpoint.
//
//   start(step) -> each rank writes its pieces -> when all have: rank 0 collects the checksums, writes state.json and
//   renames the folder -> all ranks learn the outcome
//
// Collective parts run on the training threads, between two steps. Ranks exchange waits(), whether they are still
// writing, with the facts of a step; the trainer calls advance() when none is. A rank that waits for its disk says so
// (dist::DiskWork), and the others wait for it as long as it lives.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::checkpoint {

class StateWriter;

/// The part of the state that a rank writes.
struct OwnState {
  std::vector<parallel::Range> parts = {};  ///< elements of the arenas
  bool whole_parameters = true;             ///< also the parameters that ranks do not split
  bool frozen = true;                       ///< values that are never updated
  bool shared = true;                       ///< also arrays that all groups of ranks have in common
  int group = 0, groups = 1;                ///< number of its group, and of groups (dist.outer)
};

/// The outcome of a checkpoint.
struct SaveOutcome {
  int64_t step = 0;
  std::string folder;   ///< path of the checkpoint, on rank 0
  std::string problem;  ///< "": it is complete. Earlier checkpoints are intact in any case
  double seconds = 0;   ///< on rank 0: that the disk was busy, without the steps that came before the end was noticed
};

class CheckpointSaver {
 public:
  struct Setup {
    std::string checkpoints_dir;  ///< must be on a file system that all ranks see
    config::CheckpointConfig config;
    std::string snapshots_dir = {};  ///< where snapshots stay (snapshots.hpp)
    std::string in_use = {};         ///< a checkpoint that the run reads: if it is in checkpoints_dir, it stays
    OwnState mine;
    size_t buffer_bytes = 0;    ///< copy-on-write buffer; when full, updates wait. Without memory for it there is none
    std::vector<int> pus = {};  ///< cores for the threads that write; empty: those of the calling thread
  };
  /// Rank 0 of `comm`, which has all ranks of the run, makes folders and commits. The store is allocated for training
  /// and outlives the object.
  CheckpointSaver(Setup setup, autograd::ParameterStore& parameters, dist::Communicator& comm, ops::Context& ctx);
  ~CheckpointSaver();  ///< gives up a checkpoint that is being written
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Begins a checkpoint of the current state; the previous one must be over. Collective. state.files is not used.
  /// Returns the outcome at once if the files cannot be created. `snapshot`: its power averages are kept as a snapshot.
  std::optional<SaveOutcome> start(const CheckpointState& state, bool snapshot = false);
  bool is_writing() const { return phase_ != Phase::kIdle; }  ///< the same on all ranks
  /// Whether this rank is still writing what advance() needs.
  bool waits() const;
  /// Takes the next collective step, and returns the outcome once it is known. Collective; call it when no rank
  /// waits().
  std::optional<SaveOutcome> advance();
  /// Returns when the checkpoint that is being written, if any, is complete or has failed. Collective.
  std::optional<SaveOutcome> finish();

  /// Call before these elements of weights, optimiser state and EMA change: returns when the checkpoint has written or
  /// buffered them.
  void before_update(const parallel::Range& arena);
  /// Whether before_update has anything to do.
  bool reads_state() const;
  double update_waited_s() const { return update_waited_s_; }  ///< seconds in before_update so far, copies included

 private:
  enum class Phase { kIdle, kWriting, kCommitting };
  struct Commit;
  struct Buffer;
  bool leads() const { return comm_.rank() == 0; }
  std::unique_ptr<Buffer> make_buffer() const;
  SaveOutcome end(std::string problem);

  const Setup setup_;
  autograd::ParameterStore& parameters_;
  dist::Communicator& comm_;
  ops::Context& ctx_;
  const std::vector<weights::SafetensorsLayout> layouts_;  // of the files with tensors
  Phase phase_ = Phase::kIdle;
  int64_t step_ = 0;  // step of the checkpoint that is being written
  double update_waited_s_ = 0;
  std::unique_ptr<Commit> commit_;  // of that checkpoint, on rank 0
  std::unique_ptr<Buffer> buffer_;  // from the first checkpoint on
  std::unique_ptr<StateWriter> writer_;
};

}  // namespace ditrain::checkpoint
