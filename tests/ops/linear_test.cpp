// Linear layers in f32 and bf16: products with the work around them inside or in passes of its own, by whom they are
// made, the same bits for any team, and types that do not fit.
#include "ditrain/ops/linear.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "ditrain/base/error.hpp"
#include "kernels/kernel_test_utils.hpp"
#include "support/message_of.hpp"
#include "support/random_tensor.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::test;
using ops::LinearInput;
using ops::LinearOutput;

namespace {

/// Uniform in [-magnitude, magnitude).
Tensor uniform(Shape shape, uint64_t salt, DType type = DType::kF32, float magnitude = 1) {
  Tensor t(shape, type);
  copy(from_values(shape, kernels::random_values(num_elements(shape), salt, magnitude)), t);
  return t;
}

std::vector<float> as_f32(const Tensor& t) {
  const Tensor f32(t.shape());
  copy(t, f32);
  return to_vector(f32);
}

/// The sizes of a layer and everything that its products read.
struct Layer {
  int64_t B, T, K, N;
  DType type;
  Tensor x, raw, w, b, dy, stream, before_gelu, before_swiglu;
  ops::NormTerms norm;
  ops::Chunk gate;

  Layer(int64_t batch, int64_t tokens, int64_t inputs, int64_t outputs, DType t)
      : B(batch), T(tokens), K(inputs), N(outputs), type(t) {
    x = uniform({B, T, K}, 1, type), w = uniform({N, K}, 2, type), b = uniform({N}, 3);
    dy = uniform({B, T, N}, 4, type), raw = uniform({B, T, K}, 5), stream = uniform({B, T, N}, 6);
    before_gelu = uniform({B, T, K}, 7, type), before_swiglu = uniform({B, T, 2 * K}, 12, type);
    const Tensor cond = uniform({B, 3 * K}, 8, DType::kF32, 0.5f);
    norm = {uniform({B, T}, 9, DType::kF32, 0.2f), uniform({B, T}, 10), {cond, 1}, {cond, 2}};
    gate = {uniform({B, 2 * N}, 11), 1};
  }
  LinearInput normalised() const { return {raw, norm}; }
  std::string name() const { return to_string(Shape{B, T, K, N}) + " " + dtype_name(type); }
};

/// Everything that the products of a layer write, by name.
using Results = std::map<std::string, std::vector<float>>;

// Results start as values that would be seen if they were left.
Tensor result(Shape shape, DType type) { return uniform(std::move(shape), 77, type); }

void forward(ops::Context& ctx, const Layer& p, const std::string& name, const LinearInput& x, Results& results) {
  const Shape shape{p.B, p.T, p.N};
  for (const Tensor& b : {p.b, Tensor()})
    for (const LinearOutput::Kind kind : {LinearOutput::Kind::kPlain, LinearOutput::Kind::kGelu,
                                          LinearOutput::Kind::kGeluBackward, LinearOutput::Kind::kGateResidual}) {
      const bool gated = kind == LinearOutput::Kind::kGateResidual;
      const Tensor y = result(shape, p.type), out = result(shape, gated ? DType::kF32 : p.type);
      const Tensor in = gated ? p.stream : p.dy;
      ops::linear_forward(ctx, x, p.w, b, y, {kind, in, out, p.gate});
      const std::string key = name + (b.defined() ? " + b, " : ", ") + std::to_string(int(kind));
      results[key] = as_f32(y), results[key + " out"] = as_f32(out);
    }
  if (p.N % 2 != 0) return;
  const Tensor y = result(shape, p.type), swiglu = result({p.B, p.T, p.N / 2}, p.type);
  ops::linear_forward(ctx, x, p.w, p.b, y, ops::then_swiglu(swiglu));
  results[name + " before swiglu"] = as_f32(y), results[name + " swiglu"] = as_f32(swiglu);
}

void backward_data(ops::Context& ctx, const Layer& p, Results& results) {
  const Shape shape{p.B, p.T, p.K};
  const Tensor dx = result(shape, p.type), added = result(shape, DType::kF32), slope = result(shape, p.type),
               slope_only = result(shape, p.type), gelu = result(shape, p.type);
  ops::linear_backward_data(ctx, p.dy, p.w, dx);
  ops::linear_backward_data(ctx, p.dy, p.w, added, /*accumulate=*/true);
  ops::linear_backward_data(ctx, p.dy, p.w, slope, false, ops::times_gelu_slope(p.before_gelu, gelu));
  ops::linear_backward_data(ctx, p.dy, p.w, slope_only, false, ops::times_gelu_slope(p.before_gelu, Tensor()));
  const Tensor halves = result({p.B, p.T, 2 * p.K}, p.type), swiglu = result(shape, p.type);
  ops::linear_backward_data(ctx, p.dy, p.w, halves, false, ops::times_swiglu_slope(p.before_swiglu, swiglu));
  results["dx swiglu'"] = as_f32(halves), results["swiglu"] = as_f32(swiglu);
  results["dx"] = as_f32(dx), results["dx added"] = as_f32(added), results["dx gelu'"] = as_f32(slope);
  results["dx gelu' only"] = as_f32(slope_only), results["gelu"] = as_f32(gelu);
}

void backward_weight(ops::Context& ctx, const Layer& p, const std::string& name, const LinearInput& x,
                     Results& results) {
  for (const bool accumulate : {false, true}) {
    const Tensor dw = result({p.N, p.K}, DType::kF32), db = result({p.N}, DType::kF32),
                 only = result({p.N, p.K}, DType::kF32);
    ops::linear_backward_weight(ctx, x, p.dy, dw, db, accumulate);
    ops::linear_backward_weight(ctx, x, p.dy, only, Tensor(), accumulate);
    const std::string key = name + (accumulate ? " += " : " = ");
    results[key + "dw"] = as_f32(dw), results[key + "db"] = as_f32(db), results[key + "dw only"] = as_f32(only);
  }
}

Results products(ops::Context& ctx, const Layer& p) {
  Results results;
  forward(ctx, p, "x", p.x, results);
  forward(ctx, p, "norm(x)", p.normalised(), results);
  backward_data(ctx, p, results);
  backward_weight(ctx, p, "x", p.x, results);
  backward_weight(ctx, p, "norm(x)", p.normalised(), results);
  return results;
}

using Backend = ops::GemmBackend;

struct Rig {
  explicit Rig(int workers = 1, const ops::GemmSettings& how = {}, int clusters = 1)
      : team({.num_workers = workers, .num_clusters = clusters}), ctx(team) {
    ctx.gemm_settings = how;
  }
  Results run(const Layer& p) { return products(ctx, p); }
  parallel::Team team;
  ops::Context ctx;
};

/// The blocks of before, at the end of a test that sets others.
struct BlocksOfTest {
  const kernels::GemmBlocking before = kernels::gemm_blocking();
  ~BlocksOfTest() { kernels::set_gemm_blocking(before); }
};

/// Odd sizes; sums of more than one chunk forward, in the data gradient, and over rows; few rows; enough of everything
/// for workers to pack together.
std::vector<Layer> layers(DType type) {
  const int64_t long_sum = kernels::kSumChunk + 7;
  return {{2, 19, 45, 67, type},  {2, 9, long_sum, 40, type}, {1, 7, 33, long_sum, type},
          {3, 391, 20, 35, type}, {1, 1, 8, 3, type},         {2, 141, 300, 259, type}};
}

/// Sums of f32 and, in bf16, roundings of the results on the way: `roundings` of at most 2^-8 of what is there, and
/// what a rounded value is multiplied with afterwards (gelu' and gates: at most 1.2).
double limit(const Layer& p, const std::vector<float>& want, int roundings) {
  double largest = 1;
  for (const float v : want) largest = std::max(largest, std::abs(double(v)));
  const int64_t terms = std::max({p.K, p.N, p.B * p.T});
  return 4 * kernels::tolerance(terms, 1.7) + (p.type == DType::kBF16 ? 1.2 * roundings * largest / 256 : 0);
}

void check_close(const Layer& p, const Results& got, const Results& want, int roundings) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, values] : want) {
    INFO(p.name() << ": " << name);
    CHECK(kernels::difference(got.at(name), values, limit(p, values, roundings)) == "");
  }
}

