// Weights that PyTorch saved (.pt, .pth): the zip format of version 1.6 and later, and the one before.
//
// Problem:      such a file is a pickle, a program that could run any code, and it is untrusted.
// Abstractions: PytorchFile, the tensors of the file under the path that leads to them
//               ("model/blocks.0.attn.qkv.weight"), and the numbers and texts beside them. The pickle is read as inert
//               data: see src/weights/pickle.hpp for what is allowed; every other global is refused by its name.
// Not here:     which tensors a model wants; older formats (tar), TorchScript, sparse and quantised tensors.
//
//   PytorchFile file("inception.pth");
//   for (const auto& tensor : file.tensors()) { std::vector<std::byte> w = file.read(tensor); ... }
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ditrain::weights {

struct PytorchTensor {
  std::string name;   ///< keys of the dictionaries that lead to it, joined by "/"; "" if the file is one tensor
  std::string dtype;  ///< as in PyTorch: "float32", "bfloat16", "int64", "bool", ...
  std::vector<int64_t> shape;
  size_t bytes = 0;  ///< of all elements, row-major
  // Where its elements lie.
  uint32_t storage = 0;
  int64_t offset = 0;  ///< elements
  std::vector<int64_t> strides = {};
};

/// None, bool, integer, float or text.
using PytorchScalar = std::variant<std::monostate, bool, int64_t, double, std::string>;

/// Errors:   InputError, where = path: not such a file, cut off or damaged; a global that is not data; storages that
///           are missing or of another size than the pickle says; tensors that reach outside their storage or overflow;
///           compressed entries of 256 MiB and more; tensors that repeat their bytes beyond 64 MiB; no tensor at all
/// Memory:   the file is mapped; the values of the pickle are in proportion to it
/// Threads:  one at a time
class PytorchFile {
 public:
  explicit PytorchFile(const std::string& path);
  /// A file in memory, which has to outlive this.
  PytorchFile(const std::string& where, std::string_view bytes);
  ~PytorchFile();
  PytorchFile(PytorchFile&&) noexcept;

  /// In the order of the file. Two may share memory.
  const std::vector<PytorchTensor>& tensors() const;
  /// Null if no tensor has that name.
  const PytorchTensor* find(std::string_view name) const;
  /// All elements, row-major, little endian. Errors: InputError if the storage's checksum does not fit
  std::vector<std::byte> read(const PytorchTensor& tensor) const;
  /// Calls `use` with the same bytes in one piece or several, without a copy where they lie in order.
  void visit(const PytorchTensor& tensor, const std::function<void(std::string_view)>& use) const;
  /// The number or text under a path such as "args/num_classes"; none if it does not exist.
  std::optional<PytorchScalar> scalar(std::string_view path) const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

}  // namespace ditrain::weights
