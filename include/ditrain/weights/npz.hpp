// Writing numpy's .npz, a stored zip of .npy members: samples for FID tools ("arr_0" of shape [N, H, W, C] u8), and
// small arrays of numbers. Samples stream, so that 50,000 images need no memory; above 4 GiB the zip64 records are
// used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/files/files.hpp"

namespace ditrain::weights {

/// Writes one u8 array piece by piece, in row-major order.
/// Errors:   RunError (disk full, ...). Appending more than the shape holds, or finishing with less: LogicFault.
///           A file that is not finished is removed.
class NpzU8Writer {
 public:
  NpzU8Writer(const std::string& path, const std::string& array_name, const std::vector<int64_t>& shape);
  void append(const uint8_t* data, size_t bytes);
  void finish();

 private:
  files::FileWriter file_;
  std::string member_;        ///< name inside the zip
  uint64_t member_bytes_;     ///< .npy header and data
  uint64_t remaining_bytes_;  ///< data still to come
  uint32_t crc_ = 0;
};

/// An array to write; `data` is row-major.
struct NpyToWrite {
  std::string name;
  std::vector<int64_t> shape;
  const double* data;
  std::string_view text = {};  ///< instead of `data`: bytes, of type u1
};

/// Writes arrays of f64 or of bytes, atomically.
/// Errors:   RunError (disk full, ...); LogicFault for 4 GiB or more together
void write_npz_f64(const std::string& path, const std::vector<NpyToWrite>& arrays);

/// The record before a stored zip member, and the directory that ends a zip with that single member (at offset 0).
/// For 4 GiB or more they have zip64 fields.
std::string zip_local_header(const std::string& member, uint64_t member_bytes, uint32_t crc);
std::string zip_directory(const std::string& member, uint64_t member_bytes, uint32_t crc);

}  // namespace ditrain::weights
