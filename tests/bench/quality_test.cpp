// The parts of ditbench quality: statistics, the small classifier, the measures, the plot. tests/e2e runs the bench.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "../../src/bench/curve_chart.hpp"
#include "../../src/bench/quality_measures.hpp"
#include "../../src/bench/quality_statistics.hpp"
#include "../../src/bench/quality_table.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

namespace {

constexpr dataset::SampleShape kShape{1, 8, 8};

// Images of two classes: a bright left or right half, in noise.
LabelledImages halves(int64_t n, uint64_t seed, float noise = 0.3f, float brightness = 0.5f) {
  LabelledImages all{kShape};
  for (int64_t i = 0; i < n; ++i) {
    const RandomKey key(seed, Stream::kTest, uint64_t(i));
    all.labels.push_back(i % 2);
    for (int64_t p = 0; p < 64; ++p)
      all.images.push_back(((p % 8 < 4) == (i % 2 == 0) ? brightness : -brightness) + noise * key.normal(uint64_t(p)));
  }
  return all;
}

struct Team {
  parallel::Team team{{.num_workers = 2}};
  ops::Context ctx{team};
};

}  // namespace

TEST_CASE("quality: a curve crosses a level in the logarithm of time") {
  const std::vector<CurvePoint> curve = {{1, 8}, {4, 4}, {16, 5}, {64, 2}};
  CHECK(crossing(curve, 6) == Approx(2));
  CHECK(crossing(curve, 4) == Approx(4));
  CHECK(crossing(curve, 3.5) == Approx(16 * std::pow(4, 0.5)));  // the curve rises in between
  CHECK(crossing(curve, 9) == 1);
  CHECK(std::isinf(crossing(curve, 1)));
}

TEST_CASE("quality: intervals over repeats have the mean inside and shrink with agreement") {
  const Interval spread = mean_of({1, 2, 3, 6}), close = mean_of({2.9, 3, 3.1, 3});
  CHECK(spread.value == 3);
  CHECK((spread.low >= 1 && spread.low < 2.3 && spread.high > 3.9 && spread.high <= 6));
  CHECK((close.high - close.low) < 0.2);
  CHECK(spread.contains(3));
  const Interval one = mean_of({7});
  CHECK((one.low == 7 && one.high == 7));
  CHECK(text_of(one) == "7");
  CHECK(text_of(Interval{}) == "-");
  CHECK(text_of({1.234, 1, 2}) == "1.23 [1, 2]");
}

