// Metrics that need more than mean and covariance of the features: KID, improved precision and recall; and the
// Inception Score, which needs the class probabilities of one set only.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/parallel/team.hpp"

namespace ditrain::eval {

/// Mean and population standard deviation over subsets or splits.
struct MeanAndDeviation {
  double mean = 0, deviation = 0;
};
MeanAndDeviation mean_and_deviation(const std::vector<double>& values);

/// Rows of features; does not own them.
template <class T>
struct FeatureRows {
  const T* data;
  int64_t n, d;
};

/// The kernel inception distance between two sets: the unbiased squared maximum mean discrepancy.
/// Math:     k(a,b) = (a.b/d + 1)^3; mean of k over pairs i != j of x, plus that of y, minus twice that of pairs of x
///           and y
/// Types:    T is float or double; sums f64
/// Numerics: bit-identical for any number of workers
/// Errors:   InputError for fewer than 2 rows; LogicFault for different d
template <class T>
double kernel_distance(parallel::Team& team, const FeatureRows<T>& x, const FeatureRows<T>& y);

struct KidSettings {
  int64_t num_subsets = 100, subset_size = 1000;  ///< as torch-fidelity and clean-fid; size: at most that of a set
  uint64_t seed = 2020;
};
/// Mean and deviation of kernel_distance() over random subsets without repetition, as KID is usually reported. The seed
/// alone determines the subsets. The deviation is NaN where both sets are no larger than a subset: there is one only.
MeanAndDeviation kid(parallel::Team& team, const FeatureRows<float>& x, const FeatureRows<float>& y,
                     const KidSettings& settings = {});
/// The rows of subset number `subset` of set `which` (0 or 1): `count` <= n different numbers below n.
std::vector<int64_t> subset_rows(uint64_t seed, int64_t subset, int which, int64_t n, int64_t count);

struct PrecisionRecall {
  double precision = 0, recall = 0;
  std::vector<double> real_radius, generated_radius;  ///< distance to the k-th nearest other row of the same set
  std::vector<bool> generated_covered, real_covered;  ///< the row is inside the other set's manifold
};
/// Improved precision and recall (Kynkaanniemi et al., 2019).
/// Math:     a row is covered if its distance to some row of the other set is at most that row's radius; precision is
///           the share of covered generated rows, recall that of covered real rows
/// Types:    T is float or double; distances f64
/// Memory:   512 rows of distances at a time
/// Errors:   InputError if a set has k rows or fewer
template <class T>
PrecisionRecall precision_recall(parallel::Team& team, const FeatureRows<T>& real, const FeatureRows<T>& generated,
                                 int64_t k = 3);

/// The Inception Score: mean and deviation over splits.
/// Math:     per split: exp(mean over its rows of sum_c p (ln p - ln of the split's mean p)); split i of s has rows
///           floor(i n / s) up to floor((i+1) n / s), counted in `order`, the rows in another order (empty: their own)
/// Shapes:   probabilities [n, classes], rows sum to 1
/// Errors:   InputError if there are fewer rows than splits
MeanAndDeviation inception_score(const std::vector<double>& probabilities, int64_t classes, int64_t splits,
                                 const std::vector<int64_t>& order = {});
/// The same with given splits: each ends before the row in `ends`, which rises and ends with n.
MeanAndDeviation inception_score(const std::vector<double>& probabilities, int64_t classes,
                                 const std::vector<int64_t>& ends, const std::vector<int64_t>& order = {});
/// The ends of splits of `size` rows each, as ADM's evaluator takes them; the last one has the remaining rows.
std::vector<int64_t> splits_of_size(int64_t n, int64_t size);
/// Softmax of each row, in f64.
std::vector<double> probabilities_of(const std::vector<float>& logits, int64_t classes);

}  // namespace ditrain::eval
