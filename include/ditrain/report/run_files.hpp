// Reads the files of a run folder: metrics.jsonl, log.txt, samples, config.yaml, topology.txt. Growing files are read
// from where the last call ended. Any file may be missing, damaged, half-written or from an older version: the readable
// parts are used, and events list what cannot be read.
//
//   RunFiles files("runs/quickstart");
//   files.read_on();
//   write(page({&files}, unix_time_s()));
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "ditrain/report/curves.hpp"

namespace ditrain::report {

/// Reads the complete lines of a growing file.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path) : path_(std::move(path)) {}
  /// Calls `use` with each whole line that has come since the last call, without its newline, of at most `max_bytes`
  /// bytes together. Returns whether a part of a line, or more than max_bytes, is left. A line of more than max_bytes
  /// is skipped. A file that has become shorter is read from its beginning.
  bool read_on(size_t max_bytes, const std::function<void(std::string_view line)>& use);

 private:
  std::string path_;
  uint64_t offset_ = 0;
};

struct Event {
  std::string time;  ///< as log.txt has it, or "step N"
  std::string text;
};

/// A bounded list of events: of many, it keeps the first and the last ones, in order.
class Events {
 public:
  void add(Event event);
  nlohmann::json to_json() const;  ///< [[time, text], ...]

 private:
  static constexpr size_t kFirst = 50, kLast = 150, kMaxText = 600;
  std::vector<Event> first_;
  std::deque<Event> last_;
  int64_t left_out_ = 0;
};

/// A sample grid as a small JPEG.
struct Grid {
  std::string jpeg;  ///< empty: the picture cannot be read
};

class RunFiles {
 public:
  static constexpr size_t kAll = SIZE_MAX;
  static constexpr size_t kMaxGrids = 32, kMaxGridBytes = 48 << 10;  // with base64, 2.1 MB of a page

  explicit RunFiles(std::string folder);

  /// Reads what has come to metrics.jsonl and log.txt, at most `max_bytes` of each; `each` gets every line of metrics.
  void read_on(size_t max_bytes = kAll, const std::function<void(const nlohmann::json& line)>& each = {});
  /// Makes small pictures of the sample grids that a page shows: of at most `max_new` new ones, the latest first.
  void read_grids(size_t max_new = kAll);

  const std::string& folder() const { return folder_; }
  std::string name() const;  ///< the last part of its path
  const Curves& curves() const { return curves_; }
  const std::map<int64_t, Grid>& grids() const { return grids_; }  ///< by step
  int64_t last_step() const { return last_step_; }
  /// A number of the last step, as "loss" or "memory.rss_bytes"; NaN: it has none
  double last(const std::string& name) const;
  /// Curves, seconds of phases and events; not status, grids and texts of files.
  nlohmann::json to_json() const;
  /// The beginning of a small text file of the folder; "" if it cannot be read.
  std::string text_of(const std::string& file) const;
  int64_t best_step() const;  ///< of the checkpoint that checkpoints/best names; -1: there is none

 private:
  void use_metrics(std::string_view text, const std::function<void(const nlohmann::json&)>& each);
  void use_log(std::string_view line);

  std::string folder_;
  GrowingFile metrics_, log_;
  Curves curves_;
  Events events_;
  nlohmann::json last_line_;
  std::map<int64_t, Grid> grids_;
  int64_t last_step_ = -1, bad_lines_ = 0, bad_files_ = 0, non_finite_ = 0;
  bool half_line_ = false;
};

/// The sample grids OUT/samples/step_N.png, by step.
std::map<int64_t, std::string> sample_grids(const std::string& folder);
/// At most n >= 2 of increasing steps, the first and the last among them, the others evenly spaced in their logarithm.
std::set<int64_t> spaced_in_log(const std::vector<int64_t>& steps, size_t n);

}  // namespace ditrain::report
