// Operands of benches: tensors that the team fills before it reads them, so that their pages are on its NUMA nodes.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::bench {

/// Fills a tensor, f32 or bf16, with uniform random values in [low, high).
void fill_random(ops::Context& ctx, const Tensor& t, float low, float high);
Tensor random_tensor(ops::Context& ctx, const Shape& shape, float low, float high, DType type = DType::kF32);

/// Pins the memory of a tensor of any type while the object lives.
class Held {
 public:
  explicit Held(const Tensor& t) : tensor_(t), p_(t.storage().acquire() + t.offset_bytes()) {}
  ~Held() { tensor_.storage().release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void* get() const { return p_; }

 private:
  Tensor tensor_;
  void* p_;
};

}  // namespace ditrain::bench
