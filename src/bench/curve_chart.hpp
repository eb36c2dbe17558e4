// Curves over time as an SVG picture: panels beside each other, one axis of time in powers of two.
#pragma once
#include <string>
#include <vector>

#include "quality_statistics.hpp"

namespace ditrain::bench {

struct Curve {
  struct At {
    double minutes;
    Interval value;
  };
  std::string name;
  std::vector<At> points;
};
struct CurvePanel {
  std::string title;
  std::vector<Curve> curves;
  double level = std::numeric_limits<double>::quiet_NaN();  ///< a line across; NaN: none
};

/// Panels of three to a row; curves of one name have one colour in all of them. Time is logarithmic, values linear from
/// the least to the greatest; bars are intervals. What is not finite is left out.
std::string curves_svg(const std::vector<CurvePanel>& panels);

}  // namespace ditrain::bench
