// What follows from the declarations of the layers: the state dict, the order of the arenas, initial values, what
// products read, and which gradients a sink is offered.
#include "ditrain/nn/declarations.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/nn/patch_embed.hpp"
#include "small_model.hpp"
#include "support/random_tensor.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::Parameter;
using autograd::ParameterStore;

namespace {

nn::ModelConfig small() { return small_model(2); }

std::string text(const Shape& shape) {
  std::string s;
  for (const int64_t n : shape) s += (s.empty() ? "" : ",") + std::to_string(n);
  return s;
}

}  // namespace

TEST_CASE("the state dict has the reference's names and shapes in its order") {
  nn::Model model(nn::ModelConfig{});  // DiT-S/2
  const auto all = model.parameters().state_dict();
  std::ifstream in(std::string(DITRAIN_GOLDEN_DIR) + "/dit_init_keys.txt");
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name, shape;
    words >> name >> shape;
    REQUIRE(number < all.size());
    CHECK(all[number]->name == name);
    CHECK(text(all[number]->full_shape) == shape);
    ++number;
  }
  CHECK(number == 132);
  CHECK(number == all.size());
}

TEST_CASE("norms of queries and keys stand between qkv and proj, as in timm, and start as no change") {
  const auto names = [](nn::QkNorm qk_norm) {
    nn::ModelConfig c = small();
    c.qk_norm = qk_norm;
    nn::Model model(c);
    model.parameters().allocate(ParameterStore::For::kInference);
    nn::initialise(model, 1);
    std::vector<std::string> all;
    for (const Parameter* p : model.parameters().state_dict()) {
      const std::string prefix = "blocks.1.attn.";
      if (p->name.starts_with(prefix)) all.push_back(p->name.substr(prefix.size()));
      if (p->name.find("_norm") == std::string::npos) continue;
      CHECK(p->full_shape == Shape{8});
      CHECK(to_vector(p->value) == std::vector<float>(8, p->name.ends_with(".weight") ? 1.0f : 0.0f));
    }
    return all;
  };
  CHECK(names(nn::QkNorm::kNone) == std::vector<std::string>{"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"});
  CHECK(names(nn::QkNorm::kRms) == std::vector<std::string>{"qkv.weight", "qkv.bias", "q_norm.weight", "k_norm.weight",
                                                            "proj.weight", "proj.bias"});
  CHECK(names(nn::QkNorm::kLayer) == std::vector<std::string>{"qkv.weight", "qkv.bias", "q_norm.weight", "q_norm.bias",
                                                              "k_norm.weight", "k_norm.bias", "proj.weight",
                                                              "proj.bias"});
}

TEST_CASE("the tensors of a file tell the variant of its blocks, and the width of a head") {
  for (const nn::QkNorm qk_norm : {nn::QkNorm::kNone, nn::QkNorm::kRms, nn::QkNorm::kLayer}) {
    nn::ModelConfig c{.name = "custom", .hidden_size = 24, .depth = 1, .num_heads = 3, .qk_norm = qk_norm};
    nn::Model model(c);
    const auto shape_of = [&](const std::string& name) -> const std::vector<int64_t>* {
      for (const autograd::Parameter* p : model.parameters().state_dict())
        if (p->name == name) return &p->full_shape;
      return nullptr;
    };
    nn::ModelConfig found{.qk_norm = nn::QkNorm::kLayer};
    CHECK(nn::recognise_variant(shape_of, found) == (qk_norm == nn::QkNorm::kNone ? 0 : 8));
    CHECK(found.qk_norm == qk_norm);
  }
}

TEST_CASE("the tensors of a file tell its norms and its MLP, and the ratio that gives its width") {
  for (const nn::Norm norm : {nn::Norm::kLayer, nn::Norm::kRms})
    for (const nn::Mlp mlp : {nn::Mlp::kGelu, nn::Mlp::kSwiglu})
      for (const int64_t width : {24, 32, 36, 384, 768}) {
        nn::ModelConfig c{.name = "custom", .hidden_size = width, .depth = 1, .num_heads = 3, .norm = norm, .mlp = mlp};
        if (width == 32) c.num_heads = 4;
        nn::Model model(c);
        const auto shape_of = [&](const std::string& name) -> const std::vector<int64_t>* {
          for (const autograd::Parameter* p : model.parameters().state_dict())
            if (p->name == name) return &p->full_shape;
          return nullptr;
        };
        nn::ModelConfig found{.hidden_size = width};
        nn::recognise_variant(shape_of, found);
        CHECK((found.norm == norm && found.mlp == mlp));
        if (mlp == nn::Mlp::kSwiglu) CHECK(found.mlp_size() == c.mlp_size());
      }
}

