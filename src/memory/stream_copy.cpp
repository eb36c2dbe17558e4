#include "stream_copy.hpp"

#include <cstring>

namespace ditrain::memory {

void stream_copy(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__SSE2__)
  using Vector = long long __attribute__((vector_size(16)));
  const auto* in = reinterpret_cast<const Vector*>(from);
  auto* out = reinterpret_cast<Vector*>(to);
  for (size_t i = 0; i < bytes / sizeof(Vector); ++i) __builtin_ia32_movntdq(out + i, in[i]);
  __builtin_ia32_sfence();
#elif defined(__aarch64__)
  // GCC has no function for these stores. They need no fence: a later release orders them as it does all others.
  for (size_t i = 0; i < bytes; i += 64)
    asm volatile(
        "ldp q0, q1, [%1]\n\t"
        "ldp q2, q3, [%1, #32]\n\t"
        "stnp q0, q1, [%0]\n\t"
        "stnp q2, q3, [%0, #32]"
        :
        : "r"(to + i), "r"(from + i)
        : "v0", "v1", "v2", "v3", "memory");
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace ditrain::memory
