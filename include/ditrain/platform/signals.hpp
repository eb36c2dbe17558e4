// Signals as flags that the training loop reads between two steps: SIGUSR1 asks for a checkpoint; SIGUSR2, SIGTERM,
// SIGINT and SIGHUP (the terminal is gone) ask for a stop. Handlers only set a lock-free atomic; they write nothing and
// call no MPI. A reader of stdout that has ended (SIGPIPE) is no reason to lose a run: writing fails instead.
#pragma once
#include <cstdint>

namespace ditrain::platform {

inline constexpr uint64_t kCheckpointRequested = 1, kStopRequested = 2;

/// Installs the handlers. The first SIGINT or SIGTERM restores the default action of both, so that a second one ends
/// the process at once. Another call of this function installs the handlers again, except those of the two while a stop
/// request waits to be taken. SIGINT and SIGHUP stay ignored if they were when the process started.
/// Errors: throws RunError if the system refuses a handler.
void install_signal_flags();

/// Restores the actions that install_signal_flags() found, for a program that turns out to run no steps.
void remove_signal_flags();

/// Returns the requests since the last call (bits of kCheckpointRequested and kStopRequested), and clears them.
uint64_t take_signal_flags();

}  // namespace ditrain::platform
