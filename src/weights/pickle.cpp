// Source:   the opcodes' descriptions in CPython's Lib/pickletools.py; what torch.save writes, from
//           torch/serialization.py and torch/_utils.py.
#include "pickle.hpp"

#include <bit>
#include <unordered_map>

#include "byte_reader.hpp"
#include "ditrain/base/text.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

using Kind = PickleValue::Kind;

struct AllowedGlobal {
  std::string_view name;
  PickleGlobal global;
  const char* dtype = nullptr;
  size_t bytes = 0;
};

constexpr AllowedGlobal kAllowed[] = {
    {"collections.OrderedDict", PickleGlobal::kOrderedDict},
    {"argparse.Namespace", PickleGlobal::kNamespace},
    {"torch._utils._rebuild_tensor", PickleGlobal::kRebuildTensor},
    {"torch._utils._rebuild_tensor_v2", PickleGlobal::kRebuildTensorV2},
    {"torch._utils._rebuild_parameter", PickleGlobal::kRebuildParameter},
    {"torch.FloatStorage", PickleGlobal::kStorage, "float32", 4},
    {"torch.DoubleStorage", PickleGlobal::kStorage, "float64", 8},
    {"torch.HalfStorage", PickleGlobal::kStorage, "float16", 2},
    {"torch.BFloat16Storage", PickleGlobal::kStorage, "bfloat16", 2},
    {"torch.LongStorage", PickleGlobal::kStorage, "int64", 8},
    {"torch.IntStorage", PickleGlobal::kStorage, "int32", 4},
    {"torch.ShortStorage", PickleGlobal::kStorage, "int16", 2},
    {"torch.CharStorage", PickleGlobal::kStorage, "int8", 1},
    {"torch.ByteStorage", PickleGlobal::kStorage, "uint8", 1},
    {"torch.BoolStorage", PickleGlobal::kStorage, "bool", 1},
};

constexpr size_t kMaxTensorDimensions = 64;
constexpr size_t kMaxPickleItems = size_t{8} << 20;

class Machine {
 public:
  Machine(const std::string& where, std::string_view bytes) : where_(where), reader_(where, "pickle", bytes) {}