void check_same_bits(const Layer& p, const Results& got, const Results& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, values] : want) {
    INFO(p.name() << ": " << name);
    CHECK(kernels::same_bits(got.at(name), values));
  }
}

}  // namespace

TEST_CASE("linear layers give the same bits for 1, 2, 3 and 8 workers, fused or not, in f32 and bf16") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  const bool fuse = GENERATE(true, false);
  for (const Layer& p : layers(type)) {
    const Results one = Rig(1, {Backend::kOwn, fuse}).run(p);
    for (const int workers : {2, 3, 8}) check_same_bits(p, Rig(workers, {Backend::kOwn, fuse}).run(p), one);
    check_same_bits(p, Rig(5, {Backend::kOwn, fuse}, 2).run(p), one);
  }
}

TEST_CASE("layers of more rows than are summed at a time: the bits of one worker for workers that pack together") {
  // The second layer of an MLP: sums over more than one chunk, results of its type.
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  const Layer p{1, 2100, kernels::kSumChunk + 7, 70, type};
  const auto run = [&](Rig& rig) {
    Results results;
    forward(rig.ctx, p, "x", p.x, results);
    return results;
  };
  Rig one;
  const Results want = run(one);
  for (const auto& [workers, clusters] : {std::pair{2, 1}, {3, 1}, {8, 1}, {5, 2}}) {
    CAPTURE(workers, clusters);
    Rig rig(workers, {}, clusters);
    check_same_bits(p, run(rig), want);
    if (!kernels::multiplies_on_unit(type)) CHECK(rig.ctx.meetings().of_cluster > 0);  // else alone
  }
}

