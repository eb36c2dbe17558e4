// Mean and covariance of a set of features, the only input of the Frechet distance. Their file is an npz with the
// arrays `mu` and `sigma` (ADM's `mu_s` and `sigma_s` for spatial features), which other FID tools read and write too.
// Files that ditrain writes also say how they were made, in the array `ditrain`: JSON as bytes. The arrays of a second
// composite of tiles end in `_1`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/eval/composite.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/weights/npz_file.hpp"

namespace ditrain::eval {

struct FeatureStatistics {
  std::vector<double> mu;     ///< [d]
  std::vector<double> sigma;  ///< [d, d], symmetric
  int64_t dimensions() const { return static_cast<int64_t>(mu.size()); }
};

/// Computes mean and covariance of the rows.
/// Math:     mu = mean over rows; sigma = sum (x - mu)(x - mu)^T / (n - 1)
/// Shapes:   features [n, d], row-major, n >= 2
/// Types:    T is float or double; sums f64
/// Numerics: every element is one chain of sums in the order of the rows: bit-identical for any number of workers
/// Errors:   InputError for n < 2 or features that are not finite
template <class T>
FeatureStatistics statistics_of(parallel::Team& team, const std::vector<T>& features, int64_t d);

/// The names of the two arrays in a file: `mu` and `sigma`, or `mu_s` and `sigma_s`.
struct StatisticsNames {
  std::string mu = "mu", sigma = "sigma";
};
inline const StatisticsNames kSpatialStatistics = {"mu_s", "sigma_s"};
StatisticsNames statistics_names(bool spatial, size_t composite);

/// How statistics were made.
struct StatisticsFacts {
  std::string features;                    ///< word of FeatureKind
  std::string preset, weights_sha256;      ///< for features inception, else ""
  std::string precision = {}, input = {};  ///< inception: its precision; pixels: "48 values of 4x4x3 pixels, ..."
  int64_t images = 0;
  std::vector<Composite> composites = {};  ///< for tiles; empty: the images were pictures
  std::string describe() const;            ///< "50000 images, features inception, preset adm, ..."
};

/// Reads how the statistics in a file were made; nullopt if the file does not say.
/// Errors:   InputError, where = file: facts that cannot be read
std::optional<StatisticsFacts> read_statistics_facts(const weights::NpzFile& file);

/// Reads statistics.
/// Errors:   InputError, where = file: arrays that are missing, of other types or shapes; a sigma that is not finite,
///           is not symmetric or has a negative variance
FeatureStatistics read_statistics(const weights::NpzFile& file, const StatisticsNames& names = {});

/// Statistics of one set of images; of tiles, one such entry per composite.
struct SavedStatistics {
  FeatureStatistics plain;
  std::optional<FeatureStatistics> spatial = {};
};
/// Writes them as an npz, atomically, with the facts if there are any.
/// Errors:   RunError (disk full, ...)
void write_statistics(const std::string& path, const std::vector<SavedStatistics>& statistics,
                      const std::optional<StatisticsFacts>& facts = {});

}  // namespace ditrain::eval
