#include "ditrain/base/bytes.hpp"

#include <fmt/format.h>

namespace ditrain {

std::string format_bytes(size_t bytes) {
  const double b = double(bytes);
  if (b >= 0x1p30) return fmt::format("{:.2f} GiB", b / 0x1p30);
  if (b >= 0x1p20) return fmt::format("{:.1f} MiB", b / 0x1p20);
  return fmt::format("{:.1f} KiB", b / 0x1p10);
}

}  // namespace ditrain
