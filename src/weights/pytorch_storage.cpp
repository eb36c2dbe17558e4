// Source:   _save and _legacy_save of torch/serialization.py.
#include "pytorch_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "byte_reader.hpp"
#include "ditrain/weights/zip_file.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

using Kind = PickleValue::Kind;

// PyTorch stores and never compresses; a file that another program packed again may not unpack without end.
constexpr uint64_t kMaxUnpackedStorage = uint64_t{256} << 20;
constexpr uint64_t kMaxUnpackings = 16;  // of the bytes of all storages that were unpacked

class ZipStorages final : public PytorchStorages {
 public:
  ZipStorages(const std::string& where, std::string_view file) : zip_(where, file), prefix_(find_prefix()) {
    const ZipFile::Entry& entry = *zip_.find(prefix_ + "data.pkl");
    pickle_ = zip_.read(entry, kMaxPickleBytes);
    document_ = read_pickle(where, pickle_);
    if (const ZipFile::Entry* order = zip_.find(prefix_ + "byteorder")) {
      const std::string word = zip_.read(*order, 64);
      big_endian_ = word == "big";
      if (!big_endian_ && word != "little") fail("the byte order is neither little nor big", printable(word));
    }
  }

  const PickleDocument& document() const override { return document_; }
  bool big_endian() const override { return big_endian_; }

  uint64_t size(const PickledStorage& storage) const override { return entry_of(storage).bytes; }

  std::string_view bytes(const PickledStorage& storage) override {
    const ZipFile::Entry& entry = entry_of(storage);
    if (&entry == current_) return current_bytes_;
    unpacked_.clear();
    if (entry.deflated) unpacked_ = unpack(entry);
    current_bytes_ = entry.deflated ? unpacked_ : zip_.view(entry);
    current_ = &entry;
    return current_bytes_;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& got = "", const std::string& hint = "") const {
    throw InputError({.where = zip_.where(), .what = what, .got = got, .hint = hint});
  }

  // Tensors that take turns with two storages would have each unpacked again and again.
  std::string unpack(const ZipFile::Entry& entry) {
    if (seen_.insert(&entry).second) seen_bytes_ += entry.bytes;
    unpacked_bytes_ += entry.bytes;
    if (unpacked_bytes_ > kMaxUnpackings * seen_bytes_ + kMaxUnpackedStorage)
      fail("the tensors take turns with packed storages, too many times over",
           fmt::format("{} bytes to unpack of storages of {} bytes", unpacked_bytes_, seen_bytes_),
           "the file as torch.save writes it, which packs nothing");
    return zip_.read(entry, kMaxUnpackedStorage);
  }

  // "archive/" of archive/data.pkl, archive/data/0, ...
  std::string find_prefix() const {
    std::string prefix;
    int pickles = 0;
    for (const ZipFile::Entry& entry : zip_.entries()) {
      const size_t slash = entry.name.find('/');
      if (slash == entry.name.npos) continue;
      const std::string_view inside = std::string_view(entry.name).substr(slash + 1);
      if (inside == "constants.pkl" || inside.starts_with("code/"))
        fail("a TorchScript archive, which holds a program", "", "torch.save(model.state_dict(), FILE)");
      if (inside != "data.pkl") continue;
      prefix = entry.name.substr(0, slash + 1);
      ++pickles;
    }
    if (pickles == 0)
      fail("no PyTorch file: the zip has no NAME/data.pkl", fmt::format("{} entries", zip_.entries().size()));
    if (pickles > 1) fail("the zip has several data.pkl", std::to_string(pickles));
    return prefix;
  }

  const ZipFile::Entry& entry_of(const PickledStorage& storage) const {
    const bool plain = !storage.key.empty() && storage.key.size() <= 64 &&
                       std::all_of(storage.key.begin(), storage.key.end(), [](char c) {
                         return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
                       });
    if (!plain) fail("a storage has a name that is none", "'" + printable(storage.key) + "'");
    const ZipFile::Entry* entry = zip_.find(prefix_ + "data/" + std::string(storage.key));
    if (entry == nullptr) fail(fmt::format("storage '{}' is not in the file", storage.key));
    return *entry;
  }

  ZipFile zip_;
  std::string prefix_, pickle_;
  PickleDocument document_;
  bool big_endian_ = false;
  const ZipFile::Entry* current_ = nullptr;
  std::unordered_set<const ZipFile::Entry*> seen_;
  uint64_t seen_bytes_ = 0, unpacked_bytes_ = 0;
  std::string unpacked_;
  std::string_view current_bytes_;
};

