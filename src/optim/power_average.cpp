#include "ditrain/optim/power_average.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"

namespace ditrain::optim {
namespace {

double width_of_exponent(double e) { return std::sqrt((e + 1) / ((e + 2) * (e + 2) * (e + 3))); }

// The integral of a(s) b(s) ds.
double inner_product(const AverageProfile& a, const AverageProfile& b) {
  const double end = std::min(a.updates, b.updates), sum = a.exponent + b.exponent + 1;
  return (a.exponent + 1) * (b.exponent + 1) / sum *
         std::exp((a.exponent + 1) * std::log(end / a.updates) + (b.exponent + 1) * std::log(end / b.updates)) / end;
}

}  // namespace

// The width falls while the exponent rises.
double exponent_of_width(double width) {
  DITRAIN_CHECK(width > 0 && width < width_of_exponent(0), "a width without an exponent");
  double low = 0, high = 1;
  while (width_of_exponent(high) > width) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (width_of_exponent(middle) > width ? low : high) = middle;
  }
  return (low + high) / 2;
}

double share_of_update(double exponent, int64_t step) {
  return step == 0 ? 1 : -std::expm1((exponent + 1) * std::log1p(-1 / double(step + 1)));
}

const std::vector<TrackedAverage>& tracked_averages() {
  static const std::vector<TrackedAverage> kAverages{{"average_0.05", "0.05", exponent_of_width(0.05)},
                                                     {"average_0.10", "0.10", exponent_of_width(0.10)}};
  return kAverages;
}

// Each profile is scaled to length 1, so that early and late snapshots weigh alike in the solution.
std::vector<double> solve_average(const std::vector<AverageProfile>& stored, const AverageProfile& wanted,
                                  double* error) {
  DITRAIN_CHECK(!stored.empty(), "an average of nothing");
  const auto n = Eigen::Index(stored.size());
  const auto length = [](const AverageProfile& p) { return std::sqrt(inner_product(p, p)); };
  Eigen::MatrixXd products(n, n);
  Eigen::VectorXd with_wanted(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    const AverageProfile& a = stored[size_t(i)];
    with_wanted[i] = inner_product(a, wanted) / length(a);
    for (Eigen::Index j = 0; j < n; ++j) {
      const AverageProfile& b = stored[size_t(j)];
      products(i, j) = inner_product(a, b) / (length(a) * length(b));
    }
  }
  Eigen::VectorXd factors = products.completeOrthogonalDecomposition().solve(with_wanted);
  double sum = 0;  // of what the snapshots are multiplied by: a constant has to stay what it is
  for (Eigen::Index i = 0; i < n; ++i) sum += factors[i] / length(stored[size_t(i)]);
  factors /= sum;
  if (error != nullptr) {
    const double whole = inner_product(wanted, wanted);
    const double left = whole - 2 * factors.dot(with_wanted) + factors.dot(products * factors);
    *error = std::sqrt(std::max(0.0, left) / whole);
  }
  std::vector<double> of_stored;
  for (Eigen::Index i = 0; i < n; ++i) of_stored.push_back(factors[i] / length(stored[size_t(i)]));
  return of_stored;
}

}  // namespace ditrain::optim
