// The thread that moves communication on. MPI libraries make progress inside their calls only, so a thread has to call
// them while the team computes; and a library that grants no more than MPI_THREAD_FUNNELED needs all calls from one
// thread, which is this one then.
//
// Difficulties: on a machine with fewer cores than threads a thread that spins takes the time of one that computes.
// Abstractions: a wake flag (a word that others change, also from another process) on which the thread sleeps; tasks
//               that do what can be done without waiting and tell what they wait for; calls that run in the thread.
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

  /// From now on advance() of the task is called whenever the wake flag is raised and as its PollResult says.
  void add(Task& task);
  /// When it returns, advance() is not running and will not be called again.
  void remove(Task& task);
  /// Removes all tasks after the run has failed: the buffers of operations under way are freed next, and nothing may
  /// touch them. With `still_answers` the tasks that only answer stay. An MPI library then still makes progress with
  /// all requests, so a rank must be missing without which nothing can arrive. Later calls use the argument of the
  /// first.
  void halt(bool still_answers = false);

  /// Wakes the thread.
  void wake();
  /// Sets the word that the thread sleeps on. A word in shared memory lets other processes raise it, too (see
  /// raise_wake_flag). It must be valid until use_wake_flag(nullptr), which sets a word of its own again. False: it
  /// sleeps on another word that was set, and stays with it.
  bool use_wake_flag(std::atomic<uint32_t>* word);

  /// Binds the thread to these PUs, which are reserved for it, so that it may poll more often. Empty: it shares the
  /// cores of the process, and sleeps whenever it has to wait.
  platform::BindResult bind(const std::vector<int>& pus);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Wakes the progress thread that sleeps on the word, in whichever process.
void raise_wake_flag(std::atomic<uint32_t>& word);

/// The pause between two polls of something without a wake flag: none at first, then longer and longer.
class Backoff {
 public:
  void pause();
  void reset() { rounds_ = 0; }
  /// For code that pauses by itself: the length of the next pause, and a count of pauses made.
  double next_pause_s() const;
  void count() { rounds_ = rounds_ < 1000 ? rounds_ + 1 : rounds_; }

 private:
  int rounds_ = 0;
};

}  // namespace ditrain::dist
