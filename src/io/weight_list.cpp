#include "ditrain/io/weight_list.hpp"

#include <map>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/io/pytorch_file.hpp"
#include "ditrain/io/safetensors.hpp"
#include "ditrain/io/sha256.hpp"
#include "ditrain/io/weight_file.hpp"

namespace ditrain::io {
namespace {

std::string torch_word(const std::string& dtype) {
  static const std::map<std::string, std::string> kWords = {{"BOOL", "bool"},
                                                            {"U8", "uint8"},
                                                            {"I8", "int8"},
                                                            {"F8_E5M2", "float8_e5m2"},
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
  return kWords.at(dtype);
}

std::vector<ListedWeight> list_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<ListedWeight> list;
  for (const TensorView& t : file.tensors())
    list.push_back({t.name, torch_word(t.dtype), t.shape, sha256_of({reinterpret_cast<const char*>(t.data), t.bytes})});
  return list;
}

std::vector<ListedWeight> list_pytorch(const std::string& path) {
  const PytorchFile file(path);
  std::vector<ListedWeight> list;
  for (const PytorchTensor& t : file.tensors()) {
    Sha256 sum;
    file.visit(t, [&](std::string_view bytes) { sum.add(bytes); });
    list.push_back({t.name, t.dtype, t.shape, sum.hex()});
  }
  return list;
}

}  // namespace

std::vector<ListedWeight> list_weights(const std::string& path) {
  return weight_format_of(path) == WeightFormat::kSafetensors ? list_safetensors(path) : list_pytorch(path);
}

std::string to_json(const std::vector<ListedWeight>& weights) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  // Not operator[], which looks for the name among all before it.
  auto& items = tensors.get_ref<nlohmann::ordered_json::object_t&>();
  for (const ListedWeight& w : weights)
    items.push_back({w.name, {{"dtype", w.dtype}, {"shape", w.shape}, {"sha256", w.sha256}}});
  nlohmann::ordered_json all;
  all["tensors"] = std::move(tensors);
  return all.dump(1) + "\n";
}

}  // namespace ditrain::io
