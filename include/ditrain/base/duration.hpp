// Human-readable durations.
#pragma once
#include <string>

namespace ditrain {

/// "12 s", "3 min 12 s" or "5 h 3 min".
std::string format_duration(double seconds);

}  // namespace ditrain
