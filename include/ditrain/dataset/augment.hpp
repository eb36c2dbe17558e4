// Mirroring and quarter turns of samples (data.augment), for imagery taken from above, which has no "up".
#pragma once
#include <cstdint>

#include "ditrain/dataset/dataset.hpp"

namespace ditrain::dataset {

/// Mirrors top to bottom, in place.
/// Shapes:   chw [channels, height, width]
/// Types:    f32 or u8
template <class T>
void turn_upside_down(const SampleShape& shape, T* chw);
/// Turns by `turns` quarters (0 to 3), counter-clockwise, in place. Shapes and types as above.
/// Errors:   LogicFault if `turns` is odd and height is not width
template <class T>
void quarter_turns(const SampleShape& shape, int turns, T* chw);

/// Checks that data.augment fits the kind of data and the shape: it needs pixels, and `turns` needs squares.
/// Errors:   InputError
void check_augment(const Config& config, const SampleShape& shape);

}  // namespace ditrain::dataset
