// The tensors of a weight file, whatever program wrote it: safetensors, PyTorch (.pt, .pth, .bin), or the index of a
// set of shards (*.index.json). The content tells which of them it is. Not here: which tensors a model wants.
//
//   const WeightFile file("DiT-XL-2-256x256.pt");
//   if (const WeightTensor* w = file.find("x_embedder.proj.bias")) std::vector<float> bias = file.read(*w);
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/weights/pytorch_file.hpp"

namespace ditrain::weights {

enum class WeightFormat { kSafetensors, kPytorch };
/// Errors:   InputError, where = path: neither of them; as MappedFile
WeightFormat weight_format(const std::string& path);

/// PyTorch's word for a type of safetensors: "float32" for "F32".
const std::string& torch_dtype(const std::string& safetensors_dtype);

struct WeightTensor {
  std::string name;   ///< in files of PyTorch the path to it, as in PytorchTensor
  std::string dtype;  ///< in PyTorch's words: "float32", "bfloat16", "int64", ...
  std::vector<int64_t> shape;
  size_t file = 0, place = 0;  ///< where it lies
};

/// Errors:   InputError, where = path: as SafetensorsFile and PytorchFile; an index that is not JSON, names a file
///           outside its folder, or a tensor that its file does not have
/// Threads:  one at a time
class WeightFile {
 public:
  explicit WeightFile(const std::string& path);
  ~WeightFile();
  WeightFile(WeightFile&&) noexcept;

  const std::string& path() const;
  /// Whether it is one safetensors file.
  bool is_safetensors() const;
  const std::vector<WeightTensor>& tensors() const;
  /// Null if no tensor has that name.
  const WeightTensor* find(const std::string& name) const;
  /// All elements as f32. Errors: InputError if the type is not a floating one
  std::vector<float> read(const WeightTensor& tensor) const;
  /// As PytorchFile::scalar; none in other formats.
  std::optional<PytorchScalar> scalar(const std::string& path) const;
  /// The metadata of one safetensors file; empty in other formats.
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// The network whose weights have such names, "a Vision Transformer (ViT)"; "" if it is unknown.
std::string network_of(const std::vector<std::string>& names);

}  // namespace ditrain::weights
