#include "ditrain/dataset/augment.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/kinds.hpp"

namespace ditrain::dataset {

template <class T>
void turn_upside_down(const SampleShape& s, T* chw) {
  for (int64_t c = 0; c < s.channels; ++c)
    for (int64_t y = 0; y < s.height / 2; ++y) {
      T* row = chw + (c * s.height + y) * s.width;
      std::swap_ranges(row, row + s.width, chw + (c * s.height + s.height - 1 - y) * s.width);
    }
}

template <class T>
void quarter_turns(const SampleShape& s, int turns, T* chw) {
  const int64_t n = s.width, plane = s.height * s.width;
  if (turns == 2)
    for (int64_t c = 0; c < s.channels; ++c) std::reverse(chw + c * plane, chw + (c + 1) * plane);
  if (turns % 2 == 0) return;
  DITRAIN_CHECK(s.height == s.width, "only squares are turned by a quarter");
  for (int64_t c = 0; c < s.channels; ++c) {
    T* x = chw + c * plane;
    for (int64_t y = 0; y < n; ++y)  // over the diagonal, then rows or columns in reverse
      for (int64_t k = y + 1; k < n; ++k) std::swap(x[y * n + k], x[k * n + y]);
    if (turns == 1)
      turn_upside_down({1, n, n}, x);
    else
      for (int64_t y = 0; y < n; ++y) std::reverse(x + y * n, x + (y + 1) * n);
  }
}

template void turn_upside_down(const SampleShape&, float*);
template void turn_upside_down(const SampleShape&, uint8_t*);
template void quarter_turns(const SampleShape&, int, float*);
template void quarter_turns(const SampleShape&, int, uint8_t*);

void check_augment(const Config& config, const SampleShape& shape) {
  if (config.augment == Augment::kNone) return;
  if (!config.kind->pixels)
    throw InputError({.where = "data",
                      .what = "data.augment turns pictures; latents of turned images are others",
                      .got = std::string("data.kind: ") + std::string(config.kind->name),
                      .expected = "data.augment: none"});
  if (config.augment == Augment::kTurns && shape.height != shape.width)
    throw InputError({.where = "data",
                      .what = "data.augment: turns needs square samples",
                      .got = std::to_string(shape.height) + " x " + std::to_string(shape.width),
                      .expected = "data.augment: flips or none"});
}

}  // namespace ditrain::dataset
