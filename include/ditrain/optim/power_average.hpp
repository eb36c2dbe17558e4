// Power averages of the weights, from which an EMA of another width can be computed after the run (Karras et al. 2024,
// "Analyzing and Improving the Training Dynamics of Diffusion Models", https://arxiv.org/abs/2312.02696, section 3 and
// appendix C).
//
//   average <- average + share (w - average),   share = 1 - (1 - 1/t)^(exponent + 1)   after update t = 1, 2, ...
//
// It weighs the weights after update s nearly by s^exponent, whatever the length of the run; its width is the standard
// deviation of that profile as a share of t. A run keeps two (`tracked_averages`) and stores both every
// ema.snapshots_every steps (checkpoint/snapshots.hpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ditrain::optim {

/// Widths that can be solved for.
inline constexpr double kLeastWidth = 0.01, kGreatestWidth = 0.28;

/// Math:     the exponent e with width^2 = (e + 1) / ((e + 2)^2 (e + 3)); 0 < width < 1 / sqrt(12)
double exponent_of_width(double width);

/// The share that the new weights take of the average in update `step` (0 is the first).
double share_of_update(double exponent, int64_t step);

struct TrackedAverage {
  std::string name, width;  ///< in checkpoints; "0.05"
  double exponent;
};
/// The tracked averages, of widths 0.05 and 0.10 as in the paper.
const std::vector<TrackedAverage>& tracked_averages();

/// The profile of an average: its exponent, after `updates` updates.
struct AverageProfile {
  double updates, exponent;
};

/// The factors with which the sum of the stored averages is nearest to the wanted average.
/// Math:     least squares of the profiles p(s) = (exponent + 1) s^exponent / updates^(exponent + 1) on [0, updates],
///           f64
/// Errors:   LogicFault without stored averages
/// error     if not null, receives the norm of the remaining difference / norm of the wanted profile
std::vector<double> solve_average(const std::vector<AverageProfile>& stored, const AverageProfile& wanted,
                                  double* error = nullptr);

}  // namespace ditrain::optim