TEST_CASE("quality: a comparison tells how many times faster a recipe is, or why it cannot") {
  // The same cost in all measures, of two seeds.
  const auto values = [](double cost) {
    MeasureValues v;
    for (size_t m = 0; m < v.size(); ++m)
      v[m] = kMeasures[m].goal == Measure::Goal::kLeast  ? cost
             : kMeasures[m].goal == Measure::Goal::kMost ? 1 - cost
                                                         : 1 + cost;
    return ValuesOfSeeds{v, v};
  };
  const auto recipe = [&](const std::string& name, const std::vector<double>& costs) {
    RecipeResults r{.name = name, .guides = false, .marks = {}};
    double minutes = 1;
    for (const double cost : costs)
      r.marks.push_back({int64_t(100 * minutes), minutes, values(cost), {}}), minutes *= 2;
    return r;
  };
  const auto said = [&](const std::vector<double>& ours, const std::vector<double>& reference) {
    const QualityTable table(values(0.1), {recipe("ours", ours), recipe("reference", reference)});
    const Row row = table.comparison(0, 1, false);
    CHECK(row.name == "ours / reference");
    std::vector<std::string> texts;
    for (const Field& f : row.details)
      if (f.in_table) texts.push_back(std::get<std::string>(f.value));
    REQUIRE(texts.size() == kMeasures.size() + 2);
    for (size_t m = 1; m < kMeasures.size(); ++m) CHECK(texts[m] == texts[0]);
    return texts[0] + "; " + texts.rbegin()[1] + ", " + texts.back();
  };
  CHECK(said({0.8, 0.4, 0.2}, {0.9, 0.8, 0.6, 0.4}) == "4 (2 min); 7 of 7, 0 of 7");
  CHECK(said({0.4, 0.3}, {0.9, 0.8, 0.6, 0.4}) == "> 8 (< 1 min); 7 of 7, 0 of 7");
  CHECK(said({0.9, 0.8, 0.6, 0.4}, {0.8, 0.4}) == "0.25 (8 min); 0 of 7, 7 of 7");
  CHECK(said({0.8, 0.4}, {0.8, 0.4}) == "1, even (2 min); 0 of 7, 0 of 7");
  CHECK(said({0.8, 0.5}, {0.8, 0.4}) == "not reached; 0 of 7, 7 of 7");
  CHECK(said({0.8}, {0.8, 0.4}) == "not within its time; 0 of 0, 0 of 0");
  CHECK(said({0.8, 0.5}, {0.4, 0.5}) == "reference does not improve; 0 of 0, 0 of 0");
  CHECK(said({0.2, 0.1}, {0.2, 0.05}) == "not decidable; 0 of 0, 0 of 0");  // both as good as real images

  // A guide that was trained besides counts in what it guides.
  const auto of_both = [&](double guide_minutes) {
    std::vector<RecipeResults> recipes = {recipe("ours", {0.8, 0.4, 0.2}), recipe("reference", {0.9, 0.8, 0.6, 0.4})};
    for (RecipeResults& r : recipes) {
      r.guides = true;
      for (RecipeResults::Mark& mark : r.marks) mark.guided = mark.plain;
    }
    for (size_t mark = 1; mark < 3; ++mark) recipes[0].marks[mark].guide_minutes = guide_minutes;
    const Row row = QualityTable(values(0.1), std::move(recipes)).comparison(0, 1, true);
    return std::get<std::string>(row.details.front().value);
  };
  CHECK(of_both(0) == "4 (2 min)");
  CHECK(of_both(2) == "2 (4 min)");  // 8 / (2 + 2)
}

TEST_CASE("quality: with one mark of the reference a comparison tells the differences of each seed") {
  const auto recipe = [](const std::string& name, const std::vector<double>& of_seeds) {
    RecipeResults r{.name = name, .guides = false, .marks = {{100, 1, {}, {}}}};
    for (const double value : of_seeds) r.marks[0].plain.emplace_back().fill(value);
    return r;
  };
  const auto row_of = [&](const std::vector<double>& ours, const std::vector<double>& reference) {
    return QualityTable(ValuesOfSeeds(ours.size()), {recipe("ours", ours), recipe("reference", reference)})
        .comparison(0, 1, false);
  };
  const auto said = [](const Row& row) { return std::get<std::string>(row.details.at(0).value); };
  const Row row = row_of({3, 5, 4}, {1, 1, 4.5});
  CHECK(row.name == "ours - reference");
  CHECK(said(row) == "+1.83 [-0.5, +4]");
  CHECK(std::get<double>(row.details.at(1).value) == Approx(5.5 / 3));
  CHECK(said(row_of({3}, {5})) == "-2");
  CHECK(said(row_of({3, NAN}, {5, 1})) == "-");
}

TEST_CASE("quality: a recipe without a value is neither faster nor slower") {
  const auto recipe = [](const std::string& name, const std::vector<double>& costs) {
    RecipeResults r{.name = name, .guides = false, .marks = {}};
    for (const double cost : costs)
      r.marks.push_back({1, double(r.marks.size() + 1), ValuesOfSeeds(2), {}}), r.marks.back().plain[0].fill(cost),
          r.marks.back().plain[1].fill(cost);
    return r;
  };
  MeasureValues real;
  real.fill(1);
  for (const auto& [ours, reference] : {std::pair{NAN, 4.0}, {4.0, NAN}}) {
    const Row row = QualityTable({real, real}, {recipe("ours", {9, ours}), recipe("reference", {9, reference})})
                        .comparison(0, 1, false);
    CHECK(std::get<std::string>(row.details.front().value) == "-");
    CHECK(std::get<std::string>(row.details.back().value) == "0 of 0");
  }
}

