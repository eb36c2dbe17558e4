// What a comparison of recipes says of its results: rows of values, rows of times to the same quality, and curves.
#pragma once
#include <string>
#include <vector>

#include "curve_chart.hpp"
#include "ditrain/bench/report.hpp"
#include "quality_measures.hpp"

namespace ditrain::bench {

using ValuesOfSeeds = std::vector<MeasureValues>;

/// A recipe's samples, without guidance and with it, after each of its marks.
struct RecipeResults {
  struct Mark {
    int64_t steps;
    double cpu_minutes;
    ValuesOfSeeds plain, guided;
    double guide_minutes = 0;  ///< for a guide that was trained besides
    double minutes(bool is_guided) const { return cpu_minutes + (is_guided ? guide_minutes : 0); }
    const ValuesOfSeeds& values(bool is_guided) const { return is_guided ? guided : plain; }
  };
  std::string name;
  bool guides;  ///< else there are no guided values
  std::vector<Mark> marks;
};

class QualityTable {
 public:
  /// All have the same seeds, `real` too: training images in the place of samples.
  QualityTable(ValuesOfSeeds real, std::vector<RecipeResults> recipes)
      : real_(std::move(real)), recipes_(std::move(recipes)) {}

  /// Means over seeds with their intervals: real images, then all recipes at their marks, first without guidance.
  std::vector<Row> values() const;
  /// CPU time of the reference / CPU time of the recipe until each has what the reference has at its last mark, in each
  /// measure; or why there is no such time. With one mark of the reference: their differences there, seed by seed, of
  /// which the mean, the least and the most.
  Row comparison(size_t recipe, size_t reference, bool guided) const;
  /// A panel for each measure.
  std::vector<CurvePanel> panels(bool guided) const;

 private:
  Row difference(size_t recipe, size_t reference, bool guided) const;

  ValuesOfSeeds real_;
  std::vector<RecipeResults> recipes_;
};

}  // namespace ditrain::bench
