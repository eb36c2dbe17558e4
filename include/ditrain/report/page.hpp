// report.html: one file that shows a run, or compares several, without network. The page itself is
// src/report/page.html; this module puts the data of the runs into it.
#pragma once
#include <string>
#include <vector>

#include "ditrain/report/run_files.hpp"
#include "ditrain/report/status.hpp"

namespace ditrain::report {

/// A run as a page shows it.
struct PageRun {
  const RunFiles* files;
  std::optional<Status> status;  ///< none: the run left none (older versions)
};

/// The page as HTML. Text from files is escaped, so that it cannot become markup.
std::string page(const std::vector<PageRun>& runs, double written_s);

/// What `ditrain report` does: reads the folders and writes the page to `out`.
/// Errors:   InputError for a folder without any file of a run; RunError if the page cannot be written
void write_report(const std::vector<std::string>& folders, const std::string& out);

}  // namespace ditrain::report
