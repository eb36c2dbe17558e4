// U-ViT against a model written from the paper (scripts/make_uvit_fixture.py), its public names and sizes, and the same
// bits for any team, precision and recomputation.
#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "small_model.hpp"
#include "support/compare.hpp"
#include "support/message_of.hpp"
#include "support/random_tensor.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::Mode;

namespace {

nn::ModelConfig tiny() {
  nn::ModelConfig c;
  c.kind = nn::ModelKind::kUvit, c.name = "custom";
  c.input_height = c.input_width = 8, c.in_channels = 3, c.patch_size = 2, c.learn_sigma = false;
  c.hidden_size = 32, c.depth = 5, c.num_heads = 2, c.num_classes = 10;
  return c;
}

nn::ModelConfig named(const char* name) {
  nn::ModelConfig c;
  c.kind = nn::ModelKind::kUvit, c.name = name, c.learn_sigma = false;
  nn::apply_name(c);
  return c;
}

const weights::SafetensorsFile& fixture() {
  static const weights::SafetensorsFile file(DITRAIN_GOLDEN_DIR "/uvit/uvit_tiny.safetensors");
  return file;
}
std::vector<double> fixture(const std::string& name) { return weights::to_f64(fixture().tensor(name)); }
void load(const std::string& name, const Tensor& to) {
  const std::vector<double> values = fixture(name);
  copy(from_values(to.shape(), {values.begin(), values.end()}), to);
}
std::vector<double> values_of(const Tensor& t) { return to_f64(to_vector(t)); }

// The model of the fixture.
struct FixtureRig : Rig {
  explicit FixtureRig(const nn::PassOptions& pass_options = {}, const Crew& crew = {}, Mode mode = Mode::kTraining)
      : Rig(tiny(), 2, pass_options, crew, mode) {
    for (autograd::Parameter* p : model.parameters().state_dict()) load(p->name, p->value);
    round_weights();
    load("in.image", pass.image());
    pass.t() = fixture("in.t");
    const std::vector<double> labels = fixture("in.y");
    for (size_t b = 0; b < labels.size(); ++b) pass.conditions()[b].label = int64_t(labels[b]);
  }
  Outcome run() {
    pass.forward(ctx);
    load("in.dout", pass.dout());
    pass.backward(ctx, autograd::Gradients::kOverwrite);
    return {to_vector(pass.out()), to_vector(model.parameters().grads), to_vector(pass.dimage())};
  }
};

}  // namespace

TEST_CASE("a U-ViT's output and gradients are those of the paper's model in f64") {
  const nn::Recompute recompute = GENERATE(nn::Recompute::kNone, nn::Recompute::kSelective, nn::Recompute::kBlock);
  CAPTURE(int(recompute));
  FixtureRig rig({.want_input_gradient = true, .recompute = recompute});
  rig.run();
  CHECK(compare(values_of(rig.pass.out()), fixture("out"), 1e-5));
  CHECK(compare(values_of(rig.pass.dimage()), fixture("grad.in.image"), 1e-5));
  for (const autograd::Parameter* p : rig.model.parameters().state_dict()) {
    INFO(p->name);
    CHECK(compare(values_of(p->grad), fixture("grad." + p->name), 1e-5));
  }
  // The file has no other tensors than those of the model, its inputs, its output and their gradients.
  CHECK(fixture().tensors().size() == 2 * rig.model.parameters().state_dict().size() + 6);
  // A second micro-batch adds its gradients.
  const std::vector<float> once = to_vector(rig.model.parameters().grads);
  rig.pass.forward(rig.ctx);
  load("in.dout", rig.pass.dout());
  rig.pass.backward(rig.ctx);
  std::vector<double> twice(once.begin(), once.end());
  for (double& g : twice) g *= 2;
  CHECK(compare(values_of(rig.model.parameters().grads), twice, 1e-6));
}

