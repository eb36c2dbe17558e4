#include "ditrain/plan/memory_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ditrain/base/text.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::plan {
namespace {

using automem::Phase;

// Pixels. A chart has its labels left of kLeft and its title above it.
constexpr double kLeft = 60, kWidth = 720, kFastHeight = 150, kSlowHeight = 70, kBetween = 44;
constexpr const char* kPhaseColours[] = {"#4269d0", "#ff725c", "#3ca951"};  // of automem::Phase
constexpr const char* kFixedColour = "#9c6b4e";
constexpr const char* kCopiedColour = "#97bbf5";
constexpr const char* kInPlaceColour = "#efb118";

double gib(size_t bytes) { return double(bytes) / 0x1p30; }

std::string rect(const char* kind, double x, double y, double width, double height, const char* colour,
                 const std::string& what) {
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">"
      "<title>{}</title></rect>\n",
      kind, x, y, width, height, colour, what);
}

// 1, 2 or 5 times a power of ten, of which at most `count` make `most`.
double tick_of(double most, int count) {
  const double least = most / count, power = std::pow(10, std::floor(std::log10(least)));
  for (const double digit : {1, 2, 5})
    if (digit * power >= least) return digit * power;
  return 10 * power;
}

std::vector<double> ticks_to(double most, int count) {
  std::vector<double> ticks;
  if (!(most > 0)) return {0};
  const double tick = tick_of(most, count);
  for (int i = 0; i * tick <= most * (1 + 1e-9); ++i) ticks.push_back(i * tick);
  return ticks;
}

// Neighbouring points of the step under one name: `backward` has the updates between its nodes.
struct Span {
  std::string name;
  Phase phase;
  double begin_s, end_s;
};

std::vector<Span> spans_of(const automem::Plan& plan) {
  const std::vector<automem::Point>& points = plan.uses.points;
  size_t backward_end = 0;
  for (size_t p = 0; p < points.size(); ++p)
    if (points[p].phase == Phase::kBackward) backward_end = p;
  std::vector<Span> spans;
  double begin_s = 0;
  for (size_t p = 0; p < plan.forecast.occupancy.size(); ++p) {
    const bool updates = points[p].phase == Phase::kUpdate && p < backward_end;
    const Phase phase = updates ? Phase::kBackward : points[p].phase;
    if (spans.empty() || spans.back().phase != phase) spans.push_back({phase_name(phase), phase, begin_s, begin_s});
    if (updates) spans.back().name = "backward and update";
    begin_s = spans.back().end_s = plan.forecast.occupancy[p].end_s;
  }
  return spans;
}

// Charts of the tiers below each other, on one axis of time.
class Charts {
 public:
  Charts(const automem::Plan& plan, double top) : plan_(plan), spans_(spans_of(plan)), top_(top) {
    add_head();
    add_fast();
    for (size_t tier = 0; tier < memory::kTiers.size(); ++tier)
      if (plan.tier_bytes[tier] > 0) add_slow(tier);
    add_seconds();
  }
  const std::string& svg() const { return svg_; }
  double bottom() const { return top_; }

 private:
  double x_of(double seconds) const { return kWidth * seconds / std::max(plan_.forecast.step_s, 1e-12); }