TEST_CASE("gradients of weights in a row, without a meeting between them, have the bits of one after the other") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  for (const Layer& p : layers(type)) {
    const auto run = [&](Rig& rig, bool without_barriers) {
      Results results;
      const Tensor dw = result({p.N, p.K}, DType::kF32), db = result({p.N}, DType::kF32), dw2({p.N, p.K});
      const auto both = [&](ops::Context& each) {
        ops::linear_backward_weight(each, p.x, p.dy, dw, db, /*accumulate=*/false);
        ops::linear_backward_weight(each, p.normalised(), p.dy, dw2, Tensor(), /*accumulate=*/false);
      };
      without_barriers ? rig.ctx.without_barriers(both) : both(rig.ctx);
      results["dw"] = as_f32(dw), results["db"] = as_f32(db), results["dw2"] = as_f32(dw2);
      return results;
    };
    Rig one(1);
    const Results want = run(one, false);
    for (const auto& [workers, clusters] : {std::pair{2, 1}, {3, 1}, {6, 2}, {5, 5}}) {
      Rig rig(workers, {}, clusters);
      const int64_t before = rig.ctx.meetings().of_team;
      check_same_bits(p, run(rig, true), want);
      CHECK(rig.ctx.meetings().of_team == before + 1);
    }
  }
}