TEST_CASE("a U-ViT gives the same bits for any team, cut and recomputation, and without backward") {
  const nn::PassOptions options{.want_input_gradient = true};
  FixtureRig one(options);
  const Outcome results = one.run();
  for (const Crew& crew : {Crew{3}, Crew{2, 2}, Crew{4, 2, ops::ClusterSplit::kN}}) {
    CAPTURE(crew.workers, crew.clusters);
    FixtureRig rig(options, crew);
    CHECK(rig.run() == results);
  }
  using nn::Recompute;
  nn::PassOptions mixed = options;
  mixed.recompute_of_blocks = {Recompute::kBlock, Recompute::kNone, Recompute::kSelective, Recompute::kBlock,
                               Recompute::kNone};
  FixtureRig rig(mixed);
  CHECK(rig.run() == results);
  FixtureRig inference({}, {2, 2}, Mode::kInference);
  inference.pass.forward(inference.ctx);
  CHECK(to_vector(inference.pass.out()) == to_vector(one.pass.out()));
}

TEST_CASE("a U-ViT embeds channels of a condition beside the image and does not predict them") {
  nn::ModelConfig given = tiny(), all = tiny();
  given.in_channels = 2, given.condition_channels = 1;
  Rig some(given), whole(all);
  nn::initialise(some.model, 3);
  // The same weights; what the model of all channels predicts for the third one is zero and touches no other.
  for (autograd::Parameter* p : some.model.parameters().state_dict()) {
    autograd::Parameter& to = whole.model.parameters().find(p->name);
    if (p->value.shape() == to.value.shape()) {
      copy(p->value, to.value);
      continue;
    }
    ditrain::fill_zero(to.value);
    const Pin<float> from(p->value), rows(to.value);
    const bool conv = p->name.starts_with("final_layer"), bias = p->value.shape().size() == 1;
    const int64_t width = conv || bias ? 1 : p->value.dim(1), places = conv ? 1 : p->value.dim(0) / 2;
    for (int64_t k = 0; k < places; ++k)
      for (int64_t c = 0; c < 2; ++c)
        if (conv && !bias)
          for (int64_t i = 0; i < 2 * 9; ++i) rows[c * 27 + i] = from[c * 18 + i];
        else
          std::copy_n(from + (k * 2 + c) * width, width, rows + (k * 3 + c) * width);
  }
  const Tensor condition = random_tensor({2, 1, 8, 8}, 7), image = random_tensor({2, 2, 8, 8}, 6),
               dout = random_tensor({2, 2, 8, 8}, 8);
  copy(image, some.pass.image()), copy(dout, some.pass.dout());
  ditrain::fill_zero(whole.pass.dout());
  for (int64_t b = 0; b < 2; ++b) {
    const Pin<float> two(image), third(condition), three(whole.pass.image()), d(dout), dall(whole.pass.dout());
    std::copy_n(two + b * 128, 128, three + b * 192);
    std::copy_n(third + b * 64, 64, three + b * 192 + 128);
    std::copy_n(d + b * 128, 128, dall + b * 192);
    some.pass.conditions()[size_t(b)].image.assign(third + b * 64, third + (b + 1) * 64);
  }
  some.pass.forward(some.ctx), whole.pass.forward(whole.ctx);
  const std::vector<float> got = to_vector(some.pass.out()), want = to_vector(whole.pass.out());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i + i / 128 * 64]).margin(1e-6));
  some.pass.backward(some.ctx, autograd::Gradients::kOverwrite);
  whole.pass.backward(whole.ctx, autograd::Gradients::kOverwrite);
  const char* weight = "patch_embed.proj.weight";
  CHECK(compare(values_of(some.model.parameters().find(weight).grad),
                values_of(whole.model.parameters().find(weight).grad), 1e-5));
  some.pass.conditions()[1].image.clear();
  CHECK_THROWS_AS(some.pass.forward(some.ctx), LogicFault);
}

