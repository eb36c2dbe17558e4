#include "ditrain/report/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "grid_picture.hpp"

namespace ditrain::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// N of a name "step_N" followed by `ending`; -1 for other names.
int64_t step_of(const std::string& name, std::string_view ending) {
  constexpr std::string_view kBefore = "step_";
  if (!name.starts_with(kBefore) || !name.ends_with(ending)) return -1;
  const std::string digits = name.substr(kBefore.size(), name.size() - kBefore.size() - ending.size());
  const bool is_number =
      !digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == digits.npos;
  return is_number ? std::stoll(digits) : -1;
}

}  // namespace

bool GrowingFile::read_on(size_t max_bytes, const std::function<void(std::string_view line)>& use) {
  constexpr size_t kPiece = size_t{4} << 20;
  std::error_code error;
  const uint64_t size = fs::file_size(path_, error);
  if (error) return false;
  if (size < offset_) offset_ = 0;
  std::ifstream file(path_, std::ios::binary);
  std::string piece;
  for (size_t used = 0; used < max_bytes && offset_ < size;) {
    piece.resize(size_t(std::min<uint64_t>({kPiece, max_bytes - used, size - offset_})));
    if (!file.seekg(int64_t(offset_)) || !file.read(piece.data(), int64_t(piece.size()))) return false;
    const size_t end = piece.rfind('\n');
    const bool whole = end != piece.npos;
    // A part of the last line, or of one that the next call begins with. A first piece without a line end is damaged.
    if (!whole && (used > 0 || offset_ + piece.size() == size)) break;
    for (size_t at = 0, next = 0; whole && at <= end; at = next + 1) {
      next = piece.find('\n', at);
      use(std::string_view(piece).substr(at, next - at));
    }
    const size_t done = whole ? end + 1 : piece.size();
    offset_ += done, used += done;
  }
  return offset_ < size;
}

void Events::add(Event event) {
  if (event.text.size() > kMaxText) event.text = event.text.substr(0, kMaxText) + " ...";
  if (first_.size() < kFirst) return first_.push_back(std::move(event));
  last_.push_back(std::move(event));
  if (last_.size() <= kLast) return;
  last_.pop_front();
  ++left_out_;
}

json Events::to_json() const {
  json events = json::array();
  for (const Event& event : first_) events.push_back({event.time, event.text});
  if (left_out_ > 0) events.push_back({"", fmt::format("({} events are left out here)", left_out_)});
  for (const Event& event : last_) events.push_back({event.time, event.text});
  return events;
}

RunFiles::RunFiles(std::string folder)
    : folder_(std::move(folder)), metrics_(folder_ + "/metrics.jsonl"), log_(folder_ + "/log.txt") {}

std::string RunFiles::name() const {
  return (fs::absolute(folder_) / "").lexically_normal().parent_path().filename().string();
}

void RunFiles::read_on(size_t max_bytes, const std::function<void(const json&)>& each) {
  half_line_ = metrics_.read_on(max_bytes, [&](std::string_view line) { use_metrics(line, each); });
  log_.read_on(max_bytes, [&](std::string_view line) { use_log(line); });
}

void RunFiles::use_metrics(std::string_view text, const std::function<void(const json&)>& each) {
  json line = files::parse_json_or_discard(text);
  const auto step = line.is_object() ? line.find("step") : line.end();
  if (step == line.end() || !step->is_number_integer()) return void(++bad_lines_);
  last_step_ = step->get<int64_t>();
  const auto add = [&](const std::string& name, const json& value) {
    if (value.is_number()) curves_.add(last_step_, name, value.get<double>());
  };
  for (const auto& [name, value] : line.items()) {
    if (name != "step") add(name, value);
    if (value.is_object())
      for (const auto& [inner, number] : value.items()) add(name + "." + inner, number);
  }
  if (const auto bad = line.find("non_finite"); bad != line.end() && bad->is_string()) {
    ++non_finite_;
    events_.add({fmt::format("step {}", last_step_), bad->get<std::string>() + " is not finite"});
  }
  if (const auto bad = line.find("bad_files"); bad != line.end() && bad->is_number_integer() && *bad > bad_files_) {
    bad_files_ = bad->get<int64_t>();
    events_.add({fmt::format("step {}", last_step_), fmt::format("unreadable samples so far: {}", bad_files_)});
  }
  if (each) each(line);
  last_line_ = std::move(line);
}

