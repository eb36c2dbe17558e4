#include "curve_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace ditrain::bench {
namespace {

constexpr double kPanelWidth = 340, kPanelHeight = 230, kLeft = 52, kTop = 30, kRight = 12, kBottom = 40;
constexpr int kColumns = 3;
constexpr const char* kColours[] = {"#4269d0", "#ff725c", "#3ca951", "#efb118", "#a463f2",
                                    "#9c6b4e", "#97bbf5", "#ff8ab7", "#6cc5b0", "#555555"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

constexpr double kTick = 24;  // width of a label

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double x) {
    if (std::isfinite(x)) low = std::min(low, x), high = std::max(high, x);
  }
  bool empty() const { return !(low <= high); }
};

class Panel {
 public:
  Panel(const CurvePanel& panel, double left, double top, const std::vector<std::string>& names)
      : panel_(panel), left_(left + kLeft), top_(top + kTop), names_(names) {
    for (const Curve& curve : panel.curves)
      for (const Curve::At& p : curve.points) {
        if (!std::isfinite(p.value.value)) continue;
        x_.add(std::log(p.minutes));
        y_.add(p.value.value), y_.add(p.value.low), y_.add(p.value.high);
      }
    y_.add(panel.level);
    text_ = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"bold\">{}</text>\n", left_, top_ - 10,
                        escaped(panel.title));
    if (x_.empty() || y_.empty()) return;
    ticks_ = {std::exp(x_.low), std::exp(x_.high)};
    if (x_.high == x_.low) x_.low -= 0.5, x_.high += 0.5;
    if (y_.high == y_.low) y_.low -= 0.5, y_.high += 0.5;
    draw();
  }
  const std::string& text() const { return text_; }

 private:
  static constexpr double kWidth = kPanelWidth - kLeft - kRight, kHeight = kPanelHeight - kTop - kBottom;
  double x(double minutes) const { return left_ + kWidth * (std::log(minutes) - x_.low) / (x_.high - x_.low); }
  double y(double value) const { return top_ + kHeight * (y_.high - value) / (y_.high - y_.low); }
  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    text_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
  }

  void draw() {
    line(left_, top_ + kHeight, left_ + kWidth, top_ + kHeight, "stroke=\"#888\"");
    for (const double value : {y_.low, (y_.low + y_.high) / 2, y_.high}) {
      line(left_, y(value), left_ + kWidth, y(value), "stroke=\"#ddd\"");
      text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n", left_ - 4,
                           y(value) + 4, value);
    }
    std::set<double> ticks(ticks_.begin(), ticks_.end());  // of one mark alone both are the same
    for (double minutes = std::exp2(std::ceil(std::log2(ticks_[0]))); minutes < ticks_[1]; minutes *= 2)
      if (x(minutes) - x(ticks_[0]) > kTick && x(ticks_[1]) - x(minutes) > kTick) ticks.insert(minutes);
    for (const double minutes : ticks)
      text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.3g}</text>\n", x(minutes),
                           top_ + kHeight + 14, minutes);
    text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">CPU minutes</text>\n",
                         left_ + kWidth / 2, top_ + kHeight + 28);
    if (std::isfinite(panel_.level))
      line(left_, y(panel_.level), left_ + kWidth, y(panel_.level), "stroke=\"#888\" stroke-dasharray=\"4 3\"");
    for (const Curve& curve : panel_.curves) draw(curve);
  }

  void draw(const Curve& curve) {
    const size_t number = size_t(std::find(names_.begin(), names_.end(), curve.name) - names_.begin());
    const std::string colour = kColours[number % std::size(kColours)];
    std::string points;
    for (const Curve::At& p : curve.points) {
      if (!std::isfinite(p.value.value)) continue;
      points += fmt::format("{:.1f},{:.1f} ", x(p.minutes), y(p.value.value));
      line(x(p.minutes), y(p.value.low), x(p.minutes), y(p.value.high), fmt::format("stroke=\"{}\"", colour));
      text_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"><title>{}: {}</title></circle>\n",
                           x(p.minutes), y(p.value.value), colour, escaped(curve.name), text_of(p.value));
    }
    text_ +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", points, colour);
  }

  const CurvePanel& panel_;
  const double left_, top_;
  const std::vector<std::string>& names_;
  Range x_, y_;
  std::array<double, 2> ticks_ = {};  // minutes of the first mark and of the last one
  std::string text_;
};

}  // namespace

std::string curves_svg(const std::vector<CurvePanel>& panels) {
  std::vector<std::string> names;
  for (const CurvePanel& panel : panels)
    for (const Curve& curve : panel.curves)
      if (std::find(names.begin(), names.end(), curve.name) == names.end()) names.push_back(curve.name);
  const auto rows = double((panels.size() + kColumns - 1) / kColumns);
  const double width = kColumns * kPanelWidth, legend = 20.0 * double((names.size() + 3) / 4) + 6;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, rows * kPanelHeight + legend);
  for (size_t i = 0; i < names.size(); ++i)
    svg += fmt::format(
        "<rect x=\"{0:g}\" y=\"{1:g}\" width=\"10\" height=\"10\" fill=\"{2}\"/><text x=\"{3:g}\" "
        "y=\"{4:g}\">{5}</text>\n",
        kLeft + double(i % 4) * 240, 6 + 20.0 * double(i / 4), kColours[i % std::size(kColours)],
        kLeft + double(i % 4) * 240 + 15, 15 + 20.0 * double(i / 4), escaped(names[i]));
  for (size_t i = 0; i < panels.size(); ++i)
    svg += Panel(panels[i], double(i % kColumns) * kPanelWidth, legend + double(i / kColumns) * kPanelHeight, names)
               .text();
  return svg + "</svg>\n";
}

}  // namespace ditrain::bench
