#include "ditrain/bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ditrain/base/text.hpp"
#include "ditrain/commit.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/platform/pages.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string seconds_text(double s) {
  if (!std::isfinite(s)) return "-";
  if (s >= 1) return fmt::format("{:.3f} s", s);
  if (s >= 1e-3) return fmt::format("{:.3f} ms", s * 1e3);
  return s >= 1e-6 ? fmt::format("{:.2f} us", s * 1e6) : fmt::format("{:.1f} ns", s * 1e9);
}

std::string number_text(double x) {
  if (!std::isfinite(x)) return "-";
  const double magnitude = std::fabs(x);
  return magnitude >= 100  ? fmt::format("{:.1f}", x)
         : magnitude >= 10 ? fmt::format("{:.2f}", x)
                           : fmt::format("{:.3f}", x);
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "-"; }

std::string text_of(const Field& field) {
  if (const auto* word = std::get_if<std::string>(&field.value)) return *word;
  const auto* whole = std::get_if<int64_t>(&field.value);
  const double x = whole ? double(*whole) : std::get<double>(field.value);
  if (field.name.ends_with("_s") && !field.name.ends_with("_gb_s")) return seconds_text(x);
  if (!std::isfinite(x)) return "-";
  if (field.name.find("_bytes") != std::string::npos) return format_bytes(size_t(x));
  return whole ? std::to_string(*whole) : number_text(x);
}

// A table grown cell by cell: columns stand in the order in which they are first named; empty ones are left out.
class Table {
 public:
  void start_row() { rows_.emplace_back(); }
  void cell(const std::string& column, const std::string& text) {
    const auto found =
        std::find_if(columns_.begin(), columns_.end(), [&](const Column& c) { return c.name == column; });
    const size_t i = size_t(found - columns_.begin());
    if (found == columns_.end()) columns_.push_back({column});
    rows_.back().resize(std::max(rows_.back().size(), i + 1));
    rows_.back()[i] = text;
    if (!text.empty()) columns_[i].width = std::max({columns_[i].width, text.size(), column.size()});
  }
  std::string text() const {
    std::vector<std::string> names;
    for (const Column& c : columns_) names.push_back(c.name);
    std::string s = line(names);
    for (const auto& row : rows_) s += line(row);
    return s;
  }

 private:
  struct Column {
    std::string name;
    size_t width = 0;  // 0: nothing in it
  };
  std::string line(const std::vector<std::string>& cells) const {
    std::string s;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string text = i < cells.size() ? cells[i] : "";
      if (i == 0)
        s += fmt::format("{:<{}}", text, columns_[i].width);
      else if (columns_[i].width > 0)
        s += fmt::format("  {:>{}}", text, columns_[i].width);
    }
    return s.substr(0, s.find_last_not_of(' ') + 1) + "\n";
  }
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

void add_row(Table& table, const Row& row) {
  table.start_row();
  table.cell("row", row.name);
  table.cell("type", row.dtype);
  for (const Field& f : row.details)
    if (f.in_table) table.cell(f.name, text_of(f));
  const bool timed = row.time.repeats > 0;
  table.cell("median", timed ? seconds_text(row.time.median_s) : "");
  table.cell("min", timed ? seconds_text(row.time.min_s) : "");
  table.cell("p90", timed ? seconds_text(row.time.p90_s) : "");
  table.cell("GFLOP/s", row.gflops > 0 ? number_text(row.gflops) : "");
  table.cell("GB/s", row.gb_s > 0 ? number_text(row.gb_s) : "");
  table.cell("limit", row.limit > 0 ? number_text(row.limit) : "");
  table.cell("share", timed ? percent(row.share) : "");
  for (const auto& [name, ratio] : row.peers) table.cell("/ " + name, number_text(ratio));
  table.cell("drift", row.drift > kMaxDrift ? percent(row.drift) : "");
}

Json json_of(const Field& field) {
  return std::visit([](const auto& value) { return Json(value); }, field.value);
}

