#include "ditrain/train/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"

namespace ditrain::train {

void PhaseTimes::add(const PhaseTimes& other) {
  for (size_t i = 0; i < seconds_.size(); ++i) seconds_[i] += other.seconds_[i];
}

namespace {
nlohmann::ordered_json number(double v) {
  return std::isfinite(v) ? nlohmann::ordered_json(v) : nlohmann::ordered_json(nullptr);
}
}  // namespace

std::string to_json_line(const StepMetrics& m) {
  nlohmann::ordered_json seconds, j;
  for (size_t i = 0; i < kPhaseNames.size(); ++i) seconds[kPhaseNames[i]] = m.seconds.seconds()[i];
  seconds["allreduce_hidden"] = m.allreduce_hidden_s;
  j["step"] = m.step;
  for (const Metric& metric : kMetrics) j[metric.name] = number(m.*metric.value);
  j["seconds"] = seconds;
  j["memory"] = {
      {"rss_bytes", m.rss_bytes}, {"fast_peak_bytes", m.fast_peak_bytes}, {"bulk_peak_bytes", m.bulk_peak_bytes}};
  for (size_t i = 0; i < memory::kTiers.size(); ++i)
    j["memory"][std::string(memory::kTiers[i].name) + "_bytes"] = m.tier_bytes[i];
  for (const auto& [name, value] : m.automem) j["automem"][name] = number(value);
  j["skipped_steps"] = m.skipped_steps;
  j["bad_files"] = m.bad_files;
  if (!m.non_finite.empty()) j["non_finite"] = m.non_finite;
  for (const auto& [name, value] : m.extra) j[name] = number(value);
  return files::json_text(j);
}

namespace {

// Calls `use` with each line of metrics.jsonl and what it holds; a file that is not there has none.
template <class F>
void read_metrics(const std::string& run_folder, const F& use) try {
  const std::string path = run_folder + "/metrics.jsonl";
  if (!std::filesystem::exists(path)) return;
  files::read_lines(path, [&](const std::string& line) { use(line, files::parse_json_or_discard(line)); });
} catch (const files::OpenError& e) {
  throw RunError({.where = "metrics", .what = e.what()});
}

}  // namespace

int64_t discard_metrics_after(const std::string& run_folder, int64_t step) {
  const std::string path = run_folder + "/metrics.jsonl";
  std::string kept, discarded;
  int64_t moved = 0;
  read_metrics(run_folder, [&](const std::string& line, const nlohmann::json& j) {
    const bool keep = j.is_object() && j.contains("step") && j["step"].is_number_integer() && j["step"] <= step;
    (keep ? kept : discarded) += line + "\n";
    moved += keep ? 0 : 1;
  });
  // A last line without its end, after a power cut, would swallow the next one.
  std::error_code unreadable;
  if (moved == 0 && (kept.empty() || std::filesystem::file_size(path, unreadable) == kept.size())) return 0;
  const std::string aside = run_folder + "/metrics.discarded.jsonl";
  if (!discarded.empty()) discarded.pop_back(), files::append_line(aside, discarded);
  files::write_file_atomically(path, kept);
  return moved;
}

std::optional<double> metric_of_step(const std::string& run_folder, int64_t step, const std::string& name) {
  std::optional<double> value;
  read_metrics(run_folder, [&](const std::string&, const nlohmann::json& j) {
    const auto is_number = [&](const char* key) { return j.contains(key) && j[key].is_number(); };
    if (j.is_object() && is_number("step") && j["step"] == step && is_number(name.c_str()))
      value = j[name].get<double>();
  });
  return value;
}

void IntervalMeans::add(const StepMetrics& m, double step_s) {
  images_ += m.images_per_second * step_s, seconds_ += step_s;
  if (!m.non_finite.empty() || !std::isfinite(m.loss) || !std::isfinite(m.grad_norm)) return;
  sum_loss_ += m.loss, sum_mse_ += m.mse, sum_vb_ += m.vb, sum_norm_ += m.grad_norm;
  ++finite_;
}

StepMetrics IntervalMeans::take(const StepMetrics& last) {
  StepMetrics m = last;
  if (const auto n = double(finite_); finite_ > 0)
    m.loss = sum_loss_ / n, m.mse = sum_mse_ / n, m.vb = sum_vb_ / n, m.grad_norm = sum_norm_ / n;
  if (seconds_ > 0 && last.images_per_second > 0) {
    m.images_per_second = images_ / seconds_;
    m.mfu *= m.images_per_second / last.images_per_second;
  }
  *this = {};
  return m;
}

std::string progress_text(const StepMetrics& m, const Standing& s) {
  const int64_t steps = std::max<int64_t>(1, s.steps);
  std::string text = fmt::format("step {}/{} ({:.1f} %)  epoch {:.2f}  loss {:.4f}", m.step, s.steps,
                                 100.0 * double(m.step) / double(steps), s.epoch, m.loss);
  if (m.vb != 0) text += fmt::format(" (mse {:.4f} vb {:.4f})", m.mse, m.vb);
  return text + fmt::format("  lr {:.2e}  |g| {:.3g}  {:.1f} img/s  MFU {:.1f} %  {}  {}, {} left", m.lr, m.grad_norm,
                            m.images_per_second, 100 * m.mfu, format_bytes(m.rss_bytes), format_duration(s.elapsed_s),
                            format_duration(s.left_s));
}

std::string phase_table(const PhaseTimes& total, double wall_s, dist::Communicator& comm) {
  const size_t n = kPhaseNames.size();
  std::vector<double> mine(total.seconds().begin(), total.seconds().end());
  double other = wall_s;
  for (double s : mine) other -= s;
  mine.push_back(std::max(0.0, other));
  const std::vector<double> all = comm.gather(mine.data(), int64_t(mine.size()));
  if (all.empty()) return "";
  std::string s = fmt::format("{:<20}{:>10}{:>10}{:>10}{:>9}\n", "phase [s]", "min", "avg", "max", "share");
  for (size_t i = 0; i <= n; ++i) {
    double low = INFINITY, high = 0, sum = 0;
    for (size_t at = i; at < all.size(); at += n + 1)
      low = std::min(low, all[at]), high = std::max(high, all[at]), sum += all[at];
    const double average = sum / double(all.size() / (n + 1));
    if (high == 0) continue;
    s += fmt::format("{:<20}{:>10.2f}{:>10.2f}{:>10.2f}{:>8.1f} %\n", i < n ? kPhaseNames[i] : "other", low, average,
                     high, 100 * average / std::max(wall_s, 1e-9));
  }
  return s + fmt::format("{:<20}{:>10}{:>10.2f}\n", "wall", "", wall_s);
}

}  // namespace ditrain::train