  // What happens in the step, what colours mean, and the phases, each with its name if that has room.
  void add_head() {
    const automem::Forecast& f = plan_.forecast;
    svg_ += fmt::format(
        "<text x=\"20\" y=\"{:.0f}\" font-size=\"16\">Memory tiers over one step: {:.3g} s expected; {} come in, {} go "
        "out</text>\n",
        top_, f.step_s, format_bytes(size_t(f.bytes_in)), format_bytes(size_t(f.bytes_out)));
    double x = kLeft;
    const auto key = [&](const char* colour, const std::string& words) {
      svg_ += fmt::format(
          "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text x=\"{3:.0f}\" "
          "y=\"{4:.0f}\">{5}</text>\n",
          x, top_ + 14, colour, x + 18, top_ + 24, words);
      x += 34 + 7.0 * double(words.size());
    };
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kUpdate})
      key(kPhaseColours[size_t(phase)], phase_name(phase));
    key(kFixedColour, "never moves");
    key(kCopiedColour, "copied in and out");
    if (plan_.in_place_bytes() > 0) key(kInPlaceColour, "used in place");
    top_ += 38;
    for (const Span& span : spans_) {
      const double begin = kLeft + x_of(span.begin_s), width = x_of(span.end_s - span.begin_s);
      svg_ += rect("phase", begin, top_, width, 16, kPhaseColours[size_t(span.phase)], span.name);
      if (width > 7.0 * double(span.name.size()))
        svg_ += fmt::format(
            "<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\" font-size=\"12\" fill=\"white\">{}</text>\n",
            begin + width / 2, top_ + 12, span.name);
    }
    top_ += 16;
  }

  void add_fast() {
    const automem::Capacity& c = plan_.capacity;
    const size_t all = c.fixed_bytes + c.pool_bytes;
    const double scale = kFastHeight / double(all), fixed = scale * double(c.fixed_bytes);
    std::string content = rect("fixed", 0, kFastHeight - fixed, kWidth, fixed, kFixedColour,
                               "gradients and temporaries: " + format_bytes(c.fixed_bytes));
    double begin_s = 0;
    for (size_t p = 0; p < plan_.forecast.occupancy.size(); ++p) {
      const auto& [end_s, bytes] = plan_.forecast.occupancy[p];
      const automem::Point& point = plan_.uses.points[p];
      const double height = scale * double(bytes);
      content += rect("pool", x_of(begin_s), kFastHeight - fixed - height, x_of(end_s - begin_s), height,
                      kPhaseColours[size_t(point.phase)],
                      fmt::format("{} of {}: {}", phase_name(point.phase), point.name, format_bytes(bytes)));
      begin_s = end_s;
    }
    add_chart("fast", kFastHeight, all, content,
              fmt::format("fast tier of {}: at most {} in use, {} of them gradients and temporaries", format_bytes(all),
                          format_bytes(c.fixed_bytes + plan_.forecast.peak_bytes), format_bytes(c.fixed_bytes)));
  }

  // Every tensor has its place there all the time, wherever it is used.
  void add_slow(size_t tier) {
    const memory::TierRow& row = memory::kTiers[tier];
    const size_t used = plan_.tier_bytes[tier], in_place = plan_.in_place_bytes(tier);
    const bool sized = plan_.capacity.tier_bytes[tier] != SIZE_MAX;
    const size_t all = sized ? std::max(used, plan_.capacity.tier_bytes[tier]) : used;
    const double scale = kSlowHeight / double(all), low = scale * double(in_place), high = scale * double(used);
    std::string content = rect("copied", 0, kSlowHeight - high, kWidth, high - low, kCopiedColour,
                               "copied into the fast tier and back: " + format_bytes(used - in_place));
    if (in_place > 0)
      content += rect("in-place", 0, kSlowHeight - low, kWidth, low, kInPlaceColour,
                      "used where it is: " + format_bytes(in_place));
    const std::string size =
        sized ? " of " + format_bytes(all) : fmt::format(", as large as needed (memory.{}_gib)", row.name);
    add_chart(row.name, kSlowHeight, all, content,
              fmt::format("{} tier{}: {} in use{}", row.name, size, format_bytes(used),
                          in_place > 0 ? fmt::format(", {} of them in place", format_bytes(in_place)) : ""));
  }

  // Coordinates of `content` begin at the upper left corner; the full height is `bytes`.
  void add_chart(const char* tier, double height, size_t bytes, const std::string& content, const std::string& title) {
    top_ += kBetween - 16;
    svg_ += fmt::format(
        "<g id=\"{}\" transform=\"translate({},{:.0f})\">\n<text y=\"-7\">{}</text>\n<text x=\"-9\" y=\"-9\" "
        "text-anchor=\"end\">GiB</text>\n<g shape-rendering=\"crispEdges\">\n{}</g>\n",
        tier, kLeft, top_, title, content);
    for (const double tick : ticks_to(gib(bytes), height > kSlowHeight ? 5 : 3)) {
      const double y = height * (1 - tick / gib(bytes));
      svg_ += fmt::format(
          "<line x1=\"-5\" x2=\"0\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" stroke=\"black\"/><text x=\"-9\" y=\"{1:.1f}\" "
          "text-anchor=\"end\" font-size=\"11\">{2:g}</text>\n",
          y, y + 4, tick);
    }
    for (const Span& span : spans_)
      svg_ += fmt::format(
          "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"0\" y2=\"{1}\" stroke=\"black\" stroke-dasharray=\"2 3\"/>\n",
          x_of(span.end_s), height);
    svg_ += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"black\"/>\n</g>\n", kWidth, height);
    top_ += height + 16;
  }

  void add_seconds() {
    for (const double tick : ticks_to(plan_.forecast.step_s, 8))
      svg_ += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"black\"/><text x=\"{0:.1f}\" "
          "y=\"{3:.0f}\" text-anchor=\"middle\" font-size=\"11\">{4:g} s</text>\n",
          kLeft + x_of(tick), top_ - 16, top_ - 11, top_ + 2, tick);
    top_ += 16;
  }

  const automem::Plan& plan_;
  const std::vector<Span> spans_;
  double top_;  // of what comes next
  std::string svg_;
};

}  // namespace

std::string memory_svg(const MemoryPlan& plan, const automem::Plan* automem) {
  constexpr const char* kColours[] = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951",
                                      "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e"};
  const double width = 760, total = double(plan.total());
  std::string bar, legend, charts;
  double x = 20;
  int row = 0;
  for (const MemoryItem& item : plan.items) {
    if (item.bytes == 0) continue;
    const char* colour = kColours[size_t(row) % std::size(kColours)];
    const double w = width * double(item.bytes) / total;
    bar += fmt::format("<rect x=\"{:.1f}\" y=\"40\" width=\"{:.1f}\" height=\"46\" fill=\"{}\"/>\n", x, w, colour);
    legend += fmt::format(
        "<rect x=\"20\" y=\"{0}\" width=\"12\" height=\"12\" fill=\"{1}\"/><text x=\"40\" y=\"{2}\">"
        "{3}: {4} ({5:.1f} %) {6}</text>\n",
        104 + 20 * row, colour, 114 + 20 * row, item.name, format_bytes(item.bytes), 100 * double(item.bytes) / total,
        item.full_note());
    x += w, ++row;
  }
  double height = 120 + 20 * row;
  if (automem != nullptr) {
    const Charts of_tiers(*automem, height + 24);
    charts = of_tiers.svg(), height = of_tiers.bottom();
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"20\" y=\"26\" font-size=\"16\">Memory plan per rank: {}</text>\n{}{}{}</svg>\n",
      height, format_bytes(plan.total()), bar, legend, charts);
}

void write_memory_svg(const MemoryPlan& plan, const std::string& path, const automem::Plan* automem) {
  files::write_file_atomically(path, memory_svg(plan, automem));
}

}  // namespace ditrain::plan
