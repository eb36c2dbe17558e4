#include "ditrain/io/weight_file.hpp"

#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/io/pytorch_file.hpp"
#include "ditrain/io/safetensors.hpp"
#include "mapped_file.hpp"

namespace ditrain::io {
namespace {

// The word of safetensors for a floating-point type of PyTorch; any other stays as it is and is refused by name.
std::string safetensors_word(const std::string& dtype) {
  if (dtype == "float64") return "F64";
  if (dtype == "float32") return "F32";
  if (dtype == "float16") return "F16";
  if (dtype == "bfloat16") return "BF16";
  return dtype;
}

}  // namespace

WeightFormat weight_format_of(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.bytes());
  // The length of a safetensors header may begin with any bytes: first the brace that follows it.
  if (bytes.size() > 8 && bytes[8] == '{') return WeightFormat::kSafetensors;
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80")) return WeightFormat::kPytorch;
  throw InputError({.where = path,
                    .what = "not a weight file that can be read",
                    .got = bytes.empty() ? "an empty file" : std::to_string(bytes.size()) + " bytes of something else",
                    .expected = "safetensors, or a file of torch.save (.pt, .pth)"});
}

struct WeightFile::Contents {
  std::optional<SafetensorsFile> safetensors;
  std::optional<PytorchFile> pytorch;

  const PytorchTensor& find(const std::string& path, const std::string& name) const {
    if (const PytorchTensor* t = pytorch->find(name)) return *t;
    throw InputError({.where = path, .what = "there is no tensor of that name", .got = name});
  }
};

WeightFile::WeightFile(const std::string& path) : path_(path), contents_(new Contents) {
  if (weight_format_of(path) == WeightFormat::kSafetensors)
    contents_->safetensors.emplace(path);
  else
    contents_->pytorch.emplace(path);
}
WeightFile::~WeightFile() = default;
WeightFile::WeightFile(WeightFile&&) noexcept = default;

bool WeightFile::contains(const std::string& name) const {
  return contents_->pytorch ? contents_->pytorch->find(name) != nullptr : contents_->safetensors->contains(name);
}

std::string WeightFile::first_name() const {
  if (contents_->pytorch) return contents_->pytorch->tensors().empty() ? "" : contents_->pytorch->tensors()[0].name;
  return contents_->safetensors->tensors().empty() ? "" : contents_->safetensors->tensors()[0].name;
}

std::vector<int64_t> WeightFile::shape(const std::string& name) const {
  return contents_->pytorch ? contents_->find(path_, name).shape : contents_->safetensors->tensor(name).shape;
}

std::vector<float> WeightFile::to_f32(const std::string& name) const {
  if (!contents_->pytorch) return io::to_f32(contents_->safetensors->tensor(name));
  const PytorchTensor& t = contents_->find(path_, name);
  const std::vector<std::byte> bytes = contents_->pytorch->read(t);
  TensorView view;
  view.name = name, view.dtype = safetensors_word(t.dtype), view.shape = t.shape;
  view.data = bytes.data(), view.bytes = bytes.size();
  return io::to_f32(view);
}

}  // namespace ditrain::io
