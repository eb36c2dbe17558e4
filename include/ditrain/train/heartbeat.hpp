// Prints what a run is doing when its log has been silent for a while, because a step of a large model may take
// minutes, and sampling more. A thread prints a line every log.every_seconds; the run tells it what begins.
//
//   Heartbeat heartbeat(60);
//   heartbeat.start({});
//   heartbeat.begin("step 12 of 1000");
//   heartbeat.detail("micro-batch 3 of 16, backward of blocks.7.attn");
//     -> step 12 of 1000: micro-batch 3 of 16, backward of blocks.7.attn; 75 s so far
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ditrain/base/interval.hpp"

namespace ditrain::train {

class Heartbeat {
 public:
  /// every_s: seconds between lines; 0: none are printed.
  explicit Heartbeat(double every_s, std::function<double()> clock = now_s)
      : clock_(clock), silence_(every_s, std::move(clock)) {}
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// From now on a thread on these cores (empty: those of the caller) prints lines that are due.
  void start(const std::vector<int>& pus);
  void begin(std::string what);   ///< sets what the run is doing
  void detail(std::string part);  ///< sets which part of that
  /// Whether a line should be printed now, given that the next chance comes in `ahead_s` seconds.
  bool is_due(double ahead_s = 0) const;
  void told();  ///< a line has been printed
  /// The line that is due, which then counts as printed; "" if no line is due.
  std::string take_line();

 private:
  void run();

  const std::function<double()> clock_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  Interval silence_;  // since the last line
  std::string what_, detail_;
  double begin_s_ = 0;
  std::thread thread_;
};

}  // namespace ditrain::train
