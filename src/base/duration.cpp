#include "ditrain/base/duration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace ditrain {

std::string format_duration(double seconds) {
  const auto s = int64_t(std::max(0.0, seconds) + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

}  // namespace ditrain
