// FID and its family on given features: small sets that the file holds (fid_math), and sets as large as those of
// images, by formula (fid_sets). Tolerances of Frechet distances are those that the fixtures' description names,
// relative to the sum of both traces; other metrics are sums in f64, which two orders of sums leave at 1e-9 and less.
#include <algorithm>

#include "ditrain/eval/frechet.hpp"
#include "ditrain/eval/set_metrics.hpp"
#include "ditrain/verify/formula.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

using eval::FeatureRows;
using eval::FeatureStatistics;
using eval::FrechetDistance;

constexpr int64_t kMostRows = 8192, kMostFeatures = 4096, kMostSubsets = 1000, kMostClasses = 4096, kNeighbours = 3;
constexpr double kFull = 1e-11, kSingular = 1e-7;  // relative to the traces: roots of what should be 0 are about 1e-8
constexpr double kShifted = 2e-6;                  // of pytorch-fid's value after its shift
constexpr double kInF32 = 2e-4, kDeviationInF32 = 2e-3;  // of what a library computes with products in f32

/// A number of the file, `scale` 0: relative to itself.
void check_number(Verification& v, const std::string& name, double got, double tolerance, double scale = 0) {
  const std::vector<double> want = v.f64(name, {1});
  v.add(name, "", compare(std::vector{got}, want, tolerance, scale > 0 ? std::vector{scale} : entry_scales(want)));
}

void check_mean_and_deviation(Verification& v, const std::string& mean, const std::string& deviation,
                              const eval::MeanAndDeviation& got, double tolerance, double of_deviation) {
  check_number(v, mean, got.mean, tolerance);
  check_number(v, deviation, got.deviation, of_deviation);
}

std::vector<int64_t> as_numbers(const std::vector<bool>& values) { return {values.begin(), values.end()}; }
int64_t count(const std::vector<bool>& values) { return std::count(values.begin(), values.end(), true); }

template <class T>
std::vector<T> pick(const FeatureRows<T>& x, const int64_t* rows, int64_t n) {
  std::vector<T> out;
  for (int64_t i = 0; i < n; ++i) out.insert(out.end(), x.data + rows[i] * x.d, x.data + (rows[i] + 1) * x.d);
  return out;
}

/// Kernel distances of subsets whose rows the file lists.
template <class T>
std::vector<double> subset_distances(Verification& v, const FeatureRows<T>& x, const FeatureRows<T>& y,
                                     const std::string& x_rows, const std::string& y_rows) {
  const Shape shape = v.shape(x_rows, 2, std::min(x.n, y.n));
  const int64_t subsets = shape[0], size = shape[1];
  if (subsets > kMostSubsets || size < 2) v.refuse(x_rows + ": subsets", to_string(shape), "two rows or more each");
  const std::vector<int64_t> of_x = v.i64(x_rows, shape, 0, x.n - 1), of_y = v.i64(y_rows, shape, 0, y.n - 1);
  std::vector<double> values;
  for (int64_t s = 0; s < subsets; ++s) {
    const std::vector<T> a = pick(x, of_x.data() + s * size, size), b = pick(y, of_y.data() + s * size, size);
    values.push_back(eval::kernel_distance<T>(v.ctx().team(), {a.data(), size, x.d}, {b.data(), size, x.d}));
  }
  return values;
}

// ---- fid_math ----

FeatureStatistics given_statistics(Verification& v, const std::string& name, const std::string& which) {
  const int64_t d = v.shape(name + ".mu" + which, 1, kMostFeatures)[0];
  return {v.f64(name + ".mu" + which, {d}), v.f64(name + ".sigma" + which, {d, d})};
}

void shift_diagonal(FeatureStatistics& s, double by) {
  const int64_t d = s.dimensions();
  for (int64_t j = 0; j < d; ++j) s.sigma[size_t(j * d + j)] += by;
}

void verify_distance(Verification& v, const std::string& name) {
  parallel::Team& team = v.ctx().team();
  FeatureStatistics a = given_statistics(v, name, "1"), b = given_statistics(v, name, "2");
  const FrechetDistance distance = eval::frechet_distance(team, a, b);
  const double traces = distance.trace1 + distance.trace2;
  const double tolerance = name.starts_with("fd.full") || name == "fd.same" ? kFull : kSingular;
  check_number(v, name + ".exact", distance.value, tolerance, traces);
  if (!v.has(name + ".exact_eps")) return check_number(v, name + ".fid", distance.value, tolerance, traces);
  // What pytorch-fid does when its root fails: 1e-6 on both diagonals, but the traces of the matrices as they were.
  shift_diagonal(a, 1e-6), shift_diagonal(b, 1e-6);
  const double shifted = distance.mean_term + traces - 2 * eval::frechet_distance(team, a, b).trace_of_root;
  check_number(v, name + ".exact_eps", shifted, kSingular, traces);
  check_number(v, name + ".fid", shifted, kShifted);
}

