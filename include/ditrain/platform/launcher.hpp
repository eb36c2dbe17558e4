// The launcher of a parallel job (mpirun, srun, ...), which is an ancestor of this process.
#pragma once
#include <sys/types.h>

namespace ditrain::platform {

/// The nearest ancestor of this process that is a launcher, or the launcher's helper on this node, recognised by its
/// name; 0: there is none.
pid_t find_launcher();

/// Starts a thread that ends this process, with exit code 1 and a message of `program`, as soon as `launcher` ends.
/// Otherwise a rank that outlives its launcher would write into a run folder that the next run takes to be free. Does
/// nothing if `launcher` is 0.
void end_with_launcher(pid_t launcher, const char* program);

}  // namespace ditrain::platform
