#include "ditrain/ops/embedding.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {

void embedding_forward(Context& ctx, const Tensor& table, const std::vector<int64_t>& idx, const Tensor& y) {
  const int64_t rows = table.dim(0), C = table.dim(1);
  expect_shape("embedding", "y", y, {int64_t(idx.size()), C});
  for (int64_t i : idx)
    if (i < 0 || i >= rows)
      throw InputError({.where = "embedding",
                        .what = "label out of range",
                        .got = std::to_string(i),
                        .expected = "0 to " + std::to_string(rows - 1)});
  const Pin<float> ptable(table), py(y);
  ctx.for_range(int64_t(idx.size()), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = begin; b < end; ++b) std::copy_n(ptable + idx[size_t(b)] * C, C, py + b * C);
  });
}

void embedding_backward(Context& ctx, const std::vector<int64_t>& idx, const Tensor& dy, const Tensor& dtable) {
  const int64_t C = dtable.dim(1);
  expect_shape("embedding", "dy", dy, {int64_t(idx.size()), C});
  const Pin<float> pdy(dy), pdtable(dtable);
  ctx.for_range(C, 16, [&](int64_t begin, int64_t end, const parallel::Worker&) {  // by columns: rows may repeat
    for (size_t b = 0; b < idx.size(); ++b)
      kernels::add(pdy + int64_t(b) * C + begin, pdtable + idx[b] * C + begin, end - begin);
  });
}

void timestep_embedding(Context& ctx, const std::vector<double>& t, const Tensor& y) {
  const int64_t dim = y.dim(1), half = dim / 2;
  expect_shape("timestep_embedding", "y", y, {int64_t(t.size()), dim});
  const Pin<float> p(y);
  ctx.run_alone(WorkKind::kElementwise, [&] {
    for (size_t b = 0; b < t.size(); ++b) {
      float* row = p + int64_t(b) * dim;
      for (int64_t k = 0; k < half; ++k) {
        const double angle = t[b] * std::exp(-std::log(10000.0) * double(k) / double(half));
        row[k] = float(std::cos(angle)), row[half + k] = float(std::sin(angle));
      }
      if (dim % 2) row[dim - 1] = 0;
    }
  });
}

namespace {

enum class PatchOrder { kChannelFirst, kChannelLast };  // columns (c, i, j) of patchify, (i, j, c) of unpatchify

/// Where the elements of tokens lie in an image, and with what weight.
struct PatchMap {
  PatchMap(const char* op, const Tensor& image, const Tensor& tokens, const Patches& patches, PatchOrder columns)
      : P(patches.size),
        V(patches.overlap),
        K(patches.side()),
        B(image.dim(0)),
        C(image.dim(1)),
        H(image.dim(2)),
        W(image.dim(3)),
        gh(H / P),
        gw(W / P),
        order(columns) {
    expect_shape(op, "tokens", tokens, {B, gh * gw, C * K * K});
    expect_shape(op, "image", image, {B, C, gh * P, gw * P});
    if (order == PatchOrder::kChannelLast)
      of_rows = overlap_weights(gh, patches), of_columns = overlap_weights(gw, patches);
    else
      of_rows.assign(size_t(gh * K), 1.0f), of_columns.assign(size_t(gw * K), 1.0f);
  }
  int64_t pixel(int64_t b, int64_t c, int64_t y, int64_t x) const { return ((b * C + c) * H + y) * W + x; }
  int64_t element(int64_t b, int64_t c, int64_t gy, int64_t gx, int64_t i, int64_t j) const {
    const int64_t column = order == PatchOrder::kChannelFirst ? (c * K + i) * K + j : (i * K + j) * C + c;
    return ((b * gh + gy) * gw + gx) * C * K * K + column;
  }
  /// Elements between neighbours along a line of pixels.
  int64_t step() const { return order == PatchOrder::kChannelFirst ? 1 : C; }
  /// The tokens along a side that have the pixel.
  parallel::Range around(int64_t pixel, int64_t tokens) const {
    return {pixel < V ? 0 : (pixel - V) / P, std::min(tokens, (pixel + V) / P + 1)};
  }
  // f(b, gy, gx) for every token.
  template <class F>
  void for_tokens(Context& ctx, const F& f) const {
    ctx.for_range(B * gh * gw, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t token = begin; token < end; ++token) f(token / (gh * gw), token / gw % gh, token % gw);
    });
  }

  int64_t P, V, K, B, C, H, W, gh, gw;
  PatchOrder order;
  std::vector<float> of_rows, of_columns;  // an element's weight is the product of its row's and its column's
};

