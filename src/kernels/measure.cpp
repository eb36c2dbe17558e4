#include "ditrain/kernels/measure.hpp"

#include <string>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "instruction_sets.hpp"

namespace ditrain::kernels {

namespace {

double peak_of(double (*burst)(int64_t iterations), double seconds) {
  constexpr int64_t kBurst = 20000;  // some 100 us: long against the clock, short against `seconds`
  burst(kBurst);                     // wakes the wide units
  const double start = now_s();
  double flop = 0, elapsed = 0;
  do {
    flop += burst(kBurst);
    elapsed = now_s() - start;
  } while (elapsed < seconds);
  return flop / elapsed;
}

}  // namespace

double measure_fma_peak(DType type, double seconds) {
  DITRAIN_CHECK(type != DType::kI64, "no multiply-add loop for integers");
  const auto burst = process_kernels().kernels.products(type).fma_burst;
  return burst == nullptr ? 0 : peak_of(burst, seconds);
}

float stream_pass(const StreamMix& mix, float* const* arrays, int64_t n) {
  DITRAIN_CHECK(mix.reads >= 0 && mix.reads <= kMaxStreamReads && mix.writes >= 0 && mix.writes <= kMaxStreamWrites &&
                    mix.updates >= 0 && mix.updates <= kMaxStreamUpdates && mix.arrays() > 0,
                "a mix of " + std::to_string(mix.reads) + " read, " + std::to_string(mix.writes) + " written and " +
                    std::to_string(mix.updates) + " updated arrays");
  return process_kernels().kernels.elementwise->stream_burst(mix, arrays, n);
}

}  // namespace ditrain::kernels
