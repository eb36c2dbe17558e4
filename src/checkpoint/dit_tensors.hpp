// The tensors of one DiT among those of a weight file, and the sizes that follow from their shapes.
#pragma once
#include <string>
#include <vector>

#include "ditrain/checkpoint/dit_file.hpp"
#include "ditrain/weights/weight_file.hpp"

namespace ditrain::checkpoint {

/// Which names of a file belong to the model: they begin with `prefix` ("ema/", "module.").
struct DitTensors {
  const weights::WeightFile* file = nullptr;
  std::string prefix = {};
  std::vector<std::string> other_prefixes = {};  ///< of other models in the file
  bool diffusers = false;                        ///< names are those of diffusers
  std::string note = {};                         ///< which model was taken of several; ""

  const weights::WeightTensor* find(const std::string& name) const { return file->find(prefix + name); }
  /// Errors: InputError that names the tensor, and the network that the weights look like
  const weights::WeightTensor& at(const std::string& name) const;
  /// Errors: InputError that names the tensor and both shapes, if the number of dimensions is another one
  const std::vector<int64_t>& shape(const std::string& name, size_t dimensions) const;
};

/// Errors: InputError if the file does not hold a DiT, naming the network that it holds; if it holds several to choose
/// from
DitTensors find_dit(const weights::WeightFile& file, Weights weights);

/// The model of these shapes. Errors: InputError as DitFile
nn::ModelConfig model_of(const DitTensors& tensors, const DitHints& hints, std::vector<std::string>& notes);

/// Errors: InputError unless the file has the tensors of that model (names and shapes are those of `layout`) and no
/// others
void check_tensors(const DitTensors& tensors, nn::Model& layout);

/// Name in the file of a parameter's part (diffusers: p.diffusers[part], of block 0 where each block has a copy).
std::string name_in_file(const DitTensors& tensors, const autograd::Parameter& p, size_t part, int64_t block = 0);

/// "; this looks like an SD3 MMDiT", or "" for a DiT or what is not known.
std::string looks_like(const weights::WeightFile& file);

}  // namespace ditrain::checkpoint
