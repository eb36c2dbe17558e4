// The thread that moves communication on. MPI libraries make progress inside their calls only, so a thread has to
// call them while the team computes; and a library that grants no more than MPI_THREAD_FUNNELED wants all calls from
// one thread, which is this one then.
//
// Difficulties: on a machine with fewer cores than threads a thread that spins takes the time of one that computes.
// Abstractions: a bell (a word that others change, also from another process) on which the thread sleeps; tasks that
//               do what can be done without waiting and tell what they wait for; calls that run in the thread.
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
struct Outlook {
  bool progressed = false;                                  ///< something happened: ask again at once
  bool poll = false;                                        ///< for something that rings no bell (MPI): ask again soon
  double wake_s = std::numeric_limits<double>::infinity();  ///< ask again at this now_s() time, bell or not

  void merge(const Outlook& other);
};

/// Work that is moved on in pieces.
class Task {
 public:
  virtual ~Task() = default;
  /// Goes on as far as possible without waiting. Called in the progress thread; must not throw.
  virtual Outlook advance() = 0;
  /// It answers other ranks' questions and may go on when this rank has given up waiting for one (see halt()).
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

  /// From now on advance() of the task is called whenever the bell rings and as its Outlook says.
  void add(Task& task);
  /// When it returns, advance() is not running and will not be called again.
  void remove(Task& task);
  /// Removes all tasks: the run has failed, and nothing must touch the buffers of what is under way, which go next. An
  /// MPI library makes progress with all that it has whenever one request is looked at, so with `still_answers`, where
  /// those that only answer stay, a rank must be missing without which nothing arrives. Later calls go by the first
  /// one's.
  void halt(bool still_answers = false);

  /// Wakes the thread.
  void ring();
  /// The word it sleeps on; one in memory that processes share lets others ring it too (see ring_bell). It must be
  /// valid until the next use_bell. nullptr: a word of its own.
  void use_bell(std::atomic<uint32_t>* word);

  /// Binds the thread to these PUs, its own: it need not be polite there and looks more often. Empty: it shares the
  /// cores of the process, and sleeps whenever it has to wait.
  platform::BindResult bind(const std::vector<int>& pus);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Wakes the progress thread that sleeps on the word, in whichever process.
void ring_bell(std::atomic<uint32_t>& word);

/// Waits between two looks at something that rings no bell: not at all at first, then it sleeps for longer and longer.
class Backoff {
 public:
  void pause();
  void reset() { rounds_ = 0; }
  /// For code that pauses in its own way: how long now, and that it did.
  double next_pause_s() const;
  void count() { rounds_ = rounds_ < 1000 ? rounds_ + 1 : rounds_; }

 private:
  int rounds_ = 0;
};

}  // namespace ditrain::dist