void to_tokens(Context& ctx, const PatchMap& map, const Tensor& image, const Tensor& tokens) {
  const Pin<float> pimage(image), ptokens(tokens);
  const int64_t K = map.K, step = map.step();
  map.for_tokens(ctx, [&](int64_t b, int64_t gy, int64_t gx) {
    const int64_t left = gx * map.P - map.V;
    const float* of_columns = &map.of_columns[size_t(gx * K)];
    for (int64_t c = 0; c < map.C; ++c)
      for (int64_t i = 0; i < K; ++i) {
        const int64_t y = gy * map.P + i - map.V;
        const bool inside = y >= 0 && y < map.H;
        const int64_t begin = inside ? std::max<int64_t>(0, -left) : K, end = std::min(K, map.W - left);
        const float of_row = map.of_rows[size_t(gy * K + i)];
        float* out = ptokens + map.element(b, c, gy, gx, i, 0);
        for (int64_t j = 0; j < begin; ++j) out[j * step] = 0;
        if (!inside) continue;
        const int64_t pixel = map.pixel(b, c, y, left);
        for (int64_t j = begin; j < end; ++j) out[j * step] = of_row * of_columns[j] * pimage[pixel + j];
        for (int64_t j = end; j < K; ++j) out[j * step] = 0;
      }
  });
}

// Every token's worker writes the pixels of the patch itself, to which neighbours add.
void to_image(Context& ctx, const PatchMap& map, const Tensor& tokens, const Tensor& image) {
  const Pin<float> pimage(image), ptokens(tokens);
  const int64_t P = map.P, V = map.V, K = map.K, step = map.step();
  map.for_tokens(ctx, [&](int64_t b, int64_t token_y, int64_t token_x) {
    const int64_t left = token_x * P, right = left + P;
    const parallel::Range columns{map.around(left, map.gw).begin, map.around(right - 1, map.gw).end};
    for (int64_t c = 0; c < map.C; ++c)
      for (int64_t y = token_y * P; y < (token_y + 1) * P; ++y) {
        float* out = pimage + map.pixel(b, c, y, 0);
        std::fill(out + left, out + right, -0.0f);  // v + -0 is v, for v = -0 too
        const parallel::Range rows = map.around(y, map.gh);
        for (int64_t gy = rows.begin; gy < rows.end; ++gy)
          for (int64_t gx = columns.begin; gx < columns.end; ++gx) {
            const int64_t i = y + V - gy * P, first = gx * P - V;  // the pixel of the token's column 0
            const float of_row = map.of_rows[size_t(gy * K + i)];
            const float* of_columns = &map.of_columns[size_t(gx * K)];
            const float* in = ptokens + map.element(b, c, gy, gx, i, 0);
            for (int64_t x = std::max(left, first); x < std::min(right, first + K); ++x)
              out[x] += of_row * of_columns[x - first] * in[(x - first) * step];
          }
      }
  });
}

}  // namespace

std::vector<float> overlap_weights(int64_t n, const Patches& patches) {
  const int64_t P = patches.size, V = patches.overlap, K = patches.side();
  const auto raw = [&](int64_t i) { return i < 0 || i >= K ? 0 : std::min({i + 1, K - i, 2 * V + 1}); };
  std::vector<float> weights(size_t(n * K), 0.0f);
  for (int64_t g = 0; g < n; ++g)
    for (int64_t i = 0; i < K; ++i) {
      const int64_t pixel = g * P + i - V;
      if (pixel < 0 || pixel >= n * P) continue;
      int64_t sum = 0;
      for (int64_t other = g - (K - 1) / P; other <= g + (K - 1) / P; ++other)
        if (other >= 0 && other < n) sum += raw(pixel + V - other * P);
      weights[size_t(g * K + i)] = float(double(raw(i)) / double(sum));
    }
  return weights;
}

void patchify(Context& ctx, const Tensor& x, const Patches& patches, const Tensor& rows) {
  to_tokens(ctx, {"patchify", x, rows, patches, PatchOrder::kChannelFirst}, x, rows);
}
void patchify_backward(Context& ctx, const Tensor& drows, const Patches& patches, const Tensor& dx) {
  to_image(ctx, {"patchify_backward", dx, drows, patches, PatchOrder::kChannelFirst}, drows, dx);
}
void unpatchify(Context& ctx, const Tensor& tokens, const Patches& patches, const Tensor& image) {
  to_image(ctx, {"unpatchify", image, tokens, patches, PatchOrder::kChannelLast}, tokens, image);
}
void unpatchify_backward(Context& ctx, const Tensor& dimage, const Patches& patches, const Tensor& dtokens) {
  to_tokens(ctx, {"unpatchify_backward", dimage, dtokens, patches, PatchOrder::kChannelLast}, dimage, dtokens);
}

void add_position(Context& ctx, const Tensor& pos, const Tensor& y) {
  const int64_t B = y.dim(0), T = y.dim(1), C = y.dim(2);
  const Pin<float> ppos(pos), py(y);
  if (pos.size() != T * C) expect_shape("add_position", "pos", pos, {1, T, C});
  ctx.for_range(B * T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) kernels::add(ppos + row % T * C, py + row * C, C);
  });
}

}  // namespace ditrain::ops
