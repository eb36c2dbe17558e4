#include "ditrain/ops/gemm.hpp"

#include <algorithm>
#include <type_traits>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/platform/cpu.hpp"
#include "gemm_grid.hpp"

namespace ditrain::ops {
namespace {

using kernels::GemmArgs;

constexpr int64_t kRowsOfCluster = 64;  // with fewer, clusters are not told apart

// On Emerald Rapids an element that comes from memory is packed in 0.3 ns, the time of 350 multiply-adds of its matrix
// unit, and one from the other core's caches is read in no less (tests/bench/reports/2026-11-26-amx-emerald-rapids.md):
// workers pack alone there. In f32 such processors pack in the time of 9, whether their unit is used or not; others are
// taken to share a cache that costs nothing to read. (Arm's unit has the numbers of this one, none of its own.)
PackingCost packing_cost(DType arithmetic) {
  if (kernels::multiplies_on_unit(arithmetic)) return {.element = 350, .others = 1};
  return {.element = 9, .others = platform::cpu_features().has_amx_bf16 ? 0.5 : 0.0};
}

// Rows between cuts: moments are those of whole units.
int64_t row_grain(const GemmArgs& g) { return g.moments.sums == nullptr ? kRowGrain : g.moments.rows; }

// What one worker of a cluster (of the team, where clusters are not told apart) computes: part `number` of m x n.
struct Part {
  parallel::Range rows, columns;
  int member = 0, column = 0;            // in its packing group; of the grid
  int64_t most_rows = 0, most_cols = 0;  // of all parts
};
Part part_of(const Grid& grid, int64_t m, int64_t n, int64_t grain, int number) {
  Part p;
  p.member = number / grid.columns, p.column = number % grid.columns;
  for (int i = 0; i < grid.rows; ++i) {
    const parallel::Range r = parallel::partition(m, i, grid.rows, grain);
    p.most_rows = std::max(p.most_rows, r.size());
    if (i == p.member) p.rows = r;
  }
  for (int j = 0; j < grid.columns; ++j) {
    const parallel::Range c = parallel::partition(n, j, grid.columns, kColumnGrain);
    p.most_cols = std::max(p.most_cols, c.size());
    if (j == p.column) p.columns = c;
  }
  return p;
}

// The share of a worker's cluster, by its number of workers.
parallel::Range share_of_cluster(const parallel::Worker& w, int64_t n, int64_t grain) {
  const int first = w.worker - w.worker_in_cluster, last = first + w.workers_in_cluster - 1;
  return {parallel::partition(n, first, w.num_workers, grain).begin,
          parallel::partition(n, last, w.num_workers, grain).end};
}

// How the workers of a cluster (of the team, where clusters are not told apart) share out their rows and columns of c.
struct Cut {
  const GemmArgs& whole;
  parallel::Range rows, columns;
  Grid grid;
  int64_t grain;  // rows between cuts

  Part part(int number) const { return part_of(grid, rows.size(), columns.size(), grain, number); }
  GemmArgs product(const Part& part) const { return product(part, {0, part.rows.size()}, {0, part.columns.size()}); }
  // The product of some rows and columns of a part.
  GemmArgs product(const Part& part, const parallel::Range& i, const parallel::Range& j) const {
    return kernels::block_of(whole, rows.begin + part.rows.begin + i.begin, i.size(),
                             columns.begin + part.columns.begin + j.begin, j.size());
  }
};

// f(cut, number, shares, worker) on every worker, which has part `number`, maybe an empty one. Where columns go to
// clusters, gradients of weights go by rows.
template <class F>
void for_parts(Context& ctx, const GemmArgs& whole, const F& f) {
  const bool by_columns = ctx.cuts_columns() && whole.trans_a == kernels::Trans::kNo;
  ctx.run(WorkKind::kProduct, [&](const parallel::Worker& w) {
    parallel::Range rows{0, whole.m}, columns{0, whole.n};
    const bool clusters = ctx.cuts_columns() || whole.m >= kRowsOfCluster * w.num_clusters;
    if (by_columns) columns = share_of_cluster(w, whole.n, kColumnGrain);
    const int64_t grain = row_grain(whole);
    if (!by_columns && clusters) rows = share_of_cluster(w, whole.m, grain);
    const bool packed_b = whole.packed_b.panels != nullptr;
    const bool may_pack_together = !packed_b && (clusters || w.num_clusters == 1) && whole.k > kernels::kFewSteps;
    const Grid grid = grid_of(clusters ? w.workers_in_cluster : w.num_workers, rows.size(), columns.size(), whole.k,
                              grain, packed_b, may_pack_together, packing_cost(whole.arithmetic));
    f(Cut{whole, rows, columns, grid, grain}, clusters ? w.worker_in_cluster : w.worker,
      clusters ? ctx.shares_of_cluster(w) : ctx.shares_of_job(w), w);
  });
}

bool nothing(const GemmArgs& g) { return g.m == 0 || g.n == 0; }

// The same for all parts.
bool can_be_cut(const GemmArgs& whole) {
  return kernels::multiplies_on_unit(whole.arithmetic) && whole.window_a.channels == 0 && whole.moments.sums == nullptr;
}

void begin_row_sums(const GemmArgs& g) {
  if (g.a_row_sums != nullptr && !g.accumulate) std::fill_n(g.a_row_sums, g.m, 0.0f);
}

// The pieces of a part, in which other workers may take a share of it.
struct Pieces {
  GemmArgs product;
  kernels::GemmPieces of = {};
  int64_t number = 0;

