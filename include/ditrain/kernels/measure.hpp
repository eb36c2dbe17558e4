// Loops that tell what this machine can do, as the calling thread sees it: multiply-adds per second, and passes over
// memory with a given mix of streams. A benchmark divides by them.
#pragma once
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

/// Independent multiply-adds for `seconds`; returns flop (2 per multiply-add of a lane) / time [FLOP/s].
/// kF32:     24 accumulators (14 where there are 16 registers: x86 without AVX-512) of the widest FMA of the chosen
///           instruction set (multiply and add on baseline x86); on SME the four tiles of FMOPA
/// kBF16:    24 accumulators of a product of pairs (vdpbf16ps, BFDOT; 4 flop per lane), on SME and
///           AMX the four tiles of BFMOPA and of TDPBF16PS; 0 where the chosen instruction set has none
double measure_fma_peak(DType type, double seconds);

/// How many arrays a pass over memory reads, writes without reading, and updates in place.
struct StreamMix {
  int reads = 0, writes = 0, updates = 0;
  int arrays() const { return reads + writes + updates; }
};
inline constexpr int kMaxStreamReads = 3, kMaxStreamWrites = 2, kMaxStreamUpdates = 4;

/// One pass over n elements of each array: `arrays` holds those that are read, then the written, then the updated ones;
/// none may overlap. With s = the sum of the arrays that are read, every written array becomes s and every updated one
/// (its old value + s) / 2, so that values stay bounded however often it runs.
/// Types:    f32; ordinary (not streaming) stores of whole vectors; a few adds per vector, so that memory limits it
/// Method:   up to three arrays are fetched ahead, which is the faster loop (more: the slower)
/// Returns   the sum of all s where nothing is written or updated (for the loop to have an effect), else 0
/// Errors:   LogicFault for a mix beyond kMaxStream*, or an empty one
float stream_pass(const StreamMix& mix, float* const* arrays, int64_t n);

}  // namespace ditrain::kernels
