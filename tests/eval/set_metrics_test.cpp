#include "ditrain/eval/set_metrics.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "feature_sets.hpp"
#include "support/fixture.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;

namespace {

template <class T>
FeatureRows<T> rows_of(const std::vector<T>& values, int64_t d) {
  return {values.data(), int64_t(values.size()) / d, d};
}

template <class T>
std::vector<T> pick(const std::vector<T>& values, int64_t d, const std::vector<int64_t>& all, int64_t begin,
                    int64_t end) {
  std::vector<T> out;
  for (int64_t i = begin; i < end; ++i)
    out.insert(out.end(), values.begin() + all[size_t(i)] * d, values.begin() + (all[size_t(i)] + 1) * d);
  return out;
}

// The kernel distance of each of the fixture's subsets.
template <class T>
std::vector<double> subset_values(parallel::Team& team, const std::vector<T>& x, const std::vector<T>& y, int64_t d,
                                  const std::vector<int64_t>& x_rows, const std::vector<int64_t>& y_rows,
                                  int64_t size) {
  std::vector<double> values;
  for (int64_t s = 0; s < int64_t(x_rows.size()) / size; ++s) {
    const std::vector<T> a = pick(x, d, x_rows, s * size, (s + 1) * size),
                         b = pick(y, d, y_rows, s * size, (s + 1) * size);
    values.push_back(kernel_distance(team, rows_of(a, d), rows_of(b, d)));
  }
  return values;
}

}  // namespace

TEST_CASE("KID, precision, recall and Inception Score are those of the small fixture") {
  const test::Fixture file("fid/fid_math.safetensors");
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const std::vector<double> x = file.f64("kid.x"), y = file.f64("kid.y");
  const int64_t d = file.shape("kid.x")[1], size = file.shape("kid.subset_x")[1];
  const double all = kernel_distance(team, rows_of(x, d), rows_of(y, d));
  CHECK(all == Approx(file.f64("kid.all")[0]).epsilon(1e-10));
  CHECK(kernel_distance(one, rows_of(x, d), rows_of(y, d)) == all);
  const std::vector<double> values =
      subset_values(team, x, y, d, file.i64("kid.subset_x"), file.i64("kid.subset_y"), size);
  CHECK(test::compare(values, file.f64("kid.subset_values"), 1e-10));
  CHECK(mean_and_deviation(values).mean == Approx(file.f64("kid.mean")[0]).epsilon(1e-10));
  CHECK(mean_and_deviation(values).deviation == Approx(file.f64("kid.std")[0]).epsilon(1e-10));

  const std::vector<double> real = file.f64("pr.real"), generated = file.f64("pr.gen");
  const int64_t pr_d = file.shape("pr.real")[1];
  const PrecisionRecall pr = precision_recall(team, rows_of(real, pr_d), rows_of(generated, pr_d));
  CHECK(pr.precision == file.f64("pr.precision")[0]);
  CHECK(pr.recall == file.f64("pr.recall")[0]);
  CHECK(test::compare(pr.real_radius, file.f64("pr.real_radius"), 1e-12));
  CHECK(test::compare(pr.generated_radius, file.f64("pr.gen_radius"), 1e-12));
  const std::vector<int64_t> covered = file.i64("pr.gen_covered"), real_covered = file.i64("pr.real_covered");
  CHECK(std::equal(covered.begin(), covered.end(), pr.generated_covered.begin(), pr.generated_covered.end()));
  CHECK(std::equal(real_covered.begin(), real_covered.end(), pr.real_covered.begin(), pr.real_covered.end()));

  const std::vector<double> probs = file.f64("is.probs");
  const int64_t classes = file.shape("is.probs")[1], splits = file.shape("is.split_values")[0];
  CHECK(inception_score(probs, classes, 1).mean == Approx(file.f64("is.all")[0]).epsilon(1e-12));
  const MeanAndDeviation score = inception_score(probs, classes, splits);
  CHECK(score.mean == Approx(file.f64("is.mean")[0]).epsilon(1e-12));
  CHECK(score.deviation == Approx(file.f64("is.std")[0]).epsilon(1e-10));
}

