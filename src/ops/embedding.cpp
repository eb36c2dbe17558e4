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

enum class PatchOrder { kChannelFirst, kChannelLast };  // columns (c, i, j) of patches, (i, j, c) of unpatchify

// Calls move(pixel of the image, element of the tokens) for every element, cut over tokens.
template <class Move>
void for_patches(Context& ctx, const char* op, const Tensor& image, const Tensor& tokens, int64_t P, PatchOrder order,
                 Move move) {
  const int64_t B = image.dim(0), C = image.dim(1), H = image.dim(2), W = image.dim(3);
  const int64_t gh = H / P, gw = W / P, columns = C * P * P;
  expect_shape(op, "tokens", tokens, {B, gh * gw, columns});
  expect_shape(op, "image", image, {B, C, gh * P, gw * P});
  const Pin<float> pimage(image), ptokens(tokens);
  ctx.for_range(B * gh * gw, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t b = token / (gh * gw), gy = token / gw % gh, gx = token % gw;
      for (int64_t c = 0; c < C; ++c)
        for (int64_t i = 0; i < P; ++i)
          for (int64_t j = 0; j < P; ++j) {
            const int64_t column = order == PatchOrder::kChannelFirst ? (c * P + i) * P + j : (i * P + j) * C + c;
            move(pimage[((b * C + c) * H + gy * P + i) * W + gx * P + j], ptokens[token * columns + column]);
          }
    }
  });
}

constexpr auto kToTokens = [](float& pixel, float& token) { token = pixel; };
constexpr auto kToImage = [](float& pixel, float& token) { pixel = token; };

}  // namespace

void patchify_inverse(Context& ctx, const Tensor& rows, int64_t patch, const Tensor& x) {
  for_patches(ctx, "patchify_inverse", x, rows, patch, PatchOrder::kChannelFirst, kToImage);
}
void unpatchify(Context& ctx, const Tensor& tokens, int64_t patch, const Tensor& image) {
  for_patches(ctx, "unpatchify", image, tokens, patch, PatchOrder::kChannelLast, kToImage);
}
void unpatchify_inverse(Context& ctx, const Tensor& image, int64_t patch, const Tensor& tokens) {
  for_patches(ctx, "unpatchify_inverse", image, tokens, patch, PatchOrder::kChannelLast, kToTokens);
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
