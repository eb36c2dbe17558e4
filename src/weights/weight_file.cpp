#include "ditrain/weights/weight_file.hpp"

#include <filesystem>
#include <unordered_map>
#include <variant>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/mapped_file.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::weights {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostIndexBytes = size_t{64} << 20;
constexpr const char* kIndexEnding = ".index.json";

const std::map<std::string, std::string>& torch_words() {
  static const std::map<std::string, std::string> kWords = {{"BOOL", "bool"},
                                                            {"U8", "uint8"},
                                                            {"I8", "int8"},
                                                            {"F8_E5M2", "float8_e5m2"},
                                                            {"F8_E8M0", "float8_e8m0fnu"},
                                                            {"F8_E4M3FNUZ", "float8_e4m3fnuz"},
                                                            {"F8_E5M2FNUZ", "float8_e5m2fnuz"},
                                                            {"F4", "float4_e2m1fn"},
                                                            {"F6_E2M3", "float6_e2m3"},
                                                            {"F6_E3M2", "float6_e3m2"},
                                                            {"C64", "complex64"},
                                                            {"I16", "int16"},
                                                            {"U16", "uint16"},
                                                            {"F8_E4M3", "float8_e4m3fn"},
                                                            {"F16", "float16"},
                                                            {"I32", "int32"},
                                                            {"U32", "uint32"},
                                                            {"BF16", "bfloat16"},
                                                            {"F32", "float32"},
                                                            {"F64", "float64"},
                                                            {"I64", "int64"},
                                                            {"U64", "uint64"}};
  return kWords;
}

// "" for types of PyTorch that safetensors lacks.
std::string safetensors_dtype(const std::string& torch) {
  for (const auto& [ours, theirs] : torch_words())
    if (theirs == torch) return ours;
  return "";
}

using AnyFile = std::variant<SafetensorsFile, PytorchFile>;

AnyFile open(const std::string& path) {
  if (weight_format(path) == WeightFormat::kPytorch) return PytorchFile(path);
  return SafetensorsFile(path);
}

// By the name of the shard, the tensors that it has to hold.
std::map<std::string, std::vector<std::string>> shards_of(const std::string& index) {
  const nlohmann::json json = files::read_json_object(index, kMostIndexBytes);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty())
    throw InputError({.where = index, .what = "no weight_map in this index of shards"});
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || fs::path(name).filename() != name)
      throw InputError({.where = index,
                        .what = "the index names a file outside its folder for " + tensor,
                        .got = files::json_text(file).substr(0, 80),
                        .expected = "the name of a file beside the index"});
    shards[name].push_back(tensor);
  }
  return shards;
}

}  // namespace

WeightFormat weight_format(const std::string& path) {
  const files::MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.bytes());
  // The length of a safetensors header may begin with any bytes: first the brace that follows it.
  if (bytes.size() > 8 && bytes[8] == '{') return WeightFormat::kSafetensors;
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80")) return WeightFormat::kPytorch;
  throw InputError({.where = path,
                    .what = "not a weight file that can be read",
                    .got = bytes.empty() ? "an empty file" : std::to_string(bytes.size()) + " bytes of something else",
                    .expected = "safetensors, or a file of torch.save (.pt, .pth)"});
}

const std::string& torch_dtype(const std::string& safetensors_dtype) { return torch_words().at(safetensors_dtype); }

struct WeightFile::Contents {
  std::string path;
  std::vector<AnyFile> files;
  std::vector<WeightTensor> tensors;
  std::unordered_map<std::string, size_t> by_name;

  void add(const std::string& file_path) {
    files.push_back(open(file_path));
    const size_t file = files.size() - 1;
    size_t place = 0;
    if (const auto* safetensors = std::get_if<SafetensorsFile>(&files[file]))
      for (const TensorView& t : safetensors->tensors())
        add_tensor(file_path, {t.name, torch_dtype(t.dtype), t.shape, file, place++});
    else
      for (const PytorchTensor& t : std::get<PytorchFile>(files[file]).tensors())
        add_tensor(file_path, {t.name, t.dtype, t.shape, file, place++});
  }
  void add_tensor(const std::string& file_path, WeightTensor tensor) {
    if (!by_name.emplace(tensor.name, tensors.size()).second)
      throw InputError({.where = file_path, .what = "tensor " + tensor.name + " is in several shards"});
    tensors.push_back(std::move(tensor));
  }
};

WeightFile::WeightFile(const std::string& path) : contents_(new Contents) {
  contents_->path = path;
  if (!path.ends_with(kIndexEnding)) {
    contents_->add(path);
    return;
  }
  const fs::path folder = fs::path(path).parent_path();
  for (const auto& [name, wanted] : shards_of(path)) {
    const std::string shard = (folder / name).string();
    contents_->add(shard);
    for (const std::string& tensor : wanted)
      if (find(tensor) == nullptr)
        throw InputError({.where = shard, .what = "tensor " + tensor + " is missing, which the index says is here"});
  }
}
WeightFile::~WeightFile() = default;
WeightFile::WeightFile(WeightFile&&) noexcept = default;

const std::string& WeightFile::path() const { return contents_->path; }
bool WeightFile::is_safetensors() const {
  return !contents_->path.ends_with(kIndexEnding) && contents_->files.size() == 1 &&
         std::holds_alternative<SafetensorsFile>(contents_->files[0]);
}
const std::vector<WeightTensor>& WeightFile::tensors() const { return contents_->tensors; }

const WeightTensor* WeightFile::find(const std::string& name) const {
  const auto found = contents_->by_name.find(name);
  return found == contents_->by_name.end() ? nullptr : &contents_->tensors[found->second];
}

std::vector<float> WeightFile::read(const WeightTensor& tensor) const {
  const AnyFile& file = contents_->files[tensor.file];
  if (const auto* safetensors = std::get_if<SafetensorsFile>(&file))
    return to_f32(safetensors->tensors()[tensor.place]);
  const auto& pytorch = std::get<PytorchFile>(file);
  const std::vector<std::byte> bytes = pytorch.read(pytorch.tensors()[tensor.place]);
  const std::string dtype = safetensors_dtype(tensor.dtype);
  if (dtype.empty())
    throw InputError(
        {.where = path(), .what = "type of " + tensor.name, .got = tensor.dtype, .expected = "a floating type"});
  return to_f32({tensor.name, dtype, tensor.shape, bytes.data(), bytes.size()});
}

std::optional<PytorchScalar> WeightFile::scalar(const std::string& path) const {
  const auto* pytorch = std::get_if<PytorchFile>(&contents_->files[0]);
  return pytorch == nullptr ? std::nullopt : pytorch->scalar(path);
}

const std::map<std::string, std::string>& WeightFile::metadata() const {
  static const std::map<std::string, std::string> kNone;
  return is_safetensors() ? std::get<SafetensorsFile>(contents_->files[0]).metadata() : kNone;
}

}  // namespace ditrain::weights