TEST_CASE("a U-ViT in bf16 differs by roundings") {
  FixtureRig rig({.want_input_gradient = true, .precision = DType::kBF16});
  rig.run();
  CHECK(compare(values_of(rig.pass.out()), fixture("out"), 0.03));
  CHECK_FALSE(compare(values_of(rig.pass.out()), fixture("out"), 1e-4));
  for (const char* name : {"in_blocks.0.attn.qkv.weight", "out_blocks.1.skip_linear.weight", "pos_embed"})
    CHECK(compare(values_of(rig.model.parameters().find(name).grad), fixture("grad." + std::string(name)), 0.05));
}

TEST_CASE("U-ViTs have the public names, in the order of the state dict, and the published sizes and work") {
  nn::Model small(named("U-ViT-S/2"));
  const auto all = small.parameters().state_dict();
  REQUIRE(all.size() == 4 + 13 * 11 + 6 * 2 + 6);
  std::vector<std::string> first;
  for (size_t i = 0; i < 15; ++i) first.push_back(all[i]->name);
  CHECK(first ==
        std::vector<std::string>{"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", "label_emb.weight",
                                 "in_blocks.0.norm1.weight", "in_blocks.0.norm1.bias", "in_blocks.0.attn.qkv.weight",
                                 "in_blocks.0.attn.proj.weight", "in_blocks.0.attn.proj.bias",
                                 "in_blocks.0.norm2.weight", "in_blocks.0.norm2.bias", "in_blocks.0.mlp.fc1.weight",
                                 "in_blocks.0.mlp.fc1.bias", "in_blocks.0.mlp.fc2.weight", "in_blocks.0.mlp.fc2.bias"});
  CHECK(all.back()->name == "final_layer.bias");
  CHECK(small.parameters().find("pos_embed").shape == Shape{1, 258, 512});
  CHECK(small.parameters().find("out_blocks.5.skip_linear.weight").shape == Shape{512, 1024});
  CHECK(small.parameters().find("mid_block.attn.qkv.weight").shape == Shape{1536, 512});
  // Table 1 of the paper: millions of parameters, with Table 7's Gflops.
  CHECK(double(nn::Model(named("U-ViT-L/2")).parameters().num_parameters()) * 1e-6 == Approx(287).epsilon(0.01));
  CHECK(double(nn::Model(named("U-ViT-H/2")).parameters().num_parameters()) * 1e-6 == Approx(501).epsilon(0.01));
  CHECK(nn::forward_macs(named("U-ViT-L/2")) * 1e-9 == Approx(77).epsilon(0.01));
  CHECK(nn::forward_macs(named("U-ViT-H/2")) * 1e-9 == Approx(133).epsilon(0.01));
  CHECK(nn::block_reads(named("U-ViT-S/2")).weights == 12.0 * 512 * 512);
}

TEST_CASE("a U-ViT keeps 10 values per block, and the input and the gradient of each skip") {
  const auto kept = [](nn::Recompute recompute, bool skips) {
    nn::Model model(named("U-ViT-S/2"));
    nn::ModelPass pass(model, 1, Mode::kTraining, {.recompute = recompute});
    size_t bytes = 0;
    for (const auto& node : pass.tape().nodes())
      if (node->name().starts_with("out_blocks.2."))
        for (const auto& a : node->kept())
          if (node->name().ends_with("skip_linear") == skips) bytes += a->bytes();
    return double(bytes) / (4.0 * 258 * 512);
  };
  CHECK(kept(nn::Recompute::kSelective, true) == 2);
  CHECK(kept(nn::Recompute::kSelective, false) == Approx(10).epsilon(0.03));
  CHECK(kept(nn::Recompute::kNone, false) == Approx(16).epsilon(0.03));
  CHECK(kept(nn::Recompute::kBlock, false) == Approx(1).epsilon(0.03));
}

