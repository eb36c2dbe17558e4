// Where the other threads of this process are: a test that wants them asleep waits for that instead of for some time.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "ditrain/base/clock.hpp"

namespace ditrain::test {

/// Whether all other threads of this process sleep at this moment, by Linux' word.
inline bool all_others_sleep() {
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);  // "NUMBER (NAME) STATE ..."; empty if the thread has ended
    const size_t name_end = stat.rfind(") ");
    if (name_end != stat.npos && stat.compare(name_end + 2, 2, "S ") != 0) return false;
  }
  return true;
}

/// Waits until all other threads sleep; false if they do not within 20 s.
inline bool others_sleep() {
  for (const double end = now_s() + 20; !all_others_sleep(); std::this_thread::yield())
    if (now_s() > end) return false;
  return true;
}

}  // namespace ditrain::test
