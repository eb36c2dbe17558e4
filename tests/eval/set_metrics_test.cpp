// KID, precision, recall and Inception Score. ditverify compares them with the reference (fid_math, fid_sets).
#include "ditrain/eval/set_metrics.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "feature_sets.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using Catch::Contains;

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
  const test::FeatureSet x = test::feature_set(1), y = test::feature_set(2);
  parallel::Team team({.num_workers = 2}), one({.num_workers = 1});
  const FeatureRows<float> a{x.values.data(), x.n, x.d}, b{y.values.data(), y.n, y.d};
  const MeanAndDeviation value = kid(team, a, b, {.num_subsets = 20, .subset_size = 100});
  CHECK(value.mean == kid(one, a, b, {.num_subsets = 20, .subset_size = 100}).mean);
  const PrecisionRecall pr = precision_recall(team, b, a), again = precision_recall(one, b, a);
  CHECK(pr.real_radius == again.real_radius);
  CHECK(pr.generated_radius == again.generated_radius);
  CHECK(std::abs(value.mean - kernel_distance(team, a, b)) < 4 * value.deviation);
  const MeanAndDeviation whole = kid(team, a, b, {.num_subsets = 2, .subset_size = 1000});  // more than there are
  CHECK(whole.mean == kernel_distance(team, a, b));
  CHECK(std::isnan(whole.deviation));
  CHECK_THROWS_WITH(inception_score({0.5, 0.5}, 2, 2), Contains("fewer images than splits"));
  // ADM's evaluator: 5,000 images at a time, each score counts the same, that of what is left too.
  CHECK(splits_of_size(12001, 5000) == std::vector<int64_t>{5000, 10000, 12001});
  CHECK(splits_of_size(5000, 5000) == std::vector<int64_t>{5000});
  CHECK(splits_of_size(3, 5000) == std::vector<int64_t>{3});
  const std::vector<double> p = {0.9, 0.1, 0.2, 0.8, 0.5, 0.5, 0.3, 0.7, 0.6, 0.4};
  const auto part = [&](int64_t begin, int64_t end) {
    return inception_score({p.begin() + 2 * begin, p.begin() + 2 * end}, 2, 1).mean;
  };
  const MeanAndDeviation score = inception_score(p, 2, splits_of_size(5, 2));
  CHECK(score.mean == Approx((part(0, 2) + part(2, 4) + part(4, 5)) / 3).epsilon(1e-14));
  CHECK(score.mean != Approx(inception_score(p, 2, 3).mean).epsilon(1e-6));
  CHECK_THROWS_WITH(precision_recall<float>(team, {x.values.data(), 3, x.d}, b), Contains("too few images"));
}
