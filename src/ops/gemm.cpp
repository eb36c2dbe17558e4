#include "ditrain/ops/gemm.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {
namespace {

using kernels::GemmArgs;

// Cuts of a product: each worker gets a block of c. Rows and columns are cut so that the blocks are near square (least
// packing). Equal parts matter more than whole register tiles, since a partial tile of few rows costs by its rows: with
// cuts at multiples of 28 rows (two tiles of AVX-512) one of two workers had up to 2 % more to do. 16 rows are a cache
// line of an operand that is read transposed.
constexpr int64_t kRowGrain = 16, kColumnGrain = 32;

// How many parts the rows get. All cuts give blocks of about the same area, so the least mm^2 + nn^2 is the most square
// one, which packs least of a and b (mm + nn rows of k); fewer rows than a grain cost as much as a grain.
int row_parts(int num_workers, int64_t m, int64_t n) {
  int best = 1;
  double best_cost = 1e300;
  for (int rows = 1; rows <= num_workers; ++rows) {
    if (num_workers % rows != 0) continue;
    const int columns = num_workers / rows;
    const double mm = double((m + rows - 1) / rows), nn = double((n + columns - 1) / columns);
    const double packing = double(std::max<int64_t>(kRowGrain, (m + rows - 1) / rows)) * mm + nn * nn;
    // Fewer than about 4 rows or 16 columns a worker: only if every cut is like that.
    const double too_fine = (rows > m / 4 + 1 ? 1e12 : 0) + (columns > n / 16 + 1 ? 1e12 : 0);
    if (packing + too_fine < best_cost) best_cost = packing + too_fine, best = rows;
  }
  return best;
}

// Part `number` of m x n, cut for `workers` of them.
struct Block {
  parallel::Range rows, columns;
};
Block block_for(int64_t m, int64_t n, int workers, int number) {
  const int rows = row_parts(workers, m, n), columns = workers / rows;
  return {parallel::partition(m, number / columns, rows, kRowGrain),
          parallel::partition(n, number % columns, columns, kColumnGrain)};
}

// f(part, worker) on every worker's block of c. Where columns go to clusters first, gradients of weights go by rows.
template <class F>
void for_blocks(Context& ctx, const GemmArgs& whole, const F& f) {
  const bool by_cluster = ctx.cuts_columns(), weight = whole.trans_a == kernels::Trans::kYes;
  ctx.run(WorkKind::kProduct, [&](const parallel::Worker& w) {
    parallel::Range rows{0, whole.m}, columns{0, whole.n};
    if (by_cluster && weight) rows = parallel::partition(whole.m, w.cluster, w.num_clusters, kRowGrain);
    if (by_cluster && !weight) columns = parallel::partition(whole.n, w.cluster, w.num_clusters, kColumnGrain);
    const Block mine = by_cluster ? block_for(rows.size(), columns.size(), w.workers_in_cluster, w.worker_in_cluster)
                                  : block_for(whole.m, whole.n, w.num_workers, w.worker);
    if (mine.rows.empty() || mine.columns.empty()) return;
    f(kernels::block_of(whole, rows.begin + mine.rows.begin, mine.rows.size(), columns.begin + mine.columns.begin,
                        mine.columns.size()),
      w);
  });
}

void own_gemm(Context& ctx, const GemmArgs& whole) {
  for_blocks(ctx, whole, [&](const GemmArgs& part, const parallel::Worker& w) {
    kernels::gemm(part, ctx.scratch(w, kernels::gemm_scratch_bytes(part)));
  });
}

// ---- Passes around a plain product: the ablation of fusion, and what other libraries' products need. ----

// f(T{}) with the C++ type of a dtype.
template <class F>
void with_type(DType type, const F& f) {
  type == DType::kBF16 ? f(BFloat16{}) : f(float{});
}

// f(first, rows, sample) for each worker's rows, cut where samples end; row r belongs to sample (first_row + r) / each.
template <class F>
void for_sample_rows(Context& ctx, int64_t rows, int64_t first_row, int64_t each, const F& f) {
  ctx.for_range(rows, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    while (begin < end) {
      const int64_t sample = (first_row + begin) / each;
      const int64_t stop = std::min(end, (sample + 1) * each - first_row);
      f(begin, stop - begin, sample);
      begin = stop;
    }
  });
}

// The normalised operand as an array of its own in workspace `slot`; x, its type and its norm become plain.
void normalise_apart(Context& ctx, int slot, int64_t rows, int64_t cols, DType arithmetic, const void*& x, DType& type,
                     int64_t& stride, kernels::Normalise& norm) {
  if (norm.mean == nullptr) return;
  DITRAIN_CHECK(type == DType::kF32 && stride == cols, "a normalised operand is a whole f32 array");
  const auto* source = static_cast<const float*>(x);
  void* out = ctx.workspace(slot, size_t(rows * cols) * dtype_bytes(arithmetic));
  with_type(arithmetic, [&](auto t) {
    auto* y = static_cast<decltype(t)*>(out);
    for_sample_rows(ctx, rows, norm.first_row, norm.rows_per_sample, [&](int64_t r, int64_t n, int64_t sample) {
      const int64_t cond = sample * norm.cond_stride;
      kernels::layer_norm_apply(source + r * cols, norm.mean + r, norm.rstd + r, norm.shift + cond, norm.scale + cond,
                                y + r * cols, n, cols);
    });
  });
  x = out, type = arithmetic, norm = {};
}

