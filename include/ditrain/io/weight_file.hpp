// Weights by name from a file of either kind, safetensors or torch.save (.pt, .pth); the content tells which.
//
//   const WeightFile file("inception.pth");
//   std::vector<float> w = file.to_f32("fc.weight");
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ditrain::io {

enum class WeightFormat { kSafetensors, kPytorch };
/// Errors: InputError, where = path: neither of them
WeightFormat weight_format_of(const std::string& path);

/// Threads:  one at a time
class WeightFile {
 public:
  /// Errors: as weight_format_of, SafetensorsFile and PytorchFile
  explicit WeightFile(const std::string& path);
  ~WeightFile();
  WeightFile(WeightFile&&) noexcept;

  const std::string& path() const { return path_; }
  bool contains(const std::string& name) const;
  /// Of any tensor of the file; "" if it has none.
  std::string first_name() const;
  /// Errors: InputError if there is no tensor of that name
  std::vector<int64_t> shape(const std::string& name) const;
  /// Row-major, rounded to f32. Errors: also for types that are no floating point
  std::vector<float> to_f32(const std::string& name) const;

 private:
  struct Contents;
  std::string path_;
  std::unique_ptr<Contents> contents_;
};

}  // namespace ditrain::io
