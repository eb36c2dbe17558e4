#include "ditrain/eval/frechet.hpp"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"
#include "products.hpp"

namespace ditrain::eval {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
// Counts numbers below 0, the most negative one relative to the largest.
void report(const Eigen::VectorXd& values, int64_t& count, double& most_negative) {
  const double largest = values.cwiseAbs().maxCoeff();
  count = (values.array() < 0).count();
  most_negative = count > 0 ? values.minCoeff() / largest : 0;
}

// F with F^T F = sigma, by a pivoted Cholesky decomposition; one row per pivot that is above rounding. What rounding
// leaves of the zeros of a singular matrix would come out as its root, 1e-8 instead of 1e-16.
Matrix factor_of(const std::vector<double>& sigma, int64_t d, FrechetDistance& distance) {
  const Eigen::LDLT<Eigen::MatrixXd> ldlt(Eigen::Map<const Eigen::MatrixXd>(sigma.data(), d, d));
  const Eigen::VectorXd pivots = ldlt.vectorD();
  report(pivots, distance.num_negative1, distance.most_negative1);
  const Eigen::MatrixXd columns = ldlt.transpositionsP().transpose() * Eigen::MatrixXd(ldlt.matrixL());
  const double noise = double(d) * std::numeric_limits<double>::epsilon() * std::max(pivots.maxCoeff(), 0.0);
  Matrix factor((pivots.array() > noise).count(), d);
  for (int64_t j = 0, row = 0; j < d; ++j)
    if (pivots(j) > noise) factor.row(row++) = std::sqrt(pivots(j)) * columns.col(j).transpose();
  return factor;
}

double trace(const FeatureStatistics& s) {
  double sum = 0;
  for (int64_t j = 0; j < s.dimensions(); ++j) sum += s.sigma[size_t(j * s.dimensions() + j)];
  return sum;
}

}  // namespace

FrechetDistance frechet_distance(parallel::Team& team, const FeatureStatistics& a, const FeatureStatistics& b) {
  const int64_t d = a.dimensions();
  if (d != b.dimensions() || d == 0) {
    throw InputError({.where = "frechet distance",
                      .what = "the two sets have different numbers of dimensions",
                      .got = std::to_string(d) + " and " + std::to_string(b.dimensions())});
  }
  FrechetDistance distance;
  for (size_t j = 0; j < a.mu.size(); ++j) distance.mean_term += (a.mu[j] - b.mu[j]) * (a.mu[j] - b.mu[j]);
  distance.trace1 = trace(a), distance.trace2 = trace(b);
  const Matrix factor = factor_of(a.sigma, d, distance);
  const int64_t rank = factor.rows();
  if (rank > 0) {
    Matrix half(rank, d), product(rank, rank);  // F sigma2 F^T; sigma2 is symmetric, so that rows meet rows
    row_products(team, factor.data(), rank, b.sigma.data(), d, d, half.data());
    row_products(team, half.data(), rank, factor.data(), rank, d, product.data());
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver((product + product.transpose()) / 2,
                                                                Eigen::EigenvaluesOnly);
    if (solver.info() != Eigen::Success)
      throw RunError({.where = "frechet distance", .what = "the eigenvalues of the covariances do not converge"});
    report(solver.eigenvalues(), distance.num_negative, distance.most_negative);
    distance.trace_of_root = solver.eigenvalues().cwiseMax(0.0).cwiseSqrt().sum();
  }
  distance.value = distance.mean_term + distance.trace1 + distance.trace2 - 2 * distance.trace_of_root;
  return distance;
}

}  // namespace ditrain::eval