void verify_statistics(Verification& v) {
  const Shape shape = v.shape("stats.features", 2, kMostFeatures);
  const FeatureStatistics s = eval::statistics_of(v.ctx().team(), v.f64("stats.features", shape), shape[1]);
  v.check("stats.mu", {shape[1]}, s.mu, 1e-14);
  v.check("stats.sigma", {shape[1], shape[1]}, s.sigma, 1e-13);
}

struct Given {
  Given(Verification& v, const std::string& name)
      : shape(v.shape(name, 2, kMostFeatures)), values(v.f64(name, shape)) {}
  FeatureRows<double> rows() const { return {values.data(), shape[0], shape[1]}; }
  Shape shape;
  std::vector<double> values;
};

void expect_same_features(const Verification& v, const Given& a, const Given& b, const std::string& names) {
  if (a.shape[1] != b.shape[1] || std::min(a.shape[0], b.shape[0]) < 2)
    v.refuse(names + ": no two sets of the same features", to_string(a.shape) + " and " + to_string(b.shape));
}

void verify_kid(Verification& v) {
  const Given x(v, "kid.x"), y(v, "kid.y");
  expect_same_features(v, x, y, "kid.x, kid.y");
  check_number(v, "kid.all", eval::kernel_distance(v.ctx().team(), x.rows(), y.rows()), 1e-10);
  const std::vector<double> values = subset_distances(v, x.rows(), y.rows(), "kid.subset_x", "kid.subset_y");
  v.check("kid.subset_values", {int64_t(values.size())}, values, 1e-10);
  check_mean_and_deviation(v, "kid.mean", "kid.std", eval::mean_and_deviation(values), 1e-10, 1e-10);
}

void verify_precision_recall(Verification& v) {
  const Given real(v, "pr.real"), generated(v, "pr.gen");
  expect_same_features(v, real, generated, "pr.real, pr.gen");
  const auto pr = eval::precision_recall(v.ctx().team(), real.rows(), generated.rows(), kNeighbours);
  v.check("pr.real_radius", {real.shape[0]}, pr.real_radius, 1e-12);
  v.check("pr.gen_radius", {generated.shape[0]}, pr.generated_radius, 1e-12);
  v.check_exact("pr.real_covered", {real.shape[0]}, as_numbers(pr.real_covered));
  v.check_exact("pr.gen_covered", {generated.shape[0]}, as_numbers(pr.generated_covered));
  check_number(v, "pr.precision", pr.precision, 0);
  check_number(v, "pr.recall", pr.recall, 0);
}

void verify_score(Verification& v) {
  const Shape shape = v.shape("is.probs", 2, kMostClasses);
  const std::vector<double> probs = v.f64("is.probs", shape);
  const int64_t splits = v.shape("is.split_values", 1, shape[0])[0], classes = shape[1];
  check_number(v, "is.all", eval::inception_score(probs, classes, 1).mean, 1e-12);
  check_mean_and_deviation(v, "is.mean", "is.std", eval::inception_score(probs, classes, splits), 1e-12, 1e-10);
  std::vector<double> each;
  for (int64_t i = 0; i < splits; ++i) {
    const auto at = [&](int64_t split) { return probs.begin() + split * shape[0] / splits * classes; };
    each.push_back(eval::inception_score({at(i), at(i + 1)}, classes, 1).mean);
  }
  v.check("is.split_values", {splits}, each, 1e-12);
}

// ---- fid_sets ----

struct FormulaSet {
  std::vector<float> values;
  int64_t n, d;
  FeatureRows<float> rows() const { return {values.data(), n, d}; }
};

/// Set 1 or 2 of "sets.<size>"; its first entries stand in the file.
FormulaSet formula_set(Verification& v, const std::string& size, int64_t which, int64_t n, int64_t d) {
  const std::string base = "sets." + size, own = base + "." + std::to_string(which);
  const auto numbers = [&](const std::string& key) { return FormulaSequence(key + v.suffix()); };
  const FormulaSequence m = numbers(base + ".m"), b = numbers(base + ".b"), g = numbers(own + ".g"),
                        e = numbers(own + ".e");
  std::vector<double> mean, slope;
  for (int64_t j = 0; j < d; ++j) {
    mean.push_back(0.5 + 0.3 * m.unit(uint64_t(j)));
    slope.push_back(0.5 * b.symmetric(uint64_t(j)));
  }
  FormulaSet set{std::vector<float>(size_t(n * d)), n, d};
  for (int64_t i = 0; i < n; ++i) {
    double factors[8];
    for (int64_t k = 0; k < 8; ++k) {
      const double s = g.symmetric(uint64_t(8 * i + k));
      factors[k] = which == 1 ? s : 0.8 * s + 0.15;
    }
    for (int64_t j = 0; j < d; ++j) {
      const double noise = 0.04 * e.symmetric(uint64_t(i * d + j));
      const double x = (mean[size_t(j)] + noise) + slope[size_t(j)] * factors[j % 8];
      set.values[size_t(i * d + j)] = float(std::max(0.0, x));
    }
  }
  std::vector<double> some(set.values.begin(), set.values.begin() + 8);
  some.insert(some.end(), set.values.end() - d, set.values.end() - d + 8);
  v.check(size + "." + std::to_string(which) + ".check", {2, 8}, some, 0, Per::unit());
  return set;
}

