// The result of a bench: rows of numbers, printed as a table and as JSON.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ditrain::bench {

/// An additional number or word of a row. The table prints it by the unit in its name: *_bytes, *_s; else unchanged.
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
  double gflops = 0;  ///< GFLOP/s; 0: memory limits the row
  double gb_s = 0;    ///< bytes that the row has to move / median_s, in GB/s; 0: arithmetic limits the row
  double limit = 0;   ///< GFLOP/s of the run's highest FMA peak, or GB/s of the loop with the same streams
  double share = 0;   ///< rate / limit; NaN if the row has no limit
  /// How unsteady the machine was, as a fraction. The largest of: by how much the FMA peaks before and after the row
  /// fall short of the run's highest, 1 - min / median of the repeats, and how much the first and the last limiting
  /// loop differ.
  double drift = 0;
  double spread = 0;       ///< drift without the FMA peaks
  double lowest_peak = 0;  ///< GFLOP/s, the lower FMA peak of those before and after the row
  /// A detail called mfu is kept equal to share.
  std::vector<Field> details = {};
  std::vector<std::pair<std::string, double>> peers = {};  ///< our rate / theirs, timed in alternation
};

struct Report {
  int64_t threads = 1;
  double peak_f32_gflops = 0, peak_bf16_gflops = 0;  ///< highest of the run; bf16 0: the CPU has no such product
  double read_gb_s = 0;                              ///< plain read loop over memory, all threads; 0: not measured
  std::vector<Row> rows = {};
  std::vector<std::string> notes = {};  ///< lines below the table: means, what was left out and why
};

/// Rows with a larger drift were measured again (see Harness) and are marked in the table if it stayed.
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
/// the worst share; no notes if there are no rows.
std::vector<std::string> mean_share(const std::vector<const Row*>& rows, const std::string& which);
/// One note per peer: the geometric mean of our rate / its rate.
std::vector<std::string> mean_ratios(const std::vector<const Row*>& rows);
/// The row with the least share. `rows` must not be empty.
const Row& worst_of(const std::vector<const Row*>& rows);

}  // namespace ditrain::bench
