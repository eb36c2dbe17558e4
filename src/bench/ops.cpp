#include "ditrain/bench/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/gemm.hpp"
#include "ditrain/diffusion/diffusion.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/softmax.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/random.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::bench {
namespace {

using kernels::StreamMix;

// The arrays that an operator has to move, each once (an updated one both ways).
struct Streams {
  std::vector<Tensor> reads = {}, writes = {}, updates = {};
};

// One pass of the limiting loop: pieces of equal length of all arrays.
struct StreamLoop {
  StreamMix mix;
  std::vector<float*> arrays;
  int64_t n = 0;
};

// Arrays of two lengths (f32 beside bf16) can be walked through in several ways: the longer ones in pieces of the
// shorter side by side, the shorter with the first part of the longer and then the rest, or one length after the other.
// The fastest way is the limit.
class StreamLimit {
 public:
  StreamLimit(Harness& harness, const Streams& streams) {
    add(streams.reads, 0), add(streams.writes, 1), add(streams.updates, 2);
    std::stable_sort(arrays_.begin(), arrays_.end(), [](const Array& a, const Array& b) { return a.words < b.words; });
    const int64_t shortest = arrays_.front().words;
    const auto middle =
        std::partition_point(arrays_.begin(), arrays_.end(), [&](const Array& a) { return a.words == shortest; });
    std::vector<Way> ways = {{loop_of(arrays_, shortest)}};
    if (middle != arrays_.end()) {
      std::vector<Array> first = arrays_, rest(middle, arrays_.end());
      for (Array& a : first) a.words = shortest;
      for (Array& a : rest) a.p += shortest, a.words -= shortest;
      ways.push_back({loop_of(first, shortest), loop_of(rest, rest.front().words)});
      ways.push_back({loop_of({arrays_.begin(), middle}, shortest), loop_of({middle, arrays_.end()}, middle->words)});
    }
    double best_s = std::numeric_limits<double>::infinity();
    for (const Way& way : ways) {
      if (!std::all_of(way.begin(), way.end(), exists)) continue;
      for (int repeat = 0; repeat < (ways.size() > 1 ? 3 : 1); ++repeat) {
        const double start = now_s();
        run(harness, way);
        const double seconds = now_s() - start;
        if (seconds < best_s) best_s = seconds, loops_ = way;
      }
    }
  }

  void run(Harness& harness) const { run(harness, loops_); }
  double bytes() const {
    double words = 0;
    for (const Array& a : arrays_) words += double(a.words) * (a.role == 2 ? 2 : 1);
    return words * sizeof(float);
  }

 private:
  using Way = std::vector<StreamLoop>;  // one after the other
  struct Array {
    float* p;
    int64_t words;
    int role;  // 0 read, 1 written, 2 updated
  };

  static bool exists(const StreamLoop& loop) {
    const StreamMix& mix = loop.mix;
    return mix.reads <= kernels::kMaxStreamReads && mix.writes <= kernels::kMaxStreamWrites &&
           mix.updates <= kernels::kMaxStreamUpdates;
  }
  static void run(Harness& harness, const Way& way) {
    for (const StreamLoop& loop : way) harness.stream(loop.mix, loop.arrays, loop.n);
  }
  void add(const std::vector<Tensor>& tensors, int role) {
    for (const Tensor& t : tensors) {
      held_.push_back(std::make_unique<Held>(t));
      arrays_.push_back({static_cast<float*>(held_.back()->get()), int64_t(t.bytes() / sizeof(float)), role});
    }
  }
  static StreamLoop loop_of(const std::vector<Array>& arrays, int64_t words) {
    StreamLoop loop{.mix = {}, .arrays = {}, .n = words};
    int* const counts[] = {&loop.mix.reads, &loop.mix.writes, &loop.mix.updates};
    for (int role = 0; role < 3; ++role)
      for (const Array& a : arrays)
        for (int64_t i = 0; a.role == role && i + words <= a.words; i += words) {
          loop.arrays.push_back(a.p + i);
          ++*counts[role];
        }
    return loop;
  }

  std::vector<std::unique_ptr<Held>> held_;
  std::vector<Array> arrays_;
  Way loops_;
};

// The rows of one precision. Values lie in [0, 1): the limiting loops keep them there, and roots of them are real.
class ElementwiseRows {
 public:
  ElementwiseRows(Harness& harness, const ModelShape& model, DType activation)
      : harness_(harness), ctx_(harness.ctx()), activation_(activation), C_(model.width) {
    const int64_t image = kTokens * C_ * int64_t(sizeof(float));
    B_ = (int64_t(harness.cold_bytes()) + image - 1) / image;
  }

