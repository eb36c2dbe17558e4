#include "ditrain/train/heartbeat.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::start(const std::vector<int>& pus) {
  if (!silence_.is_on()) return;
  try {
    thread_ = std::thread([this, pus]() noexcept {
      try {
        if (!pus.empty()) platform::set_affinity_mask(pus);
        run();
      } catch (const std::exception& e) {
        log::warn("log.every_seconds: no more lines within long steps: {}", e.what());
      }
    });
  } catch (const std::system_error& e) {
    log::warn("log.every_seconds: no lines within long steps, as no thread could be started: {}", e.what());
  }
}

void Heartbeat::begin(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what), detail_.clear(), begin_s_ = clock_();
}

void Heartbeat::detail(std::string part) {
  const std::lock_guard lock(mutex_);
  detail_ = std::move(part);
}

bool Heartbeat::is_due(double ahead_s) const {
  const std::lock_guard lock(mutex_);
  return silence_.is_over(ahead_s);
}

void Heartbeat::told() {
  const std::lock_guard lock(mutex_);
  silence_.restart();
}

std::string Heartbeat::take_line() {
  const std::lock_guard lock(mutex_);
  if (!silence_.is_over() || what_.empty()) return "";
  silence_.restart();
  return what_ + (detail_.empty() ? "; " : ": " + detail_ + "; ") + format_duration(clock_() - begin_s_) + " so far";
}

void Heartbeat::run() {
  constexpr double kLeast_s = 1e-3;  // nothing may have begun yet
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const auto left = std::chrono::duration<double>(std::max(kLeast_s, silence_.left_s()));
    wake_.wait_for(lock, left, [this] { return ends_; });
    lock.unlock();
    if (const std::string line = take_line(); !line.empty()) log::progress_line(line);
    lock.lock();
  }
}

}  // namespace ditrain::train
