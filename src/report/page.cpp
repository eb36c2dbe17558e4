#include "ditrain/report/page.hpp"

#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "grid_picture.hpp"

namespace ditrain::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPage =
#include "report_page.inc"
    ;
constexpr std::string_view kDataMark = "{{DATA}}";

// Inside <script> a browser looks for "</script" and "<!--" first: no '<' may be there. JSON writes it as \u003c.
std::string script_text(const json& data) {
  std::string text;
  for (const char c : files::json_text(data)) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

json status_json(const Status& s) {
  json j = files::parse_json(to_json(s));
  j.erase("heartbeat_utc");
  return j;
}

json run_json(const PageRun& run) {
  const RunFiles& files = *run.files;
  json j = files.to_json();
  j["status"] = run.status ? status_json(*run.status) : json(nullptr);
  j["config"] = files.text_of("config.yaml");
  j["topology"] = files.text_of("topology.txt");
  json& grids = j["grids"] = json::array();
  for (const auto& [step, grid] : files.grids())
    if (!grid.jpeg.empty()) grids.push_back({step, base64(grid.jpeg)});
  return j;
}

bool holds_anything(const std::string& folder) {
  constexpr const char* kFiles[] = {"metrics.jsonl", "status.json", "config.yaml", "log.txt"};
  return std::any_of(std::begin(kFiles), std::end(kFiles), [&](const char* file) {
    std::error_code error;
    return fs::exists(folder + "/" + file, error);
  });
}

}  // namespace

std::string page(const std::vector<PageRun>& runs, double written_s) {
  json data = {{"written", written_s}, {"runs", json::array()}};
  for (const PageRun& run : runs) data["runs"].push_back(run_json(run));
  std::string text = kPage;
  return text.replace(text.find(kDataMark), kDataMark.size(), script_text(data));
}

void write_report(const std::vector<std::string>& folders, const std::string& out) {
  std::vector<RunFiles> files;
  for (const std::string& folder : folders) {
    if (holds_anything(folder)) {
      files.emplace_back(folder);
      continue;
    }
    refuse("report",
           !std::filesystem::exists(folder)        ? "there is no such folder"
           : std::filesystem::is_directory(folder) ? "the folder holds no run"
                                                   : "this is a file, not a folder",
           folder, "the folder of a run, with metrics.jsonl, status.json, config.yaml or log.txt");
  }
  files::check_output_file(out);
  const double now_s = unix_time_s();
  std::vector<PageRun> runs;
  for (RunFiles& run : files) {
    run.read_on();
    run.read_grids();
    runs.push_back({&run, read_status(run.folder(), now_s)});
  }
  files::write_file_atomically(out, page(runs, now_s), /*synced=*/false);
}

}  // namespace ditrain::report
