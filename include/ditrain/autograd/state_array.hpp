// The state of an optimiser: arrays beside the weights that it declares, each for some groups of parameters. Memory,
// shards, memory tiers, checkpoints and memory plans follow from the declaration. Layers declare the group of a
// parameter.
//
//   {.name = "exp_avg", .title = "first moments"}                          // every parameter has it
//   {.name = "momentum_buffer", .title = "momentum", .has = is_matrix}     // takes memory for matrices only
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/tensor/tensor.hpp"

namespace ditrain::autograd {

/// Elements [begin, end) of the arenas.
struct ArenaSlice {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The role of a parameter for an optimiser. kBlockMatrix: the weight of a linear layer in a block, except adaLN.
enum class ParameterGroup { kOther, kBlockMatrix, kEmbedding, kModulation, kOutput, kNorm, kBias };

struct StateArray {
  std::string name = {};                  ///< in checkpoints, after the parameter's: "exp_avg"
  std::string title = {};                 ///< for messages
  bool (*has)(ParameterGroup) = nullptr;  ///< whether parameters of the group have it; null: all have
  /// Not 0: the array is a power average of the weights with this exponent (optim/power_average.hpp), stored in
  /// averages.safetensors. 0: state of the optimiser itself, stored in optimizer.safetensors.
  double exponent = 0;
  /// Each group of ranks has its own array (dist.outer): checkpoints have one tensor per group.
  bool of_group = false;
  bool is_average() const { return exponent != 0; }
  bool holds(ParameterGroup group) const { return has == nullptr || has(group); }
  /// Name of the array's tensor in checkpoints; "blocks.0.attn.qkv.weight.exp_avg.group1" in groups after the first.
  std::string tensor_of(const std::string& parameter, int group = 0) const {
    return parameter + "." + name + (of_group && group > 0 ? ".group" + std::to_string(group) : "");
  }
};

/// Which elements of the arena an array of state holds, and where.
class StateLayout {
 public:
  StateLayout() = default;
  /// The array holds these slices of the arena, one behind the other; they do not overlap.
  explicit StateLayout(const std::vector<ArenaSlice>& slices);
  int64_t size() const { return size_; }
  /// The slices in their order in the array; neighbours in arena and array are one.
  const std::vector<ArenaSlice>& slices() const { return slices_; }
  /// The index in the array of an element of the arena. Errors: LogicFault if the array does not hold it
  int64_t at(int64_t element) const;
  /// The elements of a slice. Errors: LogicFault unless the array holds them as neighbours
  Tensor of(const Tensor& array, const ArenaSlice& slice) const;
  /// The parts of a slice that the array holds.
  std::vector<ArenaSlice> held(const ArenaSlice& slice) const;

 private:
  struct Run {
    ArenaSlice arena;
    int64_t at;
  };
  std::vector<ArenaSlice> slices_;
  std::vector<Run> runs_;  // by place in the arena
  int64_t size_ = 0;
};

/// An array of state in memory.
struct OptimizerState {
  StateArray declared = {};
  StateLayout layout = {};
  Tensor data = {};  ///< [layout.size()]
  Tensor of(const ArenaSlice& slice) const { return layout.of(data, slice); }
};

}  // namespace ditrain::autograd
