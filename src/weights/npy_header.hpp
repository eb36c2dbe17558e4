// The header of a .npy: magic, version, length and a Python dictionary of three known keys, which is read by a small
// grammar and never evaluated.
#pragma once
#include <string>
#include <string_view>

#include "ditrain/weights/npz_file.hpp"

namespace ditrain::weights {

/// Where the text of the dictionary lies, by the first bytes of a .npy (12 are enough).
struct NpyPreamble {
  size_t bytes;       // before the text
  size_t text_bytes;  // at most kMaxNpyHeaderBytes
};
inline constexpr size_t kMaxNpyHeaderBytes = 1 << 16;

/// `where` names file and array. Errors: InputError
NpyPreamble parse_npy_preamble(const std::string& where, std::string_view begin);
NpyHeader parse_npy_dictionary(const std::string& where, std::string_view text);

}  // namespace ditrain::weights
