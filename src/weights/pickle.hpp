// Reading a pickle as inert data. A pickle is a program for a stack machine that may call any Python function; this one
// knows constants, containers, and the few globals of torch.save that stand for data. Any other global is refused by
// its name, at the moment it is named: nothing is looked up, called or executed.
//
// Values live in one flat table and refer to each other by number, so that sharing, cycles and deep nesting cost
// nothing. Texts point into the pickle, which has to outlive the values. Every value and every memo entry costs at
// least one byte of the pickle, and there are caps on both: memory stays in proportion to the file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ditrain::weights {

/// What an allowed global stands for.
enum class PickleGlobal : uint8_t {
  kOrderedDict,
  kNamespace,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildParameter,
  kStorage
};

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kBigInt,  // beyond 64 bits: `text` has its bytes, little endian
    kFloat,
    kString,
    kBytes,
    kTuple,
    kList,
    kDict,       // items: key, value, key, value, ...
    kNamespace,  // as kDict
    kGlobal,
    kStorage,  // number: index into PickleDocument::storages
    kTensor    // number: index into PickleDocument::tensors
  };
  Kind kind = Kind::kNone;
  PickleGlobal global = PickleGlobal::kStorage;
  const char* dtype = nullptr;  // of a global that is a storage class
  int64_t number = 0;           // of kBool, kInt, kStorage, kTensor
  double real = 0;
  std::string_view text = {};
  std::vector<uint32_t> items = {};
};

/// A storage as the pickle names it; its bytes are elsewhere.
struct PickledStorage {
  const char* dtype;  ///< "float32"
  std::string_view key;
  int64_t num_elements;
};

/// A tensor as the pickle describes it; nothing about it is checked yet but the types of its fields.
struct PickledTensor {
  uint32_t storage;
  int64_t offset;
  std::vector<int64_t> shape, strides;
};

struct PickleDocument {
  std::vector<PickleValue> values;
  std::vector<PickledStorage> storages;
  std::vector<PickledTensor> tensors;
  uint32_t root = 0;
  size_t bytes = 0;  ///< of the pickle, up to and with its STOP

  const PickleValue& operator[](uint32_t value) const { return values[value]; }
  const PickleValue& top() const { return values[root]; }
};

inline constexpr size_t kMaxPickleBytes = size_t{64} << 20;
inline constexpr size_t kMaxPickleValues = size_t{1} << 20;

/// Bytes of one element of a dtype that a storage class names ("float32" -> 4).
size_t torch_dtype_bytes(std::string_view dtype);

/// Reads the pickle that begins `bytes`; what follows its end is left alone.
/// Errors:   InputError with `where`: globals that are not data (named), opcodes that are unknown or can only make
///           something else than data, an empty stack, unknown memo entries, lengths beyond the end, over the caps
PickleDocument read_pickle(const std::string& where, std::string_view bytes);

}  // namespace ditrain::weights
