// Source:   Binkowski et al. 2018 (KID), Kynkaanniemi et al. 2019 (precision and recall), Salimans et al. 2016
// (Inception
//           Score), with the conventions of torch-fidelity and ADM's evaluator.
#include "ditrain/eval/set_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "products.hpp"

namespace ditrain::eval {
namespace {

constexpr int64_t kRowsAtATime = 512;

// Sum of the kernel over all pairs of a row of x and a row of y; without pairs of equal numbers if `skip_equal`.
template <class T>
double kernel_sum(parallel::Team& team, const FeatureRows<T>& x, const FeatureRows<T>& y, bool skip_equal) {
  std::vector<double> products(size_t(std::min(kRowsAtATime, x.n) * y.n));
  double sum = 0;
  for (int64_t begin = 0; begin < x.n; begin += kRowsAtATime) {
    const int64_t rows = std::min(kRowsAtATime, x.n - begin);
    row_products(team, x.data + begin * x.d, rows, y.data, y.n, x.d, products.data());
    for (int64_t i = 0; i < rows; ++i) {
      double row_sum = 0;
      for (int64_t j = 0; j < y.n; ++j) {
        const double base = products[size_t(i * y.n + j)] / double(x.d) + 1;
        if (!skip_equal || begin + i != j) row_sum += base * base * base;
      }
      sum += row_sum;
    }
  }
  return sum;
}

template <class T>
std::vector<double> squared_norms(const FeatureRows<T>& x) {
  std::vector<double> norms(size_t(x.n), 0.0);
  for (int64_t i = 0; i < x.n; ++i)
    for (int64_t k = 0; k < x.d; ++k) norms[size_t(i)] += double(x.data[i * x.d + k]) * double(x.data[i * x.d + k]);
  return norms;
}

// Calls use(i, squared distances of row i of x to all rows of y) for all i, in order.
template <class T, class Use>
void for_distances(parallel::Team& team, const FeatureRows<T>& x, const FeatureRows<T>& y, const Use& use) {
  const std::vector<double> x_norms = squared_norms(x), y_norms = squared_norms(y);
  std::vector<double> squares(size_t(std::min(kRowsAtATime, x.n) * y.n));
  for (int64_t begin = 0; begin < x.n; begin += kRowsAtATime) {
    const int64_t rows = std::min(kRowsAtATime, x.n - begin);
    row_products(team, x.data + begin * x.d, rows, y.data, y.n, x.d, squares.data());
    for (int64_t i = 0; i < rows; ++i) {
      double* row = squares.data() + i * y.n;
      for (int64_t j = 0; j < y.n; ++j)
        row[j] = std::max(x_norms[size_t(begin + i)] + y_norms[size_t(j)] - 2 * row[j], 0.0);
      use(begin + i, row);
    }
  }
}

template <class T>
std::vector<double> radii(parallel::Team& team, const FeatureRows<T>& x, int64_t k) {
  std::vector<double> radius(size_t(x.n));
  for_distances(team, x, x, [&](int64_t i, double* row) {
    row[i] = std::numeric_limits<double>::infinity();  // a row is not its own neighbour
    std::nth_element(row, row + k - 1, row + x.n);
    radius[size_t(i)] = std::sqrt(row[k - 1]);
  });
  return radius;
}

// Which rows of x lie within the radius of some row of y.
template <class T>
std::vector<bool> covered(parallel::Team& team, const FeatureRows<T>& x, const FeatureRows<T>& y,
                          const std::vector<double>& y_radius) {
  std::vector<bool> inside(size_t(x.n), false);
  for_distances(team, x, y, [&](int64_t i, const double* row) {
    for (int64_t j = 0; j < y.n && !inside[size_t(i)]; ++j)
      inside[size_t(i)] = std::sqrt(row[j]) <= y_radius[size_t(j)];
  });
  return inside;
}

double share(const std::vector<bool>& values) {
  return double(std::count(values.begin(), values.end(), true)) / double(values.size());
}

std::vector<float> gather_rows(const FeatureRows<float>& x, const std::vector<int64_t>& rows) {
  std::vector<float> out;
  out.reserve(rows.size() * size_t(x.d));
  for (const int64_t row : rows) out.insert(out.end(), x.data + row * x.d, x.data + (row + 1) * x.d);
  return out;
}

}  // namespace

MeanAndDeviation mean_and_deviation(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / double(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / double(values.size()))};
}

template <class T>
double kernel_distance(parallel::Team& team, const FeatureRows<T>& x, const FeatureRows<T>& y) {
  DITRAIN_CHECK(x.d == y.d, "features of one size are needed");
  if (x.n < 2 || y.n < 2)
    throw InputError({.where = "KID",
                      .what = "needs at least 2 images on each side",
                      .got = std::to_string(x.n) + " and " + std::to_string(y.n)});
  const double m = double(x.n), n = double(y.n);
  return kernel_sum(team, x, x, true) / (m * (m - 1)) + kernel_sum(team, y, y, true) / (n * (n - 1)) -
         2 * kernel_sum(team, x, y, false) / (m * n);
}

