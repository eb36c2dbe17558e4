// Reading numpy's .npz (a zip of .npy) and bare .npy files: images and statistics for FID. Numbers only, of any size,
// byte order and memory order; objects, strings and records are refused, because some of them would need a pickle.
// Files are untrusted: headers are parsed by a small grammar, never evaluated, and the data must have exactly the
// bytes that the shape says. Writing is in weights/npz.hpp.
//
//   NpzFile file("reference.npz");
//   if (file.contains("mu")) { std::vector<double> mu = file.to_f64("mu"); ... }
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/weights/zip_file.hpp"

namespace ditrain::weights {

/// The header of an array.
struct NpyHeader {
  std::string dtype;  ///< numpy's letter and bytes: "u1", "i8", "f4", "b1", ...
  bool big_endian = false, fortran_order = false;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;       ///< bytes of the data
  size_t header_bytes = 0;  ///< bytes before the data
  size_t element_bytes = 1;
  uint64_t num_elements() const { return bytes / element_bytes; }
};

inline constexpr uint64_t kMaxNpyBytes = uint64_t{4} << 30;

/// Errors:   InputError, where = path, with the name of the array: as ZipFile; not an .npy file; unknown version; a
///           header other than a dictionary of descr, fortran_order and shape; a non-numeric type; shapes that are
///           negative or overflow; more or fewer bytes than the shape says; arrays over kMaxNpyBytes when read whole
class NpzFile {
 public:
  /// Reads the directory; arrays are read on request.
  explicit NpzFile(const std::string& path);
  /// A file in memory, which must outlive the object.
  NpzFile(const std::string& where, std::string_view bytes);

  const std::string& where() const { return where_; }
  /// In the order of the file; a bare .npy is one array named "".
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const;

  NpyHeader header(const std::string& name) const;
  /// All elements, row-major and little endian, whatever the file has.
  std::vector<std::byte> read(const std::string& name) const;
  /// The same as numbers; integers beyond 2^53 are rounded to nearest.
  std::vector<double> to_f64(const std::string& name) const;

 private:
  friend class NpyStream;
  const ZipFile::Entry& entry(const std::string& name) const;
  void open(std::string_view bytes);

  std::string where_;
  std::shared_ptr<const void> mapping_;
  std::string_view bare_;  // a bare .npy
  std::shared_ptr<const ZipFile> zip_;
  std::vector<std::string> names_;
};

/// The elements of one array from the first to the last, for arrays larger than memory.
/// Errors:   as NpzFile; also an array in Fortran's order or of the other byte order
class NpyStream {
 public:
  NpyStream(const NpzFile& file, const std::string& name);  ///< `file` has to outlive this
  const NpyHeader& header() const { return header_; }
  /// The next `bytes` bytes. LogicFault beyond the end.
  void read(void* to, size_t bytes);
  /// Call after the last byte: compares the checksum.
  void finish();

 private:
  NpyHeader header_;
  uint64_t left_;
  std::string_view bare_;
  std::unique_ptr<ZipStream> stream_;
};

/// Numbers as f64: `bytes` holds elements of `dtype`, little endian.
std::vector<double> npy_to_f64(const std::string& dtype, const std::vector<std::byte>& bytes);

}  // namespace ditrain::weights
