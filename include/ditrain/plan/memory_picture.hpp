// The memory plan as a picture (SVG): one bar of all items, and with memory tiers a chart per tier over the time of one
// step.
#pragma once
#include <string>

#include "ditrain/plan/memory_plan.hpp"

namespace ditrain::plan {

/// Draws one bar with one colour per item. With `automem` (whose forecast has been made) it adds a chart for the fast
/// tier and for each slow tier that has tensors: GiB in use over the expected seconds of a step. The height of a chart
/// is the size of the tier (or its peak, if it has no size). Hovering over a rectangle shows the point of the step and
/// its bytes.
std::string memory_svg(const MemoryPlan& plan, const automem::Plan* automem = nullptr);

/// Writes the picture to a file. Errors: RunError if it cannot be written
void write_memory_svg(const MemoryPlan& plan, const std::string& path, const automem::Plan* automem = nullptr);

}  // namespace ditrain::plan
