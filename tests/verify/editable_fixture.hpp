// For tests of verify: a safetensors file as a map that can be changed and written again.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/verify/verify.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "support/workers.hpp"

namespace ditrain::test {

struct EditableFixture {
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
    int64_t size() const { return int64_t(bytes.size() / weights::safetensors_dtype_bytes(dtype)); }
  };

  EditableFixture() = default;
  explicit EditableFixture(const std::string& path) {
    const weights::SafetensorsFile file(path);
    metadata = file.metadata();
    for (const weights::TensorView& t : file.tensors())
      tensors[t.name] = {t.dtype, t.shape, {t.data, t.data + t.bytes}};
  }

  template <class T>
  void put(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    Entry e{dtype, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    std::memcpy(e.bytes.data(), values.data(), e.bytes.size());
    tensors[name] = std::move(e);
  }
  void put_setting(const std::string& name, int64_t value) { put<int64_t>(name, "I64", {1}, {value}); }

  template <class T>
  T* data(const std::string& name) {
    return reinterpret_cast<T*>(tensors.at(name).bytes.data());
  }
  double largest(const std::string& name) {
    Entry& e = tensors.at(name);
    double m = 0;
    for (int64_t i = 0; i < e.size(); ++i) m = std::max(m, std::abs(value(name, i)));
    return m;
  }
  double value(const std::string& name, int64_t i) {
    const std::string& dtype = tensors.at(name).dtype;
    if (dtype == "F32") return double(data<float>(name)[i]);
    if (dtype == "F64") return data<double>(name)[i];
    return double(data<int64_t>(name)[i]);
  }
  /// Adds `amount` to a number; an integer moves by one, towards 0 if it can.
  void shift(const std::string& name, int64_t i, double amount) {
    const std::string& dtype = tensors.at(name).dtype;
    if (dtype == "F32") data<float>(name)[i] = float(double(data<float>(name)[i]) + amount);
    if (dtype == "F64") data<double>(name)[i] += amount;
    if (dtype == "I64") data<int64_t>(name)[i] += data<int64_t>(name)[i] > 0 ? -1 : 1;
  }

  /// Not by the writer of module weights, which waits for the disk: tests write hundreds of files.
  void save(const std::string& path) const {
    nlohmann::json header{{"__metadata__", metadata}};
    size_t end = 0;
    for (const auto& [name, e] : tensors) {
      header[name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {end, end + e.bytes.size()}}};
      end += e.bytes.size();
    }
    const std::string text = files::json_text(header);
    const uint64_t length = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    for (const auto& [name, e] : tensors)
      out.write(reinterpret_cast<const char*>(e.bytes.data()), std::streamsize(e.bytes.size()));
    if (!out.flush()) throw std::runtime_error("cannot write " + path);
  }

  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;
};

/// What ditverify reports of the fixture as it is now.
inline verify::Report run(const EditableFixture& fixture, int num_workers = 2) {
  Workers crew(num_workers);
  const TemporaryFolder folder;
  fixture.save(folder / "fixture.safetensors");
  return verify::verify_fixture(folder / "fixture.safetensors", crew.ctx);
}

inline std::string golden_path(const std::string& kind) {
  return std::string(DITRAIN_GOLDEN_DIR) + "/" + kind + ".safetensors";
}

}  // namespace ditrain::test
