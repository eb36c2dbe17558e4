// Reports as text and as JSON.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>

#include "ditrain/files/json.hpp"
#include "ditrain/verify/verify.hpp"

namespace ditrain::verify {

namespace {

/// How far the comparison went towards (below 1) or beyond its tolerance. An exact one is at 0 or infinitely far.
double share_of_tolerance(const Comparison& c) {
  if (c.passed) return c.tolerance > 0 ? c.max_rel / c.tolerance : 0;
  return c.tolerance > 0 && c.nan_count == 0 ? c.max_rel / c.tolerance : HUGE_VAL;
}

std::string title(const Comparison& c) { return c.quantity.empty() ? c.tensor : c.tensor + " (" + c.quantity + ")"; }

void print_line(std::ostream& out, const Comparison& c, int width) {
  out << "  " << std::left << std::setw(width) << title(c) << std::right << std::scientific << std::setprecision(2)
      << "  max abs " << c.max_abs << "  rel " << c.max_rel << "  tolerance " << c.tolerance << "  scale " << c.scale
      << (c.passed ? "  ok\n" : "  FAILED\n");
  if (c.passed) return;
  out << std::defaultfloat << std::setprecision(9) << "    at [" << c.index << "]: got " << c.got << ", expected "
      << c.want << "; " << c.nan_count << " not finite\n";
}

}  // namespace

const Comparison* worst_comparison(const Report& report) {
  const auto worst = std::max_element(
      report.comparisons.begin(), report.comparisons.end(),
      [](const Comparison& a, const Comparison& b) { return share_of_tolerance(a) < share_of_tolerance(b); });
  return worst == report.comparisons.end() ? nullptr : &*worst;
}

void print(std::ostream& out, const Report& report) {
  const std::ios::fmtflags flags = out.flags();
  const std::streamsize precision = out.precision();
  size_t width = 0, failed = 0;
  for (const Comparison& c : report.comparisons) width = std::max(width, std::min(title(c).size(), size_t{60}));
  out << report.file << '\n';
  for (const Comparison& c : report.comparisons) print_line(out, c, int(width)), failed += c.passed ? 0 : 1;
  out.flags(flags);
  out.precision(precision);
  for (const std::string& part : report.left_out) out << "  left out: " << part << '\n';
  out << report.file << ": ";
  if (!report.error.empty()) {
    out << "NOT RUN, " << report.error << '\n';
  } else if (report.passed) {
    out << "passed, " << report.compared << " tensors compared\n";
  } else {
    out << "FAILED, " << failed << " of " << report.comparisons.size() << " comparisons over tolerance\n";
  }
}

std::string to_json(const std::vector<Report>& reports) {
  nlohmann::ordered_json fixtures = nlohmann::ordered_json::array();
  for (const Report& report : reports) {
    nlohmann::ordered_json one{{"file", report.file}, {"passed", report.passed}, {"compared", report.compared}};
    one["worst"] = nullptr;
    if (const Comparison* worst = worst_comparison(report)) {
      one["worst"] = {{"tensor", worst->tensor},
                      {"max_abs", worst->max_abs},
                      {"max_rel", worst->max_rel},
                      {"tolerance", worst->tolerance}};
    }
    if (!report.left_out.empty()) one["left_out"] = report.left_out;
    if (!report.error.empty()) one["error"] = report.error;
    fixtures.push_back(std::move(one));
  }
  return files::json_text(nlohmann::ordered_json{{"fixtures", std::move(fixtures)}}, 2) + "\n";
}

}  // namespace ditrain::verify