TEST_CASE("quality: the classifier learns two classes, and begins anew each time") {
  Team t;
  SmallClassifier classifier(t.ctx, kShape, 2);
  LabelledImages data = halves(128, 1);
  // Mirrored halves would be of the other class: a bright and a dark class instead.
  for (int64_t i = 0; i < data.size(); ++i)
    for (int64_t p = 0; p < 64; ++p)
      data.images[size_t(i * 64 + p)] = (i % 2 == 0 ? 0.5f : -0.5f) + 0.2f * data.images[size_t(i * 64 + p)];
  const LabelledImages test = data;
  classifier.train(data, 8, 1);
  CHECK(classifier.accuracy(test) > 0.95);
  for (int64_t& label : data.labels) label = 1 - label;
  classifier.train(data, 8, 1);  // begins anew
  CHECK(classifier.accuracy(test) < 0.05);
}

TEST_CASE("quality: measures tell good samples from noise and from memorised images") {
  Team t;
  QualityMeter meter(t.ctx, {.training = halves(64, 1), .held_out = halves(64, 2), .num_classes = 0});
  const MeasureValues good = meter.measure(halves(48, 3), 4, 1), noisy = meter.measure(halves(48, 3, 1.0f, 0.0f), 4, 1),
                      memorised = meter.measure(halves(48, 1), 4, 1), real = meter.of_real(48, 4, 1);
  for (const size_t m : {0u, 1u, 2u}) {
    INFO(kMeasures[m].name);
    CHECK(noisy[m] > 5 * std::abs(good[m]));
    CHECK(std::abs(memorised[m] - good[m]) < 0.3 * noisy[m]);  // a distance of sets does not tell
  }
  CHECK(good[5] == Approx(1).margin(0.1));
  CHECK(memorised[5] < 0.05);
  CHECK(real[5] == Approx(1).margin(0.1));
  CHECK(real[5] != 1);  // it has a spread of its own
  CHECK((std::isnan(good[3]) && std::isnan(good[4])));
  CHECK(kMeasures[3].cost(0.8) == Approx(0.2));
  CHECK(kMeasures[5].cost(0.9) == Approx(kMeasures[5].cost(1.1)));
}

TEST_CASE("quality: the border ratio sees steps at the borders of patches alone") {
  LabelledImages ramp{{2, 4, 6}, {}, {0}};  // x + 10 y, and steps of 3 in front of columns 2 and 4, and of row 2
  for (int64_t c = 0; c < 2; ++c)
    for (int64_t y = 0; y < 4; ++y)
      for (int64_t x = 0; x < 6; ++x) ramp.images.push_back(float(x + 10 * y + 3 * (x / 2) + 3 * (y / 2)));
  // Across: 8 steps of 4 in rows, 6 of 13 in columns. Within: 12 steps of 1 in rows, 12 of 10 in columns.
  CHECK(border_ratio(ramp, 2) == Approx((8 * 4 + 6 * 13) / 14.0 / ((12 * 1 + 12 * 10) / 24.0)));
  CHECK(std::isnan(border_ratio(ramp, 1)));
  CHECK(std::isnan(border_ratio(ramp, 6)));

  Team t;
  QualityMeter meter(t.ctx, {.training = halves(64, 1), .held_out = halves(64, 2), .num_classes = 0});
  const auto measured = [&](const LabelledImages& images) { return meter.measure(images, 2, 1)[6]; };
  LabelledImages grid = halves(48, 3);
  CHECK(measured(grid) == Approx(1).margin(0.1));
  CHECK(meter.of_real(48, 2, 1)[6] == Approx(1).margin(0.1));
  for (size_t i = 0; i < grid.images.size(); ++i) grid.images[i] += i % 8 / 2 % 2 == 0 ? 0.3f : -0.3f;
  CHECK(measured(grid) > 1.2);
  CHECK(kMeasures[6].cost(1.25) == Approx(0.25));
}

TEST_CASE("quality: the distance is the Frechet one where images are many, else the unbiased kernel distance") {
  Team t;
  const auto described = [&](int64_t held_out, int64_t training = 160) {
    return QualityMeter(t.ctx, {.training = halves(training, 1), .held_out = halves(held_out, 2)}).describe(200);
  };
  CHECK_THAT(described(160)[0], Contains("4x4: Frechet distance of 200 samples and 160 held-out images in 16 dim"));
  CHECK_THAT(described(159)[0], Contains("4x4: unbiased kernel distance"));
  CHECK_THAT(described(160)[1], Contains("8x8: unbiased kernel distance"));
  // Real images take the place of samples: with fewer of them than that, both have the kernel distance.
  CHECK_THAT(described(160, 159)[0], Contains("4x4: unbiased kernel distance"));
  CHECK_THROWS_WITH(described(3), Contains("data.hold_out=0.5"));
}

