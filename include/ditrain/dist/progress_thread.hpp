// The thread that drives communication. MPI libraries make progress only inside their calls, so a thread has to call
// them while the team computes. A library that grants no more than MPI_THREAD_FUNNELED needs all calls from one thread,
// which then is this one.
//
// Difficulties: on a machine with fewer cores than threads, a thread that spins takes CPU time from one that computes.
// Abstractions: a wake flag (a word that others change, also from another process) on which the thread sleeps; tasks,
//               which do all that is possible without waiting and say what they wait for; calls that run in the thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "ditrain/platform/affinity.hpp"

namespace ditrain::dist {

/// What a task waits for.
struct PollResult {
  bool progressed = false;  ///< something happened: call again at once
  bool poll = false;        ///< what it waits for (MPI) has no wake flag: call again soon
  double wake_s = std::numeric_limits<double>::infinity();  ///< call again at this now_s() time

  void merge(const PollResult& other);
};

/// Work that proceeds in pieces.
class Task {
 public:
  virtual ~Task() = default;
  /// Proceeds as far as possible without waiting. Called in the progress thread; must not throw.
  virtual PollResult advance() = 0;
  /// Whether it only answers other ranks' questions, and may continue after this rank has given up waiting (see
  /// halt()).
  virtual bool only_answers() const { return false; }
};

class ProgressThread {
 public:
  ProgressThread();
  /// Stops between two calls of advance() and joins.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Runs f in the thread and returns when it is done; rethrows what it throws. Inside the thread a plain call.
  void call(const std::function<void()>& f);

  /// Registers a task: its advance() is called whenever the wake flag is raised, and as its PollResult says.
  void add(Task& task);
  /// When it returns, advance() is not running and will not be called again.
  void remove(Task& task);
  /// Removes all tasks after the run has failed, because the buffers of operations under way are freed next and nothing
  /// may touch them. With `still_answers` the tasks that only answer stay; MPI then still makes progress with all
  /// requests, so this is safe only if a rank is missing without which no operation can complete. Only the argument of
  /// the first call counts.
  void halt(bool still_answers = false);

  /// Wakes the thread.
  void wake();
  /// Sets the word that the thread sleeps on. If it is in shared memory, other processes can raise it too
  /// (raise_wake_flag). It must stay valid until use_wake_flag(nullptr), which restores the thread's own word. Returns
  /// false, and changes nothing, if another word is set already.
  bool use_wake_flag(std::atomic<uint32_t>* word);

  /// Binds the thread to these PUs, which are reserved for it, so that it may poll more often. Empty: the thread shares
  /// the cores of the process and sleeps whenever it has to wait.
  platform::BindResult bind(const std::vector<int>& pus);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Wakes the progress thread that sleeps on the word, in whichever process.
void raise_wake_flag(std::atomic<uint32_t>& word);

/// Pauses between polls of something without a wake flag: none at first, then increasingly long.
class Backoff {
 public:
  void pause();
  void reset() { rounds_ = 0; }
  /// For code that pauses by other means: the length of the next pause [s], and a call after each pause.
  double next_pause_s() const;
  void count() { rounds_ = rounds_ < 1000 ? rounds_ + 1 : rounds_; }

 private:
  int rounds_ = 0;
};

}  // namespace ditrain::dist
