// Compares a computed array with an expected one: error relative to a scale, against a tolerance.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ditrain::verify {

/// The outcome of one comparison, told at its worst entry: the one with the largest |got - want| / scale.
struct Comparison {
  std::string tensor;    ///< name in the fixture
  std::string quantity;  ///< which part or quantity of it ("first half", "movement"); "": all of it
  double max_abs = 0;    ///< largest |got - want|
  double max_rel = 0;    ///< largest |got - want| / scale; passed means max_rel <= tolerance
  double tolerance = 0;
  double scale = 0;  ///< at the worst entry
  bool passed = false;
  int64_t index = 0;  ///< flat index of the worst entry, within what is compared
  double got = 0, want = 0;
  int64_t nan_count = 0;  ///< entries where either side is NaN or infinite: each is a failure
};

/// Math:     passes if |got[i] - want[i]| <= tolerance * scales[i / (n / scales.size())] for all i and all are finite
/// Shapes:   got, want [n], n >= 1; the number of scales divides n, each is for a run of neighbours. A scale or a
///           tolerance of 0 requires equality
Comparison compare(std::span<const double> got, std::span<const double> want, double tolerance,
                   std::span<const double> scales);

/// The same in the L2 norm, for results of low precision: max_rel is |got - want| / |want|, of vectors; the worst entry
/// is the one with the largest difference, the scale is the root mean square of `want`.
Comparison compare_l2(std::span<const double> got, std::span<const double> want, double tolerance);

/// Scales for compare(): max |want| of each of `rows` equal pieces, or 1 where that is 0.
std::vector<double> piece_scales(std::span<const double> want, int64_t rows);
/// The same with every entry as its own piece: errors are then relative errors.
std::vector<double> entry_scales(std::span<const double> want);

}  // namespace ditrain::verify