  Pieces(const Cut& cut, const Part& part) : product(cut.product(part)) {
    if (nothing(product)) return;
    of = kernels::gemm_pieces(product, part.most_rows);
    number = by_rows() ? (product.m + of.rows - 1) / of.rows : (product.n + of.columns - 1) / of.columns;
  }
  bool by_rows() const { return of.columns >= product.n; }
};

// Each worker packs b for itself; those that are done take pieces of others, but only of those with the same columns
// where panels of b are kept: others would have to be packed for them.
void share_out(Context& ctx, const Cut& cut, int number, parallel::Shares& shares, const parallel::Worker& w) {
  int packed_column = -1;  // of the grid: whose panels of b are in the scratch
  const Pieces own(cut, cut.part(number));
  const int stride = own.of.keep_b ? cut.grid.columns : 1;
  shares.take(number, own.number, stride, [&](int owner, const parallel::Range& taken) {
    const Part part = cut.part(owner);
    const Pieces pieces(cut, part);
    const auto range = [&](int64_t each, int64_t all) {
      return parallel::Range{taken.begin * each, std::min(taken.end * each, all)};
    };
    parallel::Range rows{0, pieces.product.m}, columns{0, pieces.product.n};
    pieces.by_rows() ? rows = range(pieces.of.rows, rows.end) : columns = range(pieces.of.columns, columns.end);
    const GemmArgs mine = cut.product(part, rows, columns);
    begin_row_sums(mine);
    const kernels::PackingGroup alone{.most_rows = part.most_rows,
                                      .keeps_b = pieces.of.keep_b,
                                      .has_b = pieces.of.keep_b && packed_column == part.column};
    kernels::gemm(mine, ctx.scratch(w, kernels::gemm_scratch_bytes(mine, alone)), alone);
    packed_column = pieces.of.keep_b ? part.column : -1;
  });
}

void own_gemm(Context& ctx, const GemmArgs& whole) {
  for_parts(ctx, whole, [&](const Cut& cut, int number, parallel::Shares& shares, const parallel::Worker& w) {
    const Grid& grid = cut.grid;
    if (!grid.together && can_be_cut(whole)) return share_out(ctx, cut, number, shares, w);
    const Part part = cut.part(number);
    const GemmArgs mine = cut.product(part);
    begin_row_sums(mine);
    if (!grid.together) {
      if (!nothing(mine)) kernels::gemm(mine, ctx.scratch(w, kernels::gemm_scratch_bytes(mine)));
      return;
    }
    const auto barrier = [&] { ctx.cluster_barrier(w); };
    kernels::PackingGroup packers{
        .member = part.member,
        .members = grid.rows,
        .most_rows = part.most_rows,
        .most_cols = part.most_cols,
        .barrier = [](const void* context) { (*static_cast<const decltype(barrier)*>(context))(); },
        .context = &barrier};
    if (ctx.runs_without_barriers())
      barrier();  // others may still read what the last group packed, and the memory may move
    const size_t bytes = kernels::gemm_shared_bytes(mine, packers);
    auto* shared = static_cast<std::byte*>(ctx.cluster_workspace(w, Workspace::kShared, bytes * size_t(grid.columns)));
    packers.shared = shared + bytes * size_t(part.column);
    kernels::gemm(mine, ctx.scratch(w, kernels::gemm_scratch_bytes(mine, packers)), packers);
  });
}

// ---- Passes around a plain product: the ablation of fusion, and how the reference works. ----

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
void normalise_apart(Context& ctx, Workspace slot, int64_t rows, int64_t cols, DType arithmetic, const void*& x,
                     DType& type, int64_t& stride, kernels::Normalise& norm) {
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

// The same for patches.
void gather_apart(Context& ctx, Workspace slot, int64_t rows, int64_t cols, DType arithmetic, const void*& x,
                  DType& type, int64_t& stride, kernels::Patches& patches) {
  if (patches.size == 0) return;
  const int64_t P = patches.size, C = patches.channels, H = patches.height, W = patches.width;
  DITRAIN_CHECK(type == DType::kF32 && cols == C * P * P && patches.first_column == 0, "patches are whole and f32");
  const auto* images = static_cast<const float*>(x);
  void* out = ctx.workspace(slot, size_t(rows * cols) * dtype_bytes(arithmetic));
  with_type(arithmetic, [&](auto t) {
    auto* y = static_cast<decltype(t)*>(out);
    ctx.for_range(rows * C, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t token = patches.first_row + item / C, image = token / (H / P * (W / P)), c = item % C;
        const int64_t gy = token / (W / P) % (H / P), gx = token % (W / P);
        for (int64_t i = 0; i < P; ++i) {
          const float* from = images + ((image * C + c) * H + gy * P + i) * W + gx * P;
          if constexpr (std::is_same_v<decltype(t), float>)
            std::copy_n(from, P, y + (item * P + i) * P);
          else
            kernels::convert(from, y + (item * P + i) * P, P);
        }
      }
    });
  });
  x = out, type = arithmetic, stride = cols, patches = {};
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
      if (!g.accumulate) std::fill(g.a_row_sums + begin, g.a_row_sums + end, 0.0f);
      kernels::column_sums(a + begin, g.lda, g.a_row_sums + begin, g.k, end - begin);
    });
  });
}

