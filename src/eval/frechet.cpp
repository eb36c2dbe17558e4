#include "ditrain/eval/frechet.hpp"

#include <fmt/format.h>

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

void expect_same_dimensions(int64_t d, int64_t of_other) {
  if (d != of_other || d == 0)
    throw InputError({.where = "frechet distance",
                      .what = "the two sets have different numbers of dimensions",
                      .got = fmt::format("{} and {}", d, of_other)});
}

double squares_between(const std::vector<double>& mu1, const std::vector<double>& mu2) {
  double sum = 0;
  for (size_t j = 0; j < mu1.size(); ++j) sum += (mu1[j] - mu2[j]) * (mu1[j] - mu2[j]);
  return sum;
}

// The roots of the eigenvalues of a matrix that is symmetric but for rounding, and with them the distance.
void finish(const Matrix& product, FrechetDistance& distance) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver((product + product.transpose()) / 2,
                                                              Eigen::EigenvaluesOnly);
  if (solver.info() != Eigen::Success)
    throw RunError({.where = "frechet distance", .what = "the eigenvalues of the covariances do not converge"});
  report(solver.eigenvalues(), distance.num_negative, distance.most_negative);
  distance.trace_of_root = solver.eigenvalues().cwiseMax(0.0).cwiseSqrt().sum();
  distance.value = distance.mean_term + distance.trace1 + distance.trace2 - 2 * distance.trace_of_root;
}

}  // namespace

FrechetDistance frechet_distance(parallel::Team& team, const FeatureStatistics& a, const FeatureStatistics& b) {
  const int64_t d = a.dimensions();
  expect_same_dimensions(d, b.dimensions());
  FrechetDistance distance;
  distance.mean_term = squares_between(a.mu, b.mu);
  distance.trace1 = trace(a), distance.trace2 = trace(b);
  const Matrix factor = factor_of(a.sigma, d, distance);
  const int64_t rank = std::max<int64_t>(1, factor.rows());
  Matrix half = Matrix::Zero(rank, d), product = Matrix::Zero(rank, rank);
  if (factor.rows() > 0) {  // F sigma2 F^T; sigma2 is symmetric, so that rows meet rows
    row_products(team, factor.data(), rank, b.sigma.data(), d, d, half.data());
    row_products(team, half.data(), rank, factor.data(), rank, d, product.data());
  }
  finish(product, distance);
  return distance;
}

FrechetDistance frechet_distance(parallel::Team& team, const FeatureStatistics& a, const std::vector<float>& features) {
  const int64_t d = a.dimensions(), n = d == 0 ? 0 : int64_t(features.size()) / d;
  expect_same_dimensions(d, n * d == int64_t(features.size()) ? d : 0);
  if (n > d || n < 2) return frechet_distance(team, a, statistics_of(team, features, d));
  Matrix rows = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(features.data(), n, d).cast<double>();
  const Eigen::RowVectorXd mu = rows.colwise().mean();
  rows.rowwise() -= mu;
  rows /= std::sqrt(double(n - 1));
  FrechetDistance distance;
  distance.mean_term = squares_between(a.mu, {mu.data(), mu.data() + d});
  distance.trace1 = trace(a), distance.trace2 = rows.squaredNorm();
  Matrix half(n, d), product(n, n);
  row_products(team, rows.data(), n, a.sigma.data(), d, d, half.data());
  row_products(team, half.data(), n, rows.data(), n, d, product.data());
  finish(product, distance);
  return distance;
}

}  // namespace ditrain::eval
