// What the model of the tile unit tells the kernels' tests of its work; see amx_model.inc, and core_model.hpp there.
#pragma once
#include <cstdint>

namespace ditrain::kernels {

/// Hears of every operation of the unit, which is then not made. Loads and stores are of 16 rows of 64 bytes, `stride`
/// bytes apart.
struct UnitListener {
  virtual void zero(int tile) = 0;
  virtual void load(int tile, const void* p, int64_t stride) = 0;
  virtual void load_passing(int tile, const void* p, int64_t stride) = 0;  ///< leaves the L1 cache to others
  virtual void store(int tile, const void* p, int64_t stride) = 0;
  virtual void multiply_add(int sum, int a, int b) = 0;
  virtual void fetch(const void* line) = 0;
  /// Arithmetic of vectors, made all the same, that accesses to memory do not imply.
  virtual void vector_work(int operations) = 0;

 protected:
  ~UnitListener() = default;
};
extern thread_local UnitListener* unit_listener;  ///< of the calling thread; null: none

}  // namespace ditrain::kernels
