// Human-readable numbers of bytes.
#pragma once
#include <cstddef>
#include <string>

namespace ditrain {

std::string format_bytes(size_t bytes);  ///< "13.50 GiB", "24.0 MiB" or "0.5 KiB"

}  // namespace ditrain