  void add_all() {
    activations();
    norms();
    gates();
    if (activation_ == DType::kF32) {
      f32_only();
      softmax_and_noise();
      loss();
    }
    optimizer();
  }

 private:
  Tensor array(DType type) const { return random_tensor(ctx_, {B_, kTokens, C_}, 0, 1, type); }
  ops::Chunk chunk(int64_t index) const { return {random_tensor(ctx_, {B_, 3 * C_}, 0, 1), index}; }

  void add(const std::string& name, DType type, const Streams& streams, std::function<void()> call) {
    add(name, type, streams, std::move(call), B_ * kTokens, C_);
  }
  void add(const std::string& name, DType type, const Streams& streams, std::function<void()> call, int64_t rows,
           int64_t cols) {
    const StreamLimit limit(harness_, streams);
    harness_.add(harness_.measure({.name = name,
                                   .dtype = type,
                                   .call = std::move(call),
                                   .bytes = limit.bytes(),
                                   .limit = [&] { limit.run(harness_); },
                                   .details = {{"rows", rows}, {"cols", cols}}}));
  }

  void activations() {
    const Tensor x = array(activation_), y = array(activation_);
    add("tanh-GELU forward", activation_, {{x}, {y}}, [&] { ops::gelu_forward(ctx_, x, y); });
    add("tanh-GELU backward", activation_, {{x}, {}, {y}}, [&] { ops::gelu_backward(ctx_, x, y, y); });
    if (activation_ != DType::kF32) return;
    add("SiLU forward", activation_, {{x}, {y}}, [&] { ops::silu_forward(ctx_, x, y); });
    add("SiLU backward", activation_, {{x}, {}, {y}}, [&] { ops::silu_backward(ctx_, x, y, y); });
  }

  void norms() {
    const Tensor x = array(DType::kF32), h = array(activation_), dx = array(DType::kF32);
    const Tensor mean({B_, kTokens}), rstd({B_, kTokens});
    const ops::Chunk shift = chunk(0), scale = chunk(1), dshift = chunk(0), dscale = chunk(1);
    add("LayerNorm+modulate forward", activation_, {{x}, {h}},
        [&] { ops::layer_norm_modulate_forward(ctx_, x, shift, scale, h, mean, rstd); });
    add("LayerNorm+modulate backward", activation_, {{x, h}, {}, {dx}},
        [&] { ops::layer_norm_modulate_backward(ctx_, x, mean, rstd, scale, h, dx, dshift, dscale); });
  }

  void gates() {
    const Tensor x = array(DType::kF32), h = array(activation_), y = array(DType::kF32), dh = array(activation_);
    const ops::Chunk gate = chunk(2), dgate = chunk(2);
    add("gate+residual forward", activation_, {{x, h}, {y}}, [&] { ops::gate_residual_forward(ctx_, x, gate, h, y); });
    add("gate+residual backward", activation_, {{x, h}, {dh}},
        [&] { ops::gate_residual_backward(ctx_, x, gate, h, dh, dgate); });
  }

  void f32_only() {
    const Tensor x = array(DType::kF32), y = array(DType::kF32), z = array(DType::kF32), half = array(DType::kBF16);
    const Pin<float> px(x), py(y), pz(z);
    const Pin<BFloat16> phalf(half);
    const auto split = [&](auto kernel) {
      ctx_.for_range(x.size(), 1024, [&](int64_t i, int64_t end, const parallel::Worker&) { kernel(i, end - i); });
    };
    add("q_sample", DType::kF32, {{x, y}, {z}},
        [&] { split([&](int64_t i, int64_t n) { kernels::scale_add(0.8f, px + i, 0.6f, py + i, pz + i, n); }); });
    add("add", DType::kF32, {{x}, {}, {y}}, [&] { ops::add(ctx_, x, y); });
    add("sum of squares", DType::kF32, {{x}}, [&] { ops::sum_squares(ctx_, x); });
    add("cast to bf16", DType::kF32, {{x}, {half}},
        [&] { split([&](int64_t i, int64_t n) { kernels::convert(px + i, phalf + i, n); }); });
    add("cast from bf16", DType::kBF16, {{half}, {y}},
        [&] { split([&](int64_t i, int64_t n) { kernels::convert(phalf + i, py + i, n); }); });
  }

