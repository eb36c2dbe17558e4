// Named parameters in flat arenas. Values, gradients, EMA and the arrays of the optimiser (state_array.hpp) are each
// one contiguous block with the same layout, in the reverse of the order in which gradients become final, so that a
// gradient bucket, a module's weights and the range of one fused optimiser pass are slices. Files and lists use the
// order of the public state dict instead. A parameter's declaration has everything about it: initialisation, counts of
// work and names in other formats are read from there.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "ditrain/autograd/initial.hpp"
#include "ditrain/autograd/state_array.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::autograd {

/// The part of a tensor that a rank holds: the elements, seen as [outer, length, inner], whose middle index is in
/// [begin, end).
struct Part {
  int64_t outer = 1, length = 1, inner = 1;
  int64_t begin = 0, end = 1;
  bool whole() const { return begin == 0 && end == length; }
  void take(const float* full, float* part) const;  ///< copies the elements of the part out of `full`
  void put(const float* part, float* full) const;   ///< copies them back into `full`; the rest of `full` stays
};

/// The number of rows of x per image in the GEMM x w^T of a weight; kNone: the parameter is not used in a GEMM.
enum class ProductRows { kNone, kOne, kTokens };

struct Parameter {
  // What its layer declares.
  std::string name = {};  ///< name in the public state dict, "blocks.0.attn.qkv.weight"
  Shape full_shape = {};  ///< shape in the public state dict
  Initial initial = {};   ///< zeros
  ParameterGroup group = ParameterGroup::kOther;
  int64_t stacked = 1;                       ///< matrices that are equal parts of its rows: 3 for q, k and v
  bool trainable = true;                     ///< false: only a value, outside the arenas (pos_embed)
  ProductRows product = ProductRows::kNone;  ///< for counts of work and of bytes that GEMMs read
  /// Backward offers the gradient to the pass's sink before it computes it (nn::WeightGradientSink).
  bool offers_gradient = false;
  /// Names of the tensors that hold it in diffusers files: one, or several that are equal parts of its rows, in this
  /// order. A '*' stands for the number of a block: each block has a copy. Empty: the format has no such tensor.
  std::vector<std::string> diffusers = {};
  // What this store holds of it.
  Shape shape = {};  ///< the full shape, unless ranks share the parameter
  Part part = {};    ///< this rank's part of the full tensor
  // Where this store holds it.
  ArenaSlice slice = {};         ///< padded to 64 bytes
  Tensor value = {}, grad = {};  ///< views of the arenas, once allocated
  Tensor value_bf16 = {};        ///< view of values_bf16 if that is allocated
  int64_t size() const { return num_elements(shape); }
};

class ParameterStore {
 public:
  /// Appends a parameter; the reference stays valid. The order of adding is that of the state dict. A declaration
  /// without `shape` stands for the full tensor.
  Parameter& add(Parameter declared);
  Parameter& add(std::string name, Shape shape) {
    return add(Parameter{.name = std::move(name), .full_shape = std::move(shape)});
  }
  /// Places the trainable parameters in the arenas in this order instead of the order of adding. Errors: LogicFault
  /// unless each is listed once
  void lay_out(const std::vector<Parameter*>& order);

  enum class For { kInference, kTraining };
  /// Where the arenas live, and their sizes.
  struct Homes {
    memory::Allocator* home = &memory::system_memory();
    /// If not null, gradients live here instead (memory that ranks share); it outlives the store.
    memory::Allocator* gradients = nullptr;
    std::vector<StateArray> states = {};  ///< state arrays of the optimiser, see optim::state_arrays
    /// The slices (some may be empty) whose EMA and states this rank keeps, packed in this order (ZeRO-1). No slices:
    /// it keeps all.
    std::vector<ArenaSlice> state_parts = {};
    /// Slices that cover the arena and whose gradients take turns in the same memory; empty: every gradient has its own
    /// memory.
    std::vector<ArenaSlice> gradient_slices = {};
    /// Makes the storages of all arenas but the gradients, segment by segment; it outlives the store.
    /// Null: each arena is one block at home.
    StorageSource* segments = nullptr;
  };
  /// Allocates the arenas (inference: values only), zeroed, and binds the parameters' tensors to them. `products` kBF16
  /// adds values_bf16, which the GEMMs of a bf16 training pass read; the optimiser updates it with `values`.
  void allocate(For purpose, DType products, const Homes& homes);
  void allocate(For purpose, DType products = DType::kF32) { allocate(purpose, products, Homes()); }
  /// The bytes that `allocate` will take.
  size_t bytes(For purpose, DType products = DType::kF32, const std::vector<StateArray>& states = {}) const;
  /// The layout of a state array on a rank that keeps these parts; no parts: it keeps all.
  StateLayout layout_of(const StateArray& array, const std::vector<ArenaSlice>& state_parts = {}) const;

