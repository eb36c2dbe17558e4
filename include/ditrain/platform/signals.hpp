// Signals as flags that the training loop reads between two steps: SIGUSR1 asks for a checkpoint; SIGUSR2, SIGTERM and
// SIGINT ask for a stop. Handlers only set a lock-free atomic; they write nothing and call no MPI.
#pragma once
#include <cstdint>

namespace ditrain::platform {

inline constexpr uint64_t kCheckpointRequested = 1, kStopRequested = 2;

/// Installs the handlers. The first SIGINT or SIGTERM restores the default action of both, so that a second one ends
/// the process at once. Another call of this function installs the handlers again, except those of the two while a stop
/// request waits to be taken.
/// Errors: throws RunError if the system refuses a handler.
void install_signal_flags();

/// Restores the default actions, for a program that turns out to run no steps.
void remove_signal_flags();

/// Returns the requests since the last call (bits of kCheckpointRequested and kStopRequested), and clears them.
uint64_t take_signal_flags();

}  // namespace ditrain::platform
