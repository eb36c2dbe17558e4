#include "ditrain/weights/pytorch_file.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/files/sha256.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "ditrain/weights/weight_list.hpp"
#include "support/files.hpp"
#include "support/pytorch_bytes.hpp"

using namespace ditrain;
using namespace ditrain::weights;
using namespace ditrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

const std::string kPyTorchFolder = std::string(DITRAIN_GOLDEN_DIR) + "/pt_files/";

std::string file_of(const std::string& pickle, const std::vector<ZipPart>& more = {}) {
  std::vector<ZipPart> parts = {stored("f/data.pkl", pickle)};
  parts.insert(parts.end(), more.begin(), more.end());
  return make_zip(parts);
}
ZipPart floats(const std::vector<float>& values) {
  return stored("f/data/0", {reinterpret_cast<const char*>(values.data()), values.size() * 4});
}
std::vector<float> as_floats(const PytorchFile& file, const PytorchTensor& t) {
  const std::vector<std::byte> bytes = file.read(t);
  std::vector<float> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void check_file_refused(const std::string& file, const std::string& message) {
  INFO(message);
  const auto open = [&] {
    const PytorchFile opened("f.pt", file);
    for (const PytorchTensor& t : opened.tensors()) opened.read(t);
  };
  CHECK_THROWS_AS(open(), InputError);
  CHECK_THROWS_WITH(open(), Contains(message));
}

}  // namespace

TEST_CASE("files that PyTorch wrote give the same tensors, and hostile ones are refused") {
  const json expected = files::parse_json(get_file(kPyTorchFolder + "expected.json"));
  int loaded = 0, refused = 0;
  for (const auto& [name, file] : expected.at("files").items()) {
    CAPTURE(name, file.at("why"));
    const std::string expect = file.at("expect");
    std::vector<ListedWeight> list;
    try {
      list = list_weights(kPyTorchFolder + name);
    } catch (const InputError&) {
      CHECK(expect != "load");
      ++refused;
      continue;
    }
    REQUIRE(expect != "refuse");
    ++loaded;
    const json& tensors = file.at("tensors");
    CHECK(list.size() == tensors.size());
    for (const ListedWeight& w : list) {
      CAPTURE(w.name);
      REQUIRE(tensors.contains(w.name));
      CHECK(tensors[w.name].at("dtype") == w.dtype);
      CHECK(tensors[w.name].at("shape") == w.shape);
      CHECK(tensors[w.name].at("sha256") == w.sha256);
    }
    CHECK(files::parse_json(to_json(list)).at("tensors") == tensors);
  }
  CHECK(loaded >= 15);
  CHECK(refused >= 40);
  CHECK(!std::filesystem::exists("pickle_code_ran"));
}

TEST_CASE("every global that is not data is refused by its name") {
  const std::string system = kPyTorchFolder + "hostile/";
  CHECK_THROWS_WITH(PytorchFile(system + "os_system.pt"),
                    Contains("os_system.pt] the file asks for the global 'os.system'"));
  CHECK_THROWS_WITH(PytorchFile(system + "posix_system.pt"), Contains("'posix.system'"));
  CHECK_THROWS_WITH(PytorchFile(system + "subprocess.pt"), Contains("'subprocess.getoutput'"));
  CHECK_THROWS_WITH(PytorchFile(system + "eval.pt"), Contains(".eval'"));
  CHECK_THROWS_WITH(PytorchFile(system + "inst.pt"), Contains("'os.system'"));
  CHECK_THROWS_WITH(PytorchFile(system + "stack_global.pt"), Contains("'os.system'"));
  CHECK_THROWS_WITH(PytorchFile(system + "build.pt"), Contains("'os.system'"));
  CHECK_THROWS_WITH(PytorchFile(system + "legacy_os_system.pt"), Contains("'os.system'"));
  CHECK_THROWS_WITH(PytorchFile(kPyTorchFolder + "numpy_scalar.pt"), Contains("'numpy._core.multiarray.scalar'"));
}

