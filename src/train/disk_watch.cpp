#include "disk_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/platform/affinity.hpp"

namespace ditrain::train {

DiskWatch::DiskWatch(dist::Communicator& comm, double timeout_s, const std::vector<int>& pus)
    : comm_(comm), timeout_s_(timeout_s) {
  if (timeout_s == 0) return;
  try {
    thread_ = std::thread([this, pus] {
      try {
        if (!pus.empty()) platform::set_affinity_mask(pus);
      } catch (const Error& e) {
        log::warn("the watch over the disk is not bound to cores: {}", e.what());
      }
      run();
    });
  } catch (const std::system_error& e) {
    log::warn("checkpoint.timeout_s: a disk that hangs ends nothing, as no thread could be started: {}", e.what());
  }
}

DiskWatch::~DiskWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DiskWatch::run() {
  const auto pause = std::chrono::duration<double>(std::min(1.0, timeout_s_ / 4));
  std::unique_lock lock(mutex_);
  // Time in which nobody looked, because this process was stopped, does not count.
  for (double patience_s = timeout_s_; !wake_.wait_for(lock, pause, [this] { return ends_; });) {
    const double still_s = comm_.disk_still_s();
    patience_s = still_s <= 2 * pause.count() ? timeout_s_ : patience_s - pause.count();
    if (still_s > timeout_s_ && patience_s <= 0) end_run(still_s);
  }
}

void DiskWatch::end_run(double still_s) {
  const Problem problem{
      .where = "checkpoint",
      .what = fmt::format("the disk of {} has done nothing for {:.0f} s", comm_.host(comm_.rank()), still_s),
      .expected = fmt::format("a write, sync or rename to end within checkpoint.timeout_s: {:g}", timeout_s_),
      .hint = "a larger checkpoint.timeout_s if it is only slow; --resume auto goes on from the last checkpoint"};
  const std::string text = "ditrain: error: " + log::of_rank() + RunError(problem).what() + "\n";
  // What goes to a file on that disk may hang as well, and so may streams that are flushed on the way.
  std::thread([text] { (void)!::write(STDERR_FILENO, text.data(), text.size()); }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::thread([this] { comm_.abort(kExitFailed); }).detach();
  std::this_thread::sleep_for(std::chrono::seconds(5));
  std::_Exit(kExitFailed);
}

}  // namespace ditrain::train
