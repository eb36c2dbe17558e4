// Operands of benches: tensors filled by the team that reads them, so that their pages lie where it works.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::bench {

/// Uniform random values in [low, high) into a tensor, f32 or bf16.
void fill_random(ops::Context& ctx, const Tensor& t, float low, float high);
Tensor random_tensor(ops::Context& ctx, const Shape& shape, float low, float high, DType type = DType::kF32);

/// Holds a tensor's memory in place, whatever its type.
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