TEST_CASE("products in a row that pack together may grow: none loses what it still reads") {
  const Layer small{2, 141, 260, 300, DType::kF32}, large{2, 141, 700, 300, DType::kF32};
  const auto gradients = [&](int workers) {
    Rig rig(workers);
    const Tensor first = result({small.N, small.K}, DType::kF32), second = result({large.N, large.K}, DType::kF32);
    rig.ctx.without_barriers([&](ops::Context& each) {
      ops::linear_backward_weight(each, small.x, small.dy, first, Tensor(), /*accumulate=*/false);
      ops::linear_backward_weight(each, large.x, large.dy, second, Tensor(), /*accumulate=*/false);
    });
    return std::pair(as_f32(first), as_f32(second));
  };
  const auto want = gradients(1);
  for (int i = 0; i < 20; ++i) {
    const auto got = gradients(4);
    CHECK(kernels::same_bits(got.first, want.first));
    CHECK(kernels::same_bits(got.second, want.second));
  }
}

TEST_CASE("products in passes: in f32 the bits of fused ones, in bf16 those values but for roundings") {
  for (const Layer& p : layers(DType::kF32)) check_same_bits(p, Rig(2, {Backend::kOwn, false}).run(p), Rig(2).run(p));
  // The sum, the bias on top of it and the epilogue on top of that are each rounded.
  for (const Layer& p : layers(DType::kBF16)) check_close(p, Rig(2, {Backend::kOwn, false}).run(p), Rig(2).run(p), 3);
}

TEST_CASE("a matrix unit gives the same bits of an operand that is normalised before the product or on the way") {
  if (!kernels::multiplies_on_unit(DType::kBF16)) SKIP("no matrix unit");
  const BlocksOfTest blocks;
  const Layer p(2, 80, 352, 416, DType::kBF16);
  kernels::set_gemm_blocking({1024, 1536});  // b is one block
  const Results want = Rig(2).run(p);
  kernels::set_gemm_blocking({28, 1536});  // b is more than two blocks
  for (const int workers : {1, 3}) check_same_bits(p, Rig(workers).run(p), want);
}

TEST_CASE("pieces that workers take of each other's parts on a matrix unit change no bit") {
  if (!kernels::multiplies_on_unit(DType::kBF16)) SKIP("no matrix unit");
  const BlocksOfTest blocks;
  const auto check = [&](const Layer& p, const kernels::GemmBlocking& of_workers) {
    kernels::set_gemm_blocking({182, 1536});
    const Results want = Rig(1).run(p);
    kernels::set_gemm_blocking(of_workers);
    for (const int workers : {2, 3}) check_same_bits(p, Rig(workers).run(p), want);
  };
  check({2, 4100, 64, 96, DType::kBF16}, {182, 1536});  // rows that share panels of b, and are read in place
  check({3, 141, 608, 544, DType::kBF16}, {28, 128});   // columns, those of gradients of weights, too
  check({3, 141, 608, 544, DType::kBF16}, {28, 1536});  // rows of gradients of weights
}

TEST_CASE("products of the reference, with passes around them, are those of our kernels") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  for (const Layer& p : layers(type)) check_close(p, Rig(2, {Backend::kReference}).run(p), Rig(2).run(p), 3);
}

