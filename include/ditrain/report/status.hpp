// OUT/status.json: how far a run is, whether it lives and how it ended, in one small object that is replaced as a
// whole.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ditrain/base/words.hpp"

namespace ditrain::report {

/// kVanished is never written: a reader reports it for a run that says "running" but no longer runs.
enum class RunState { kRunning, kFinished, kStopped, kFailed, kVanished };
inline constexpr Word<RunState> kRunStates[] = {{"running", RunState::kRunning},
                                                {"finished", RunState::kFinished},
                                                {"stopped", RunState::kStopped},
                                                {"failed", RunState::kFailed},
                                                {"stopped without a word", RunState::kVanished}};
constexpr std::span<const Word<RunState>> words_of(RunState) { return kRunStates; }

struct Status {
  RunState state = RunState::kRunning;
  int64_t step = 0, steps = 0;       ///< steps done, and steps in total
  std::optional<double> eta_s = {};  ///< seconds left; none: unknown, or the run is over
  double heartbeat_s = 0;            ///< when this was written, in seconds since 1970 (UTC)
  std::string reason = {};           ///< why the run ended
  std::string build = {};            ///< version and commit of the programs that trained it, from the first one on
};

double unix_time_s();
std::string to_json(const Status& status);

/// The status of a run folder as it is at `now_s` (unix_time_s()); none if there is no file or it is damaged.
/// A run that says "running", whose heartbeat is old and whose lock is free, has vanished. Not for the process that
/// holds the lock: it would lose it.
std::optional<Status> read_status(const std::string& folder, double now_s);

/// The builds of a run that `build` continues: those in status.json, and this one. "unknown" stands for
/// earlier ones if it has none, but the folder has steps; a branch of another run begins without steps.
std::string builds_with(const std::string& folder, const std::string& build);

/// The numbers that monitoring asks for, in the text format of Prometheus (without times, as node_exporter wants it).
/// `loss`, `lr`, ... of the last step may be NaN. `run` names the run in the label of each.
struct LastStep {
  double loss = 0, lr = 0, grad_norm = 0, images_per_second = 0, mfu = 0, rss_bytes = 0;
};
std::string to_prometheus(const Status& status, const LastStep& last, const std::string& run);

}  // namespace ditrain::report
