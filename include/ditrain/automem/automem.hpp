// Trains models that do not fit into the fast memory, without changes to the model (the paper's AutoMem, section 4.2):
// allocates the tiers of a plan, runs the copy engine, and hooks into the borders of the tape's nodes.
//
//   AutoMem automem(plan, setup);
//   store.allocate(..., {.home = &automem.beside(), .segments = &automem.source()});
//   tape.allocate(automem.beside(), &automem.source());
//   automem.watch(tape, team);             // from here on forward and backward report their points
//   automem.begin_micro_batch(0);
//   automem.update(0, [&] { ... });        // the optimiser reports its points by the number of an update in the plan
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/autograd/tape.hpp"
#include "ditrain/automem/plan.hpp"
#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/memory/fast_pool.hpp"

namespace ditrain::automem {

class AutoMem {
 public:
  struct Setup {
    platform::PagePolicy pages = platform::PagePolicy::kAuto;
    std::vector<memory::ClusterShare> clusters = {};           ///< the clusters' shares of the pool; empty: anywhere
    std::vector<int> bulk_nodes = {};                          ///< nodes of ordinary memory; empty: any
    std::map<int, platform::NodeFreeMemory> free_memory = {};  ///< this rank's free memory on NUMA nodes
    std::string disk_folder = {};
    std::vector<int> copy_pus = {};
    std::optional<memory::SimulatedBulk> simulate = {};
  };
  /// Errors: InputError for a disk tier that check_disk refuses, and as Residency; RunError if the system has no memory
  /// or threads left
  AutoMem(Plan plan, const Setup& setup);
  ~AutoMem();

  StorageSource& source() { return *residency_; }
  /// Returns an allocator for data in the fast tier that never moves: it hands out blocks of `home` and counts them.
  /// Both must outlive the blocks.
  memory::Allocator& beside(memory::Allocator& home = memory::system_memory()) { return pool_.beside(home); }
  /// Hooks into the nodes of the tape. `team` runs the tape; its workers copy if the plan says so.
  void watch(autograd::Tape& tape, parallel::Team& team);
  /// Sets the micro-batch of the step to which the next forward and backward belong.
  void begin_micro_batch(int64_t number) { micro_batch_ = number; }
  /// Calls f, which does update `number` of the step (StepOrder), with its tensors in the fast tier.
  template <class F>
  void update(int64_t number, const F& f) {
    const int point = plan_.uses.order.update(number);
    enter(point);
    f();
    residency_->leave(point);
  }
  /// Call when a step is over. After some warm-up steps the plan is made again with the times measured on this machine.
  void end_step();
  bool is_settled() const;  ///< the plan has measured times

  const Plan& plan() const { return plan_; }
  ResidencyTotals totals() const { return residency_->totals(); }
  size_t fast_peak_bytes() const { return pool_.peak_bytes(); }  ///< the most that lay in the fast tier at one time
  size_t beside_bytes() const { return pool_.beside_bytes(); }   ///< bytes of beside() in use
  memory::TierTotals copies() const { return engine_->totals(); }
  memory::CopyEngine& engine() { return *engine_; }
  bool copies_by_workers() const { return plan_.machine.copy_by == memory::CopyBy::kWorkers; }
  size_t tier_bytes(size_t tier) const { return tiers_[tier] ? tiers_[tier]->bytes() : 0; }
  std::string describe() const;            ///< tiers, and the pages they got
  std::vector<std::string> notes() const;  ///< fallbacks, each one line
  /// Lines on the pages and nodes of each tier, read back from the system. Call it once pages are in use.
  std::string describe_places() const;
  /// Fallbacks since the tiers were made, such as pages that could not be bound.
  std::vector<std::string> late_notes() const;

 private:
  friend class Reading;
  void enter(int point);

  Plan plan_;
  bool simulates_ = false;  // a slower tier than the machine has
  memory::FastPool pool_;
  size_t notes_at_start_ = 0;  // of the pool
  memory::PerTier<std::unique_ptr<memory::Backing>> tiers_;
  std::unique_ptr<memory::CopyEngine> engine_;
  std::unique_ptr<Residency> residency_;
  parallel::Team* team_ = nullptr;  // runs the watched tape
  int64_t micro_batch_ = 0;
  int steps_ = 0;
  memory::PerTier<memory::TierTotals> copied_before_ = {};  // totals before the last step of the warm-up
};

/// Marks a scope in which code outside of a step reads tensors and writes none, so that they need not be copied out
/// again.
class Reading {
 public:
  explicit Reading(AutoMem* automem) : residency_(automem != nullptr ? automem->residency_.get() : nullptr) {
    if (residency_ != nullptr) residency_->begin_reading();
  }
  ~Reading() {
    if (residency_ != nullptr) residency_->end_reading();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  Residency* residency_;  // null: nothing moves
};

}  // namespace ditrain::automem
