// Positions of a sample that imagery from above may take: nothing in it says where up is.
#pragma once
#include <cstdint>

#include "ditrain/dataset/dataset.hpp"

namespace ditrain::dataset {

/// In place. Shapes: chw [channels, height, width]
void turn_upside_down(const SampleShape& shape, float* chw);
/// Turns by `turns` quarters, counter-clockwise, in place. Errors: LogicFault if height is not width and turns is odd
void quarter_turns(const SampleShape& shape, int turns, float* chw);

/// Errors:   InputError if data.augment does not go with the kind of data or with the shape
void check_augment(const Config& config, const SampleShape& shape);

}  // namespace ditrain::dataset