Json json_of(const Row& row) {
  Json j = {{"name", row.name},        {"dtype", row.dtype},      {"median_s", row.time.median_s},
            {"min_s", row.time.min_s}, {"p90_s", row.time.p90_s}, {"repeats", row.time.repeats}};
  if (row.gflops > 0) j["gflops"] = row.gflops;
  if (row.gb_s > 0) j["gb_s"] = row.gb_s;
  j["limit"] = row.limit;
  j["share"] = row.share;
  j["drift"] = row.drift;
  for (const Field& f : row.details) j[f.name] = json_of(f);
  if (!row.peers.empty()) {
    Json peers = Json::object();
    for (const auto& [name, ratio] : row.peers) peers[name] = ratio;
    j["peers"] = peers;
  }
  return j;
}

}  // namespace

std::string describe(const Report& report) {
  std::string s = fmt::format("{} thread(s), kernels {}", report.threads, kernels::chosen_isa());
  if (report.peak_f32_gflops > 0) s += fmt::format("; FMA peak {:.1f} GFLOP/s f32", report.peak_f32_gflops);
  if (report.peak_bf16_gflops > 0) s += fmt::format(", {:.1f} bf16", report.peak_bf16_gflops);
  if (report.read_gb_s > 0) s += fmt::format("; memory read {:.1f} GB/s", report.read_gb_s);
  s += "\n";
  Table table;
  for (const Row& row : report.rows) add_row(table, row);
  if (!report.rows.empty()) s += table.text();
  for (const Row& row : report.rows)
    if (row.drift > kMaxDrift) {
      s += "drift: how far peaks beside the row are below the run's, or repeats differ; the machine was not quiet\n";
      break;
    }
  for (const std::string& note : report.notes) s += note + "\n";
  return s;
}

std::string to_json(const Report& report) {
  Json rows = Json::array();
  for (const Row& row : report.rows) rows.push_back(json_of(row));
  const Json j = {{"host", platform::probe_topology().machine},
                  {"commit", kCommit},
                  {"isa", kernels::chosen_isa()},
                  {"threads", report.threads},
                  {"page_bytes", platform::page_bytes()},
                  {"huge_pages", platform::huge_page_mode()},
                  {"peak",
                   {{"f32_gflops", report.peak_f32_gflops},
                    {"bf16_gflops", report.peak_bf16_gflops},
                    {"read_gb_s", report.read_gb_s > 0 ? Json(report.read_gb_s) : Json(nullptr)}}},
                  {"rows", rows},
                  {"notes", report.notes}};
  return files::json_text(j, 2) + "\n";  // notes quote paths
}

double geometric_mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += std::log(v);
  return x.empty() ? 0 : std::exp(sum / double(x.size()));
}

const Row& worst_of(const std::vector<const Row*>& rows) {
  const auto less = [](const Row* a, const Row* b) { return a->share < b->share; };
  return **std::min_element(rows.begin(), rows.end(), less);
}

std::vector<std::string> mean_share(const std::vector<const Row*>& rows, const std::string& which) {
  if (rows.empty()) return {};
  std::vector<double> shares;
  for (const Row* row : rows) shares.push_back(row->share);
  const Row& worst = worst_of(rows);
  return {fmt::format("geometric mean of {} rows in {} with {}: {:.1f} % of the FMA peak; worst {:.1f} %, {}",
                      rows.size(), worst.dtype, which, 100 * geometric_mean(shares), 100 * worst.share, worst.name)};
}

std::vector<std::string> mean_ratios(const std::vector<const Row*>& rows) {
  std::map<std::string, std::vector<double>> ratios;
  for (const Row* row : rows)
    for (const auto& [name, ratio] : row->peers) ratios[name].push_back(ratio);
  std::vector<std::string> lines;
  for (const auto& [name, ratio] : ratios)
    lines.push_back(fmt::format("geometric mean of our rate / that of {}: {:.3f} ({} rows in {})", name,
                                geometric_mean(ratio), ratio.size(), rows.front()->dtype));
  return lines;
}

}  // namespace ditrain::bench
