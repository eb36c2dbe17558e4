// Fixtures of other sizes and seeds, made by our own model: what is tested is that nothing is taken for granted but
// what the file says. And results do not depend on the number of workers.
#include <catch2/catch.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/verify/formula.hpp"
#include "ditrain/verify/verify.hpp"
#include "editable_fixture.hpp"

using namespace ditrain;
using namespace ditrain::verify;
using test::EditableFixture;
using test::run;

namespace {

constexpr int64_t kBatch = 3;

nn::ModelConfig small_config(bool learn_sigma) {
  nn::ModelConfig c;
  c.name = "custom", c.input_height = c.input_width = 12, c.patch_size = 3, c.in_channels = 2;
  c.hidden_size = 96, c.depth = 3, c.num_heads = 6, c.num_classes = 5, c.learn_sigma = learn_sigma;
  return c;
}

std::vector<float> normals(int64_t n, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  RandomKey(5, Stream::kTest, stream).fill_normal(values.data(), n);
  return values;
}

/// Forward and backward of one batch with formula weights.
struct Results {
  Results(const nn::ModelConfig& config, const std::string& suffix, int num_workers)
      : team({.num_workers = num_workers}), ctx(team), model(config), pass_config(config) {
    model.parameters().allocate(autograd::ParameterStore::For::kTraining);
    nn::initialise(model, 1);  // for pos_embed
    for (autograd::Parameter* p : model.parameters().state_dict())
      if (p->trainable) fill_by_formula(p->name, suffix, p->shape, 0, p->size(), Pin<float>(p->value));
    nn::ModelPass pass(model, kBatch, autograd::Mode::kTraining, {.want_input_gradient = true});
    pass.allocate();
    x = normals(pass.image().size(), 1), dout = normals(pass.out().size(), 2);
    std::copy(x.begin(), x.end(), Pin<float>(pass.image()).get());
    pass.t() = {0, 500, 999}, pass.conditions() = conditions_of({4, 5, 2});
    pass.forward(ctx);
    out = to_vector(pass.out());
    std::copy(dout.begin(), dout.end(), Pin<float>(pass.dout()).get());
    pass.backward(ctx);
    dimage = to_vector(pass.dimage());
  }
  parallel::Team team;
  ops::Context ctx;
  nn::Model model;
  nn::ModelConfig pass_config;
  std::vector<float> x, dout, out, dimage;
};

template <class T>
std::vector<double> widen(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

void put_settings(EditableFixture& f, const nn::ModelConfig& c) {
  f.metadata = {{"file", "dit_tiny.safetensors"}, {"key_suffix", ".7"}};
  f.put_setting("cfg.input_size", c.input_height), f.put_setting("cfg.patch_size", c.patch_size);
  f.put_setting("cfg.in_channels", c.in_channels), f.put_setting("cfg.hidden_size", c.hidden_size);
  f.put_setting("cfg.depth", c.depth), f.put_setting("cfg.num_heads", c.num_heads);
  f.put_setting("cfg.num_classes", c.num_classes), f.put_setting("cfg.learn_sigma", c.learn_sigma ? 1 : 0);
}

EditableFixture make_fixture(bool learn_sigma) {
  const nn::ModelConfig c = small_config(learn_sigma);
  Results r(c, ".7", 2);
  EditableFixture f;
  put_settings(f, c);
  const Shape image{kBatch, c.in_channels, 12, 12}, output{kBatch, c.out_channels(), 12, 12};
  f.put("x", "F32", image, r.x), f.put("dout", "F32", output, r.dout);
  f.put<int64_t>("t", "I64", {kBatch}, {0, 500, 999}), f.put<int64_t>("y", "I64", {kBatch}, {4, 1, 2});
  f.put<int64_t>("force_drop_ids", "I64", {kBatch}, {0, 1, 0});
  f.put<int64_t>("y_dropped", "I64", {kBatch}, {4, 5, 2});
  f.put("out", "F32", output, r.out), f.put("grad_x", "F32", image, r.dimage);
  for (const char* name : {"out.f64", "out.f64s"}) f.put(name, "F64", output, widen(r.out));
  f.put("grad_x.f64", "F64", image, widen(r.dimage));
  for (const autograd::Parameter* p : r.model.parameters().state_dict()) {
    f.put(p->name, "F32", p->shape, to_vector(p->value));
    if (p->trainable) f.put("grad." + p->name, "F32", p->shape, to_vector(p->grad));
  }
  if (learn_sigma) {
    const Results without(small_config(false), ".7", 1);
    f.put("ls0.out", "F32", image, without.out), f.put("ls0.out.f64", "F64", image, widen(without.out));
  }
  return f;
}

}  // namespace

TEST_CASE("sizes, seed and variance channels are those of the file") {
  for (const bool learn_sigma : {true, false}) {
    EditableFixture fixture = make_fixture(learn_sigma);
    const Report report = run(fixture);
    CHECK(report.passed);
    const int64_t parameters = 1 + 2 + 4 + 1 + 3 * 10 + 4, outputs = 5, labels = 1;  // pos_embed has no gradient
    CHECK(report.compared == 2 * parameters - 1 + outputs + labels + (learn_sigma ? 2 : 0));
    fixture.shift("grad.blocks.2.mlp.fc1.bias", 17, 0.01 * fixture.largest("grad.blocks.2.mlp.fc1.bias"));
    CHECK_FALSE(run(fixture).passed);
  }
}

TEST_CASE("a model at full size is the one that the file names") {
  EditableFixture f;
  const int64_t size = 16, parameters = 131;  // DiT-S/8: four tokens
  f.metadata = {{"file", "dit_s8_stats.safetensors"}, {"model", "DiT-S/8"}, {"key_suffix", ".7"}};
  f.put_setting("cfg.input_size", size), f.put_setting("cfg.num_classes", 5), f.put_setting("cfg.batch", 1);
  const Shape image{1, 4, size, size}, output{1, 8, size, size};
  for (const char* name : {"x_start", "noise"})
    f.put(name, "F32", image, formula_input(std::string("dit_s8.") + name + ".7", 1.7, 4 * size * size));
  f.put<int64_t>("t", "I64", {1}, {500}), f.put<int64_t>("y", "I64", {1}, {5});
  const auto put_zeros = [&](const std::string& name, const Shape& shape) {
    f.put(name, "F32", shape, std::vector<float>(size_t(num_elements(shape))));
  };
  for (const std::string end : {"", ".f64"}) {
    for (const char* name : {"mse", "vb", "loss_per_sample", "loss"}) put_zeros(name + end, {1});
    put_zeros("out" + end, output);
    for (const char* name : {"grad_norm", "grad_mean"}) put_zeros(name + end, {parameters});
    put_zeros("grad_sample" + end, {parameters, 2});
  }
  put_zeros("out.f64s", output);
  f.put<int64_t>("grad_index", "I64", {parameters, 2}, std::vector<int64_t>(size_t(2 * parameters)));
  const auto passed = [](const Report& report, const std::string& tensor) {
    for (const Comparison& c : report.comparisons)
      if (c.tensor == tensor) return c.passed;
    throw std::logic_error(tensor + " was not compared");
  };
  const Report report = run(f);  // shapes are those of S/8, or this would throw; nothing is zero
  for (const char* name : {"x_start", "noise"}) CHECK(passed(report, name));
  for (const char* name : {"mse", "out", "grad_norm"}) CHECK_FALSE(passed(report, name));
  f.metadata["file"] = "dit_s4_stats.safetensors";  // the keys of the inputs are others
  CHECK_FALSE(passed(run(f), "x_start"));
  f.metadata["model"] = "DiT-S/3";
  CHECK_THROWS_WITH(run(f), Catch::Contains("unknown model.name; got DiT-S/3"));
  f.metadata.erase("model");
  CHECK_THROWS_WITH(run(f), Catch::Contains("cfg.patch_size"));
  f.metadata["model"] = "DiT-B/8";
  f.put_setting("cfg.depth", 1);
  CHECK_THROWS_WITH(run(f), Catch::Contains("grad_index has an unexpected shape"));
}

TEST_CASE("a flow fixture has as many samples to train and to draw, and the guidance, that the file says") {
  EditableFixture f(test::golden_path("flow"));
  const auto keep = [&](const std::string& name, int64_t axis, const std::vector<int64_t>& samples) {
    EditableFixture::Entry& e = f.tensors.at(name);
    const int64_t outer = axis == 0 ? 1 : e.shape[0];
    const size_t stride = e.bytes.size() / size_t(outer * e.shape[size_t(axis)]);
    std::vector<std::byte> bytes;
    for (int64_t o = 0; o < outer; ++o)
      for (const int64_t i : samples) {
        const auto from = e.bytes.begin() + (o * e.shape[size_t(axis)] + i) * int64_t(stride);
        bytes.insert(bytes.end(), from, from + int64_t(stride));
      }
    e.bytes = bytes, e.shape[size_t(axis)] = int64_t(samples.size());
  };
  for (const auto& [name, entry] : std::map(f.tensors)) {
    const bool trained = name == "x1" || name == "x0" || name == "t" || name == "t_in" || name == "y" ||
                         name.starts_with("linear.") || name.starts_with("t_in.") || name.starts_with("train.pred") ||
                         name.starts_with("train.loss");
    if (trained) keep(name, 0, {2, 0, 3});
    if (name == "z" || name == "ode.y") keep(name, 0, {1, 0, 1, 3, 2, 3});
    if (name.starts_with("ode.") && name != "ode.y") keep(name, 1, {1, 0, 1, 3, 2, 3});
  }
  const auto failed = [](const Report& report) {
    std::set<std::string> names;
    for (const Comparison& c : report.comparisons)
      if (!c.passed) names.insert(c.tensor);
    return names;
  };
  // The gradient is of the mean over the samples that were trained on, and others than three were.
  const std::set<std::string> gradients = {"train.grad_norm", "train.grad_norm.f64"};
  CHECK(failed(run(f)) == gradients);
  f.data<double>("cfg_scale")[0] += 1;
  CHECK(failed(run(f)) == std::set<std::string>{"train.grad_norm", "train.grad_norm.f64", "ode.euler", "ode.euler.f64",
                                                "ode.heun2", "ode.heun2.f64"});
  keep("z", 0, {1, 0, 1});
  CHECK_THROWS_WITH(run(f), Catch::Contains("z has no two halves; got 3 samples"));
}

TEST_CASE("weights of another seed are found") {
  EditableFixture fixture = make_fixture(false);
  fixture.metadata["key_suffix"] = "";
  const Report report = run(fixture);
  CHECK_FALSE(report.passed);
  for (const Comparison& c : report.comparisons) {
    const bool weight = !c.tensor.starts_with("grad.") && (c.tensor.ends_with("weight") || c.tensor.ends_with("bias"));
    INFO(c.tensor);
    CHECK(c.passed == !weight);
  }
}

TEST_CASE("a model's results are the same bits for any number of workers") {
  Results one(small_config(true), "", 1);
  for (const int workers : {2, 3, 5}) {
    Results many(small_config(true), "", workers);
    CHECK(many.out == one.out);
    CHECK(many.dimage == one.dimage);
    CHECK(to_vector(many.model.parameters().grads) == to_vector(one.model.parameters().grads));
  }
}
