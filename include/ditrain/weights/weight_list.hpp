// The tensors of a weight file, whatever program wrote it: names, types, shapes and hashes, without a model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ditrain::weights {

struct ListedWeight {
  std::string name;
  std::string dtype;  ///< in PyTorch's words: "float32", "bfloat16", "int64", ...
  std::vector<int64_t> shape;
  std::string sha256;  ///< of the elements: row-major, little endian
};

/// Lists a safetensors file or a file of PyTorch (.pt, .pth); the content tells which, not the name.
/// Errors:   InputError, where = path: neither of them, or as SafetensorsFile and PytorchFile
std::vector<ListedWeight> list_weights(const std::string& path);

/// {"tensors": {NAME: {"dtype", "shape", "sha256"}}}, in the order of the list.
std::string to_json(const std::vector<ListedWeight>& weights);

}  // namespace ditrain::weights
