// Text from outside.
#pragma once
#include <string_view>

namespace ditrain {

/// Well-formed UTF-8: shortest forms only, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace ditrain
