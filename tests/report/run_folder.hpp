// A run folder made by hand, and the data of a page that shows it.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/report/page.hpp"

namespace ditrain::report {

inline void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

inline std::string metrics_line(int64_t step, double loss, const std::string& more = "") {
  return fmt::format(
      R"({{"step":{},"loss":{},"lr":0.001,"grad_norm":{},"images_per_second":{},"mfu":0.5,"seconds":{{"forward":0.25,)"
      R"("backward":0.5}},"memory":{{"rss_bytes":{}}},"skipped_steps":0,"bad_files":0{}}})"
      "\n",
      step, loss, 1 + loss, 100 + step % 7, 1000000 + step, more);
}

/// The object that the page carries, which has to end where the browser thinks that it does.
inline nlohmann::json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return files::parse_json(page.substr(at, page.find("</script", at) - at));
}

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json report_of(const std::string& folder) {
  write_report({folder}, folder + "/report.html");
  return data_of(read(folder + "/report.html")).at("runs").at(0);
}

}  // namespace ditrain::report
