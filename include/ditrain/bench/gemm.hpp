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

/// Whether a call packs b, or gets it in panels that were packed before, as a weight that is used many times would be.
enum class PackingOfB { kTimed, kBefore };

/// One row: the product on the whole team through ops::gemm, packing of both operands included unless `packing` says
/// otherwise.
/// Types:    as in training, see product_types; sums f32
/// Skinny    products (condition) are limited by memory. Calls cycle through weight matrices that together exceed eight
///           times the last cache. The limit is a loop over the same matrix on the same team that reads the weight, or
///           updates it in place where the product adds to it
/// peers     a peer that does not have the product is left out of the row
Row measure_product(Harness& harness, const ProductShape& shape, DType precision, const Peers& peers = {},
                    PackingOfB packing = PackingOfB::kTimed);

/// One row per product of the models, and one with "B packed before" where b is a weight that tokens meet, without
/// peers; then notes: geometric means of the share and of the ratio to each peer over the
/// rows with m, n and k of at least 256, the worst of these rows, the worst skinny one, and the mean share of the rows
/// with b packed before.
/// Details   m, n, k, trans (of a and b), types (of a, b and c), cache ("warm": the same operands every time; "cold"),
///           b ("packed before"; else absent)
/// Errors:   InputError for an unknown model
void bench_gemm(Harness& harness, const GemmBench& bench);

/// The one of kModelShapes that is called so: "S" or "DiT-S/2". Errors: InputError for an unknown one
const ModelShape& model_shape(const std::string& model);

}  // namespace ditrain::bench
