// Safetensors files: named arrays behind a JSON header (u64 little-endian header length, header, data).
// Reading maps the file and validates all of it before anything is handed out: files come from outside and are treated
// as hostile. Writing streams, checks every call and syncs. Not here: which tensors a checkpoint has (module
// checkpoint).
//
//   SafetensorsFile file("model.safetensors");
//   std::vector<float> w = to_f32(file.tensor("blocks.0.attn.qkv.weight"));
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ditrain::weights {

/// One tensor of an open file. `data` points into the mapping, is valid as long as a copy of the SafetensorsFile lives,
/// and may be UNALIGNED: read it through the functions below or memcpy. Row-major, little endian.
struct TensorView {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", "F64", "I64", ...
  std::vector<int64_t> shape;
  const std::byte* data;
  size_t bytes;
  uint64_t offset = 0;  ///< of the data in the file

  int64_t num_elements() const;  ///< product of shape; 1 for a 0-dim tensor
};

/// A validated, memory-mapped (read-only) safetensors file.
/// Errors:   InputError, where = path: unreadable or not a regular file; shorter than 8 bytes; header over 100,000,000
///           bytes or longer than the file; not starting with '{', not UTF-8, not JSON; duplicate keys at any level;
///           unknown or missing fields; unknown dtype; negative, fractional or overflowing shapes; byte count that does
///           not match; offsets reversed, with holes or overlaps; truncated or trailing data; metadata not string to
///           string. NaN and infinity inside tensors are allowed.
/// Threads:  const functions may be called from any thread.
/// Limits:   if another process shortens the file, reading the pages that are gone ends the program with a message that
///           names the file, and exit code 1 (files/mapped_file.hpp).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const std::byte* data() const { return mapping_.get(); }  ///< the whole file
  size_t bytes() const { return bytes_; }
  /// All tensors in the order of their data in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  /// The tensor of that name. Errors: InputError naming the nearest existing name
  const TensorView& tensor(const std::string& name) const;
  /// Releases the pages that were read: they no longer count as memory of the process, and return on the next read.
  void release_pages() const;
  /// The string-to-string map "__metadata__" (empty if absent).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::string path_;
  std::shared_ptr<const std::byte> mapping_;
  size_t bytes_ = 0;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Bits of one element of a safetensors dtype ("F32" -> 32); 0 for an unknown one. Files may hold types that none of
/// the functions below reads.
size_t safetensors_dtype_bits(const std::string& dtype);
/// Its bytes; 0 for an unknown dtype, and for one of parts of bytes.
size_t safetensors_dtype_bytes(const std::string& dtype);

/// Rows [first, first + count) of the first dimension, as a view of shape [count, ...].
/// Errors:   InputError if the view is 0-dim or has fewer rows.
TensorView row_range(const TensorView& view, int64_t first, int64_t count);

/// Copies to f32 (out has num_elements()). Accepts F32, F64 (rounded), BF16, F16; InputError for other dtypes.
void read_f32(const TensorView& view, float* out);
std::vector<float> to_f32(const TensorView& view);
/// As above, to f64; accepts the integer dtypes and BOOL too (beyond 2^53 rounded to nearest).
std::vector<double> to_f64(const TensorView& view);
/// Integers only: BOOL, U8, I8, U16, I16, U32, I32, I64, U64 (InputError for a U64 over 2^63 - 1); others InputError.
std::vector<int64_t> to_i64(const TensorView& view);

/// One tensor to write; `data` is of `dtype`, contiguous row-major, and must live until write_safetensors returns.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const void* data;
  bool f32_to_bf16 = false;  ///< data is f32, dtype "BF16": converted while writing (round to nearest even)
};

/// Writes a file that every safetensors reader accepts: tensors sorted by element size (descending), then name; header
/// padded to a multiple of 8; metadata plus {"format": "pt"}. The content is synced to disk on return.
/// Errors:   RunError naming path, bytes and the reason (disk full, ...); the partial file is then removed.
///           Duplicate names or impossible shapes are our own bugs (LogicFault).
/// Limits:   not atomic: write into a CheckpointWriter's folder, or to a temporary name and rename.
void write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                       std::map<std::string, std::string> metadata = {});

/// The layout of the file that write_safetensors would write for these tensors (their `data` is not used), for code
/// that writes the file in pieces.
struct SafetensorsLayout {
  struct Place {
    uint64_t offset, bytes;  ///< in the file
  };
  std::string begin;                    ///< the bytes before the data of the tensors
  std::map<std::string, Place> places;  ///< by name
  uint64_t bytes;                       ///< of the file
};
/// Errors: LogicFault as write_safetensors
SafetensorsLayout lay_out_safetensors(std::vector<TensorToWrite> tensors,
                                      std::map<std::string, std::string> metadata = {});

}  // namespace ditrain::weights