TEST_CASE("a ratio is found for every width of an MLP") {
  for (const nn::Mlp mlp : {nn::Mlp::kGelu, nn::Mlp::kSwiglu})
    for (const int64_t width : {44, 448, 896, 960, 1152, 1408, 1664})
      for (int64_t columns = 1; columns < 6 * width; ++columns) {
        nn::ModelConfig c{.hidden_size = width, .mlp = mlp};
        c.set_mlp_size(columns);
        REQUIRE(c.mlp_size() == columns);
      }
  nn::ModelConfig c{.hidden_size = 1152};
  c.set_mlp_size(4608);
  CHECK(c.mlp_ratio == 4);
}

TEST_CASE("advice on tensors that a model lacks or has too many") {
  using nn::advice_on_tensor;
  CHECK(advice_on_tensor("blocks.3.attn.q_norm.weight", /*extra=*/true) == "model.qk_norm: none");
  CHECK(advice_on_tensor("blocks.3.attn.k_norm.bias", false) == "model.qk_norm: layer");
  CHECK_THAT(advice_on_tensor("blocks.3.attn.k_norm.weight", false), Catch::Contains("model.qk_norm: rms"));
  CHECK_THAT(advice_on_tensor("blocks.3.attn.k_norm.bias", true), Catch::Contains("model.qk_norm: rms"));
  CHECK(advice_on_tensor("blocks.3.norm1.weight", true) == "model.norm: layer");
  CHECK(advice_on_tensor("final_layer.norm_final.weight", false) == "model.norm: rms");
  CHECK(advice_on_tensor("blocks.3.mlp.w12.bias", true) == "model.mlp: gelu");
  CHECK(advice_on_tensor("blocks.3.mlp.w3.weight", false) == "model.mlp: swiglu");
  CHECK(advice_on_tensor("blocks.3.mlp.fc1.weight", false) == "model.mlp: gelu");
  CHECK(advice_on_tensor("pos_embed", true) == "model.position: rope");
  CHECK(advice_on_tensor("x_embedder.proj2.bias", true) == "model.patch_bottleneck: 0");
  CHECK(advice_on_tensor("x_embedder.proj1.weight", false) == "model.patch_bottleneck: its rows");
  CHECK(advice_on_tensor("x_embedder.proj.bias", false) == "model.patch_bottleneck: 0");
  CHECK_THAT(advice_on_tensor("x_embedder.proj.weight", true), Catch::Contains("rows of x_embedder.proj1.weight"));
  CHECK(advice_on_tensor("blocks.3.attn.qkv.weight", true) == "");
}

TEST_CASE("variants of patches: names are those of JiT's public code, and patches are as wide as what a token reads") {
  nn::ModelConfig c = small();
  c.patch_overlap = 1, c.patch_bottleneck = 7, c.condition_channels = 2;
  nn::Model model(c);
  std::map<std::string, Shape> embedder;
  for (const Parameter* p : model.parameters().state_dict())
    if (p->name.starts_with("x_embedder")) embedder[p->name] = p->full_shape;
  CHECK(embedder == std::map<std::string, Shape>{{"x_embedder.proj1.weight", {7, 5, 4, 4}},
                                                 {"x_embedder.proj2.weight", {32, 7, 1, 1}},
                                                 {"x_embedder.proj2.bias", {32}}});
  CHECK(model.parameters().find("final_layer.linear.weight").full_shape == Shape{4 * 4 * 6, 32});
}

TEST_CASE("arenas have the reverse of the order in which gradients become final") {
  nn::ModelConfig c = small();
  c.depth = 1;
  nn::Model model(c);
  const std::vector<std::string> expected{"x_embedder.proj",
                                          "t_embedder.mlp.0",
                                          "t_embedder.mlp.2",
                                          "y_embedder.embedding_table",
                                          "blocks.0.adaLN_modulation.1",
                                          "blocks.0.attn.qkv",
                                          "blocks.0.attn.proj",
                                          "blocks.0.mlp.fc1",
                                          "blocks.0.mlp.fc2",
                                          "final_layer.adaLN_modulation.1",
                                          "final_layer.linear"};
  std::vector<std::string> got;
  for (int64_t i = 0; i < model.parameters().arena_size();) {
    const Parameter& p = model.parameters().at(i);
    if (p.name.ends_with(".weight"))
      got.push_back(p.name.substr(0, p.name.size() - 7));
    else
      CHECK(p.name == got.back() + ".bias");
    i = p.slice.end;
  }
  CHECK(got == expected);
}

