#include "ditrain/dist/progress_thread.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "futex.hpp"

namespace ditrain::dist {
namespace {

// Looks without a pause, some 10 us: what the next message of a small operation takes. Then sleeps of 20 us to 0.3 ms,
// which cost under 2 % of a core. No sched_yield: it hands the core over for a whole time slice if others compute there
// (3 ms and more), while who wakes up from a sleep is let in.
constexpr int kLooks = 30;
constexpr double kShortestPause_s = 20e-6, kLongestPause_s = 300e-6;

}  // namespace

void PollResult::merge(const PollResult& other) {
  progressed = progressed || other.progressed, poll = poll || other.poll, wake_s = std::min(wake_s, other.wake_s);
}

double Backoff::next_pause_s() const {
  if (rounds_ < kLooks) return 0;
  return std::min(kLongestPause_s, kShortestPause_s * double(1 << std::min(10, (rounds_ - kLooks) / 2)));
}

void Backoff::pause() {
  const double seconds = next_pause_s();
  count();
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void raise_wake_flag(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  futex_wake_all(word);
}

struct ProgressThread::State {
  struct Posted {
    const std::function<void()>* function;
    std::exception_ptr error = {};
    bool done = false;
  };

  std::mutex mutex;                     // of all that follows up to own_core
  std::condition_variable posted_done;  // some Posted is done
  std::deque<Posted*> posted;
  std::atomic<uint32_t>* wake_flag = &own_wake_flag;
  bool stop = false;
  bool own_core = false;

  std::atomic<uint32_t> own_wake_flag{0};
  std::vector<Task*> tasks;                    // only of the thread
  bool halted = false, still_answers = false;  // likewise
  std::thread thread;

  /// What was asked for since the last time; false: the thread has to end.
  bool take_calls(std::atomic<uint32_t>** word, uint32_t* seen, bool* core) {
    std::unique_lock lock(mutex);
    while (!posted.empty()) {
      Posted* p = posted.front();
      posted.pop_front();
      lock.unlock();
      try {
        (*p->function)();
      } catch (...) {
        p->error = std::current_exception();
      }
      lock.lock();
      p->done = true;
      posted_done.notify_all();
    }
    *word = wake_flag, *core = own_core;
    *seen = (*word)->load();  // before the tasks look: a flag raised while they do must not be slept over
    return !stop;
  }

  void loop() {
    pthread_setname_np(pthread_self(), "ditrain-comm");
    prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us would double the short sleeps
    Backoff backoff;
    std::atomic<uint32_t>* word = nullptr;
    uint32_t seen = 0, last_seen = 0;
    for (bool core = false; take_calls(&word, &seen, &core);) {
      if (seen != last_seen) backoff.reset();
      last_seen = seen;
      PollResult result;
      for (Task* task : tasks) result.merge(task->advance());
      if (result.progressed) {
        backoff.reset();
        continue;
      }
      sleep(result, *word, seen, core, backoff);
    }
  }

  static void sleep(const PollResult& result, std::atomic<uint32_t>& word, uint32_t seen, bool core, Backoff& backoff) {
    double seconds = result.wake_s - now_s();
    if (result.poll) {
      const double pause_s = core ? 0 : backoff.next_pause_s();
      backoff.count();
      if (pause_s == 0) return;
      seconds = std::min(seconds, pause_s);
    }
    futex_wait(word, seen, seconds);
  }
};

ProgressThread::ProgressThread() : state_(std::make_unique<State>()) {
  state_->thread = std::thread([this] { state_->loop(); });
}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    raise_wake_flag(*state_->wake_flag);
  }
  state_->thread.join();
}

void ProgressThread::wake() {
  const std::lock_guard lock(state_->mutex);  // the word must not be exchanged meanwhile
  raise_wake_flag(*state_->wake_flag);
}

void ProgressThread::call(const std::function<void()>& f) {
  if (std::this_thread::get_id() == state_->thread.get_id()) return f();
  State::Posted posted{&f};
  std::unique_lock lock(state_->mutex);
  state_->posted.push_back(&posted);
  raise_wake_flag(*state_->wake_flag);
  state_->posted_done.wait(lock, [&] { return posted.done; });
  if (posted.error) std::rethrow_exception(posted.error);
}

void ProgressThread::add(Task& task) {
  call([&] { state_->tasks.push_back(&task); });
}
void ProgressThread::remove(Task& task) {
  call([&] { std::erase(state_->tasks, &task); });
}
void ProgressThread::halt(bool still_answers) {
  call([&] {
    if (!std::exchange(state_->halted, true)) state_->still_answers = still_answers;
    std::erase_if(state_->tasks, [&](const Task* task) { return !state_->still_answers || !task->only_answers(); });
  });
}

bool ProgressThread::use_wake_flag(std::atomic<uint32_t>* word) {
  bool used = false;
  call([&] {
    const std::lock_guard lock(state_->mutex);
    used = word == nullptr || state_->wake_flag == &state_->own_wake_flag;
    if (used) state_->wake_flag = word != nullptr ? word : &state_->own_wake_flag;
  });
  return used;
}

platform::BindResult ProgressThread::bind(const std::vector<int>& pus) {
  platform::BindResult result;
  if (pus.empty()) return {.bound = true};
  call([&] { result = platform::set_affinity_mask(pus); });
  const std::lock_guard lock(state_->mutex);
  state_->own_core = result.bound;
  return result;
}

}  // namespace ditrain::dist
