// The Frechet distance between two sets of features, each modelled as a normal distribution. With Inception features it
// is the FID.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/eval/feature_statistics.hpp"

namespace ditrain::eval {

struct FrechetDistance {
  double value = 0;
  double mean_term = 0;  ///< |mu1 - mu2|^2
  double trace1 = 0, trace2 = 0;
  double trace_of_root = 0;  ///< tr sqrt(sigma1^1/2 sigma2 sigma1^1/2)
  /// Numbers of eigenvalues below 0, which were set to 0: num_negative1 of sigma1 (equal to its negative pivots, by
  /// Sylvester's law of inertia) and num_negative of the product. most_negative1 (a pivot) and most_negative (an
  /// eigenvalue) are relative to the largest; rounding alone leaves about -1e-16 times the number of dimensions.
  int64_t num_negative1 = 0, num_negative = 0;
  double most_negative1 = 0, most_negative = 0;
};

/// Math:     |mu1-mu2|^2 + tr sigma1 + tr sigma2 - 2 tr sqrt(sigma1^1/2 sigma2 sigma1^1/2)
/// Numerics: with a factor F^T F = sigma1 (pivoted Cholesky) the matrix F sigma2 F^T has the same eigenvalues as
///           sigma1^1/2 sigma2 sigma1^1/2 but needs no eigenvectors; the eigenvalues come from Eigen's
///           SelfAdjointEigenSolver in f64. Singular covariances need no special case (pytorch-fid's sqrtm adds 1e-6 to
///           them). Rounding may put the distance of a set to itself below 0, by up to 1e-12 of its traces
/// Memory:   4 matrices [d, d] in f64
/// Threads:  the workers of `team` share the GEMMs; bit-identical for any number of them
/// Errors:   InputError if the sets have different numbers of dimensions; RunError if the eigenvalues do not converge
FrechetDistance frechet_distance(parallel::Team& team, const FeatureStatistics& a, const FeatureStatistics& b);

/// The same of a set of n features themselves [n, d].
/// Math:     with X the centred features / sqrt(n - 1), sigma2 = X^T X, and X sigma1 X^T [n, n] has the eigenvalues of
///           the above that are not 0. With fewer images than dimensions that takes n d^2 + n^3 in the place of d^3
///           multiply-adds and no decomposition of sigma1, whose negative eigenvalues are not counted then
/// Memory:   n <= d: 2 matrices [n, d] and 3 [n, n] in f64; else as above
/// Errors:   as above; InputError for fewer than two images
FrechetDistance frechet_distance(parallel::Team& team, const FeatureStatistics& a, const std::vector<float>& features);

}  // namespace ditrain::eval
