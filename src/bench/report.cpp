#include "ditrain/bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ditrain/commit.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/platform/topology.hpp"
#include "ditrain/train/memory_plan.hpp"

namespace ditrain::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string seconds_text(double s) {
  if (s >= 1) return fmt::format("{:.3f} s", s);
  return s >= 1e-3 ? fmt::format("{:.3f} ms", s * 1e3) : fmt::format("{:.2f} us", s * 1e6);
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
  if (field.name.ends_with("_s")) return seconds_text(x);
  if (field.name.find("_bytes") != std::string::npos) return train::format_bytes(size_t(x));
  return whole ? std::to_string(*whole) : number_text(x);
}

// A table grown cell by cell: columns appear in the order in which they are first named.
class Table {
 public:
  void start_row() { rows_.emplace_back(); }
  void cell(const std::string& column, std::string text) {
    const auto found = std::find(columns_.begin(), columns_.end(), column);
    const size_t i = size_t(found - columns_.begin());
    if (found == columns_.end()) columns_.push_back(column);
    if (rows_.back().size() <= i) rows_.back().resize(i + 1);
    rows_.back()[i] = std::move(text);
  }
  std::string text() const {
    std::vector<size_t> width;
    for (const std::string& c : columns_) width.push_back(c.size());
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    std::string s = line(columns_, width);
    for (const auto& row : rows_) s += line(row, width);
    return s;
  }

 private:
  static std::string line(const std::vector<std::string>& cells, const std::vector<size_t>& width) {
    std::string s;
    for (size_t i = 0; i < cells.size(); ++i)
      s += i == 0 ? fmt::format("{:<{}}", cells[i], width[i]) : fmt::format("  {:>{}}", cells[i], width[i]);
    return s + "\n";
  }
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

void add_row(Table& table, const Row& row) {
  table.start_row();
  table.cell("row", row.name);
  table.cell("type", row.dtype);
  for (const Field& f : row.details)
    if (f.in_table) table.cell(f.name, text_of(f));
  table.cell("median", seconds_text(row.time.median_s));
  table.cell("min", seconds_text(row.time.min_s));
  table.cell("p90", seconds_text(row.time.p90_s));
  if (row.gflops > 0) table.cell("GFLOP/s", number_text(row.gflops));
  if (row.gb_s > 0) table.cell("GB/s", number_text(row.gb_s));
  if (row.limit > 0) table.cell("of", number_text(row.limit));
  table.cell("share", percent(row.share));
  for (const auto& [name, ratio] : row.peers) table.cell("/ " + name, number_text(ratio));
  if (row.drift > kMaxDrift) table.cell("not quiet", percent(row.drift));
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
  std::string s = fmt::format("{} thread(s), kernels {}; FMA peak {:.1f} GFLOP/s f32", report.threads,
                              kernels::chosen_isa(), report.peak_f32_gflops);
  if (report.peak_bf16_gflops > 0) s += fmt::format(", {:.1f} bf16", report.peak_bf16_gflops);
  s += fmt::format("; memory read {:.1f} GB/s\n", report.read_gb_s);
  Table table;
  for (const Row& row : report.rows) add_row(table, row);
  if (!report.rows.empty()) s += table.text();
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
                  {"peak",
                   {{"f32_gflops", report.peak_f32_gflops},
                    {"bf16_gflops", report.peak_bf16_gflops},
                    {"read_gb_s", report.read_gb_s}}},
                  {"rows", rows}};
  return j.dump(2) + "\n";
}

double geometric_mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += std::log(v);
  return x.empty() ? 0 : std::exp(sum / double(x.size()));
}

}  // namespace ditrain::bench