TEST_CASE("KID, precision and recall are those of torch-fidelity and clean-fid on sets of real size") {
  const test::Fixture file("fid/fid_sets.safetensors");
  parallel::Team team({.num_workers = 2});
  for (const std::string size : {"small", "big"}) {
    CAPTURE(size);
    const test::FeatureSet x = test::fixture_set(file, size, 1), y = test::fixture_set(file, size, 2);
    const int64_t rows = file.shape(size + ".kid.subset1")[1];
    const std::vector<double> values = subset_values(team, x.values, y.values, x.d, file.i64(size + ".kid.subset1"),
                                                     file.i64(size + ".kid.subset2"), rows);
    CHECK(test::compare(values, file.f64(size + ".kid.values"), 1e-9));
    const MeanAndDeviation mean = mean_and_deviation(values);
    CHECK(mean.mean == Approx(file.f64(size + ".kid.mean")[0]).epsilon(1e-9));
    CHECK(mean.deviation == Approx(file.f64(size + ".kid.std")[0]).epsilon(1e-7));
    CHECK(mean.mean == Approx(file.f64(size + ".kid.mean.f32")[0]).epsilon(2e-4));
    const PrecisionRecall pr = precision_recall<float>(team, {y.values.data(), y.n, y.d}, {x.values.data(), x.n, x.d});
    CHECK(pr.precision == file.f64(size + ".precision")[0]);
    CHECK(pr.recall == file.f64(size + ".recall")[0]);
    CHECK(std::count(pr.generated_covered.begin(), pr.generated_covered.end(), true) == file.i64(size + ".inside1")[0]);
    CHECK(std::count(pr.real_covered.begin(), pr.real_covered.end(), true) == file.i64(size + ".inside2")[0]);
    if (size == "big") continue;
    const std::vector<double> clean = subset_values(team, x.values, y.values, x.d, file.i64(size + ".clean.rows1"),
                                                    file.i64(size + ".clean.rows2"), rows);
    CHECK(mean_and_deviation(clean).mean == Approx(file.f64(size + ".clean.kid")[0]).epsilon(1e-4));
  }
}

TEST_CASE("the Inception Score of logits is that of torch-fidelity, shuffled or not") {
  const test::Fixture file("fid/fid_sets.safetensors");
  const std::vector<int64_t> shape = file.i64("isc.shape");
  const int64_t n = shape[0], classes = shape[1];
  const test::Formula formula("sets.logits");
  std::vector<float> logits;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < classes; ++c)
      logits.push_back(float(1.5 * formula.symmetric(uint64_t(i * classes + c)) + (c == 7 * i % 1000 ? 4 : 0)));
  const std::vector<double> probs = probabilities_of(logits, classes);
  for (const int splits : {1, 10}) {
    const std::vector<double> want = file.f64("isc." + std::to_string(splits));
    const MeanAndDeviation score = inception_score(probs, classes, splits);
    CHECK(score.mean == Approx(want[0]).epsilon(1e-9));
    CHECK(score.deviation == Approx(want[1]).epsilon(1e-7).margin(1e-12));
  }
  const std::vector<double> shuffled = pick(probs, classes, file.i64("isc.permutation"), 0, n);
  const MeanAndDeviation score = inception_score(shuffled, classes, 10);
  CHECK(score.mean == Approx(file.f64("isc.10.shuffled")[0]).epsilon(1e-9));
  CHECK(score.deviation == Approx(file.f64("isc.10.shuffled")[1]).epsilon(1e-7));
  CHECK_THROWS_WITH(inception_score(probs, classes, n + 1), Contains("fewer images than splits"));
}

TEST_CASE("subsets are without repetition, and the same for the same seed") {
  for (const auto& [n, count] : {std::pair<int64_t, int64_t>{1000, 100}, {50, 50}, {7, 1}}) {
    const std::vector<int64_t> rows = subset_rows(3, 4, 1, n, count);
    CHECK(rows == subset_rows(3, 4, 1, n, count));
    const std::set<int64_t> different(rows.begin(), rows.end());
    CHECK(int64_t(different.size()) == count);
    CHECK(*different.begin() >= 0);
    CHECK(*different.rbegin() < n);
  }
  CHECK(subset_rows(3, 4, 0, 1000, 100) != subset_rows(3, 4, 1, 1000, 100));
  const test::Fixture file("fid/fid_sets.safetensors");
  const test::FeatureSet x = test::fixture_set(file, "small", 1), y = test::fixture_set(file, "small", 2);
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const FeatureRows<float> a{x.values.data(), x.n, x.d}, b{y.values.data(), y.n, y.d};
  const MeanAndDeviation value = kid(team, a, b, {.num_subsets = 20, .subset_size = 100});
  CHECK(value.mean == kid(one, a, b, {.num_subsets = 20, .subset_size = 100}).mean);
  CHECK(std::abs(value.mean - file.f64("small.kid.mean")[0]) < 4 * value.deviation);
  CHECK(kid(team, a, b, {.num_subsets = 2, .subset_size = 1000}).deviation < 1e-12);  // cut to all rows
  CHECK_THROWS_WITH(precision_recall<float>(team, {x.values.data(), 3, x.d}, b), Contains("too few images"));
}
