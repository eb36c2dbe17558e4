// Positions of a sample that imagery from above may take: nothing in it says where up is.
#pragma once
#include <cstdint>

#include "ditrain/dataset/dataset.hpp"

namespace ditrain::dataset {

/// In place, for f32 and u8. Shapes: chw [channels, height, width]
template <class T>
void turn_upside_down(const SampleShape& shape, T* chw);
/// Turns by `turns` quarters, counter-clockwise, in place. Errors: LogicFault if height is not width and turns is odd
template <class T>
void quarter_turns(const SampleShape& shape, int turns, T* chw);

/// Errors:   InputError if data.augment does not go with the kind of data or with the shape
void check_augment(const Config& config, const SampleShape& shape);

}  // namespace ditrain::dataset
