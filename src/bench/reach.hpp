// How fast threads reach memory: passes of a team over a block, and loads that each wait for the one before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

/// One pass of stream_pass on the team over arrays of n elements, cut in the order of the workers.
void stream(ops::Context& ctx, const kernels::StreamMix& mix, const std::vector<float*>& arrays, int64_t n);

/// Seconds of such passes over one block, as many as the effort repeats, after one that warms up.
std::vector<double> pass_seconds(ops::Context& ctx, const kernels::StreamMix& mix, std::byte* data, size_t bytes,
                                 const Effort& effort);

/// Seconds of a load that depends on the one before: the mean of many by the calling thread, on a random way through
/// the block (at most 256 MiB of it), as often as the effort repeats. What the block held is lost.
std::vector<double> load_seconds(std::byte* data, size_t bytes, const Effort& effort);

}  // namespace ditrain::bench
