// Checksums of the files of a checkpoint, stored in its state.json (which has one of itself). All code that reads a
// file of the folder compares it with them. Each checksum covers a piece of a file, so that several threads and ranks
// write and check a file at once.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ditrain/files/checksum.hpp"
#include "ditrain/files/piece_file.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::checkpoint {

/// Bytes of a file that one writer wrote: `rows` runs of `run` bytes, the next `stride` bytes after the last.
struct CheckedPiece {
  uint64_t offset = 0, run = 0, rows = 1, stride = 0;
  uint64_t checksum = 0;  ///< files::Checksum of all runs, one after the other
  uint64_t bytes() const { return run * rows; }
};

struct CheckedFile {
  uint64_t bytes = 0;
  std::vector<CheckedPiece> pieces;  ///< by offset; together all bytes once
};

using CheckedFiles = std::map<std::string, CheckedFile>;  ///< by the file's name in the folder

/// The checksums of a file in the state.json beside it; nullopt if it has no entry, or the file is not in a checkpoint.
/// Errors: as read_checkpoint_state
std::optional<CheckedFile> checks_of(const std::string& path);

/// Compares an open file with its checksums, one tensor at a time.
class FileChecker {
 public:
  /// Checks the header, and that pieces and tensors fit. Both arguments must outlive the object.
  /// Errors: InputError as check
  FileChecker(const weights::SafetensorsFile& file, const CheckedFile& expected);

  /// The pieces of one tensor.
  std::pair<const CheckedPiece*, const CheckedPiece*> pieces_of(const weights::TensorView& tensor) const;
  /// Whether the pieces of the tensor are single runs that follow each other.
  bool in_order(const weights::TensorView& tensor) const;
  /// Reads a piece in order, in parts that fit into a cache, calls f(offset, data, bytes) with each after adding it to
  /// the sum, and compares the sum at the end.
  /// Errors: InputError naming the file, the offset and, if there is one, the tensor
  template <class F>
  void check(const CheckedPiece& piece, const std::string& tensor, const F& f) const {
    constexpr uint64_t kInCache = uint64_t{256} << 10;
    std::vector<std::byte> part(std::min(kInCache, piece.run));
    files::Checksum sum;
    for (uint64_t row = 0; row < piece.rows; ++row)
      for (uint64_t done = 0; done < piece.run; done += kInCache) {
        const uint64_t at = piece.offset + row * piece.stride + done, n = std::min(kInCache, piece.run - done);
        reader_.read(at, part.data(), n);
        sum.add(part.data(), n);
        f(at, part.data(), n);
      }
    if (sum.value() != piece.checksum) damaged(piece, tensor);
  }

 private:
  [[noreturn]] void damaged(const CheckedPiece& piece, const std::string& tensor) const;
  void expect_fit(const weights::TensorView& tensor) const;
  const weights::SafetensorsFile& file_;
  const CheckedFile& expected_;
  const files::PieceReader reader_;
};

/// Errors: InputError naming `where` unless the pieces cover each byte of the file exactly once
void expect_coverage(const CheckedFile& file, const std::string& where);

/// Reads and checks all of a file, with the cores of `pus` (parallel::run_jobs). Errors: InputError as check
void check_file(const std::string& path, const CheckedFile& expected, const std::vector<int>& pus = {});

}  // namespace ditrain::checkpoint