TEST_CASE("a U-ViT starts as the public implementation does") {
  nn::Model model(named("U-ViT-S/2"));
  model.parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(model, 3);
  const auto deviation = [&](const std::string& name) {
    const Tensor& t = model.parameters().find(name).value;
    return std::sqrt(dot(t, t) / double(t.size()));
  };
  CHECK(deviation("pos_embed") == Approx(0.02).epsilon(0.02));
  CHECK(deviation("in_blocks.3.attn.qkv.weight") == Approx(0.02).epsilon(0.02));
  CHECK(deviation("out_blocks.0.skip_linear.weight") == Approx(0.02).epsilon(0.02));
  CHECK(deviation("label_emb.weight") == Approx(1).epsilon(0.02));
  CHECK(deviation("patch_embed.proj.weight") == Approx(1 / std::sqrt(3.0 * 16)).epsilon(0.03));  // U(-1/4, 1/4)
  CHECK(deviation("patch_embed.proj.bias") == Approx(1 / std::sqrt(3.0 * 16)).epsilon(0.1));
  CHECK(deviation("norm.weight") == 1);
  CHECK(deviation("in_blocks.0.mlp.fc1.bias") == 0);
}

TEST_CASE("a U-ViT without labels has one token more than the image, and its node slices cover the arena") {
  nn::ModelConfig c = tiny();
  c.num_classes = 0, c.learn_sigma = true;
  nn::Model model(c);
  CHECK(model.parameters().find("pos_embed").shape == Shape{1, 17, 32});
  nn::ModelPass pass(model, 1, Mode::kTraining);
  int64_t end = model.parameters().arena_size();
  for (auto it = pass.tape().nodes().rbegin(); it != pass.tape().nodes().rend(); ++it) {
    CHECK((*it)->parameter_slice().end == end);
    end = (*it)->parameter_slice().begin;
  }
  CHECK(end == 0);
}

TEST_CASE("settings that a U-ViT does not have are refused") {
  const auto refusal = [](const std::function<void(nn::ModelConfig&)>& change) {
    nn::ModelConfig c = tiny();
    change(c);
    return message_of(
        [&] {
          nn::apply_name(c);
          nn::validate(c);
        },
        "");
  };
  using Catch::Contains;
  CHECK(refusal([](auto&) {}) == "");
  CHECK_THAT(refusal([](auto& c) { c.depth = 4; }), Contains("model.depth of a U-ViT; got 4, expected odd"));
  CHECK_THAT(refusal([](auto& c) { c.depth = 1; }), Contains("got 1, expected odd, at least 3"));
  CHECK_THAT(refusal([](auto& c) { c.norm = nn::Norm::kRms; }), Contains("model.norm of a U-ViT; got rms"));
  CHECK_THAT(refusal([](auto& c) { c.mlp = nn::Mlp::kSwiglu; }), Contains("model.mlp of a U-ViT; got swiglu"));
  CHECK_THAT(refusal([](auto& c) { c.qk_norm = nn::QkNorm::kRms; }), Contains("model.qk_norm of a U-ViT; got rms"));
  CHECK_THAT(refusal([](auto& c) { c.position = nn::Position::kRope; }), Contains("model.position of a U-ViT"));
  CHECK_THAT(refusal([](auto& c) { c.patch_overlap = 1; }),
             Contains("model.patch_overlap of a U-ViT; got 1, expected 0"));
  CHECK_THAT(refusal([](auto& c) { c.patch_bottleneck = 8; }), Contains("model.patch_bottleneck of a U-ViT; got 8"));
  CHECK_THAT(refusal([](auto& c) { c.metadata = {"month"}; }), Contains("model.metadata of a U-ViT; got 1 numbers"));
  CHECK_THAT(refusal([](auto& c) { c.name = "DiT-S/2"; }),
             Contains("U-ViT-{S,S-Deep,M,L,H}/{2,4} or custom") && Contains("model.kind: dit, which has this name"));
  CHECK_THAT(refusal([](auto& c) { c.name = "U-ViT-S2"; }), Contains("U-ViT-S/2"));
  nn::Model model(tiny());
  CHECK_FALSE(model.has_modulations());
  CHECK_THROWS_AS(nn::ModulationTable(model, 3), LogicFault);
  CHECK_THROWS_AS(nn::ModelPass(model, 1, Mode::kInference, {.given_modulations = true}), LogicFault);
}
