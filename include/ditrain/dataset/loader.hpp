// Batches, read ahead of the training step by threads of their own into a bounded queue.
//
// Sample g of the global batch of step s is position s * global_batch + g of the sampler; each rank loads its own range
// of g. Threads share a batch sample by sample, so that the next batch is ready early even when decoding is slow. The
// content of a batch depends neither on threads nor on ranks. These are plain threads, not oneTBB tasks: they block on
// a full queue most of the time, which a task must not do.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/dataset/sampler.hpp"

namespace ditrain::dataset {

struct LoaderConfig {
  int64_t global_batch = 1;    ///< samples per step, over all ranks
  int64_t first_in_batch = 0;  ///< this rank's first sample in the global batch
  int64_t count = 1;           ///< this rank's samples; first_in_batch + count <= global_batch
  int64_t first_step = 0;      ///< step of the first batch: the step to resume at
  int64_t threads = 1;         ///< 1 to 1024
  int64_t queue_batches = 4;   ///< batches read ahead, 1 to 1024
  uint64_t seed = 0;           ///< for flips, turns and the draws of the data set
  bool random_flip = true;
  Augment augment = Augment::kNone;
  /// Called by each loader thread (0, 1, ...) before its first sample, for example to pin the thread, which otherwise
  /// inherits the affinity of the thread that makes the Loader.
  std::function<void(int64_t thread)> on_thread_start = {};
};

/// Samples [first_in_batch, first_in_batch + count) of one step.
struct Batch {
  int64_t step = 0;
  std::vector<float> images;          ///< [count, C, H, W]
  std::vector<Condition> conditions;  ///< [count]
};

class Loader {
 public:
  /// Starts the threads. `data` must outlive the loader.
  /// Errors: InputError for threads or queue_batches out of range; LogicFault for ranges that do not fit the batch;
  /// RunError if a thread cannot be started.
  Loader(const Dataset& data, const EpochSampler& sampler, const LoaderConfig& config);
  /// Stops the threads; waits at most for the samples being read.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The batch of the next step, in order; blocks until it is complete. One caller at a time.
  /// Numerics: with bits = RandomKey(seed, Stream::kFlip, step, g).bits(0), sample g is
  ///           - mirrored left to right if random_flip and bit 0 is set,
  ///           - then, with augment: flips, mirrored top to bottom if bit 1 is set,
  ///           - or, with augment: turns, turned by (bits 2 and 3) quarter turns, which with the mirroring gives all
  ///             eight orientations
  /// Errors:   rethrows what loading the first bad sample of that batch threw, and again on every later call
  Batch next();

  /// Seconds that next() has blocked so far.
  double wait_s() const { return wait_s_; }

 private:
  struct Slot {
    Batch batch;
    int64_t remaining = 0;   // samples not yet read
    int64_t bad_sample = 0;  // the sample that caused `error`
    std::exception_ptr error;
  };
  void stop();
  void work(int64_t thread);
  void load_sample(int64_t step, int64_t i);
  bool take(int64_t* step, int64_t* i);
  void begin_batch(int64_t step);
  void finish(int64_t step, int64_t i, std::exception_ptr error);
  Slot& slot(int64_t step) { return slots_[size_t(step % config_.queue_batches)]; }

  const Dataset& data_;
  const EpochSampler sampler_;
  const LoaderConfig config_;
  double wait_s_ = 0;

  // Guards all below, except the samples inside a batch, each of which belongs to the thread that reads it.
  std::mutex mutex_;
  std::condition_variable room_, ready_;
  std::vector<Slot> slots_;         // ring: step s lives in slot s % queue_batches
  int64_t take_step_, take_i_ = 0;  // the next sample to hand out
  int64_t next_step_;               // the next batch to give to the caller
  bool stop_ = false;
  std::vector<std::jthread> threads_;  // last member: joined before the others are destroyed
};

}  // namespace ditrain::dataset