// The same for an f32 operand of a bf16 product beside a bf16 one: other libraries take both as bf16.
void round_apart(Context& ctx, int slot, int64_t rows, int64_t cols, DType arithmetic, const void*& x, DType& type,
                 int64_t& stride) {
  if (type != DType::kF32 || arithmetic != DType::kBF16) return;
  const auto* source = static_cast<const float*>(x);
  auto* out = static_cast<BFloat16*>(ctx.workspace(slot, size_t(rows * cols) * sizeof(BFloat16)));
  ctx.for_range(rows, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t r = begin; r < end; ++r) kernels::convert(source + r * stride, out + r * cols, cols);
  });
  x = out, type = DType::kBF16, stride = cols;
}

void add_bias(Context& ctx, const GemmArgs& g) {
  with_type(g.c_type, [&](auto t) {
    auto* c = static_cast<decltype(t)*>(g.c);
    ctx.for_range(g.m, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t i = begin; i < end; ++i) kernels::add(g.bias, c + i * g.ldc, g.n);
    });
  });
}

void epilogue_apart(Context& ctx, const GemmArgs& g) {
  using kernels::EpilogueKind;
  const kernels::Epilogue& e = g.epilogue;
  DITRAIN_CHECK(g.ldc == g.n && (e.in == nullptr || e.in_stride == g.n) && (e.out == nullptr || e.out_stride == g.n),
                "what an epilogue of its own reads and writes are whole arrays");
  with_type(g.c_type, [&](auto t) {
    using T = decltype(t);
    T* c = static_cast<T*>(g.c);
    if (e.kind == EpilogueKind::kGateResidual) {
      for_sample_rows(ctx, g.m, e.first_row, e.rows_per_sample, [&](int64_t r, int64_t n, int64_t sample) {
        const int64_t at = r * g.n;
        kernels::gate_residual_forward(static_cast<const float*>(e.in) + at, e.gate + sample * e.cond_stride, c + at,
                                       static_cast<float*>(e.out) + at, n, g.n);
      });
      return;
    }
    const T* in = static_cast<const T*>(e.in);
    T* out = static_cast<T*>(e.out);
    ctx.for_range(g.m * g.n, 1024, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      const int64_t n = end - begin;
      if (e.kind == EpilogueKind::kGelu) return kernels::gelu_forward(c + begin, out + begin, n);
      kernels::gelu_backward(in + begin, c + begin, c + begin, n);
      if (out != nullptr) kernels::gelu_forward(in + begin, out + begin, n);
    });
  });
}

void add_row_sums(Context& ctx, const GemmArgs& g) {
  DITRAIN_CHECK(g.trans_a == kernels::Trans::kYes, "row sums are taken of a transposed operand");
  with_type(g.a_type, [&](auto t) {
    const auto* a = static_cast<const decltype(t)*>(g.a);
    ctx.for_range(g.m, 16, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      kernels::column_sums(a + begin, g.lda, g.a_row_sums + begin, g.k, end - begin);
    });
  });
}

void plain_gemm(Context& ctx, const GemmArgs& g) {
  const Products& p = ctx.products;
  if (p.by == Products::By::kPeer && p.peer->can(g)) return ctx.run_alone(WorkKind::kProduct, [&] { p.peer->gemm(g); });
  DITRAIN_CHECK(p.by != Products::By::kPeer, "a product that the chosen library does not have");
  if (p.by == Products::By::kOwn) return own_gemm(ctx, g);
  for_blocks(ctx, g, [&](const GemmArgs& part, const parallel::Worker&) { kernels::ref::gemm(part); });
}

void gemm_in_passes(Context& ctx, const GemmArgs& whole) {
  GemmArgs g = whole;
  const bool a_rows = g.trans_a == kernels::Trans::kNo, b_rows = g.trans_b == kernels::Trans::kYes;
  normalise_apart(ctx, 0, a_rows ? g.m : g.k, a_rows ? g.k : g.m, g.arithmetic, g.a, g.a_type, g.lda, g.normalise_a);
  normalise_apart(ctx, 1, b_rows ? g.n : g.k, b_rows ? g.k : g.n, g.arithmetic, g.b, g.b_type, g.ldb, g.normalise_b);
  if (ctx.products.by == Products::By::kPeer) {
    round_apart(ctx, 0, a_rows ? g.m : g.k, a_rows ? g.k : g.m, g.arithmetic, g.a, g.a_type, g.lda);
    round_apart(ctx, 1, b_rows ? g.n : g.k, b_rows ? g.k : g.n, g.arithmetic, g.b, g.b_type, g.ldb);
  }
  g.epilogue = {}, g.bias = nullptr, g.a_row_sums = nullptr;
  plain_gemm(ctx, g);
  g.epilogue = whole.epilogue, g.bias = whole.bias, g.a_row_sums = whole.a_row_sums;
  if (g.bias != nullptr) add_bias(ctx, g);
  if (g.epilogue.kind != kernels::EpilogueKind::kNone) epilogue_apart(ctx, g);
  if (g.a_row_sums != nullptr) add_row_sums(ctx, g);
}

}  // namespace

void gemm(Context& ctx, const GemmArgs& args) {
  if (ctx.products.by == Products::By::kOwn && ctx.products.fuse) return own_gemm(ctx, args);
  gemm_in_passes(ctx, args);
}

}  // namespace ditrain::ops
