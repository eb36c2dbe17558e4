#include "products.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace ditrain::eval {
namespace {

// A tile of the result is kRows x kCols: 8 vectors of 8 doubles, enough chains to hide the latency of a multiply-add.
constexpr int64_t kRows = 4, kCols = 16;
// Terms of a chain between a load and a store of the tile: a packed panel of b (16 x 256 doubles) fills 32 KiB.
constexpr int64_t kDepth = 256;
// Panels of a that stay in the second-level cache: 64 x 4 x 256 doubles are 512 KiB.
constexpr int64_t kPanels = 64;

typedef double Vec2 __attribute__((vector_size(16), aligned(8)));
typedef double Vec4 __attribute__((vector_size(32), aligned(8)));
typedef double Vec8 __attribute__((vector_size(64), aligned(8)));

// c [kRows, kCols] += sum over k of a[k, row] b[k, col], in parts of two vectors that the processor has: the compiler
// keeps longer ones in memory.
template <class Vec>
[[gnu::always_inline]] inline void add_in_vectors(const double* a, const double* b, int64_t depth, double* c) {
  constexpr int64_t kLanes = sizeof(Vec) / sizeof(double);
  for (int64_t col = 0; col < kCols; col += 2 * kLanes) {
    Vec sums[kRows][2];
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t h = 0; h < 2; ++h) std::memcpy(&sums[r][h], c + r * kCols + col + h * kLanes, sizeof(Vec));
    for (int64_t k = 0; k < depth; ++k) {
      Vec low, high;
      std::memcpy(&low, b + k * kCols + col, sizeof low);
      std::memcpy(&high, b + k * kCols + col + kLanes, sizeof high);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] += a[k * kRows + r] * low;
        sums[r][1] += a[k * kRows + r] * high;
      }
    }
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t h = 0; h < 2; ++h) std::memcpy(c + r * kCols + col + h * kLanes, &sums[r][h], sizeof(Vec));
  }
}

// Compiled once per instruction set, chosen when the program starts; sanitizers run before that choice can.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target("arch=x86-64-v4"))) void add_tile(const double* a, const double* b, int64_t depth, double* c) {
  add_in_vectors<Vec8>(a, b, depth, c);
}
__attribute__((target("arch=x86-64-v3"))) void add_tile(const double* a, const double* b, int64_t depth, double* c) {
  add_in_vectors<Vec4>(a, b, depth, c);
}
__attribute__((target("default")))
#endif
void add_tile(const double* a, const double* b, int64_t depth, double* c) {
  add_in_vectors<Vec2>(a, b, depth, c);
}

// One side of the products: rows of features as they are, or columns of features less their mean.
template <class T>
struct Rows {
  const T* x;
  int64_t count, depth;  // depth: features
  double operator()(int64_t i, int64_t k) const { return double(x[i * depth + k]); }
};
template <class T>
struct CenteredColumns {
  const T* x;
  int64_t count, depth;  // count: features; depth: samples
  const double* mean;
  double operator()(int64_t i, int64_t k) const { return double(x[k * count + i]) - mean[i]; }
};

// Panels of `width` rows [first, first + width), terms [k0, k0 + depth), as [k, row]; rows that are not there are 0.
template <int64_t width, class Side>
void pack(const Side& side, int64_t first, int64_t k0, int64_t depth, double* to) {
  const int64_t there = std::min(width, side.count - first);
  for (int64_t k = 0; k < depth; ++k, to += width) {
    for (int64_t i = 0; i < there; ++i) to[i] = side(first + i, k0 + k);
    for (int64_t i = there; i < width; ++i) to[i] = 0;
  }
}

void move_tile(double* out, int64_t n, int64_t rows, int64_t cols, double* tile, bool store) {
  for (int64_t r = 0; r < rows; ++r) {
    double *at = out + r * n, *in = tile + r * kCols;
    store ? std::copy_n(in, cols, at) : std::copy_n(at, cols, in);
  }
}

// The panels of rows begin at multiples of kRows and are dealt out in turns, which also shares a triangle evenly.
template <class Side>
void products_of_worker(const parallel::Worker& w, const Side& a, const Side& b, bool upper, double* out) {
  std::vector<double> packed_a(size_t(kPanels * kRows * kDepth)), packed_b(size_t(kCols * kDepth));
  const int64_t panels = (a.count + kRows - 1) / kRows, n = b.count;
  for (int64_t turn = 0; turn * w.num_workers < panels; turn += kPanels) {
    std::vector<int64_t> rows;
    for (int64_t t = turn; t < turn + kPanels && t * w.num_workers + w.worker < panels; ++t)
      rows.push_back((t * w.num_workers + w.worker) * kRows);
    if (rows.empty()) return;
    for (int64_t k0 = 0; k0 < a.depth; k0 += kDepth) {
      const int64_t depth = std::min(kDepth, a.depth - k0);
      for (size_t p = 0; p < rows.size(); ++p)
        pack<kRows>(a, rows[p], k0, depth, packed_a.data() + int64_t(p) * kRows * kDepth);
      for (int64_t col = upper ? rows[0] / kCols * kCols : 0; col < n; col += kCols) {
        pack<kCols>(b, col, k0, depth, packed_b.data());
        for (size_t p = 0; p < rows.size(); ++p) {
          if (upper && col + kCols <= rows[p]) continue;
          double tile[kRows * kCols] = {};
          double* at = out + rows[p] * n + col;
          const int64_t tile_rows = std::min(kRows, a.count - rows[p]), tile_cols = std::min(kCols, n - col);
          if (k0 > 0) move_tile(at, n, tile_rows, tile_cols, tile, false);
          add_tile(packed_a.data() + int64_t(p) * kRows * kDepth, packed_b.data(), depth, tile);
          move_tile(at, n, tile_rows, tile_cols, tile, true);
        }
      }
    }
  }
}

template <class Side>
void products(parallel::Team& team, const Side& a, const Side& b, bool upper, double* out) {
  team.run([&](const parallel::Worker& w) { products_of_worker(w, a, b, upper, out); });
}

}  // namespace

template <class T>
void row_products(parallel::Team& team, const T* a, int64_t m, const T* b, int64_t n, int64_t d, double* out) {
  if (d == 0) std::fill_n(out, m * n, 0.0);
  products(team, Rows<T>{a, m, d}, Rows<T>{b, n, d}, false, out);
}

template <class T>
void centered_products(parallel::Team& team, const T* x, int64_t n, int64_t d, const double* mean, double* out) {
  const CenteredColumns<T> side{x, d, n, mean};
  if (n == 0) std::fill_n(out, d * d, 0.0);
  products(team, side, side, true, out);
  for (int64_t j = 0; j < d; ++j)
    for (int64_t k = 0; k < j; ++k) out[j * d + k] = out[k * d + j];
}

template void row_products(parallel::Team&, const float*, int64_t, const float*, int64_t, int64_t, double*);
template void row_products(parallel::Team&, const double*, int64_t, const double*, int64_t, int64_t, double*);
template void centered_products(parallel::Team&, const float*, int64_t, int64_t, const double*, double*);
template void centered_products(parallel::Team&, const double*, int64_t, int64_t, const double*, double*);

}  // namespace ditrain::eval
