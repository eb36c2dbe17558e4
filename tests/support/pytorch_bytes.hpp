// For tests: files as torch.save writes them, opcode by opcode.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weights/zip_bytes.hpp"

namespace ditrain::test {

inline std::string string_op(const std::string& s) { return "X" + field32(s.size()) + s; }
inline std::string int_op(int32_t v) { return "J" + field32(uint32_t(v)); }
inline std::string tuple_op(const std::vector<int32_t>& values) {
  std::string ops = "(";
  for (const int32_t v : values) ops += int_op(v);
  return ops + "t";
}

/// The opcodes that push a tensor over a storage of `n` numbers.
inline std::string tensor_op(const std::vector<int32_t>& shape, const std::vector<int32_t>& strides, int32_t offset,
                             int32_t n, const std::string& storage = "0", const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + string_op("storage") + "ctorch\n" + type + "\n" +
         string_op(storage) + string_op("cpu") + int_op(n) + "tQ" + int_op(offset) + tuple_op(shape) +
         tuple_op(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

/// A state dict, tensor by tensor.
class StateDictFile {
 public:
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    append(name, shape, "FloatStorage", int32_t(values.size()),
           {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  void add_count(const std::string& name, int64_t value) {
    append(name, {}, "LongStorage", 1, {reinterpret_cast<const char*>(&value), sizeof value});
  }
  /// The bytes of the file; call once. `key`: of the checkpoint's dictionary, in which the state dict is then.
  std::string finish(const std::string& key = "") {
    const std::string dict = "ccollections\nOrderedDict\n)R(" + pickle_ + "u";
    parts_[0] = stored("archive/data.pkl", "\x80\x02" + (key.empty() ? dict : "}" + string_op(key) + dict + "s") + ".");
    return make_zip(parts_);
  }

 private:
  void append(const std::string& name, const std::vector<int64_t>& shape, const char* type, int32_t n,
              const std::string& bytes) {
    std::vector<int32_t> sizes(shape.begin(), shape.end()), strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
    const std::string storage = std::to_string(parts_.size() - 1);
    pickle_ += string_op(name) + tensor_op(sizes, strides, 0, n, storage, type);
    parts_.push_back(stored("archive/data/" + storage, bytes));
  }

  std::string pickle_;
  std::vector<ZipPart> parts_ = {ZipPart{}};
};

}  // namespace ditrain::test