// Pickles of: a magic number, the version of the format, facts of the machine, the contents, the keys of the storages.
// Then, for each key, the number of its elements and the elements.
class LegacyStorages final : public PytorchStorages {
 public:
  LegacyStorages(const std::string& where, std::string_view file) : where_(where), file_(file) {
    constexpr std::string_view kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
    const PickleDocument magic = next();
    if (magic.top().kind != Kind::kBigInt || magic.top().text != kMagic)
      fail("a pickle, but not one of torch.save", "", "torch.save(model.state_dict(), FILE)");
    const PickleDocument version = next();
    if (version.top().kind != Kind::kInt || version.top().number != 1001) fail("a PyTorch file of an unknown version");
    read_machine(next());
    document_ = next();
    find_places(next());
  }

  const PickleDocument& document() const override { return document_; }
  bool big_endian() const override { return big_endian_; }
  uint64_t size(const PickledStorage& storage) const override { return place_of(storage).size(); }
  std::string_view bytes(const PickledStorage& storage) override { return place_of(storage); }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& got = "", const std::string& hint = "") const {
    throw InputError({.where = where_, .what = what, .got = got, .hint = hint});
  }

  PickleDocument next() {
    PickleDocument document = read_pickle(where_, file_.substr(at_).substr(0, kMaxPickleBytes));
    at_ += document.bytes;
    return document;
  }

  void read_machine(const PickleDocument& facts) {
    if (facts.top().kind != Kind::kDict) fail("the facts of the machine that wrote the file are damaged");
    const std::vector<uint32_t>& items = facts.top().items;
    for (size_t i = 0; i + 1 < items.size(); i += 2)
      if (facts[items[i]].kind == Kind::kString && facts[items[i]].text == "little_endian")
        big_endian_ = facts[items[i + 1]].kind == Kind::kBool && facts[items[i + 1]].number == 0;
  }

  // Bytes of an element of each storage that a tensor has.
  std::unordered_map<std::string_view, size_t> element_bytes() const {
    std::unordered_map<std::string_view, size_t> all;
    for (const PickledStorage& storage : document_.storages) {
      const size_t bytes = torch_dtype_bytes(storage.dtype);
      if (all.emplace(storage.key, bytes).first->second != bytes)
        fail(fmt::format("storage '{}' has two types", printable(storage.key)));
    }
    return all;
  }

  // Behind the pickles: for each key the number of elements and the elements.
  void find_places(const PickleDocument& keys) {
    if (keys.top().kind != Kind::kList) fail("the list of storages is damaged");
    const auto elements = element_bytes();
    ByteReader data(where_, "data of the storages", file_.substr(at_));
    for (const uint32_t index : keys.top().items) {
      const std::string_view key = keys[index].text;
      if (keys[index].kind != Kind::kString) fail("the list of storages is damaged");
      const auto found = elements.find(key);
      if (found == elements.end()) fail(fmt::format("storage '{}' belongs to no tensor", printable(key)));
      const uint64_t n = data.u64();
      if (n > data.left() / found->second)
        fail(fmt::format("storage '{}' is cut off", printable(key)), fmt::format("{} bytes", data.left()));
      if (!places_.emplace(key, data.take(n * found->second)).second)
        fail(fmt::format("storage '{}' is there twice", printable(key)));
    }
    if (data.left() != 0) fail("bytes trail behind the last storage", std::to_string(data.left()));
  }

  std::string_view place_of(const PickledStorage& storage) const {
    const auto found = places_.find(storage.key);
    if (found == places_.end()) fail(fmt::format("storage '{}' is not in the file", printable(storage.key)));
    return found->second;
  }

  const std::string where_;
  std::string_view file_;
  size_t at_ = 0;
  PickleDocument document_;
  bool big_endian_ = false;
  std::unordered_map<std::string_view, std::string_view> places_;
};

}  // namespace

std::unique_ptr<PytorchStorages> open_pytorch_zip(const std::string& where, std::string_view file) {
  return std::make_unique<ZipStorages>(where, file);
}

std::unique_ptr<PytorchStorages> open_pytorch_legacy(const std::string& where, std::string_view file) {
  return std::make_unique<LegacyStorages>(where, file);
}

}  // namespace ditrain::weights
