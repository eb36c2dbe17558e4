// Cache blocks of gemm: derived from cache sizes, or set from a tuning file.
#include <algorithm>
#include <string>

#include "ditrain/base/error.hpp"
#include "instruction_sets.hpp"

namespace ditrain::kernels {

GemmBlocking gemm_blocking_in_use = derived_gemm_blocking(0, 0);

GemmBlocking gemm_blocking() { return gemm_blocking_in_use; }

void check_gemm_blocking(const GemmBlocking& blocking) {
  constexpr int64_t kMost = 1 << 20;
  if (std::min(blocking.rows, blocking.cols) < 1 || std::max(blocking.rows, blocking.cols) > kMost)
    throw InputError({.where = "gemm blocking",
                      .what = "block size out of range",
                      .got = std::to_string(blocking.rows) + " rows, " + std::to_string(blocking.cols) + " columns",
                      .expected = "1 to 1048576"});
}

void set_gemm_blocking(const GemmBlocking& blocking) {
  check_gemm_blocking(blocking);
  gemm_blocking_in_use = blocking;
}

bool multiplies_on_unit(DType arithmetic) { return process_kernels().kernels.products(arithmetic).on_matrix_unit; }

int64_t gemm_tile_rows() { return process_kernels().kernels.f32_products->tile_rows; }

GemmBlocking derived_gemm_blocking(size_t l2_bytes, size_t l3_bytes_per_core) {
  constexpr size_t kUsualL2 = size_t{1} << 20, kUsualL3 = size_t{2} << 20;  // where hwloc knows nothing
  constexpr size_t kStepBytes = size_t(kSumChunk) * sizeof(float);          // of a row of a, of a column of b
  const auto rows = int64_t((l2_bytes == 0 ? kUsualL2 : l2_bytes) * 2 / 5 / kStepBytes);
  const auto cols = int64_t((l3_bytes_per_core == 0 ? kUsualL3 : l3_bytes_per_core) / 3 / kStepBytes);
  return {std::clamp<int64_t>(rows, 28, 1024), std::clamp<int64_t>(cols, 256, 1536)};
}

}  // namespace ditrain::kernels