// "2026-11-25 12:00:00.123 W text": warnings and errors, and what begins, resumes or ends a run.
void RunFiles::use_log(std::string_view line) {
  constexpr size_t kSeconds = 19, kLevel = 24, kText = 26;
  if (line.size() <= kText || line[kLevel - 1] != ' ' || line[kText - 1] != ' ') return;
  const char level = line[kLevel];
  const std::string_view text = line.substr(kText);
  const auto has = [&](std::string_view words) { return text.find(words) != text.npos; };
  const bool matters = level == 'W' || level == 'E' || level == 'C' || text.starts_with("ditrain ") ||
                       text.starts_with("stopped at step") || text.starts_with("best ") || has("metrics.discarded");
  if (matters)
    events_.add({std::string(line.substr(0, kSeconds)), (level == 'I' ? "" : "warning: ") + std::string(text)});
}

double RunFiles::last(const std::string& name) const {
  const json* value = &last_line_;
  for (size_t at = 0, next = 0; at <= name.size(); at = next + 1) {
    next = std::min(name.find('.', at), name.size());
    const auto inner = value->find(name.substr(at, next - at));
    if (inner == value->end()) return std::nan("");
    value = &*inner;
  }
  return value->is_number() ? value->get<double>() : std::nan("");
}

std::map<int64_t, std::string> sample_grids(const std::string& folder) {
  std::map<int64_t, std::string> grids;
  std::error_code error;
  for (fs::directory_iterator it(folder + "/samples", error); !error && it != fs::directory_iterator();
       it.increment(error))
    if (const int64_t step = step_of(it->path().filename().string(), ".png"); step >= 0) grids[step] = it->path();
  return grids;
}

std::set<int64_t> spaced_in_log(const std::vector<int64_t>& steps, size_t n) {
  if (steps.size() <= n) return {steps.begin(), steps.end()};
  const double first = std::log1p(double(steps.front())), last = std::log1p(double(steps.back()));
  std::set<int64_t> chosen;
  for (size_t i = 0, at = 0; i < n; ++i, ++at) {
    const double wanted = std::expm1(first + (last - first) * double(i) / double(n - 1));
    const size_t room = steps.size() - (n - i);  // the others that are still to come have to find a place
    while (at < room && double(steps[at]) < wanted - 0.5) ++at;
    chosen.insert(steps[at]);
  }
  return chosen;
}

void RunFiles::read_grids(size_t max_new) {
  const std::map<int64_t, std::string> files = sample_grids(folder_);
  std::vector<int64_t> steps;
  for (const auto& [step, path] : files) steps.push_back(step);
  const std::set<int64_t> chosen = spaced_in_log(steps, kMaxGrids);
  std::erase_if(grids_, [&](const auto& grid) { return !chosen.contains(grid.first); });
  for (auto step = chosen.rbegin(); step != chosen.rend() && max_new > 0; ++step) {
    const auto [grid, is_new] = grids_.try_emplace(*step);
    if (!is_new) continue;
    --max_new;
    try {
      grid->second.jpeg = small_jpeg(images::read_image(files.at(*step)), kMaxGridBytes);
    } catch (const Error& e) {
      events_.add({fmt::format("step {}", *step), std::string("a sample grid cannot be shown: ") + e.what()});
    }
  }
}

json RunFiles::to_json() const {
  json seconds = json::object();
  constexpr std::string_view kSeconds = "seconds.";
  for (const auto& [name, intervals] : curves_.all())
    if (const double sum = curves_.sum(name); name.starts_with(kSeconds) && sum > 0)
      seconds[name.substr(kSeconds.size())] = sum;
  Events events = events_;
  if (bad_lines_ > 0) events.add({"", fmt::format("metrics.jsonl: {} damaged line(s) are passed over", bad_lines_)});
  if (half_line_) events.add({"", "metrics.jsonl: its end is half a line, or is not read yet"});
  const auto left_out = [](const std::string& name) { return name.starts_with("automem.") || name == "tflops"; };
  json curves = curves_.to_json(left_out);
  for (auto& [name, curve] : curves.at("series").items())
    if (name.starts_with(kSeconds)) curve.erase("low"), curve.erase("high");
  return {{"name", name()},
          {"folder", folder_},
          {"last_step", last_step_},
          {"best", best_step()},
          {"seconds", seconds},
          {"curves", std::move(curves)},
          {"non_finite", non_finite_},
          {"bad_files", bad_files_},
          {"events", events.to_json()}};
}

std::string RunFiles::text_of(const std::string& file) const {
  constexpr int64_t kMost = 64 << 10;
  std::error_code error;
  if (!fs::is_regular_file(folder_ + "/" + file, error)) return "";
  std::ifstream in(folder_ + "/" + file, std::ios::binary);
  std::string text(kMost, '\0');
  in.read(text.data(), kMost);
  text.resize(size_t(in.gcount()));
  return text;
}

int64_t RunFiles::best_step() const {
  std::error_code error;
  const fs::path target = fs::read_symlink(folder_ + "/checkpoints/best", error);
  return error ? -1 : step_of(target.filename().string(), "");
}

}  // namespace ditrain::report
