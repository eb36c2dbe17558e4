#include "ditrain/kernels/measure.hpp"

#include <ctime>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

TEST_CASE("the loops behind the peaks are neither merged nor removed") {
  // Rated by CPU time, which other processes do not stretch. 2 units x lanes x 2 flop x 6.5 GHz is above any core,
  // twice that for pairs of bf16; a matrix unit has lanes x lanes sums.
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const ProductKernels* table : usable_products(type)) {
      if (table->fma_burst == nullptr || std::string(table->name).ends_with("_model")) continue;
      CAPTURE(table->name, dtype_name(type));
      const double lanes = static_cast<double>(table->tile_cols) / 2, pairs = type == DType::kBF16 ? 2 : 1;
      const double sums = table->on_matrix_unit ? lanes * lanes : lanes;
      const std::clock_t start = std::clock();
      const double flop = table->fma_burst(table->on_matrix_unit ? 100000 : 1000000);
      const double cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      CHECK(flop > 0);
      CHECK(flop / cpu_s < 2 * sums * 2 * pairs * 6.5e9);
    }
  }
}

TEST_CASE("the f32 peak is plausible, and the bf16 peak is there where the CPU has the instruction") {
  CHECK(measure_fma_peak(DType::kF32, 0.02) > (only_kernels() == nullptr ? 1e8 : 0));  // an emulator has no speed
  const double bf16 = measure_fma_peak(DType::kBF16, 0.02);
  CHECK((bf16 > 0) == (process_kernels().kernels.bf16_products->fma_burst != nullptr));
  if (bf16 > 0 && only_kernels() == nullptr)
    CHECK(bf16 > measure_fma_peak(DType::kF32, 0.02));  // 2 or 4 times on known cores
  CHECK_THROWS_AS(measure_fma_peak(DType::kI64, 0.02), LogicFault);
}

TEST_CASE("a pass over memory reads, writes and updates what it says, for every mix and length") {
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (int reads = 0; reads <= kMaxStreamReads; ++reads)
      for (int writes = 0; writes <= kMaxStreamWrites; ++writes)
        for (int updates = 0; updates <= kMaxStreamUpdates; ++updates)
          for (const int64_t n : {1, 15, 64, 203}) {
            const StreamMix mix{reads, writes, updates};
            CAPTURE(table->name, reads, writes, updates, n);
            std::vector<std::vector<float>> before;
            std::vector<Guarded> arrays;
            for (int a = 0; a < mix.arrays(); ++a) {
              // Multiples of 1/8: sums are exact in any order.
              before.push_back(random_values(n, uint64_t(a + 1), 100));
              for (float& x : before.back()) x = std::round(x) / 8;
              arrays.emplace_back(before.back());
            }
            std::vector<float*> pointers;
            for (Guarded& a : arrays) pointers.push_back(a.data());
            const float result = table->stream_burst(mix, pointers.data(), n);

            float total = 0;
            std::vector<float> sum(size_t(n), 0.0f);
            for (int a = 0; a < reads; ++a)
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[size_t(a)][i];
            for (const float s : sum) total += s;
            CHECK(result == (writes + updates == 0 ? total : 0));
            for (size_t a = 0; a < arrays.size(); ++a) {
              CHECK(arrays[a].zones_untouched());
              std::vector<float> expected = before[a];
              for (size_t i = 0; i < sum.size(); ++i) {
                if (int(a) >= reads) expected[i] = sum[i];
                if (int(a) >= reads + writes) expected[i] = (before[a][i] + sum[i]) / 2;
              }
              CHECK(arrays[a].values() == expected);
            }
          }
  }
}

TEST_CASE("a pass over memory refuses a mix that it has no loop for") {
  float x = 0;
  float* arrays[] = {&x, &x, &x, &x, &x};
  CHECK_THROWS_AS(stream_pass({}, arrays, 1), LogicFault);
  CHECK_THROWS_AS(stream_pass({.reads = kMaxStreamReads + 1}, arrays, 1), LogicFault);
  CHECK_THROWS_AS(stream_pass({.updates = kMaxStreamUpdates + 1}, arrays, 1), LogicFault);
  CHECK_THROWS_AS(stream_pass({.reads = 1, .writes = -1}, arrays, 1), LogicFault);
}

TEST_CASE("a read of memory takes time") {
  const std::vector<float> x = random_values(1 << 16, 142);
  float* arrays[] = {const_cast<float*>(x.data())};
  const std::clock_t start = std::clock();
  volatile float sink = 0;
  constexpr int kPasses = 2000;
  for (int i = 0; i < kPasses; ++i) sink = stream_pass({.reads = 1}, arrays, 1 << 16);
  static_cast<void>(sink);
  const double cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(kPasses * 4.0 * (1 << 16) / cpu_s < 2 * 64 * 6.5e9);  // two 64-byte loads a cycle
}
