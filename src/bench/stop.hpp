// How a signal ends a bench: between two of its calls, so that temporary folders and child programs end with it, and
// the rows of before are told.
#pragma once
#include "ditrain/base/error.hpp"
#include "ditrain/platform/signals.hpp"

namespace ditrain::bench {

struct Stopped : Error {
  explicit Stopped(int exit_code = kExitFailed, const std::string& hint = "")
      : Error({.where = "ditbench", .what = "stopped by a signal", .hint = hint}, exit_code) {}
};

/// Whether a signal has asked for a stop since the last call. The program has called platform::install_signal_flags.
inline bool stop_requested() { return (platform::take_signal_flags() & platform::kStopRequested) != 0; }

/// Errors:   Stopped if a signal has asked for it
inline void check_stop() {
  if (stop_requested()) throw Stopped();
}

}  // namespace ditrain::bench
