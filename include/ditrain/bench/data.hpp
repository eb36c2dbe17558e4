// How fast one loader thread makes samples, and what a training step waits for them.
#pragma once
#include <string>

#include "ditrain/bench/step.hpp"

namespace ditrain::bench {

struct DataBench {
  StepBench step = {};       ///< the steps that the loader feeds
  int64_t batch = 8;         ///< of those steps
  int64_t samples = 32;      ///< files or tiles of each kind, written to $TMPDIR
  int64_t large_tile = 256;  ///< sides of tiles of 13 bands of u16
  int64_t small_tile = 64;
  int64_t photo_width = 500, photo_height = 375;  ///< of JPEG files, cropped and scaled to squares of photo_size
  int64_t photo_size = 256;
};

/// A row of training steps without data; then for tiles of both sizes and for photographs, all made up and in the page
/// cache, a row of the loader and one of the same steps that take a batch from it each.
/// Details   of a loader: images_per_second by one thread, times_step: of what the steps alone train on
///           of steps with a loader: images_per_second, data_wait_s per step and data_wait_share of the step
/// Errors:   as bench_steps; RunError where the files cannot be written
void bench_data(Harness& harness, const DataBench& bench);

}  // namespace ditrain::bench