TEST_CASE("the numbers and texts of a training checkpoint are there, the Namespace included") {
  for (const char* name : {"train.pt", "train_legacy.pt"}) {
    const PytorchFile file(kPyTorchFolder + name);
    REQUIRE(file.find("ema/x_embedder.proj.weight") != nullptr);
    CHECK(file.find("ema/x_embedder.proj.weight")->shape == std::vector<int64_t>{16, 3, 2, 2});
    CHECK(file.find("x_embedder.proj.weight") == nullptr);
    CHECK(file.scalar("args/num_classes").has_value());
    CHECK(!file.scalar("args/nothing"));
    CHECK(!file.scalar("args"));
    CHECK(!file.scalar("args/num_classes/more"));
  }
  const PytorchFile lightning(kPyTorchFolder + "lightning.pt");
  CHECK(lightning.tensors().size() == 22);
}

TEST_CASE("tensors are views of storages: strides, offsets, sharing, byte order") {
  const std::string pickle = "\x80\x02}(" + string_op("t") + tensor_op({3, 2}, {1, 3}, 0, 6) + string_op("w") +
                             tensor_op({2}, {2}, 1, 6) + string_op("e") + tensor_op({2, 2}, {0, 1}, 4, 6) +
                             string_op("s") + tensor_op({}, {}, 5, 6) + string_op("n") +
                             tensor_op({0, 4}, {4, 1}, 6, 6) + "u.";
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const std::string bytes = file_of(pickle, {floats(values)});
  const PytorchFile file("f.pt", bytes);
  REQUIRE(file.tensors().size() == 5);
  CHECK(as_floats(file, *file.find("t")) == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK(as_floats(file, *file.find("w")) == std::vector<float>{1, 3});
  CHECK(as_floats(file, *file.find("e")) == std::vector<float>{4, 5, 4, 5});
  CHECK(as_floats(file, *file.find("s")) == std::vector<float>{5});
  CHECK(as_floats(file, *file.find("n")).empty());

  std::vector<float> swapped = values;
  for (float& v : swapped) std::reverse(reinterpret_cast<char*>(&v), reinterpret_cast<char*>(&v + 1));
  const std::string swapped_bytes = file_of(pickle, {floats(swapped), stored("f/byteorder", "big")});
  const PytorchFile big("f.pt", swapped_bytes);
  CHECK(as_floats(big, *big.find("t")) == std::vector<float>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("tensors that do not fit their storage are refused") {
  const ZipPart six = floats({0, 1, 2, 3, 4, 5});
  const auto refused = [&](const std::string& tensor, const char* message) {
    check_file_refused(file_of("\x80\x02" + tensor + ".", {six}), message);
  };
  refused(tensor_op({7}, {1}, 0, 6), "reaches behind its storage of 6 elements; got 7");
  refused(tensor_op({6}, {1}, 1, 6), "reaches behind its storage");
  refused(tensor_op({6}, {1}, -1, 6), "negative offset");
  refused(tensor_op({-1}, {1}, 0, 6), "negative size or stride");
  refused(tensor_op({6}, {-1}, 5, 6), "negative size or stride");
  refused(tensor_op({2, 3}, {1}, 0, 6), "more sizes than strides");
  refused(tensor_op({0}, {1}, 7, 6), "reaches behind its storage");
  refused(tensor_op({INT32_MAX, INT32_MAX, INT32_MAX}, {0, 0, 0}, 0, 6), "beyond 64 bits");
  refused(tensor_op({1 << 20, 1 << 10}, {0, 0}, 0, 6), "repeats the 24 bytes of its storage");
  refused(tensor_op({5}, {1}, 0, 5), "has a storage of 5 elements of float32; got 24 bytes in the file");
  refused(tensor_op({7}, {1}, 0, 7), "has a storage of 7 elements");
  check_file_refused(file_of("\x80\x02" + tensor_op({6}, {1}, 0, 6) + "."), "storage '0' is not in the file");
  ZipPart damaged = six;
  damaged.packed[5] ^= 1;
  check_file_refused(file_of("\x80\x02" + tensor_op({6}, {1}, 0, 6) + ".", {damaged}), "its checksum does not fit");
  const ZipPart bomb = packed("f/data/0", std::string(size_t{300} << 20, '\0'));
  check_file_refused(file_of("\x80\x02" + tensor_op({300 << 18}, {1}, 0, 300 << 18) + ".", {bomb}), "is too large");
  check_file_refused(file_of("\x80\x02" + tensor_op({6}, {1}, 0, 6) + ".", {bomb}), "has a storage of 6 elements");
}

TEST_CASE("the pickle's machine refuses what is broken, and what grows without end") {
  const auto refused = [](const std::string& pickle, const char* message) {
    check_file_refused(file_of(pickle), message);
  };
  refused("", "the pickle is empty");
  refused("\x80\x02", "the pickle is cut off");
  refused("\x80\x09N.", "unknown protocol");
  refused(".", "an empty stack");
  refused("(.", "an empty stack");
  refused("t.", "a mark that was never set");
  refused("Na.", "an empty stack");
  refused("NNa.", "appends to what is no list");
  refused("NNNs.", "sets keys of what is no dictionary");
  refused("}(Nu.", "a key without a value");
  refused("h\1.", "a memo entry that was never made");
  refused("X" + field32(1u << 31) + "abc.", "the pickle is cut off");
  refused("\x8b" + field32(~0u) + "abc.", "negative length");
  refused("X" + field32(1) + "\xff.", "not UTF-8");
  refused("NNR.", "calls something that is no global");
  refused("ctorch\nFloatStorage\n)R.", "'torch.FloatStorage', which is no function");
  refused("NQ.", "a persistent id that is no storage");
  refused("I12x\n.", "a bad number");
  refused("\x8f.", "an opcode that is unknown or no data; got byte 0x8f at 0");
  refused("}.", "there is no tensor in the file");
  refused("N.", "there is no tensor in the file");
  refused("}q\1(" + string_op("a") + "h\1u.", "contains itself");
  refused(std::string(200'000, ']') + std::string(199'999, 'a') + ".", "nested deeper than 100");
  refused(std::string(3 << 20, ']') + ".", "the pickle has more than 1048576 values");
  refused("(" + std::string(3 << 20, '('), "too many marks");
  refused("N" + std::string(3 << 20, '2'), "stack is too high");

  // A pair of twice a pair of twice ...: 2^60 paths in 300 bytes.
  std::string laughs = "N";
  for (int i = 0; i < 60; ++i) laughs += "q\1h\1\x86";
  refused("}(" + string_op("a") + laughs + "u.", "refer to each other without end");

  // One list of pairs, made a dictionary again and again.
  std::string copies = "](";
  for (int i = 0; i < 60'000; ++i) copies += "NN\x86";
  copies += "eq\1";
  for (int i = 0; i < 200; ++i) copies += "ccollections\nOrderedDict\nh\1\x85R";
  refused(copies + ".", "containers have more than");

  // Memo entries, which are no values.
  std::string memos = "N";
  for (uint32_t i = 0; i <= 1u << 20; ++i) memos += "r" + field32(i);
  refused(memos + ".", "the pickle's memo has more than 1048576 entries");
  refused("N" + std::string((1 << 20) + 1, '\x94') + ".", "the pickle's memo has more than 1048576 entries");

  // One shape of 64 sizes, copied into tensor after tensor of a few bytes.
  std::string shapes = "ctorch._utils\n_rebuild_tensor\nq\x01" + tuple_op(std::vector<int32_t>(64, 1)) + "q\x02(" +
                       string_op("storage") + "ctorch\nFloatStorage\n" + string_op("0") + string_op("cpu") + int_op(6) +
                       "tQq\x03";
  for (int i = 0; i < 70'000; ++i) shapes += std::string("h\1(h\3K\0h\2h\2tR0", 14);
  refused(shapes + ".", "containers have more than");

  const std::string tensor = tensor_op({6}, {1}, 0, 6);
  const auto refused_with_tensor = [&](const std::string& pickle, const char* message) {
    check_file_refused(file_of(pickle, {floats({0, 1, 2, 3, 4, 5})}), message);
  };
  refused_with_tensor("}(" + string_op("1") + tensor + int_op(1) + tensor + "u.", "two tensors have the name '1'");
  refused_with_tensor("}(" + string_op(std::string(5000, 'x')) + tensor + "u.", "a name is longer than 4096 bytes");
}

TEST_CASE("tensors that take turns with packed storages are refused before they unpack without end") {
  const int32_t n = 4 << 20;  // 16 MiB each
  const std::string zeros(size_t{16} << 20, '\0');
  const auto file = [&](int turns) {
    std::string pickle = "\x80\x02}(";
    for (int i = 0; i < turns; ++i) pickle += int_op(i) + tensor_op({1}, {1}, 0, n, std::to_string(i % 2));
    return file_of(pickle + "u.", {packed("f/data/0", zeros), packed("f/data/1", zeros)});
  };
  const std::string few = file(20);
  const PytorchFile opened("f.pt", few);
  for (const PytorchTensor& t : opened.tensors()) CHECK(as_floats(opened, t) == std::vector<float>{0});
  check_file_refused(file(64), "take turns with packed storages");
}

TEST_CASE("zips that are something else are told apart") {
  check_file_refused(make_zip({stored("f/other", "x")}), "the zip has no NAME/data.pkl");
  check_file_refused(make_zip({stored("a/data.pkl", "N."), stored("b/data.pkl", "N.")}), "several data.pkl");
  check_file_refused(make_zip({stored("a/data.pkl", "N."), stored("a/code/x.py", "1")}), "a TorchScript archive");
  check_file_refused("\x80\x02N.", "a pickle, but not one of torch.save");
  check_file_refused("hello", "not a file of PyTorch");
}

TEST_CASE("a file of PyTorch that is cut or changed anywhere gives tensors or an InputError") {
  int64_t read_whole = 0, refused = 0;
  for (const char* name : {"tensor_only.pt", "hostile/storage_name.pt", "views_legacy.pt"}) {
    const std::string whole = get_file(kPyTorchFolder + name);
    for (size_t at = 0; at<whole.size(); at += whole.size()> 3000 ? 7 : 1) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0xff : 0x04));
      for (const std::string& bytes : {whole.substr(0, at), damaged}) {
        try {
          const PytorchFile file("f.pt", bytes);
          for (const PytorchTensor& t : file.tensors()) {
            const size_t read = file.read(t).size();
            REQUIRE(read == t.bytes);
          }
          ++read_whole;
        } catch (const InputError&) {
          ++refused;
        }
      }
    }
  }
  CAPTURE(read_whole, refused);
  CHECK(refused > read_whole);  // every cut, and most changes
}

TEST_CASE("safetensors files are listed in the same words") {
  TemporaryFolder folder;
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  write_safetensors(folder / "odd_name.pt", {{"w", "F32", {2, 3}, w.data()}, {"b", "BF16", {6}, w.data(), true}});
  const std::vector<ListedWeight> list = list_weights(folder / "odd_name.pt");
  REQUIRE(list.size() == 2);
  CHECK(list[0].name == "w");
  CHECK(list[0].dtype == "float32");
  CHECK(list[0].shape == std::vector<int64_t>{2, 3});
  CHECK(list[0].sha256 == files::sha256_of({reinterpret_cast<const char*>(w.data()), 24}));
  CHECK(list[1].dtype == "bfloat16");
  put_file(folder / "text", "no weights at all");
  CHECK_THROWS_WITH(list_weights(folder / "text"), Contains("not a weight file that can be read"));
  put_file(folder / "none", "");
  CHECK_THROWS_WITH(list_weights(folder / "none"), Contains("got an empty file"));
}