void verify_distance_of_sets(Verification& v, const std::string& size, const FormulaSet& x, const FormulaSet& y) {
  parallel::Team& team = v.ctx().team();
  const FrechetDistance distance =
      eval::frechet_distance(team, eval::statistics_of(team, x.values, x.d), eval::statistics_of(team, y.values, y.d));
  const double traces = distance.trace1 + distance.trace2;
  check_number(v, size + ".trace1", distance.trace1, 1e-12);
  check_number(v, size + ".trace2", distance.trace2, 1e-12);
  check_number(v, size + ".mean_term", distance.mean_term, 1e-10);
  check_number(v, size + ".exact", distance.value, kFull, traces);
  check_number(v, size + ".fid", distance.value, kFull, traces);
}

void verify_metrics_of_sets(Verification& v, const std::string& size, const FormulaSet& x, const FormulaSet& y) {
  const std::string kid = size + ".kid.";
  const std::vector<double> values = subset_distances(v, x.rows(), y.rows(), kid + "subset1", kid + "subset2");
  v.check(kid + "values", {int64_t(values.size())}, values, 1e-9);
  const eval::MeanAndDeviation mean = eval::mean_and_deviation(values);
  check_mean_and_deviation(v, kid + "mean", kid + "std", mean, 1e-9, 1e-7);
  check_mean_and_deviation(v, kid + "mean.f32", kid + "std.f32", mean, kInF32, kDeviationInF32);
  const std::vector<double> clean =
      subset_distances(v, x.rows(), y.rows(), size + ".clean.rows1", size + ".clean.rows2");
  check_number(v, size + ".clean.kid", eval::mean_and_deviation(clean).mean, 1e-9);

  const auto pr = eval::precision_recall<float>(v.ctx().team(), y.rows(), x.rows(), kNeighbours);
  check_number(v, size + ".precision", pr.precision, 0);
  check_number(v, size + ".recall", pr.recall, 0);
  v.check_exact(size + ".inside1", {1}, {count(pr.generated_covered)});
  v.check_exact(size + ".inside2", {1}, {count(pr.real_covered)});
  // Distances in f32 may count a few rows otherwise.
  check_number(v, size + ".precision.f32", pr.precision, 3, 1.0 / double(x.n));
  check_number(v, size + ".recall.f32", pr.recall, 3, 1.0 / double(y.n));
}

void verify_sets(Verification& v, const std::string& size) {
  const std::vector<int64_t> shape = v.i64(size + ".shape", {3}, 8, kMostRows);
  const int64_t d = shape[2];
  if (d > kMostFeatures)
    v.refuse(size + ".shape: too many features", std::to_string(d), "at most " + std::to_string(kMostFeatures));
  const FormulaSet x = formula_set(v, size, 1, shape[0], d), y = formula_set(v, size, 2, shape[1], d);
  verify_distance_of_sets(v, size, x, y);
  verify_metrics_of_sets(v, size, x, y);
  v.leave_out({size + ".margin"}, "how near the decisions of precision and recall are, nothing to compare");
}

/// [mean, deviation]
void check_score(Verification& v, const std::string& name, const std::vector<double>& probs, int64_t classes,
                 int64_t splits) {
  const eval::MeanAndDeviation score = eval::inception_score(probs, classes, splits);
  v.check(name, {2}, {score.mean, score.deviation}, 1e-9);
}

void verify_score_of_logits(Verification& v) {
  const std::vector<int64_t> shape = v.i64("isc.shape", {2}, 10, kMostClasses);
  const int64_t n = shape[0], classes = shape[1];
  const FormulaSequence numbers("sets.logits" + v.suffix());
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < classes; ++c)
      logits.push_back(float(1.5 * numbers.symmetric(uint64_t(i * classes + c)) + (c == 7 * i % 1000 ? 4 : 0)));
  std::vector<double> some(logits.begin(), logits.begin() + 8);
  some.insert(some.end(), logits.begin() + classes, logits.begin() + classes + 8);
  v.check("isc.check", {2, 8}, some, 0, Per::unit());
  const std::vector<double> probs = eval::probabilities_of(logits, classes);
  check_score(v, "isc.1", probs, classes, 1);
  check_score(v, "isc.10", probs, classes, 10);
  const std::vector<int64_t> order = v.i64("isc.permutation", {n}, 0, n - 1);
  check_score(v, "isc.10.shuffled", pick<double>({probs.data(), n, classes}, order.data(), n), classes, 10);
}

}  // namespace

void verify_fid_math(Verification& v) {
  for (const Match& m : v.matches("fd.*.exact")) verify_distance(v, "fd." + m.words[0]);
  verify_statistics(v);
  verify_kid(v);
  verify_precision_recall(v);
  verify_score(v);
}

void verify_fid_sets(Verification& v) {
  for (const Match& m : v.matches("*.shape"))
    m.words[0] == "isc" ? verify_score_of_logits(v) : verify_sets(v, m.words[0]);
}

}  // namespace ditrain::verify
