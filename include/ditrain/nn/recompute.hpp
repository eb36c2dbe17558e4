// Activation checkpointing of the blocks (train.recompute).
#pragma once
#include <span>

#include "ditrain/base/words.hpp"

namespace ditrain::nn {

/// What the blocks recompute in backward instead of storing it; results are bit-identical.
///   kNone       nothing; stores about 18 B T C values per block
///   kSelective  tensors that one pass over memory computes: normalised inputs, GELU, x between halves; stores 11 B T C
///   kBlock      everything from the block's input and modulation: forward runs again, 1/3 more work; stores 1 B T C
enum class Recompute { kNone, kSelective, kBlock };
inline constexpr Word<Recompute> kRecomputes[] = {
    {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"block", Recompute::kBlock}};
constexpr std::span<const Word<Recompute>> words_of(Recompute) { return kRecomputes; }  ///< from least to most

}  // namespace ditrain::nn
