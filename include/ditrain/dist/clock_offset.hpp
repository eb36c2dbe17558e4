// Aligns the clocks of the nodes of a run, so that events on different nodes can be compared.
#pragma once
#include <functional>

#include "ditrain/base/clock.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

struct ClockOffset {
  double offset_s = 0;  ///< this rank's clock minus that of rank 0, at the time of the measurement
  double error_s = 0;   ///< largest error of offset_s
};

/// Measures with pings between rank 0 and the first rank of every other node, some milliseconds per node; ranks of a
/// node share a clock. Collective; nothing else may be under way on the tags 0 and 1.
/// Math:     from the ping with the shortest round trip r: offset = answer - (sent + received) / 2, error = r / 2
ClockOffset measure_clock_offset(Communicator& communicator, const std::function<double()>& clock = now_s);

}  // namespace ditrain::dist
