// Signals as flags that the training loop looks at between two steps: SIGUSR1 asks for a checkpoint; SIGUSR2, SIGTERM
// and SIGINT ask for a stop. Handlers only set a lock-free atomic; nothing is written and no MPI is called inside them.
#pragma once
#include <cstdint>

namespace ditrain::platform {

inline constexpr uint64_t kCheckpointRequested = 1, kStopRequested = 2;

/// Installs the handlers. After the first SIGINT or SIGTERM both get their default action back, so that a second one
/// ends the process at once; calling this again arms them anew, unless a stop was asked for and not taken yet.
/// Errors: throws RunError if the system refuses a handler.
void install_signal_flags();

/// Default actions again, for a program that turns out to have no steps.
void remove_signal_flags();

/// The requests since the last call (bits of kCheckpointRequested, kStopRequested), and forgets them.
uint64_t take_signal_flags();

}  // namespace ditrain::platform
