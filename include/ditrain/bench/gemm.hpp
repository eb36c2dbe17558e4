// Times the matrix products (GEMM) of the DiT models, compared with the FMA peak, memory bandwidth and other libraries.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/bench/peers.hpp"
#include "ditrain/bench/shapes.hpp"

namespace ditrain::bench {

struct GemmBench {
  std::string model = {};  ///< S, B, L, XL or a full name of patch 2; empty: all four
  int64_t batch = 0;       ///< images; 0: ModelShape::batch
  std::vector<DType> precisions = {DType::kF32};
  bool peers = false;  ///< time OpenBLAS, BLIS and oneDNN in alternation with ours
};

/// One row: the product on the whole team through ops::gemm, packing of both operands included.
/// Types:    as in training, see product_types; sums f32
/// Skinny    products (condition) are limited by memory. Calls cycle through weight matrices that together exceed eight
///           times the last cache. The limit is a loop over the same matrix on the same team that reads the weight, or
///           updates it in place where the product adds to it
/// peers     a peer that does not have the product is left out of the row
Row measure_product(Harness& harness, const ProductShape& shape, DType precision, const Peers& peers = {});

/// One row per product of the models, then notes: geometric means of the share and of the ratio to each peer over the
/// rows with m, n and k of at least 256, the worst of these rows, and the worst skinny one.
/// Details   m, n, k, trans (of a and b), types (of a, b and c), cache ("warm": the same operands every time; "cold")
/// Errors:   InputError for an unknown model
void bench_gemm(Harness& harness, const GemmBench& bench);

/// The shapes of one model, or of all if `model` is empty. Errors: InputError for an unknown one
std::vector<ModelShape> model_shapes(const std::string& model);

}  // namespace ditrain::bench
