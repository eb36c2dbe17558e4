#include "ditrain/weights/weight_list.hpp"

#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/weights/pytorch_file.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "ditrain/weights/weight_file.hpp"

namespace ditrain::weights {
namespace {

std::vector<ListedWeight> list_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<ListedWeight> list;
  for (const TensorView& t : file.tensors())
    list.push_back(
        {t.name, torch_dtype(t.dtype), t.shape, files::sha256_of({reinterpret_cast<const char*>(t.data), t.bytes})});
  return list;
}

std::vector<ListedWeight> list_pytorch(const std::string& path) {
  const PytorchFile file(path);
  std::vector<ListedWeight> list;
  for (const PytorchTensor& t : file.tensors()) {
    files::Sha256 sum;
    file.visit(t, [&](std::string_view bytes) { sum.add(bytes); });
    list.push_back({t.name, t.dtype, t.shape, sum.hex()});
  }
  return list;
}

}  // namespace

std::vector<ListedWeight> list_weights(const std::string& path) {
  return weight_format(path) == WeightFormat::kSafetensors ? list_safetensors(path) : list_pytorch(path);
}

std::string to_json(const std::vector<ListedWeight>& weights) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  // Not operator[], which looks for the name among all before it.
  auto& items = tensors.get_ref<nlohmann::ordered_json::object_t&>();
  for (const ListedWeight& w : weights)
    items.push_back({w.name, {{"dtype", w.dtype}, {"shape", w.shape}, {"sha256", w.sha256}}});
  nlohmann::ordered_json all;
  all["tensors"] = std::move(tensors);
  return files::json_text(all, 1) + "\n";
}

}  // namespace ditrain::weights
