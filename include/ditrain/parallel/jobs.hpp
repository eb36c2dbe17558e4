// Runs jobs of uneven length outside the team of workers, such as reading and checking files, on threads that live for
// one call.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "ditrain/parallel/team.hpp"

namespace ditrain::parallel {

/// Calls job(0) ... job(n-1), each once, from one thread per processing unit of `pus`, which all of these threads may
/// use; empty: those of the calling thread. Returns when all have ended.
/// Errors: the first exception of a job; jobs that have not begun by then are left out
void run_jobs(int64_t n, const std::vector<int>& pus, const std::function<void(int64_t)>& job);
/// The same on the workers of a team.
void run_jobs(Team& team, int64_t n, const std::function<void(int64_t)>& job);

}  // namespace ditrain::parallel