  PickleDocument run() {
    if (reader_.left() == 0) fail("the pickle is empty");
    while (!stopped_) step(static_cast<unsigned char>(reader_.u8()));
    doc_.bytes = reader_.at();
    return std::move(doc_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& got = "") const {
    throw InputError({.where = where_, .what = what, .got = got});
  }

  // ---- the stack

  uint32_t push(PickleValue value) {
    if (doc_.values.size() >= kMaxPickleValues)
      fail(fmt::format("the pickle has more than {} values", kMaxPickleValues));
    doc_.values.push_back(std::move(value));
    stack_.push_back(static_cast<uint32_t>(doc_.values.size() - 1));
    return stack_.back();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  uint32_t pop() {
    if (stack_.size() <= floor()) fail("the pickle takes a value from an empty stack");
    const uint32_t value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top(std::initializer_list<Kind> kinds, const char* what) {
    if (stack_.size() <= floor()) fail("the pickle takes a value from an empty stack");
    PickleValue& value = doc_.values[stack_.back()];
    for (const Kind kind : kinds)
      if (value.kind == kind) return value;
    fail(fmt::format("the pickle {}", what));
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail("the pickle asks for a mark that was never set");
    std::vector<uint32_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<uint32_t> pop_several(size_t n) {
    std::vector<uint32_t> items(n);
    while (n-- > 0) items[n] = pop();
    return items;
  }

  // ---- constants

  void push_kind(Kind kind, std::vector<uint32_t> items = {}) { push({.kind = kind, .items = std::move(items)}); }
  void push_int(int64_t value) { push({.kind = Kind::kInt, .number = value}); }
  void push_bool(bool value) { push({.kind = Kind::kBool, .number = value}); }
  void push_real(double value) { push({.kind = Kind::kFloat, .real = value}); }
  void push_text(Kind kind, std::string_view text) {
    if (kind == Kind::kString && !is_utf8(text)) fail("the pickle has a text that is not UTF-8");
    push({.kind = kind, .text = text});
  }

  template <class T>
  T parsed(std::string_view text) {
    T value{};
    if (!parse_whole(text, value)) fail("the pickle has a bad number", "'" + printable(text) + "'");
    return value;
  }

  void push_long(uint64_t num_bytes) {
    const std::string_view digits = reader_.take(num_bytes);
    if (digits.size() > 8) {
      push({.kind = Kind::kBigInt, .text = digits});
      return;
    }
    const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
    uint64_t value = negative ? ~uint64_t{0} : 0;
    for (size_t i = digits.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(digits[i]);
    push_int(static_cast<int64_t>(value));
  }

  void push_text_int(std::string_view text) {  // INT: protocol 0 writes booleans as 00 and 01
    if (text == "00" || text == "01") return push_bool(text == "01");
    push_int(parsed<int64_t>(text));
  }

  void push_text_long(std::string_view text) {
    if (text.ends_with('L')) text.remove_suffix(1);
    push_int(parsed<int64_t>(text));
  }

  void push_quoted(std::string_view text) {
    const bool quoted =
        text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
    if (!quoted || text.find('\\') != text.npos) fail("the pickle has a bad string", "'" + printable(text) + "'");
    push_text(Kind::kString, text.substr(1, text.size() - 2));
  }

  double big_endian_double() {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | reader_.u8();
    return std::bit_cast<double>(bits);
  }

  uint64_t positive_length(uint32_t length) {
    if (length > INT32_MAX) fail("the pickle has a negative length");
    return length;
  }

  // ---- the memo

  void remember(uint64_t key) {
    if (stack_.size() <= floor()) fail("the pickle takes a value from an empty stack");
    memo_[key] = stack_.back();
    if (memo_.size() > kMaxPickleValues)
      fail(fmt::format("the pickle's memo has more than {} entries", kMaxPickleValues));
  }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail("the pickle asks for a memo entry that was never made", std::to_string(key));
    stack_.push_back(found->second);
    // A byte each: without the cap a few megabytes of them would become a stack of gigabytes behind one another.
    if (stack_.size() > kMaxPickleValues) fail(fmt::format("the pickle has more than {} values", kMaxPickleValues));
  }

  // ---- containers

  // Copies of items are counted: an opcode of a few bytes may ask for a copy of a container of any size.
  void count_items(size_t n) {
    num_items_ += n;
    if (num_items_ > kMaxPickleItems)
      fail(fmt::format("the pickle's containers have more than {} items", kMaxPickleItems));
  }
  void add_items(std::vector<uint32_t>& to, const std::vector<uint32_t>& items) {
    count_items(items.size());
    to.insert(to.end(), items.begin(), items.end());
  }
  void append(const std::vector<uint32_t>& items) {
    add_items(top({Kind::kList}, "appends to what is no list").items, items);
  }
  void set_items(const std::vector<uint32_t>& items) {
    if (items.size() % 2 != 0) fail("the pickle has a key without a value");
    add_items(top({Kind::kDict, Kind::kNamespace}, "sets keys of what is no dictionary").items, items);
  }

  // ---- globals: the gate

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = std::string(module) + "." + std::string(name);
    for (const AllowedGlobal& allowed : kAllowed) {
      if (allowed.name != full) continue;
      push({.kind = Kind::kGlobal, .global = allowed.global, .dtype = allowed.dtype, .text = allowed.name});
      return;
    }
    throw InputError({.where = where_,
                      .what = fmt::format("the file asks for the global '{}', which is not data", printable(full)),
                      .expected = "tensors, dictionaries, lists, numbers, texts and argparse.Namespace",
                      .hint = "to save the state_dict alone"});
  }

  void stack_global() {
    const uint32_t name = pop(), module = pop();
    if (doc_[name].kind != Kind::kString || doc_[module].kind != Kind::kString)
      fail("the pickle names a global by something else than texts");
    push_global(doc_[module].text, doc_[name].text);
  }

  const PickleValue& item(const PickleValue& tuple, size_t i, Kind kind, const char* what) {
    if (i >= tuple.items.size() || doc_[tuple.items[i]].kind != kind)
      fail(fmt::format("the pickle describes a tensor or storage without {}", what));
    return doc_[tuple.items[i]];
  }

  std::vector<int64_t> integers(const PickleValue& tuple) {
    if (tuple.items.size() > kMaxTensorDimensions) fail("the pickle describes a tensor of too many dimensions");
    count_items(tuple.items.size());
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < tuple.items.size(); ++i)
      numbers.push_back(item(tuple, i, Kind::kInt, "whole numbers for its shape").number);
    return numbers;
  }

  void rebuild_tensor(const PickleValue& args) {
    const PickleValue& storage = item(args, 0, Kind::kStorage, "a storage");
    PickledTensor tensor{.storage = static_cast<uint32_t>(storage.number),
                         .offset = item(args, 1, Kind::kInt, "an offset").number,
                         .shape = integers(item(args, 2, Kind::kTuple, "a shape")),
                         .strides = integers(item(args, 3, Kind::kTuple, "strides"))};
    doc_.tensors.push_back(std::move(tensor));
    push({.kind = Kind::kTensor, .number = static_cast<int64_t>(doc_.tensors.size() - 1)});
  }

  // An ordered dictionary is made empty; Python 2 gave it its pairs at once.
  void new_dictionary(const PickleValue& args) {
    std::vector<uint32_t> items;
    if (args.items.size() == 1 && doc_[args.items[0]].kind == Kind::kList) {
      for (const uint32_t pair : doc_[args.items[0]].items) {
        const Kind kind = doc_[pair].kind;
        if ((kind != Kind::kTuple && kind != Kind::kList) || doc_[pair].items.size() != 2)
          fail("the pickle makes a dictionary of something else than pairs");
        add_items(items, doc_[pair].items);
      }
    } else if (!args.items.empty()) {
      fail("the pickle makes a dictionary of something else than pairs");
    }
    push_kind(Kind::kDict, std::move(items));
  }

  void make(uint32_t callable, uint32_t arguments) {
    const PickleValue& what = doc_[callable];
    const PickleValue& args = doc_[arguments];  // valid until something is pushed
    if (what.kind != Kind::kGlobal || args.kind != Kind::kTuple) fail("the pickle calls something that is no global");
    switch (what.global) {
      case PickleGlobal::kOrderedDict:
        return new_dictionary(args);
      case PickleGlobal::kNamespace:
        if (!args.items.empty()) fail("the pickle makes a Namespace of something");
        return push_kind(Kind::kNamespace);
      case PickleGlobal::kRebuildTensor:
      case PickleGlobal::kRebuildTensorV2:
        return rebuild_tensor(args);
      case PickleGlobal::kRebuildParameter:
        item(args, 0, Kind::kTensor, "a tensor in a parameter");
        stack_.push_back(args.items[0]);  // the tensor itself
        return;
      case PickleGlobal::kStorage:
        break;
    }
    fail(fmt::format("the pickle calls '{}', which is no function", what.text));
  }

  // BUILD gives an object its attributes: a Namespace takes them; what hangs on a dictionary or tensor is dropped.
  void build() {
    const uint32_t state = pop();
    PickleValue& object = top({Kind::kNamespace, Kind::kDict, Kind::kTensor}, "sets attributes of what has none");
    if (object.kind != Kind::kNamespace) return;
    if (doc_[state].kind != Kind::kDict) fail("the pickle gives a Namespace something else than attributes");
    if (&doc_[state] == &object) fail("the pickle gives a Namespace itself as attributes");
    add_items(object.items, doc_[state].items);
  }

  // ('storage', class, key, device, number of elements[, view]); the view is of files older than PyTorch 0.4.
  void persistent() {
    const PickleValue& id = doc_[pop()];
    if (id.kind != Kind::kTuple) fail("the pickle has a persistent id that is no storage");
    if (item(id, 0, Kind::kString, "its tag").text != "storage") fail("the pickle has a persistent id of another kind");
    const PickleValue& type = item(id, 1, Kind::kGlobal, "a storage class");
    if (type.global != PickleGlobal::kStorage) fail("the pickle describes a storage by something else than its class");
    if (id.items.size() > 6 || (id.items.size() == 6 && doc_[id.items[5]].kind != Kind::kNone))
      fail("the file has views of storages, as PyTorch before 0.4 wrote them, which are not read");
    const int64_t n = item(id, 4, Kind::kInt, "a number of elements").number;
    if (n < 0) fail("the pickle describes a storage of a negative size", std::to_string(n));
    doc_.storages.push_back({type.dtype, item(id, 2, Kind::kString, "a key").text, n});
    push({.kind = Kind::kStorage, .number = static_cast<int64_t>(doc_.storages.size() - 1)});
  }

  // ---- opcodes

  void step(unsigned char op) {
    if (constant(op) || container(op) || memo(op) || object(op)) return;
    switch (op) {
      case 0x80:  // PROTO
        if (const int version = reader_.u8(); version > 5)
          fail("the pickle is of an unknown protocol", std::to_string(version));
        return;
      case 0x95:  // FRAME
        if (const uint64_t n = reader_.u64(); n > reader_.left()) fail("the pickle has a frame beyond its end");
        return;
      case '(':
        marks_.push_back(stack_.size());
        if (marks_.size() > kMaxPickleValues) fail("the pickle has too many marks");
        return;
      case '0':
        if (!marks_.empty() && stack_.size() == marks_.back())
          marks_.pop_back();
        else
          pop();
        return;
      case '1':
        pop_to_mark();
        return;
      case '2': {
        const uint32_t value = pop();
        stack_.push_back(value), stack_.push_back(value);
        if (stack_.size() > kMaxPickleValues) fail("the pickle's stack is too high");
        return;
      }
      case '.':
        doc_.root = pop();
        stopped_ = true;
        return;
      default:
        fail("the pickle has an opcode that is unknown or no data",
             fmt::format("byte 0x{:02x} at {}", op, reader_.at() - 1));
    }
  }

  bool constant(unsigned char op) {
    switch (op) {
      case 'N':
        return push_kind(Kind::kNone), true;
      case 0x88:
        return push_bool(true), true;
      case 0x89:
        return push_bool(false), true;
      case 'I':
        return push_text_int(reader_.line()), true;
      case 'L':
        return push_text_long(reader_.line()), true;
      case 'F':
        return push_real(parsed<double>(reader_.line())), true;
      case 'J':
        return push_int(reader_.number<int32_t>()), true;
      case 'K':
        return push_int(reader_.u8()), true;
      case 'M':
        return push_int(reader_.u16()), true;
      case 0x8a:
        return push_long(reader_.u8()), true;
      case 0x8b:
        return push_long(positive_length(reader_.u32())), true;
      case 'G':
        return push_real(big_endian_double()), true;
      case 'S':
        return push_quoted(reader_.line()), true;
      case 'V':
        return push_text(Kind::kString, reader_.line()), true;
      case 'T':
        return push_text(Kind::kString, reader_.take(positive_length(reader_.u32()))), true;
      case 'U':
      case 0x8c:
        return push_text(Kind::kString, reader_.take(reader_.u8())), true;
      case 'X':
        return push_text(Kind::kString, reader_.take(reader_.u32())), true;
      case 0x8d:
        return push_text(Kind::kString, reader_.take(reader_.u64())), true;
      case 'C':
        return push_text(Kind::kBytes, reader_.take(reader_.u8())), true;
      case 'B':
        return push_text(Kind::kBytes, reader_.take(reader_.u32())), true;
      case 0x8e:
      case 0x96:
        return push_text(Kind::kBytes, reader_.take(reader_.u64())), true;
      default:
        return false;
    }
  }

  bool container(unsigned char op) {
    switch (op) {
      case ')':
        return push_kind(Kind::kTuple), true;
      case 't':
        return push_kind(Kind::kTuple, pop_to_mark()), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_kind(Kind::kTuple, pop_several(size_t{op} - 0x84)), true;
      case ']':
        return push_kind(Kind::kList), true;
      case 'l':
        return push_kind(Kind::kList, pop_to_mark()), true;
      case 'a':
        return append(pop_several(1)), true;
      case 'e':
        return append(pop_to_mark()), true;
      case '}':
        return push_kind(Kind::kDict), true;
      case 'd': {
        std::vector<uint32_t> items = pop_to_mark();
        push_kind(Kind::kDict);
        return set_items(items), true;
      }
      case 's':
        return set_items(pop_several(2)), true;
      case 'u':
        return set_items(pop_to_mark()), true;
      default:
        return false;
    }
  }

  bool memo(unsigned char op) {
    switch (op) {
      case 'p':
        return remember(parsed<uint64_t>(reader_.line())), true;
      case 'q':
        return remember(reader_.u8()), true;
      case 'r':
        return remember(reader_.u32()), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'g':
        return recall(parsed<uint64_t>(reader_.line())), true;
      case 'h':
        return recall(reader_.u8()), true;
      case 'j':
        return recall(reader_.u32()), true;
      default:
        return false;
    }
  }

  bool object(unsigned char op) {
    switch (op) {
      case 'c':
      case 'i': {  // INST would call what it names, with what lies above the mark
        const std::string_view module = reader_.line(), name = reader_.line();
        push_global(module, name);
        if (op == 'i') fail("the pickle makes an object in the way of protocol 0, which is not read");
        return true;
      }
      case 0x93:
        return stack_global(), true;
      case 'R':
      case 0x81: {  // REDUCE, NEWOBJ
        const uint32_t arguments = pop(), callable = pop();
        return make(callable, arguments), true;
      }
      case 'b':
        return build(), true;
      case 'Q':
        return persistent(), true;
      default:
        return false;
    }
  }

  const std::string& where_;
  ByteReader reader_;
  PickleDocument doc_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
  size_t num_items_ = 0;
  bool stopped_ = false;
};

}  // namespace

size_t torch_dtype_bytes(std::string_view dtype) {
  for (const AllowedGlobal& allowed : kAllowed)
    if (allowed.dtype != nullptr && dtype == allowed.dtype) return allowed.bytes;
  return 0;
}

PickleDocument read_pickle(const std::string& where, std::string_view bytes) { return Machine(where, bytes).run(); }

}  // namespace ditrain::weights