TEST_CASE("quality: large images are fewer, and what all of it takes is known before") {
  constexpr size_t kGiB = size_t{1} << 30;
  for (const dataset::SampleShape& shape : {dataset::SampleShape{3, 32, 32}, {3, 64, 64}, {13, 32, 32}})
    CHECK(num_images(1 << 20, 20000, 2 * kGiB, shape) == 20000);
  CHECK(num_images(5000, 20000, 2 * kGiB, {3, 32, 32}) == 5000);
  CHECK(num_images(1 << 20, 20000, 2 * kGiB, {3, 256, 256}) == 2730);
  CHECK(num_images(1 << 20, 20000, 2 * kGiB, {13, 1024, 1024}) == kFewestImages);
  CHECK(num_images(10, 20000, 2 * kGiB, {13, 1024, 1024}) == 10);

  const dataset::SampleShape large{3, 256, 256};
  const auto image = size_t(large.elements()) * sizeof(float);
  const size_t without = QualityMeter::bytes(large, 100, 10, 20, 0);
  CHECK(without >= (100 + 10 + 20) * image);
  CHECK(without < 2 * (100 + 10 + 20) * image);
  const size_t classifier = SmallClassifier::bytes(large, 1000);
  CHECK(QualityMeter::bytes(large, 100, 10, 20, 1000) == without + 2 * classifier);
  CHECK(classifier > size_t{2} * 64 * 1000 * 256 * 256 * sizeof(float));  // input and output at least
  CHECK(SmallClassifier::bytes(kShape, 2) < size_t{64} << 20);
}

TEST_CASE("quality: samples have the classes of the data in their proportions, and a picture has them in columns") {
  Team t;
  LabelledImages training = halves(90, 1);
  for (size_t i = 0; i < training.labels.size(); ++i) training.labels[i] = i % 9 == 0 ? 2 : 0;  // none has class 1
  const QualityMeter meter(t.ctx,
                           {.training = training, .held_out = halves(16, 2), .num_classes = 3, .classifier_steps = 1});
  const std::vector<int64_t> labels = meter.labels_of_real(180, 5);
  CHECK(std::count(labels.begin(), labels.end(), 2) == 20);
  CHECK(std::count(labels.begin(), labels.end(), 0) == 160);
  CHECK(labels != meter.labels_of_real(180, 6));
  CHECK(QualityMeter(t.ctx, {.training = training, .held_out = halves(16, 2)}).labels_of_real(2, 5) ==
        std::vector<int64_t>{0, 0});

  const GridOfClasses grid = grid_of_classes({1, 1, 0, 1, 0, 1}, 2, 8);
  CHECK(grid.columns == 2);
  CHECK(grid.numbers == std::vector<int64_t>{2, 0, 4, 1});
  CHECK(grid_of_classes({1, 1, 1}, 2, 8).columns == 8);  // class 0 has no sample
  CHECK(grid_of_classes({1, 1, 1}, 2, 8).numbers == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("quality: the plot has a curve per recipe with its bars, and leaves out what is no number") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      curves_svg({{"8x8", {{"a<b", {{1, {2, 1, 3}}, {2, {1, 0.5, 1.5}}}}, {"c", {{1, {nan}}}}}, 0.7}, {"empty", {}}});
  CHECK_THAT(svg, Contains("a&lt;b") && Contains(">8x8<") && Contains(">empty<") && Contains("stroke-dasharray"));
  CHECK_THAT(svg, !Contains("nan") && !Contains("inf"));
  size_t circles = 0;
  for (size_t i = svg.find("<circle"); i != svg.npos; i = svg.find("<circle", i + 1)) ++circles;
  CHECK(circles == 2);
  CHECK(svg.ends_with("</svg>\n"));
}