TEST_CASE("a layer on patches of images is one on their pixels as tokens, by whatever makes the products") {
  constexpr int64_t B = 3, C = 4, H = 8, W = 12, P = 2, T = H / P * (W / P), K = C * P * P, N = 70;
  const Tensor images = uniform({B, C, H, W}, 1), b = uniform({N}, 3), dy = uniform({B, T, N}, 4);
  std::vector<float> pixels = to_vector(images), values;
  for (int64_t token = 0; token < B * T; ++token)
    for (int64_t k = 0; k < K; ++k) {
      const int64_t y = token % T / (W / P) * P + k / P % P, x = token % (W / P) * P + k % P;
      values.push_back(pixels[size_t(((token / T * C + k / (P * P)) * H + y) * W + x)]);
    }
  const Tensor tokens = from_values({B, T, K}, values);
  parallel::Team team({.num_workers = 2});
  ops::Context ctx(team);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Tensor w = uniform({N, C, P, P}, 2, type);
    const auto results = [&](const LinearInput& x) {
      const Tensor y({B, T, N}), dw({N, C, P, P}), db({N});
      ops::linear_forward(ctx, x, w, b, y);
      ops::linear_backward_weight(ctx, x, dy, dw, db, false);
      return Results{{"y", to_vector(y)}, {"dw", to_vector(dw)}, {"db", to_vector(db)}};
    };
    for (const auto backend : {Backend::kOwn, Backend::kReference})
      for (const bool fuse : {true, false}) {
        CAPTURE(dtype_name(type), int(backend), fuse);
        ctx.gemm_settings = {backend, fuse};
        CHECK(results(LinearInput::patches(images, P)) == results(tokens));
      }
  }
  const Tensor w = uniform({N, C, P, P}, 2), y({B, T, N});
  ctx.gemm_settings = {};
  const auto refused = [&](const Tensor& x, int64_t patch) {
    CHECK_THROWS_AS(ops::linear_forward(ctx, LinearInput::patches(x, patch), w, b, y), ShapeError);
  };
  refused(images, 4);
  refused(images, 3);
  refused(images, -2);
  refused(tokens, P);
  refused(uniform({B, H, C, W}, 1), P);
  refused(uniform({B, C, H, W}, 1, DType::kBF16), P);
}

TEST_CASE("bf16 layers are f32 layers on the rounded values, and round their results once") {
  for (const Layer& p : layers(DType::kBF16)) {
    Layer rounded(p.B, p.T, p.K, p.N, DType::kF32);
    for (auto [from, to] : {std::pair{&p.x, &rounded.x}, {&p.w, &rounded.w}, {&p.dy, &rounded.dy}}) copy(*from, *to);
    Rig rig(2);
    const Tensor y = result({p.B, p.T, p.N}, DType::kF32), y_rounded = result(y.shape(), DType::kBF16),
                 want = result(y.shape(), DType::kF32);
    ops::linear_forward(rig.ctx, rounded.x, rounded.w, p.b, want);
    ops::linear_forward(rig.ctx, p.x, p.w, p.b, y);
    ops::linear_forward(rig.ctx, p.x, p.w, p.b, y_rounded);
    check_close(rounded, {{"y", as_f32(y)}}, {{"y", as_f32(want)}}, 0);
    const Tensor once(y.shape(), DType::kBF16);
    copy(y, once);
    CHECK(as_f32(y_rounded) == as_f32(once));

    // A normalised input is rounded where it enters the product.
    const Tensor h(p.raw.shape(), DType::kBF16), mean(p.norm.mean.shape()), rstd(p.norm.rstd.shape());
    ops::layer_norm_modulate_forward(rig.ctx, p.raw, p.norm.shift, p.norm.scale, h, mean, rstd);
    const Tensor from_kept = result(y.shape(), DType::kF32);
    ops::linear_forward(rig.ctx, h, p.w, p.b, from_kept);
    ops::linear_forward(rig.ctx, {p.raw, {mean, rstd, p.norm.shift, p.norm.scale}}, p.w, p.b, y);
    CHECK(as_f32(y) == as_f32(from_kept));

    const Tensor dw = result({p.N, p.K}, DType::kF32), dw_want = clone(dw), db({p.N}), db_want({p.N});
    ops::linear_backward_weight(rig.ctx, p.x, p.dy, dw, db);
    ops::linear_backward_weight(rig.ctx, rounded.x, rounded.dy, dw_want, db_want);
    check_close(rounded, {{"dw", as_f32(dw)}, {"db", as_f32(db)}}, {{"dw", as_f32(dw_want)}, {"db", as_f32(db_want)}},
                0);
  }
}