TEST_CASE("initial values keep their bits") {  // old runs start again from the same weights
  nn::Model model(nn::ModelConfig{});
  model.parameters().allocate(ParameterStore::For::kInference);
  nn::initialise(model, 3);
  const auto ends = [&](const std::string& name) {
    const Parameter& p = model.parameters().find(name);
    const Pin<float> values(p.value);
    return std::pair(values[0], values[p.size() - 1]);
  };
  CHECK(ends("x_embedder.proj.weight") == std::pair(-0.0745066255f, -0.060813766f));
  CHECK(ends("t_embedder.mlp.2.weight") == std::pair(0.0142844925f, -0.0305388663f));
  CHECK(ends("y_embedder.embedding_table.weight") == std::pair(0.00492483424f, -0.0485577919f));
  CHECK(ends("blocks.0.attn.qkv.weight") == std::pair(-0.0233303308f, 0.0169731304f));
  CHECK(ends("blocks.11.mlp.fc2.weight") == std::pair(-0.017971281f, -0.00618063519f));
  CHECK(ends("blocks.11.mlp.fc2.bias") == std::pair(0.0f, 0.0f));
  CHECK(ends("final_layer.linear.weight") == std::pair(0.0f, 0.0f));
}

TEST_CASE("constants and tables are starts, and a table has the size of its parameter") {
  using autograd::Initial;
  const RandomKey key(1, Stream::kInit, 0);
  std::vector<float> values(6, 7.0f);
  Initial::constant(1).fill({2, 3}, key, values.data());
  CHECK(values == std::vector<float>(6, 1.0f));
  Initial::from_table([] { return std::vector<float>{1, 2, 3, 4, 5, 6}; }).fill({2, 3}, key, values.data());
  CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6});
  const Initial five = Initial::from_table([] { return std::vector<float>(5); });
  CHECK_THROWS_AS(five.fill({2, 3}, key, values.data()), LogicFault);
  CHECK(autograd::xavier_bound({2, 1, 2, 2}) == Approx(std::sqrt(6.0 / (4 + 2))));
}

TEST_CASE("what the products of a block read") {
  const nn::ProductReads reads = nn::block_reads(nn::ModelConfig{});  // width 384, MLP 4 x 384, 256 tokens
  CHECK(reads.weights == 12.0 * 384 * 384);
  CHECK(reads.inputs == 256 * 7.0 * 384);
}

namespace {

/// Takes what it is asked for, or nothing.
struct Sink final : nn::WeightGradientSink {
  explicit Sink(bool answer) : takes(answer) {}
  bool take(ops::Context&, const Parameter& w, const Tensor& x, const Tensor& dy, autograd::Gradients) const override {
    const std::lock_guard lock(mutex);
    if (!offered.emplace(w.name, std::pair(to_vector(x), to_vector(dy))).second) ++again;
    return takes;
  }
  bool takes;
  mutable std::mutex mutex;
  mutable std::map<std::string, std::pair<std::vector<float>, std::vector<float>>> offered;
  mutable int again = 0;
};

constexpr int64_t kBatch = 3;

struct SinkRig : Rig {
  SinkRig(const nn::WeightGradientSink* sink, int workers) : Rig(small(), kBatch, {.sink = sink}, {workers}) {
    copy(random_tensor({model.parameters().arena_size()}, 9), model.parameters().grads);
    run(autograd::Gradients::kOverwrite);
  }
  std::vector<float> gradient(const std::string& name) { return to_vector(model.parameters().find(name).grad); }
};

}  // namespace

TEST_CASE("a sink is offered the gradients of adaLN and no others") {
  const int workers = GENERATE(1, 3);
  const Sink taking(true), declining(false);
  SinkRig plain(nullptr, workers), taken(&taking, workers), declined(&declining, workers);
  const std::set<std::string> adaLN{"blocks.0.adaLN_modulation.1.weight", "blocks.1.adaLN_modulation.1.weight",
                                    "final_layer.adaLN_modulation.1.weight"};
  std::set<std::string> offered;
  for (const auto& [name, rows] : taking.offered) offered.insert(name);
  CHECK(offered == adaLN);
  // Blocks ask on every worker, the final layer on the thread that drives the pass.
  CHECK(taking.again == 2 * (workers - 1));
  for (const Parameter* p : plain.model.parameters().state_dict()) {
    if (!p->trainable) continue;
    const std::vector<float> expected = to_vector(p->grad);
    INFO(p->name);
    CHECK(declined.gradient(p->name) == expected);
    const bool left = p->name.find("adaLN_modulation") != std::string::npos;
    CHECK((taken.gradient(p->name) == expected) == !left);
  }
  for (const auto& [name, rows] : taking.offered) {
    const Parameter& w = plain.model.parameters().find(name);
    const Tensor dw(w.shape), db({w.shape[0]});
    ops::linear_backward_weight(plain.ctx, from_values({kBatch, w.shape[1]}, rows.first),
                                from_values({kBatch, w.shape[0]}, rows.second), dw, db, /*accumulate=*/false);
    CHECK(to_vector(dw) == to_vector(w.grad));
  }
}