// A shuffle of Fisher and Yates that stops after `count` places and keeps only the places that moved.
std::vector<int64_t> subset_rows(uint64_t seed, int64_t subset, int which, int64_t n, int64_t count) {
  DITRAIN_CHECK(count <= n, "a subset larger than the set");
  const RandomKey key(seed, Stream::kEval, uint64_t(subset), uint64_t(which));
  std::unordered_map<int64_t, int64_t> moved;
  const auto at = [&](int64_t i) {
    const auto found = moved.find(i);
    return found == moved.end() ? i : found->second;
  };
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t j = i + int64_t(key.below(uint64_t(i), uint64_t(n - i)));
    rows.push_back(at(j));
    moved[j] = at(i);
  }
  return rows;
}

MeanAndDeviation kid(parallel::Team& team, const FeatureRows<float>& x, const FeatureRows<float>& y,
                     const KidSettings& settings) {
  const int64_t size = std::min({settings.subset_size, x.n, y.n});
  if (size == x.n && size == y.n)  // all subsets would be the sets themselves
    return {kernel_distance(team, x, y), std::numeric_limits<double>::quiet_NaN()};
  std::vector<double> values;
  for (int64_t s = 0; s < settings.num_subsets; ++s) {
    const std::vector<float> a = gather_rows(x, subset_rows(settings.seed, s, 0, x.n, size));
    const std::vector<float> b = gather_rows(y, subset_rows(settings.seed, s, 1, y.n, size));
    values.push_back(kernel_distance<float>(team, {a.data(), size, x.d}, {b.data(), size, y.d}));
  }
  return mean_and_deviation(values);
}

template <class T>
PrecisionRecall precision_recall(parallel::Team& team, const FeatureRows<T>& real, const FeatureRows<T>& generated,
                                 int64_t k) {
  DITRAIN_CHECK(real.d == generated.d && k >= 1, "the same features are needed");
  if (std::min(real.n, generated.n) <= k) {
    throw InputError({.where = "precision and recall",
                      .what = "a set has too few images for its neighbours",
                      .got = std::to_string(std::min(real.n, generated.n)),
                      .expected = "at least " + std::to_string(k + 1)});
  }
  PrecisionRecall result;
  result.real_radius = radii(team, real, k);
  result.generated_radius = radii(team, generated, k);
  result.generated_covered = covered(team, generated, real, result.real_radius);
  result.real_covered = covered(team, real, generated, result.generated_radius);
  result.precision = share(result.generated_covered);
  result.recall = share(result.real_covered);
  return result;
}

template double kernel_distance(parallel::Team&, const FeatureRows<float>&, const FeatureRows<float>&);
template double kernel_distance(parallel::Team&, const FeatureRows<double>&, const FeatureRows<double>&);
template PrecisionRecall precision_recall(parallel::Team&, const FeatureRows<float>&, const FeatureRows<float>&,
                                          int64_t);
template PrecisionRecall precision_recall(parallel::Team&, const FeatureRows<double>&, const FeatureRows<double>&,
                                          int64_t);

MeanAndDeviation inception_score(const std::vector<double>& probabilities, int64_t classes, int64_t splits,
                                 const std::vector<int64_t>& order) {
  DITRAIN_CHECK(classes > 0 && splits > 0 && probabilities.size() % size_t(classes) == 0, "rows are not whole");
  const int64_t n = int64_t(probabilities.size()) / classes;
  if (n < splits) {
    throw InputError({.where = "inception score",
                      .what = "fewer images than splits",
                      .got = std::to_string(n),
                      .expected = "at least " + std::to_string(splits)});
  }
  std::vector<int64_t> ends;
  for (int64_t s = 0; s < splits; ++s) ends.push_back((s + 1) * n / splits);
  return inception_score(probabilities, classes, ends, order);
}

std::vector<int64_t> splits_of_size(int64_t n, int64_t size) {
  std::vector<int64_t> ends;
  for (int64_t end = 0; end < n;) ends.push_back(end = std::min(end + size, n));
  return ends;
}

MeanAndDeviation inception_score(const std::vector<double>& probabilities, int64_t classes,
                                 const std::vector<int64_t>& ends, const std::vector<int64_t>& order) {
  DITRAIN_CHECK(!ends.empty() && ends.back() * classes == int64_t(probabilities.size()),
                "splits do not cover the rows");
  DITRAIN_CHECK(order.empty() || int64_t(order.size()) == ends.back(), "an order of all rows");
  const auto row = [&](int64_t i) { return probabilities.data() + (order.empty() ? i : order[size_t(i)]) * classes; };
  std::vector<double> scores;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    std::vector<double> mean(size_t(classes), 0.0);
    for (int64_t i = begin; i < end; ++i)
      for (int64_t c = 0; c < classes; ++c) mean[size_t(c)] += row(i)[c];
    for (double& p : mean) p = std::log(p / double(end - begin));
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < classes; ++c) {
        const double p = row(i)[c];
        if (p > 0) sum += p * (std::log(p) - mean[size_t(c)]);
      }
    }
    scores.push_back(std::exp(sum / double(end - begin)));
    begin = end;
  }
  return mean_and_deviation(scores);
}

std::vector<double> probabilities_of(const std::vector<float>& logits, int64_t classes) {
  std::vector<double> probabilities(logits.begin(), logits.end());
  for (auto row = probabilities.begin(); row != probabilities.end(); row += classes) {
    const double largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (auto p = row; p != row + classes; ++p) sum += * p = std::exp(*p - largest);
    for (auto p = row; p != row + classes; ++p) *p /= sum;
  }
  return probabilities;
}

}  // namespace ditrain::eval
