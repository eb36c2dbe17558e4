#include "quality_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace ditrain::bench {
namespace {

std::vector<double> of_measure(const ValuesOfSeeds& seeds, size_t measure) {
  std::vector<double> values;
  for (const MeasureValues& v : seeds) values.push_back(v[measure]);
  return values;
}

Row untimed_row(const std::string& name, bool guided) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Row row{.name = name, .dtype = guided ? "guided" : "", .time = {kNone, kNone, kNone, 0}};
  row.share = kNone;
  return row;
}

// The text is printed, the numbers are in the JSON report alone.
void add_interval(Row& row, const std::string& name, const std::string& text, const std::string& what,
                  const Interval& interval) {
  row.details.push_back({name, text});
  for (const auto& [end, x] : {std::pair{"", interval.value}, {" low", interval.low}, {" high", interval.high}})
    row.details.push_back({fmt::format("{} {}{}", name, what, end), x, false});
}

void add_means(Row& row, const ValuesOfSeeds& seeds) {
  for (size_t m = 0; m < kMeasures.size(); ++m) {
    const Interval mean = mean_of(of_measure(seeds, m));
    add_interval(row, kMeasures[m].name, text_of(mean), "mean", mean);
  }
}

// The cost by CPU minutes, the mean over some seeds.
std::vector<CurvePoint> mean_curve(const RecipeResults& r, bool guided, size_t measure,
                                   const std::vector<size_t>& seeds) {
  std::vector<CurvePoint> curve;
  for (const RecipeResults::Mark& mark : r.marks) {
    CurvePoint at{mark.minutes(guided), 0};
    for (const size_t s : seeds)
      at.cost += kMeasures[measure].cost(mark.values(guided)[s][measure]) / double(seeds.size());
    curve.push_back(at);
  }
  return curve;
}

}  // namespace

std::vector<Row> QualityTable::values() const {
  std::vector<Row> rows = {untimed_row("real images", false)};
  add_means(rows.back(), real_);
  for (const bool guided : {false, true})
    for (const RecipeResults& r : recipes_) {
      if (guided && !r.guides) continue;
      for (const RecipeResults::Mark& mark : r.marks) {
        rows.push_back(untimed_row(r.name, guided));
        rows.back().details = {{"cpu_minutes", mark.minutes(guided)}, {"steps", mark.steps}};
        add_means(rows.back(), mark.values(guided));
      }
    }
  return rows;
}

// Recipes have their first mark at the same time.
Row QualityTable::difference(size_t recipe, size_t with, bool guided) const {
  const RecipeResults &ours = recipes_[recipe], &reference = recipes_[with];
  Row row = untimed_row(ours.name + " - " + reference.name, guided);
  for (size_t m = 0; m < kMeasures.size(); ++m) {
    std::vector<double> values = of_measure(ours.marks.front().values(guided), m);
    const std::vector<double> theirs = of_measure(reference.marks.front().values(guided), m);
    for (size_t s = 0; s < values.size(); ++s) values[s] -= theirs[s];
    const Interval range{mean_of(values).value, *std::min_element(values.begin(), values.end()),
                         *std::max_element(values.begin(), values.end())};
    std::string text = "-";
    if (!std::isnan(range.value))
      text = values.size() == 1 ? fmt::format("{:+.3g}", range.value)
                                : fmt::format("{:+.3g} [{:+.3g}, {:+.3g}]", range.value, range.low, range.high);
    add_interval(row, kMeasures[m].name, text, "difference", range);
  }
  return row;
}

Row QualityTable::comparison(size_t recipe, size_t with, bool guided) const {
  const RecipeResults &ours = recipes_[recipe], &reference = recipes_[with];
  if (reference.marks.size() == 1) return difference(recipe, with, guided);
  Row row = untimed_row(ours.name + " / " + reference.name, guided);
  const auto num_seeds = int64_t(real_.size());
  int64_t better = 0, worse = 0, decided = 0;
  std::vector<size_t> all(real_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (size_t m = 0; m < kMeasures.size(); ++m) {
    const auto curve = [&](const RecipeResults& r, const auto& seeds) { return mean_curve(r, guided, m, seeds); };
    std::vector<double> real = of_measure(real_, m);
    for (double& value : real) value = kMeasures[m].cost(value);
    const Interval real_cost = mean_of(real);
    const auto is_as_real = [&](const RecipeResults& r) {
      return bootstrap(num_seeds, [&](const auto& seeds) { return curve(r, seeds).back().cost; }).low <= real_cost.high;
    };
    // Whether it has the reference's last value at its first mark.
    const auto starts_at = [&](const RecipeResults& r) {
      return curve(r, all).front().cost <= curve(reference, all).back().cost;
    };
    const Interval times = bootstrap(num_seeds, [&](const std::vector<size_t>& seeds) {
      const std::vector<CurvePoint> theirs = curve(reference, seeds);
      return crossing(theirs, theirs.back().cost) / crossing(curve(ours, seeds), theirs.back().cost);
    });
    const auto has_none = [&](const RecipeResults& r) {
      const std::vector<CurvePoint> points = curve(r, all);
      return std::any_of(points.begin(), points.end(), [](const CurvePoint& at) { return std::isnan(at.cost); });
    };
    std::string text;
    if (std::isnan(real_cost.value) || has_none(ours) || has_none(reference)) {
      text = "-";
    } else if (is_as_real(ours) && is_as_real(reference)) {
      text = "not decidable";
    } else if (starts_at(reference)) {
      text = "reference does not improve";
    } else if (times.value == 0 && ours.marks.size() < reference.marks.size()) {
      text = "not within its time";
    } else {
      const bool at_first = starts_at(ours);  // it may have been there before
      text = times.value > 0  ? (at_first ? "> " : "") + text_of(times)
             : times.high > 0 ? fmt::format("not reached [0, {:.3g}]", times.high)
                              : "not reached";
      if (times.contains(1)) text += ", even";
      if (times.value > 0)
        text += fmt::format(" ({}{:.3g} min)", at_first ? "< " : "",
                            crossing(curve(ours, all), curve(reference, all).back().cost));
      ++decided, better += times.low > 1, worse += times.high < 1;
    }
    add_interval(row, kMeasures[m].name, text, "times", times);
  }
  if (num_seeds > 1) {  // one seed tells nothing of the difference to the next
    row.details.push_back({"faster", fmt::format("{} of {}", better, decided)});
    row.details.push_back({"slower", fmt::format("{} of {}", worse, decided)});
  }
  return row;
}

std::vector<CurvePanel> QualityTable::panels(bool guided) const {
  std::vector<CurvePanel> panels;
  for (size_t m = 0; m < kMeasures.size(); ++m) {
    CurvePanel& panel = panels.emplace_back(CurvePanel{.title = kMeasures[m].name, .curves = {}});
    for (const RecipeResults& r : recipes_) {
      if (guided && !r.guides) continue;
      Curve& curve = panel.curves.emplace_back(Curve{.name = r.name, .points = {}});
      for (const RecipeResults::Mark& mark : r.marks)
        curve.points.push_back({mark.minutes(guided), mean_of(of_measure(mark.values(guided), m))});
    }
    panel.level = mean_of(of_measure(real_, m)).value;
  }
  return panels;
}

}  // namespace ditrain::bench
