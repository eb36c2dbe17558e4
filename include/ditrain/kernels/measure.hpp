// Loops that measure what the calling thread can reach on this machine: multiply-adds per second, and passes over
// memory with a given mix of streams. Benchmarks compare with them.
#pragma once
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

/// Runs independent multiply-adds for `seconds`. Returns FLOP/s, 2 FLOP per multiply-add of a lane.
/// kF32:     24 accumulators (14 where there are 16 registers: x86 without AVX-512) of the widest FMA of the chosen
///           instruction set (multiply and add on baseline x86); on SME the four tiles of FMOPA
/// kBF16:    24 accumulators of a dot product of pairs (vdpbf16ps, BFDOT; 4 FLOP per lane); on SME the four tiles of
///           BFMOPA, on AMX those of TDPBF16PS; 0 where the chosen instruction set has no bf16 product
double measure_fma_peak(DType type, double seconds);

/// How many arrays a pass over memory reads, writes without reading, and updates in place.
struct StreamMix {
  int reads = 0, writes = 0, updates = 0;
  int arrays() const { return reads + writes + updates; }
};
inline constexpr int kMaxStreamReads = 3, kMaxStreamWrites = 2, kMaxStreamUpdates = 4;

/// Makes one pass over n elements of each array. `arrays` has those that are read, then those written, then those
/// updated; none may overlap. With s = the sum of the arrays that are read, every written array becomes s and every
/// updated one (its old value + s) / 2, so that values stay bounded however often it runs.
/// Types:    f32; ordinary (not streaming) stores of whole vectors; a few adds per vector, so that memory is the limit
/// Method:   prefetches where there are at most three arrays; with more, prefetching makes the loop slower
/// Returns   the sum of all s if nothing is written or updated, so that the compiler cannot drop the loop; else 0
/// Errors:   LogicFault for a mix beyond kMaxStream*, or an empty one
float stream_pass(const StreamMix& mix, float* const* arrays, int64_t n);

}  // namespace ditrain::kernels
