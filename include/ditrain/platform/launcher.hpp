// The launcher of a parallel job (mpirun, srun, ...) as this process sees it: an ancestor.
#pragma once
#include <sys/types.h>

namespace ditrain::platform {

/// The nearest ancestor of this process that is a launcher, or its helper on this node, by its name; 0: none is.
pid_t find_launcher();

/// From now on this process ends with exit code 1 and a message of `program` as soon as that one is gone: a rank that
/// outlives its launcher would write into a run folder that the next run thinks is free. Does nothing for 0.
void end_with_launcher(pid_t launcher, const char* program);

}  // namespace ditrain::platform
