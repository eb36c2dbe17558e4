// A product made by a packing group: threads that pack b together, each with rows of its own.
#pragma once
#include <barrier>
#include <thread>

#include "kernel_test_utils.hpp"

namespace ditrain::kernels {

/// rows[i]: rows of member i, all rows of g in total; 0 for one that only packs.
inline void run_as_packing_group(const ProductKernels& table, const GemmArgs& g, const std::vector<int64_t>& rows) {
  std::barrier meeting(int64_t(rows.size()));
  const auto barrier = [](const void* context) {
    const_cast<std::barrier<>*>(static_cast<const std::barrier<>*>(context))->arrive_and_wait();
  };
  PackingGroup packers{.members = int(rows.size()),
                       .most_rows = *std::max_element(rows.begin(), rows.end()),
                       .most_cols = g.n,
                       .barrier = barrier,
                       .context = &meeting};
  const Scratch shared(table.shared_bytes(g, packers));
  packers.shared = shared.get();
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0, first = 0; i < int64_t(rows.size()); first += rows[size_t(i++)])
      threads.emplace_back([&, i, first, own = packers]() mutable {
        own.member = int(i);
        const GemmArgs part = block_of(g, first, rows[size_t(i)], 0, g.n);
        const Scratch scratch(table.scratch_bytes(part, own));
        table.gemm(part, scratch.get(), own);
      });
  }
  CHECK(shared.zone_untouched());
}

}  // namespace ditrain::kernels
