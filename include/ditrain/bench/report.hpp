// What a bench hands back: rows of numbers, as a table for people and as JSON for scripts.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ditrain::bench {

/// One more number or word of a row. The table prints it by the unit in its name: *_bytes, *_s, else as it is.
struct Field {
  std::string name;
  std::variant<int64_t, double, std::string> value;
  bool in_table = true;  ///< false: only in the JSON
};

/// Seconds of one call: quantiles over the repeats.
struct Timing {
  double median_s = 0, min_s = 0, p90_s = 0;
  int64_t repeats = 0;
};

struct Row {
  std::string name, dtype = "f32";
  Timing time = {};
  double gflops = 0;  ///< 0: a row that memory limits
  double gb_s = 0;    ///< bytes that the row has to move / median_s; 0: a row that arithmetic limits
  double limit = 0;   ///< GFLOP/s of the run's highest FMA peak; GB/s of the loop with the same streams
  double share = 0;   ///< of that limit; NaN where nothing limits
  /// How unquiet the machine was, the largest of: what the FMA peaks before and after the row lack of the run's
  /// highest, 1 - min / median of the repeats, and how much the first and the last of the limiting loops differ.
  double drift = 0;
  double spread = 0;       ///< drift without the peaks
  double lowest_peak = 0;  ///< GFLOP/s, of the FMA peaks beside the row
  /// One called mfu is kept equal to share.
  std::vector<Field> details = {};
  std::vector<std::pair<std::string, double>> peers = {};  ///< our rate / theirs, timed in alternation
};

struct Report {
  int64_t threads = 1;
  double peak_f32_gflops = 0, peak_bf16_gflops = 0;  ///< highest of the run; bf16 0: the CPU has no such product
  double read_gb_s = 0;                              ///< plain read loop over memory, all threads
  std::vector<Row> rows = {};
  std::vector<std::string> notes = {};  ///< lines below the table: means, what was left out and why
};

/// Rows whose loops before and after differ by more are marked in the table (and were measured again, see Harness).
inline constexpr double kMaxDrift = 0.03;

/// A table with one line per row, then the notes. Columns that no row fills are left out.
std::string describe(const Report& report);

/// {"host", "commit", "isa", "threads", "page_bytes", "huge_pages", "peak": {"f32_gflops", "bf16_gflops", "read_gb_s"},
/// "rows": [{"name", "dtype", "median_s", "min_s", "p90_s", "repeats", "gflops" or "gb_s", "limit", "share", "drift",
/// details..., "peers": {...}}], "notes": [lines]}. huge_pages: the system's setting, see platform::huge_page_mode.
/// Numbers that are not finite become null.
std::string to_json(const Report& report);

/// exp(mean(log x)); 0 for none.
double geometric_mean(const std::vector<double>& x);

/// Notes about rows of one type: the geometric mean of their shares of the FMA peak, "of N rows in f32 with WHICH", and
/// the worst; none if there are no rows.
std::vector<std::string> mean_share(const std::vector<const Row*>& rows, const std::string& which);
/// The geometric mean of our rate / that of each peer.
std::vector<std::string> mean_ratios(const std::vector<const Row*>& rows);
/// The row with the least share; there is one.
const Row& worst_of(const std::vector<const Row*>& rows);

}  // namespace ditrain::bench