  std::vector<Parameter*> state_dict();  ///< all parameters, in the order of the public state dict
  Parameter& find(const std::string& name);
  /// The trainable parameter that holds arena element i. Errors: LogicFault if i is outside
  const Parameter& at(int64_t i) const;
  /// Where the first parameter begins at or after element i; the end of the arena if there is none.
  int64_t first_whole(int64_t i) const;
  /// The name of the parameter that holds element i, and the index within it unless that is 0.
  std::string name_at(int64_t i) const;
  int64_t num_parameters() const;  ///< as the reference counts: frozen ones too, without padding
  int64_t arena_size() const { return arena_size_; }
  /// The arena split into the units that move between memory tiers, in order: each matrix by itself, vectors with their
  /// neighbours.
  std::vector<ArenaSlice> segments() const { return segments({0, arena_size_}); }
  std::vector<ArenaSlice> segments(const ArenaSlice& slice) const;  ///< segments of a slice, split at its ends
  /// The trainable parameters in the order of the arenas.
  std::vector<const Parameter*> in_arena() const;
  /// The part of another arena of this layout (the EMA) that belongs to p.
  Tensor view(const Tensor& arena, const Parameter& p) const { return arena.slice(p.slice.begin, p.shape); }

  /// The gradients of these elements. If Homes::gradient_slices is used, they must be within one of its slices.
  Tensor gradients_of(const ArenaSlice& slice) const;
  /// Zeroes the gaps between the gradients of a slice's parameters, which another slice in the same memory may have
  /// written.
  void clear_between_gradients(const ArenaSlice& slice) const;

  /// The array of the optimiser with this name. Errors: LogicFault if the store has none
  const OptimizerState& state(const std::string& name) const;
  /// Whether this rank keeps EMA and states as they lie in the arena: without Homes::state_parts.
  bool keeps_all() const { return keeps_all_; }
  /// Bytes of the weights, EMA and states that this rank keeps.
  size_t state_bytes() const;
  /// The EMA as a state.
  OptimizerState ema_state() const { return {{.name = "ema", .title = "ema"}, kept, ema}; }

  Tensor values;                       ///< the arena, [arena_size]
  Tensor grads;                        ///< the same, or [the largest of Homes::gradient_slices]
  Tensor ema;                          ///< the same, or [kept.size()]
  StateLayout kept;                    ///< which elements the EMA holds, and where
  std::vector<OptimizerState> states;  ///< the arrays of Homes::states
  Tensor values_bf16;                  ///< values rounded to bf16; undefined unless requested
  Tensor published;                    ///< the run's weights if `values` are those of a group (optim/outer.hpp)
  /// What checkpoints store as the model.
  const Tensor& model_values() const { return published.defined() ? published : values; }

 private:
  void place(Parameter& p);
  Tensor make_arena(const std::string& name, DType dtype, const Homes& homes) const;
  Tensor make_arena(const std::string& name, DType dtype, const std::vector<ArenaSlice>& slices,
                    StorageSource& source) const;
  Tensor make_state(const std::string& name, const StateLayout& layout, const Homes& homes) const;

  std::deque<Parameter> parameters_;
  std::vector<ArenaSlice> gradient_slices_;
  int64_t arena_size_ = 0;
  bool keeps_all_ = true;
};

}  // namespace ditrain::autograd