  void softmax_and_noise() {
    const Tensor x = array(DType::kF32), y = array(DType::kF32), z = array(DType::kF32);
    const Pin<float> px(x), py(y), pz(z);
    const auto rows = [&](auto kernel) {
      ctx_.for_range(B_ * kTokens, 1,
                     [&](int64_t r, int64_t end, const parallel::Worker&) { kernel(r * C_, end - r); });
    };
    add("softmax forward", DType::kF32, {{x}, {z}},
        [&] { rows([&](int64_t i, int64_t n) { kernels::softmax_forward(px + i, pz + i, n, C_); }); });
    add("softmax backward", DType::kF32, {{x, y}, {z}},
        [&] { rows([&](int64_t i, int64_t n) { kernels::softmax_backward(px + i, py + i, pz + i, n, C_); }); });
    const RandomKey key(0, Stream::kTest, 2);
    add("normals", DType::kF32, {{}, {z}}, [&] { ops::fill_normal(ctx_, {&key, 1}, z.size(), pz); });
  }

  // The default loss with its gradient, on samples of 4 x 32 x 32.
  void loss() {
    const diffusion::Shape shape{.channels = 4, .pixels = 1024};
    const int64_t n = int64_t(harness_.cold_bytes()) / (shape.elements() * int64_t(sizeof(float))) + 1;
    const auto samples = [&](int64_t channels) { return random_tensor(ctx_, {n, channels, shape.pixels}, 0, 1); };
    const Tensor x0 = samples(4), x_t = samples(4), noise = samples(4), out = samples(8), dout = samples(8);
    const Pin<float> px0(x0), px_t(x_t), pnoise(noise), pout(out), pdout(dout);
    const std::vector<int64_t> t(size_t(n), 500);
    std::vector<diffusion::LossTerms> terms(t.size());
    const diffusion::Schedule schedule = diffusion::make_schedule("linear", 1000);
    const diffusion::Rules rules = diffusion::make_rules({}, /*learn_sigma=*/true);
    add(
        "loss mse_vb and gradient", DType::kF32, {{x0, x_t, noise, out}, {dout}},
        [&] {
          ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
            diffusion::training_loss(schedule, rules, shape, {px0, px_t, pnoise, t.data(), pout}, 1, pdout,
                                     terms.data(), begin, end);
          });
        },
        n, shape.elements());
  }

  void optimizer() {
    autograd::ParameterStore store;
    store.add("w", {B_, kTokens, C_});
    store.allocate(autograd::ParameterStore::For::kTraining, activation_);
    Streams streams{.reads = {store.grads}, .updates = {store.values, store.exp_avg, store.exp_avg_sq, store.ema}};
    if (store.values_bf16.defined()) streams.writes = {store.values_bf16};
    for (const std::vector<Tensor>* all : {&streams.reads, &streams.updates})
      for (const Tensor& t : *all) fill_random(ctx_, t, 0, 1);
    const optim::StepSettings settings{.step = 10, .lr = 1e-4, .ema_decay = 0.9999};
    add("AdamW+EMA", activation_, streams, [&] { optim::adamw_ema_step(ctx_, {}, settings, store); });
  }

  Harness& harness_;
  ops::Context& ctx_;
  DType activation_;
  int64_t B_ = 1, C_;
};

void attention_rows(Harness& harness, const OpsBench& bench, int64_t T, int64_t D) {
  constexpr int64_t kManyTokens = 1024;
  const int64_t heads = T <= kManyTokens ? 16 : 4, B = std::max<int64_t>(1, bench.attention_rows / T);
  ops::Context& ctx = harness.ctx();
  const auto array = [&](int64_t width) { return random_tensor(ctx, {B, T, width}, -1, 1, bench.precision); };
  const Tensor qkv = array(3 * heads * D), out = array(heads * D), dout = array(heads * D), dqkv = array(3 * heads * D);
  const Tensor lse({B, heads, T});
  const double forward_flop = 4.0 * double(B * heads) * double(T) * double(T) * double(D);
  const auto add = [&](const char* pass, double flop, const std::function<void()>& call) {
    harness.add(harness.measure({.name = fmt::format("attention {} T={} D={}", pass, T, D),
                                 .dtype = bench.precision,
                                 .call = call,
                                 .flop = flop,
                                 .details = {{"tokens", T}, {"head_dim", D}, {"heads", heads}, {"batch", B}}}));
  };
  add("forward", forward_flop, [&] { ops::attention_forward(ctx, qkv, heads, out, lse); });
  add("backward", 2 * forward_flop, [&] { ops::attention_backward(ctx, qkv, heads, out, lse, dout, dqkv); });
}

}  // namespace

void bench_ops(Harness& harness, const OpsBench& bench) {
  ElementwiseRows(harness, model_shapes(bench.model).front(), bench.precision).add_all();
  for (const int64_t T : bench.tokens)
    for (const int64_t D : {64, 72}) attention_rows(harness, bench, T, D);
}

}  // namespace ditrain::bench
