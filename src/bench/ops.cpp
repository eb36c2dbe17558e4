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
#include "ditrain/kernels/described.hpp"
#include "ditrain/ops/attention.hpp"
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
    std::vector<LoopSequence> sequences = {{loop_of(arrays_, shortest)}};
    if (middle != arrays_.end()) {
      std::vector<Array> first = arrays_, rest(middle, arrays_.end());
      for (Array& a : first) a.words = shortest;
      for (Array& a : rest) a.p += shortest, a.words -= shortest;
      sequences.push_back({loop_of(first, shortest), loop_of(rest, rest.front().words)});
      sequences.push_back(
          {loop_of({arrays_.begin(), middle}, shortest), loop_of({middle, arrays_.end()}, middle->words)});
    }
    double best_s = std::numeric_limits<double>::infinity();
    for (const LoopSequence& sequence : sequences) {
      if (!std::all_of(sequence.begin(), sequence.end(), exists)) continue;
      for (int repeat = 0; repeat < (sequences.size() > 1 ? 3 : 1); ++repeat) {
        const double start = now_s();
        run(harness, sequence);
        const double seconds = now_s() - start;
        if (seconds < best_s) best_s = seconds, loops_ = sequence;
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
  using LoopSequence = std::vector<StreamLoop>;  // one after the other
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
  static void run(Harness& harness, const LoopSequence& sequence) {
    for (const StreamLoop& loop : sequence) harness.stream(loop.mix, loop.arrays, loop.n);
  }
  void add(const std::vector<Tensor>& tensors, int role) {
    for (const Tensor& t : tensors) {
      held_.push_back(std::make_unique<Pin<void>>(t));
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

  std::vector<std::unique_ptr<Pin<void>>> held_;
  std::vector<Array> arrays_;
  LoopSequence loops_;
};

// The arrays of an operator, rows x cols of them or as many elements.
class OperatorArrays {
 public:
  OperatorArrays(ops::Context& ctx, int num_workers, const kernels::Operator& op, int64_t rows, int64_t cols)
      : op_(op), cols_(cols) {
    for (const kernels::Parameter& p : op.parameters) {
      if (!p.is_array()) continue;
      const bool of_rows = p.length == kernels::Length::kPerRow, of_columns = p.length == kernels::Length::kPerColumn;
      const Tensor t = random_tensor(ctx, {of_columns ? num_workers : rows, of_rows ? 1 : cols}, 0, 1, p.type);
      arrays_.push_back({std::make_shared<Pin<void>>(t), int64_t(t.bytes()) / t.dim(0), of_columns});
      if (of_rows || of_columns) continue;  // next to nothing
      (p.role == kernels::Role::kIn    ? streams_.reads
       : p.role == kernels::Role::kOut ? streams_.writes
                                       : streams_.updates)
          .push_back(t);
    }
  }

  /// What it has to move.
  const Streams& streams() const { return streams_; }
  bool reads_bf16() const { return !streams_.reads.empty() && streams_.reads.front().dtype() == DType::kBF16; }

  /// Some of the rows; sums of columns are each worker's own.
  void call(int64_t first, int64_t rows, int worker) const {
    std::vector<kernels::Value> values;
    auto array = arrays_.begin();
    for (const kernels::Parameter& p : op_.parameters) {
      switch (p.role) {
        case kernels::Role::kCount:
          values.push_back({nullptr, double(rows * cols_)});
          break;
        case kernels::Role::kRows:
          values.push_back({nullptr, double(rows)});
          break;
        case kernels::Role::kColumns:
        case kernels::Role::kStride:
          values.push_back({nullptr, double(cols_)});
          break;
        case kernels::Role::kNumber:
          values.push_back({nullptr, 0.5});
          break;
        default:
          values.push_back({array++->at(first, worker)});
      }
    }
    op_.call(values);
  }

 private:
  struct Array {
    std::shared_ptr<Pin<void>> held;
    int64_t row_bytes;
    bool per_worker;
    void* at(int64_t row, int worker) const {
      return static_cast<std::byte*>(held->get()) + (per_worker ? worker : row) * row_bytes;
    }
  };
  kernels::Operator op_;
  int64_t cols_;
  std::vector<Array> arrays_;
  Streams streams_;
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
    for (const kernels::Operator& op : kernels::operators(activation_))
      if (!op.title.empty()) add_operator(op);
    if (activation_ == DType::kF32) {
      normals();
      loss();
    }
    optimizer();
  }

 private:
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

  void add_operator(const kernels::Operator& op) {
    const OperatorArrays arrays(ctx_, harness_.num_threads(), op, B_ * kTokens, C_);
    add(op.title, arrays.reads_bf16() ? DType::kBF16 : activation_, arrays.streams(), [&] {
      ctx_.for_range(B_ * kTokens, 1, [&](int64_t begin, int64_t end, const parallel::Worker& w) {
        arrays.call(begin, end - begin, w.worker);
      });
    });
  }

  void normals() {
    const Tensor z = random_tensor(ctx_, {B_, kTokens, C_}, 0, 1);
    const Pin<float> pz(z);
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
    const std::vector<double> time(size_t(n), 500);
    std::vector<diffusion::LossTerms> terms(time.size());
    const auto process = diffusion::make_process({}, /*learn_sigma=*/true);
    add(
        "loss mse_vb and gradient", DType::kF32, {{x0, x_t, noise, out}, {dout}},
        [&] {
          ctx_.for_range(n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
            diffusion::training_loss(*process, shape, {px0, px_t, pnoise, time.data(), pout}, 1, pdout, terms.data(),
                                     begin, end);
          });
        },
        n, shape.elements());
  }

  void optimizer() {
    autograd::ParameterStore store;
    store.add("w", {B_, kTokens, C_});
    store.allocate(autograd::ParameterStore::For::kTraining, activation_, {.states = optim::state_arrays()});
    Streams streams{.reads = {store.grads}, .updates = {store.values, store.ema}};
    for (const autograd::OptimizerState& state : store.states) streams.updates.push_back(state.data);
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

void attention_rows(Harness& harness, const OpsBench& bench, DType precision, int64_t T, int64_t D) {
  constexpr int64_t kManyTokens = 1024;
  const int64_t heads = T <= kManyTokens ? 16 : 4, B = std::max<int64_t>(1, bench.attention_rows / T);
  ops::Context& ctx = harness.ctx();
  const auto array = [&](int64_t width) { return random_tensor(ctx, {B, T, width}, -1, 1, precision); };
  const Tensor qkv = array(3 * heads * D), out = array(heads * D), dout = array(heads * D), dqkv = array(3 * heads * D);
  const Tensor lse({B, heads, T});
  const double forward_flop = 4.0 * double(B * heads) * double(T) * double(T) * double(D);
  const auto add = [&](const char* pass, double flop, const std::function<void()>& call) {
    harness.add(harness.measure({.name = fmt::format("attention {} T={} D={}", pass, T, D),
                                 .dtype = precision,
                                 .call = call,
                                 .flop = flop,
                                 .details = {{"tokens", T}, {"head_dim", D}, {"heads", heads}, {"batch", B}}}));
  };
  add("forward", forward_flop, [&] { ops::attention_forward(ctx, qkv, heads, out, lse); });
  add("backward", 2 * forward_flop, [&] { ops::attention_backward(ctx, qkv, heads, out, lse, dout, dqkv); });
}

}  // namespace

void bench_ops(Harness& harness, const OpsBench& bench) {
  for (const DType precision : bench.precisions) {
    ElementwiseRows(harness, model_shape(bench.model), precision).add_all();
    for (const int64_t T : bench.tokens)
      for (const int64_t D : {64, 72}) attention_rows(harness, bench, precision, T, D);
  }
}

}  // namespace ditrain::bench
