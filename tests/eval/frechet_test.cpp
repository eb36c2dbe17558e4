// Mean, covariance and distance of sets of features. ditverify compares them with the reference (fid_math, fid_sets).
#include "ditrain/eval/frechet.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/eval/feature_statistics.hpp"
#include "ditrain/weights/npz.hpp"
#include "feature_sets.hpp"
#include "support/files.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;

TEST_CASE("mean and covariance have the same bits for any number of workers") {
  parallel::Team one({.num_workers = 1}), three({.num_workers = 3});
  // Odd sizes: tiles, panels and blocks that are not full.
  std::vector<float> values;
  const test::Formula u("statistics");
  for (uint64_t i = 0; i < 301 * 45; ++i) values.push_back(float(u.unit(i)));
  const FeatureStatistics a = statistics_of(one, values, 45), b = statistics_of(three, values, 45);
  CHECK(a.mu == b.mu);
  CHECK(a.sigma == b.sigma);
  for (const auto& [j, k] : {std::pair<size_t, size_t>{0, 0}, {44, 44}, {17, 31}, {31, 17}, {44, 0}}) {
    double sum = 0;
    for (size_t i = 0; i < 301; ++i)
      sum += (double(values[i * 45 + j]) - a.mu[j]) * (double(values[i * 45 + k]) - a.mu[k]);
    CHECK(a.sigma[j * 45 + k] == Approx(sum / 300).epsilon(1e-13));
  }
  CHECK_THROWS_WITH(statistics_of(one, std::vector<float>(8, 1.0f), 8), Contains("too few images; got 1"));
  CHECK_THROWS_WITH(statistics_of(one, std::vector<float>(16, NAN), 8), Contains("a feature is not finite"));
}

TEST_CASE("the distance of a set to itself is 0, and distances have the same bits for any number of workers") {
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const test::FeatureSet x = test::feature_set(1), y = test::feature_set(2);
  const FeatureStatistics a = statistics_of(team, x.values, x.d), b = statistics_of(team, y.values, y.d);
  const FrechetDistance distance = frechet_distance(team, a, b);
  CHECK(distance.most_negative1 > -1e-12);
  CHECK(frechet_distance(one, a, b).value == distance.value);
  CHECK(std::abs(frechet_distance(team, a, a).value) <= 1e-12 * 2 * distance.trace1);
  // Half as many images as dimensions: half of the eigenvalues are rounding noise.
  const std::vector<float> few(x.values.begin(), x.values.begin() + 96 * x.d);
  const FeatureStatistics singular = statistics_of(team, few, x.d);
  const FrechetDistance self = frechet_distance(team, singular, singular);
  CHECK(std::abs(self.value) <= 1e-8 * 2 * self.trace1);
}

TEST_CASE("the distance to fewer features than dimensions is that of their statistics") {
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const test::FeatureSet x = test::feature_set(1), y = test::feature_set(2);
  const FeatureStatistics a = statistics_of(team, x.values, x.d);
  for (const int64_t n : {int64_t(2), x.d / 3, x.d, int64_t(y.values.size()) / x.d}) {
    CAPTURE(n, x.d);
    const std::vector<float> some(y.values.begin(), y.values.begin() + n * x.d);
    const FrechetDistance got = frechet_distance(team, a, some);
    const FrechetDistance want = frechet_distance(team, a, statistics_of(team, some, x.d));
    CHECK(got.mean_term == Approx(want.mean_term).epsilon(1e-12));
    CHECK(got.trace2 == Approx(want.trace2).epsilon(1e-12));
    CHECK(got.trace_of_root == Approx(want.trace_of_root).epsilon(1e-7));  // the roots of noise of d - n others
    CHECK(frechet_distance(one, a, some).value == got.value);
  }
  CHECK_THROWS_WITH(frechet_distance(team, a, std::vector<float>(size_t(x.d))), Contains("too few images; got 1"));
  CHECK_THROWS_WITH(frechet_distance(team, a, std::vector<float>(size_t(x.d) + 1)), Contains("different numbers"));
}

TEST_CASE("statistics of other dimensions are no pair, and constant features are no trouble") {
  parallel::Team team({.num_workers = 1});
  const FeatureStatistics a{{0, 0}, {1, 0, 0, 1}}, b{{1}, {1}}, zero{{3, 4}, {0, 0, 0, 0}};
  CHECK_THROWS_WITH(frechet_distance(team, a, b), Contains("different numbers of dimensions; got 2 and 1"));
  CHECK(frechet_distance(team, a, zero).value == Approx(25 + 2));
  CHECK(frechet_distance(team, zero, a).value == Approx(25 + 2));
  CHECK(frechet_distance(team, zero, zero).value == 0);
  const FrechetDistance negative = frechet_distance(team, {{0, 0}, {4, 0, 0, -2}}, a);
  CHECK(negative.num_negative1 == 1);
  CHECK(negative.most_negative1 == Approx(-0.5));
  CHECK(negative.trace_of_root == Approx(2));
}

TEST_CASE("statistics are written and read, and bad ones are refused by name") {
  TemporaryFolder folder;
  const FeatureStatistics s{{1, 2}, {2, 0.5, 0.5, 1}};
  write_statistics(folder / "s.npz", {{s}});
  const weights::NpzFile file(folder / "s.npz");
  CHECK(file.names() == std::vector<std::string>{"mu", "sigma"});
  const FeatureStatistics back = read_statistics(file);
  CHECK(back.mu == s.mu);
  CHECK(back.sigma == s.sigma);
  const auto refused = [&](const std::vector<double>& mu, const std::vector<double>& sigma, const char* message) {
    write_statistics(folder / "bad.npz", {{{mu, sigma}}});
    CHECK_THROWS_WITH(read_statistics(weights::NpzFile(folder / "bad.npz")), Contains(message));
  };
  refused({1, 2}, {2, 0.5, 0.6, 1},
          "'sigma' is no covariance: it is not symmetric; got 0.6 at [1, 0] and 0.5 at [0, 1]");
  refused({1, 2}, {2, 0.5, 0.5, -1}, "variance 1 is negative");
  refused({1, NAN}, {2, 0.5, 0.5, 1}, "'mu' holds numbers that are not finite");
  refused({1, 2}, {2, INFINITY, 0.5, 1}, "'sigma' holds numbers that are not finite");
  CHECK_THROWS_WITH(read_statistics(file, {"mu_s", "sigma_s"}),
                    Contains("there is no array 'mu_s'; got 'mu', 'sigma'"));
  weights::write_npz_f64(folder / "shape.npz", {{"mu", {2}, s.mu.data()}, {"sigma", {4}, s.sigma.data()}});
  CHECK_THROWS_WITH(read_statistics(weights::NpzFile(folder / "shape.npz")),
                    Contains("'sigma' has another shape than statistics have; got [4], expected [2, 2]"));
  const std::vector<double> many(9000);
  weights::write_npz_f64(folder / "many.npz", {{"mu", {9000}, many.data()}, {"sigma", {2, 2}, s.sigma.data()}});
  CHECK_THROWS_WITH(read_statistics(weights::NpzFile(folder / "many.npz")),
                    Contains("'mu' has more dimensions than features have; got 9000, expected at most 8192"));
  const weights::NpzFile adm(std::string(DITRAIN_GOLDEN_DIR) + "/npz_files/adm.npz");
  CHECK(read_statistics(adm).dimensions() == 6);
  CHECK(read_statistics(adm, {"mu_s", "sigma_s"}).dimensions() == 4);
}
