// Mean and covariance of a set of features: all that the Frechet distance knows of it. As a file, an npz with the
// arrays `mu` and `sigma` (or ADM's `mu_s`, `sigma_s` for spatial features), which other FID tools read and write too.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/io/npz_file.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::eval {

struct FeatureStatistics {
  std::vector<double> mu;     ///< [d]
  std::vector<double> sigma;  ///< [d, d], symmetric
  int64_t dimensions() const { return static_cast<int64_t>(mu.size()); }
};

/// Math:     mu = mean over rows; sigma = sum (x - mu)(x - mu)^T / (n - 1)
/// Shapes:   features [n, d], row-major, n >= 2
/// Types:    T is float or double; sums f64
/// Numerics: every element is one chain of sums in the order of the rows: the same bits for any number of workers
/// Errors:   InputError for n < 2 or features that are not finite
template <class T>
FeatureStatistics statistics_of(parallel::Team& team, const std::vector<T>& features, int64_t d);

/// Which arrays of a file: `mu` and `sigma`, or `mu_s` and `sigma_s`.
struct StatisticsNames {
  std::string mu = "mu", sigma = "sigma";
};
inline const StatisticsNames kSpatialStatistics = {"mu_s", "sigma_s"};

/// Reads statistics.
/// Errors:   InputError, where = file: arrays that are missing, of other types or shapes; a sigma that is not finite,
///           is not symmetric or has a negative variance
FeatureStatistics read_statistics(const io::NpzFile& file, const StatisticsNames& names = {});

/// Writes `mu` and `sigma`, of spatial features too if there are any, as an npz, atomically.
/// Errors:   RunError (disk full, ...)
void write_statistics(const std::string& path, const FeatureStatistics& statistics,
                      const std::optional<FeatureStatistics>& spatial = {});

}  // namespace ditrain::eval
