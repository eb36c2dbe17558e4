// The sizes that tests and benches share: the DiT models of the paper at a usual batch, and every matrix product (GEMM)
// of a training step in one of their blocks. It needs kernels/gemm.hpp only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/kernels/gemm.hpp"

namespace ditrain::bench {

struct ModelShape {
  const char* name;  ///< "S" for DiT-S
  int64_t width, depth, heads;
  int64_t batch;  ///< usual number of images per step on a few cores
};
inline constexpr ModelShape kModelShapes[] = {
    {"S", 384, 12, 6, 16}, {"B", 768, 12, 12, 8}, {"L", 1024, 24, 16, 8}, {"XL", 1152, 28, 16, 8}};

inline constexpr int64_t kTokens = 256;        ///< per image of 256 x 256: latents 32 x 32, patch 2
inline constexpr int64_t kConditionRows = 16;  ///< rows of the adaLN products: one per sample

enum class Pass { kForward, kDataGradient, kWeightGradient };

/// One product of a linear layer with weight [outputs, inputs] on `rows` tokens:
///   forward          y = x w^T        [rows, inputs] x [inputs, outputs]      NT
///   data gradient    dx = dy w        [rows, outputs] x [outputs, inputs]     NN
///   weight gradient  dw += dy^T x     [outputs, rows] x [rows, inputs]        TN
struct ProductShape {
  std::string model;
  std::string layer;  ///< qkv, proj, up (fc1), down (fc2) or condition (adaLN, kConditionRows rows)
  Pass pass = Pass::kForward;
  int64_t m = 0, n = 0, k = 0;
  int64_t copies = 1;  ///< how many matrices of this shape the model has: one per block

  bool skinny() const { return layer == "condition"; }
  bool accumulates() const { return pass == Pass::kWeightGradient; }
  kernels::Trans trans_a() const { return pass == Pass::kWeightGradient ? kernels::Trans::kYes : kernels::Trans::kNo; }
  kernels::Trans trans_b() const { return pass == Pass::kForward ? kernels::Trans::kYes : kernels::Trans::kNo; }
  const char* trans() const { return pass == Pass::kForward ? "NT" : pass == Pass::kDataGradient ? "NN" : "TN"; }
  const char* pass_name() const {
    return pass == Pass::kForward ? "forward" : pass == Pass::kDataGradient ? "data gradient" : "weight gradient";
  }
  std::string name() const { return model + " " + layer + " " + pass_name(); }
  double flop() const { return 2.0 * double(m) * double(n) * double(k); }
};

inline ProductShape product_shape(const ModelShape& model, const std::string& layer, Pass pass, int64_t rows,
                                  int64_t outputs, int64_t inputs) {
  ProductShape s{.model = model.name, .layer = layer, .pass = pass, .copies = model.depth};
  s.m = pass == Pass::kWeightGradient ? outputs : rows;
  s.n = pass == Pass::kForward ? outputs : inputs;
  s.k = pass == Pass::kForward ? inputs : pass == Pass::kDataGradient ? outputs : rows;
  return s;
}

/// Types of a product's operands and result, and of its arithmetic.
struct ProductTypes {
  DType a, b, c, arithmetic;
};

/// The types of a product when training runs in `precision`. kF32: all f32. kBF16: operands and result are bf16, but
/// weight gradients have f32 results; in the adaLN products only the weight is bf16, and their weight gradients are f32
/// throughout.
inline ProductTypes product_types(const ProductShape& shape, DType precision) {
  const DType result = shape.accumulates() || shape.skinny() ? DType::kF32 : precision;
  if (!shape.skinny()) return {precision, precision, result, precision};
  if (shape.accumulates()) return {DType::kF32, DType::kF32, result, DType::kF32};
  return {DType::kF32, precision, result, precision};
}

/// The arguments of the product on dense operands.
inline kernels::GemmArgs args_of(const ProductShape& shape, const ProductTypes& types, const void* a, const void* b,
                                 void* c) {
  return {.m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .a = a,
          .lda = shape.trans_a() == kernels::Trans::kYes ? shape.m : shape.k,
          .trans_a = shape.trans_a(),
          .b = b,
          .ldb = shape.trans_b() == kernels::Trans::kYes ? shape.k : shape.n,
          .trans_b = shape.trans_b(),
          .c = c,
          .ldc = shape.n,
          .accumulate = shape.accumulates(),
          .a_type = types.a,
          .b_type = types.b,
          .c_type = types.c,
          .arithmetic = types.arithmetic};
}

/// All products of a block on `rows` tokens (0: the usual batch of the model): five layers, three passes each.
inline std::vector<ProductShape> product_shapes(const ModelShape& model, int64_t rows = 0) {
  const int64_t M = rows > 0 ? rows : model.batch * kTokens, C = model.width;
  std::vector<ProductShape> all;
  for (const Pass pass : {Pass::kForward, Pass::kDataGradient, Pass::kWeightGradient}) {
    all.push_back(product_shape(model, "qkv", pass, M, 3 * C, C));
    all.push_back(product_shape(model, "proj", pass, M, C, C));
    all.push_back(product_shape(model, "up", pass, M, 4 * C, C));
    all.push_back(product_shape(model, "down", pass, M, C, 4 * C));
    all.push_back(product_shape(model, "condition", pass, kConditionRows, 6 * C, C));
  }
  return all;
}

}  // namespace ditrain::bench
