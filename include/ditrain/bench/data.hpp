// Measures how many samples one loader thread makes per second, and how long a training step waits for them.
#pragma once

#include "ditrain/bench/step.hpp"

namespace ditrain::bench {

struct DataBench {
  StepBench step = {};       ///< the steps that the loader feeds
  int64_t batch = 8;         ///< images per step
  int64_t samples = 32;      ///< files or tiles of each kind, written to $TMPDIR
  int64_t large_tile = 256;  ///< sides, in pixels, of tiles with 13 bands in u16
  int64_t small_tile = 64;
  int64_t photo_width = 500, photo_height = 375;  ///< JPEG files, cropped and scaled to squares of photo_size
  int64_t photo_size = 256;
};

/// A row of training steps without data. Then, for tiles of both sizes and for photographs (synthetic files in the page
/// cache), a row of the loader alone and a row of steps that each take a batch from it.
/// Details   loader: images_per_second of one thread, times_step: that rate / the rate of the steps without data
///           steps with a loader: images_per_second, data_wait_s per step and data_wait_share of the step
/// Errors:   as bench_steps; RunError where the files cannot be written
void bench_data(Harness& harness, const DataBench& bench);

}  // namespace ditrain::bench