TEST_CASE("linear layers refuse types that do not fit, and say which") {
  Rig rig;
  ops::Context& ctx = rig.ctx;
  const Layer p(2, 3, 8, 4, DType::kF32);
  const auto bf16 = [](const Tensor& t) { return Tensor(t.shape(), DType::kBF16); };
  const Tensor y({2, 3, 4}), half_y = bf16(y), dx({2, 3, 8}), dw({4, 8}), labels({2, 3, 8}, DType::kI64);

  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, p.x, p.w, bf16(p.b), y); }) ==
        "[linear_forward] type of b; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, p.x, p.w, p.b, half_y); }) ==
        "[linear_forward] type of the product of f32 tensors; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_backward_data(ctx, p.dy, p.w, bf16(dx)); }) ==
        "[linear_backward_data] type of the product of f32 tensors; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, labels, p.w, p.b, y); }) ==
        "[linear_forward] type of an operand; got i64, expected f32 or bf16");
  CHECK(message_of<ShapeError>([&] { ops::linear_backward_data(ctx, p.dy, p.w, bf16(dx), true); }) ==
        "[linear_backward_data] type of a gradient that is added to; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_backward_weight(ctx, p.x, p.dy, bf16(dw), p.b); }) ==
        "[linear_backward_weight] type of dw; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_backward_weight(ctx, p.x, p.dy, dw, bf16(p.b)); }) ==
        "[linear_backward_weight] type of db; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, {bf16(p.raw), p.norm}, p.w, p.b, y);
        }) == "[linear_forward] type of a normalised input; got bf16, expected f32");
  ops::NormTerms wrong = p.norm;
  wrong.mean = bf16(wrong.mean);
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, {p.raw, wrong}, p.w, p.b, y);
        }) == "[linear_forward] type of what a normalised input needs; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, p.x, p.w, p.b, y, ops::then_gelu(half_y)); }) ==
        "[linear_forward] type of what an epilogue writes; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_backward_data(ctx, p.dy, p.w, dx, false, ops::times_gelu_slope(bf16(dx), {}));
        }) == "[linear_backward_data] type of what an epilogue reads; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, p.x, bf16(p.w), p.b, half_y, ops::then_gate_residual(p.stream, p.gate, half_y));
        }) == "[linear_forward] type of what an epilogue writes; got bf16, expected f32");
  CHECK(message_of<ShapeError>([&] {
          const ops::Chunk gate{bf16(p.gate.cond), 1};
          ops::linear_forward(ctx, p.x, p.w, p.b, y, ops::then_gate_residual(p.stream, gate, y));
        }) == "[linear_forward] type of a gate; got bf16, expected f32");
}

TEST_CASE("linear layers refuse shapes around the product that do not fit") {
  Rig rig;
  ops::Context& ctx = rig.ctx;
  const Layer p(2, 3, 8, 4, DType::kF32);
  const Tensor y({2, 3, 4}), flat({6, 4});
  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, p.x, p.w, p.b, y, ops::then_gelu(Tensor())); }) ==
        "[linear_forward] what an epilogue writes; got nothing, expected [2, 3, 4]");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, p.x, p.w, p.b, y, {LinearOutput::Kind::kGeluBackward, {}, y, {}});
        }) == "[linear_forward] what an epilogue reads; got nothing, expected [2, 3, 4]");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, p.x, p.w, p.b, y, ops::then_gate_residual(flat, p.gate, y));
        }) == "[linear_forward] what an epilogue reads; got [6, 4], expected [2, 3, 4]");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, p.x, p.w, p.b, flat, ops::then_gate_residual(flat, p.gate, flat));
        }) == "[linear_forward] the result before a gate; got [6, 4], expected [B, T, C]");
  CHECK(message_of<ShapeError>([&] {
          ops::linear_forward(ctx, {p.raw.reshaped({6, 8}), p.norm}, p.w, p.b, y);
        }) == "[linear_forward] a normalised input; got [6, 8], expected [B, T, C]");
  CHECK(message_of<ShapeError>([&] { ops::linear_forward(ctx, p.x, p.w, Tensor({3}), y); }) ==
        "[linear_forward] b; got [3], expected [4]");
}
