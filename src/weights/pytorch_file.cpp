#include "ditrain/weights/pytorch_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "ditrain/base/error.hpp"
#include "ditrain/files/mapped_file.hpp"
#include "pytorch_storage.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

using Kind = PickleValue::Kind;

constexpr int kMaxDepth = 100;
constexpr size_t kMaxVisits = size_t{4} << 20;
constexpr size_t kMaxNameBytes = 4096, kMaxAllNamesBytes = size_t{64} << 20;
constexpr uint64_t kMaxRepeatedBytes = uint64_t{64} << 20;  // of a tensor that has more elements than its storage
constexpr uint64_t kMaxRepeats = 16;                        // of the bytes of all storages, over all tensors

// How a key reads in the path of a tensor; "" if it cannot be in one.
std::string key_text(const PickleValue& key) {
  if (key.kind == Kind::kString) return std::string(key.text);
  if (key.kind == Kind::kInt) return std::to_string(key.number);
  return "";
}

bool is_dictionary(const PickleValue& value) { return value.kind == Kind::kDict || value.kind == Kind::kNamespace; }

// Finds the tensors of a document by following dictionaries, lists and tuples from its root.
class TensorWalk {
 public:
  TensorWalk(const std::string& where, const PickleDocument& document)
      : where_(where), doc_(document), on_path_(document.values.size()) {}

  struct Found {
    std::string name;
    uint32_t tensor;
  };
  std::vector<Found> run() {
    visit(doc_.root, 0);
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError({.where = where_, .what = what}); }

  void visit(uint32_t index, int depth) {
    const PickleValue& value = doc_[index];
    visits_ += 1 + value.items.size();
    if (visits_ > kMaxVisits) fail("the file's dictionaries refer to each other without end");
    if (value.kind == Kind::kTensor) return add(static_cast<uint32_t>(value.number));
    if (value.items.empty()) return;
    if (on_path_[index]) fail("a dictionary or list of the file contains itself");
    if (depth == kMaxDepth) fail(fmt::format("the file's dictionaries and lists are nested deeper than {}", kMaxDepth));
    on_path_[index] = true;
    is_dictionary(value) ? visit_dictionary(value, depth) : visit_sequence(value, depth);
    on_path_[index] = false;
  }

  // If a key is set twice, the last value counts. A text and a number are two keys, even if they read the same.
  void visit_dictionary(const PickleValue& value, int depth) {
    std::map<std::pair<Kind, std::string>, size_t> last;
    const std::vector<uint32_t>& items = value.items;
    for (size_t i = 0; i < items.size(); i += 2)
      if (holds_values(items[i + 1])) last[{doc_[items[i]].kind, name_of(doc_[items[i]])}] = i;
    for (size_t i = 0; i < items.size(); i += 2) {
      if (!holds_values(items[i + 1])) continue;
      const std::string name = name_of(doc_[items[i]]);
      if (last.at({doc_[items[i]].kind, name}) == i) below(name, items[i + 1], depth);
    }
  }
  void visit_sequence(const PickleValue& value, int depth) {
    for (size_t i = 0; i < value.items.size(); ++i)
      if (holds_values(value.items[i])) below(std::to_string(i), value.items[i], depth);
  }

  bool holds_values(uint32_t index) const { return doc_[index].kind == Kind::kTensor || !doc_[index].items.empty(); }
  std::string name_of(const PickleValue& key) const {
    if (key.text.size() > kMaxNameBytes) fail("a name is longer than 4096 bytes");
    return key_text(key);
  }

  void below(const std::string& key, uint32_t index, int depth) {
    const size_t before = path_.size();
    if (depth > 0) path_ += '/';
    path_ += key;
    if (path_.size() > kMaxNameBytes) fail("a name is longer than 4096 bytes");
    visit(index, depth + 1);
    path_.resize(before);
  }

  void add(uint32_t tensor) {
    if (!names_.insert(path_).second) fail(fmt::format("two tensors have the name '{}'", printable(path_)));
    all_names_bytes_ += path_.size() + 1;
    if (all_names_bytes_ > kMaxAllNamesBytes) fail("the names of the tensors are too long together");
    found_.push_back({path_, tensor});
  }

  const std::string& where_;
  const PickleDocument& doc_;
  std::vector<bool> on_path_;
  std::unordered_set<std::string> names_;
  std::vector<Found> found_;
  std::string path_;
  size_t visits_ = 0, all_names_bytes_ = 0;
};

