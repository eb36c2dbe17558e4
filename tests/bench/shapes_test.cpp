#include "ditrain/bench/shapes.hpp"

#include <catch2/catch.hpp>

#include "ditrain/nn/model_config.hpp"

using namespace ditrain;
using namespace ditrain::bench;

TEST_CASE("the shapes are those of the models that train") {
  for (const ModelShape& shape : kModelShapes) {
    nn::ModelConfig c;
    c.name = std::string("DiT-") + shape.name + "/2";
    nn::apply_name(c);
    CAPTURE(c.name);
    CHECK(shape.width == c.hidden_size);
    CHECK(shape.depth == c.depth);
    CHECK(shape.heads == c.num_heads);
    CHECK(kTokens == c.tokens());
  }
}

TEST_CASE("the products of a block are all its linear work, three passes each") {
  for (const ModelShape& shape : kModelShapes) {
    double macs[3] = {};
    for (const ProductShape& p : product_shapes(shape)) {
      CAPTURE(p.name(), p.m, p.n, p.k);
      CHECK(p.copies == shape.depth);
      CHECK((p.skinny() ? kConditionRows : shape.batch * kTokens) == (p.pass == Pass::kWeightGradient ? p.k : p.m));
      if (!p.skinny()) macs[int(p.pass)] += p.flop() / 2;
    }
    // qkv, proj and the MLP: 12 C^2 per token.
    const double expected = double(shape.batch * kTokens) * 12 * double(shape.width * shape.width);
    for (const double m : macs) CHECK(m == expected);
  }
}

TEST_CASE("transposes fit the passes and rows can be chosen") {
  for (const ProductShape& p : product_shapes(kModelShapes[3], 100)) {
    CHECK(std::string(p.trans()) == (p.trans_a() == kernels::Trans::kYes   ? "TN"
                                     : p.trans_b() == kernels::Trans::kYes ? "NT"
                                                                           : "NN"));
    if (p.name() == "XL up forward") CHECK((p.m == 100 && p.n == 4608 && p.k == 1152));
    if (p.name() == "XL up data gradient") CHECK((p.m == 100 && p.n == 1152 && p.k == 4608));
    if (p.name() == "XL up weight gradient") CHECK((p.m == 4608 && p.n == 1152 && p.k == 100));
    if (p.name() == "XL condition forward") CHECK((p.m == 16 && p.n == 6912 && p.k == 1152));
  }
}
