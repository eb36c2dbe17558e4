#include "ditrain/verify/formula.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::verify;

namespace {

uint32_t bits(const std::string& name, const Shape& shape, int64_t i) {
  float value = 0;
  fill_by_formula(name, "", shape, i, i + 1, &value);
  return std::bit_cast<uint32_t>(value);
}

}  // namespace

TEST_CASE("hashes have the published values") {
  CHECK(fnv1a64("") == 0xcbf29ce484222325);
  CHECK(fnv1a64("a") == 0xaf63dc4c8601ec8c);
  CHECK(fnv1a64("x_embedder.proj.weight") == 0xe1a93c6446efb981);
  CHECK(splitmix64(0) == 0xe220a8397b1dcdaf);
  CHECK(splitmix64(1) == 0x910a2dec89025cc1);
  CHECK(splitmix64(1234567) == 0x599ed017fb08fc85);
  CHECK(splitmix64(18446744073709551615u) == 0xe4d971771b652c20);
}

TEST_CASE("sequences have the published values") {
  const FormulaSequence numbers("x_embedder.proj.weight");
  CHECK(numbers.hash(0) == 0x2a05c4a5be8fe6c5);
  CHECK(numbers.hash(1) == 0xb88cb62abee3255f);
  CHECK(numbers.hash(2) == 0xc0cdda1644b9a59a);
  CHECK(numbers.hash(1000) == 0xde8058f417f6543a);
  CHECK(numbers.hash(1000000) == 0x099c01434d393aeb);
  CHECK(numbers.unit(0) == 0.16415047645568848);
  CHECK(numbers.unit(1) == 0.7208970785140991);
  CHECK(numbers.unit(2) == 0.7531410455703735);
  CHECK(numbers.unit(1000) == 0.8691458702087402);
  CHECK(numbers.unit(1000000) == 0.037536680698394775);
  CHECK(numbers.symmetric(0) == 2 * 0.16415047645568848 - 1);
}

TEST_CASE("parameters have the published bits") {
  CHECK(bits("blocks.0.attn.qkv.weight", {192, 64}, 0) == 0x3dcf35d4);
  CHECK(bits("blocks.0.attn.qkv.weight", {192, 64}, 12287) == 0x3c3c90b0);
  CHECK(bits("blocks.0.attn.qkv.bias", {192}, 5) == 0xbc0b52f3);
  CHECK(bits("y_embedder.embedding_table.weight", {11, 64}, 703) == 0xbe626258);
  CHECK(bits("encoder.conv_norm_out.weight", {64}, 63) == 0x3f9b889a);
  CHECK_THROWS_AS(formula_range("pos_embed", {1, 16, 64}), LogicFault);
}

TEST_CASE("a part of a parameter is the part of the whole, and the suffix belongs to the key") {
  const Shape shape{6, 5};
  std::vector<float> whole(30), part(7), other(30);
  fill_by_formula("a.weight", ".3", shape, 0, 30, whole.data());
  fill_by_formula("a.weight", ".3", shape, 11, 18, part.data());
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 11));
  fill_by_formula("a.weight", "", shape, 0, 30, other.data());
  CHECK(whole != other);
  for (const float x : whole) CHECK(std::abs(x) <= std::sqrt(3.0 / 5));
}

TEST_CASE("ranges are those of the lists beside the fixtures") {
  int64_t checked = 0;
  for (const std::string list : {"dit_tiny_keys.txt", "dit_s2_keys.txt", "blocks_keys.txt", "tread_keys.txt"}) {
    std::ifstream in(std::string(DITRAIN_GOLDEN_DIR) + "/" + list);
    std::string line;
    while (std::getline(in, line)) {
      if (line.starts_with('#') || line.starts_with("pos_embed")) continue;
      std::istringstream words(line);
      std::string name, sizes, size, variant;
      double offset = 0, bound = 0;
      if (list == "blocks_keys.txt") words >> variant;
      REQUIRE(words >> name >> sizes >> offset >> bound);
      Shape shape;
      for (std::istringstream each(sizes); std::getline(each, size, ',');) shape.push_back(std::stoll(size));
      INFO(name);
      CHECK(formula_range(name, shape).offset == offset);
      CHECK(formula_range(name, shape).bound == bound);
      ++checked;
    }
  }
  CHECK(checked == 31 + 131 + 92 + 71);
}

TEST_CASE("inputs by formula stay in their bound") {
  const std::vector<float> values = formula_input("dit_s2.noise", 1.7, 1000);
  const FormulaSequence numbers("dit_s2.noise");
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == float(1.7 * numbers.symmetric(i)));
  CHECK(*std::max_element(values.begin(), values.end()) > 1.6f);
  CHECK(*std::min_element(values.begin(), values.end()) < -1.6f);
}