[[noreturn]] void refuse_tensor(const std::string& where, const std::string& name, const std::string& what,
                                const std::string& got) {
  throw InputError({.where = where, .what = fmt::format("tensor '{}' {}", printable(name), what), .got = got});
}

// Number of elements, and of the storage's elements that the tensor reaches, with every overflow found.
struct Reach {
  uint64_t elements = 1, end = 0;
};
Reach reach_of(const std::string& where, const std::string& name, const PickledTensor& t) {
  const auto fail = [&](const char* what) {
    refuse_tensor(where, name, what,
                  fmt::format("shape [{}], strides [{}], offset {}", fmt::join(t.shape, ", "),
                              fmt::join(t.strides, ", "), t.offset));
  };
  if (t.shape.size() != t.strides.size()) fail("has more sizes than strides, or fewer");
  Reach reach;
  int64_t last = t.offset;
  bool overflow = t.offset < 0;
  for (size_t d = 0; d < t.shape.size(); ++d) {
    if (t.shape[d] < 0 || t.strides[d] < 0) fail("has a negative size or stride");
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(reach.elements, static_cast<uint64_t>(t.shape[d]), &reach.elements);
    overflow |= __builtin_mul_overflow(std::max<int64_t>(t.shape[d] - 1, 0), t.strides[d], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= reach.elements > INT64_MAX / 8;
  if (overflow) fail("has a size or offset beyond 64 bits, or a negative offset");
  reach.end = reach.elements == 0 ? static_cast<uint64_t>(t.offset) : static_cast<uint64_t>(last) + 1;
  return reach;
}

bool in_order(const PytorchTensor& t) {
  int64_t expected = 1;
  for (size_t d = t.shape.size(); d-- > 0;) {
    if (t.shape[d] != 1 && t.strides[d] != expected) return false;
    expected *= t.shape[d];
  }
  return true;
}

void copy_element(const char* from, char* to, size_t bytes, bool swap) {
  if (swap)
    std::reverse_copy(from, from + bytes, to);
  else
    std::memcpy(to, from, bytes);
}

// Row-major, whatever the strides are.
void copy_strided(const PytorchTensor& t, std::string_view storage, size_t element_bytes, bool swap, char* out) {
  std::vector<int64_t> index(t.shape.size(), 0);
  int64_t at = t.offset;
  for (size_t left = t.bytes / element_bytes; left-- > 0; out += element_bytes) {
    copy_element(storage.data() + static_cast<size_t>(at) * element_bytes, out, element_bytes, swap);
    for (size_t d = t.shape.size(); d-- > 0;) {
      at += t.strides[d];
      if (++index[d] < t.shape[d]) break;
      at -= t.strides[d] * t.shape[d];
      index[d] = 0;
    }
  }
}

std::unique_ptr<PytorchStorages> open_storages(const std::string& where, std::string_view file) {
  if (file.starts_with("PK\x03\x04")) return open_pytorch_zip(where, file);
  if (file.starts_with("\x80")) return open_pytorch_legacy(where, file);
  throw InputError({.where = where,
                    .what = "not a file of PyTorch",
                    .got = fmt::format("{} bytes that begin otherwise", file.size()),
                    .expected = "a zip or a pickle, as torch.save writes them"});
}

}  // namespace

struct PytorchFile::Contents {
  std::string where;
  std::unique_ptr<files::MappedFile> mapping;
  std::unique_ptr<PytorchStorages> storages;
  std::vector<PytorchTensor> tensors;
  std::unordered_map<std::string_view, size_t> index;

  void open(std::string_view file) {
    storages = open_storages(where, file);
    const PickleDocument& doc = storages->document();
    uint64_t tensor_bytes = 0, storage_bytes = 0;
    std::unordered_set<std::string_view> counted;
    for (auto& [name, number] : TensorWalk(where, doc).run()) {
      tensors.push_back(make_tensor(std::move(name), doc.tensors[number]));
      tensor_bytes += tensors.back().bytes;  // each at most 2^60, and at most 2^26 or the size of a file
      const PickledStorage& storage = doc.storages[tensors.back().storage];
      if (counted.insert(storage.key).second) storage_bytes += storages->size(storage);
      if (tensor_bytes > kMaxRepeats * storage_bytes + kMaxRepeatedBytes)
        refuse_tensor(where, tensors.back().name, "repeats bytes that other tensors have too, too many times over", "");
    }
    if (tensors.empty())
      throw InputError({.where = where, .what = "there is no tensor in the file", .expected = "a state_dict"});
    for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
  }

  PytorchTensor make_tensor(std::string name, const PickledTensor& pickled) {
    const PickledStorage& storage = storages->document().storages[pickled.storage];
    const size_t element = torch_dtype_bytes(storage.dtype);
    const uint64_t there = storages->size(storage);
    if (static_cast<uint64_t>(storage.num_elements) > there / element ||
        static_cast<uint64_t>(storage.num_elements) * element != there)
      refuse_tensor(where, name, fmt::format("has a storage of {} elements of {}", storage.num_elements, storage.dtype),
                    fmt::format("{} bytes in the file", there));
    const Reach reach = reach_of(where, name, pickled);
    if (reach.end > static_cast<uint64_t>(storage.num_elements))
      refuse_tensor(where, name, fmt::format("reaches behind its storage of {} elements", storage.num_elements),
                    std::to_string(reach.end));
    const uint64_t bytes = reach.elements * element;
    if (bytes > there && bytes > kMaxRepeatedBytes)
      refuse_tensor(where, name, fmt::format("repeats the {} bytes of its storage", there),
                    fmt::format("{} bytes", bytes));
    return {std::move(name), storage.dtype, pickled.shape, bytes, pickled.storage, pickled.offset, pickled.strides};
  }

  void visit(const PytorchTensor& t, const std::function<void(std::string_view)>& use) const {
    if (t.bytes == 0) return use({});
    const std::string_view storage = storages->bytes(storages->document().storages[t.storage]);
    const size_t element = torch_dtype_bytes(t.dtype);
    if (in_order(t) && !storages->big_endian())
      return use(storage.substr(static_cast<size_t>(t.offset) * element, t.bytes));
    std::string copy(t.bytes, '\0');
    copy_strided(t, storage, element, storages->big_endian(), copy.data());
    use(copy);
  }
};

PytorchFile::PytorchFile(const std::string& path) : contents_(std::make_unique<Contents>()) {
  contents_->where = path;
  contents_->mapping = std::make_unique<files::MappedFile>(path);
  const files::MappedFile& file = *contents_->mapping;
  contents_->open({reinterpret_cast<const char*>(file.data()), file.bytes()});
}

PytorchFile::PytorchFile(const std::string& where, std::string_view bytes) : contents_(std::make_unique<Contents>()) {
  contents_->where = where;
  contents_->open(bytes);
}

PytorchFile::~PytorchFile() = default;
PytorchFile::PytorchFile(PytorchFile&&) noexcept = default;

const std::vector<PytorchTensor>& PytorchFile::tensors() const { return contents_->tensors; }

const PytorchTensor* PytorchFile::find(std::string_view name) const {
  const auto found = contents_->index.find(name);
  return found == contents_->index.end() ? nullptr : &contents_->tensors[found->second];
}

std::vector<std::byte> PytorchFile::read(const PytorchTensor& tensor) const {
  std::vector<std::byte> out;
  contents_->visit(tensor, [&](std::string_view bytes) {
    const auto* p = reinterpret_cast<const std::byte*>(bytes.data());
    out.assign(p, p + bytes.size());
  });
  return out;
}

void PytorchFile::visit(const PytorchTensor& tensor, const std::function<void(std::string_view)>& use) const {
  contents_->visit(tensor, use);
}

std::optional<PytorchScalar> PytorchFile::scalar(std::string_view path) const {
  const PickleDocument& doc = contents_->storages->document();
  uint32_t at = doc.root;
  while (!path.empty()) {
    if (!is_dictionary(doc[at])) return std::nullopt;
    const std::vector<uint32_t>& items = doc[at].items;
    std::optional<uint32_t> next;
    size_t taken = 0;
    for (size_t i = 0; i < items.size(); i += 2) {
      const std::string key = key_text(doc[items[i]]);
      const bool fits = !key.empty() && path.starts_with(key) && (path.size() == key.size() || path[key.size()] == '/');
      if (fits && key.size() >= taken) next = items[i + 1], taken = key.size();
    }
    if (!next) return std::nullopt;
    at = *next;
    path.remove_prefix(std::min(taken + 1, path.size()));
  }
  const PickleValue& value = doc[at];
  switch (value.kind) {
    case Kind::kNone:
      return std::monostate();
    case Kind::kBool:
      return value.number != 0;
    case Kind::kInt:
      return value.number;
    case Kind::kFloat:
      return value.real;
    case Kind::kString:
      return std::string(value.text);
    default:
      return std::nullopt;
  }
}

}  // namespace ditrain::weights