void reference_gemm(Context& ctx, const GemmArgs& packed) {
  GemmArgs whole = packed;
  if (packed.packed_b.panels != nullptr) {
    auto* b = static_cast<float*>(ctx.workspace(Workspace::kOperandB, size_t(packed.k * packed.n) * sizeof(float)));
    kernels::unpack_b(packed.packed_b, packed.k, packed.arithmetic, b);
    whole.packed_b = {}, whole.b = b, whole.ldb = packed.n, whole.b_type = DType::kF32;
  }
  for_parts(ctx, whole, [&](const Cut& cut, int number, parallel::Shares&, const parallel::Worker&) {
    const GemmArgs mine = cut.product(cut.part(number));
    if (!nothing(mine)) kernels::ref::gemm(mine);
  });
}

void whole_gemm(Context& ctx, const GemmArgs& g) {
  ctx.gemm_settings.backend == GemmBackend::kOwn ? own_gemm(ctx, g) : reference_gemm(ctx, g);
}

// No model is trained with these: they are never taken apart.
bool is_of_convolution(const GemmArgs& g) {
  return g.window_a.channels > 0 || g.moments.sums != nullptr ||
         int(g.epilogue.kind) > int(kernels::EpilogueKind::kGateResidual);
}

void gemm_in_passes(Context& ctx, const GemmArgs& whole) {
  GemmArgs g = whole;
  const bool a_rows = g.trans_a == kernels::Trans::kNo, b_rows = g.trans_b == kernels::Trans::kYes;
  normalise_apart(ctx, Workspace::kOperandA, a_rows ? g.m : g.k, a_rows ? g.k : g.m, g.arithmetic, g.a, g.a_type, g.lda,
                  g.normalise_a);
  normalise_apart(ctx, Workspace::kOperandB, b_rows ? g.n : g.k, b_rows ? g.k : g.n, g.arithmetic, g.b, g.b_type, g.ldb,
                  g.normalise_b);
  gather_apart(ctx, Workspace::kOperandA, a_rows ? g.m : g.k, a_rows ? g.k : g.m, g.arithmetic, g.a, g.a_type, g.lda,
               g.patches_a);
  gather_apart(ctx, Workspace::kOperandB, b_rows ? g.n : g.k, b_rows ? g.k : g.n, g.arithmetic, g.b, g.b_type, g.ldb,
               g.patches_b);
  // SwiGLU joins two halves of rows, which no pass over an array of its own does: it stays in the product.
  const bool joins_halves =
      g.epilogue.kind == kernels::EpilogueKind::kSwiglu || g.epilogue.kind == kernels::EpilogueKind::kSwigluBackward;
  if (!joins_halves) g.epilogue = {}, g.bias = nullptr;
  g.a_row_sums = nullptr;
  whole_gemm(ctx, g);
  if (joins_halves) return;
  g.epilogue = whole.epilogue, g.bias = whole.bias, g.a_row_sums = whole.a_row_sums;
  if (g.bias != nullptr) add_bias(ctx, g);
  if (g.epilogue.kind != kernels::EpilogueKind::kNone) epilogue_apart(ctx, g);
  if (g.a_row_sums != nullptr) add_row_sums(ctx, g);
}

}  // namespace

void gemm(Context& ctx, const GemmArgs& args) {
  if (!ctx.gemm_settings.fused() && !is_of_convolution(args)) return gemm_in_passes(ctx, args);
  whole_gemm(ctx, normalised_before(ctx, args));
}

GemmArgs normalised_before(Context& ctx, const GemmArgs& args) {
  GemmArgs g = args;
  const bool apart = g.normalise_a.mean != nullptr && g.a_type == DType::kF32 && g.lda == g.k &&
                     ctx.gemm_settings.fused() && !ctx.runs_without_barriers();
  if (apart && kernels::is_better_normalised_before(g))
    normalise_apart(ctx, Workspace::kOperandA, g.m, g.k, g.arithmetic, g.a, g.a_type, g.lda, g.normalise_a);
  return g;
}

}  // namespace ditrain::ops
