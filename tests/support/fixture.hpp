// For tests: reading golden files (safetensors with F32, F64 and I64 tensors) and comparing arrays with a report.
// The reader is separate from the one in module weights on purpose: it needs no module, and trusts the files that come
// with the tests.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ditrain::test {

class Fixture {
 public:
  /// `file`: name under tests/golden, or an absolute path.
  explicit Fixture(const std::string& file) : file_(file) {
    const std::string path = file.front() == '/' ? file : std::string(DITRAIN_GOLDEN_DIR) + "/" + file;
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t header_bytes = 0;
    if (bytes_.size() < sizeof header_bytes) throw std::runtime_error(path + " is too short");
    std::memcpy(&header_bytes, bytes_.data(), sizeof header_bytes);
    data_ = sizeof header_bytes + header_bytes;
    header_ = nlohmann::json::parse(bytes_.begin() + sizeof header_bytes, bytes_.begin() + data_);
  }

  bool has(const std::string& name) const { return header_.contains(name); }
  std::string metadata(const std::string& key) const { return header_.at("__metadata__").at(key); }
  std::vector<int64_t> shape(const std::string& name) const { return entry(name).at("shape"); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& item : header_.items()) {
      if (item.key() != "__metadata__") all.push_back(item.key());
    }
    return all;
  }

  /// The tensor's values, flat and row-major, converted from whatever type the file has.
  std::vector<double> f64(const std::string& name) const { return values<double>(name); }
  std::vector<float> f32(const std::string& name) const { return values<float>(name); }
  std::vector<int64_t> i64(const std::string& name) const { return values<int64_t>(name); }
  /// The tensor of a float64 run if there is one, else the float32 one.
  std::vector<double> best(const std::string& name) const { return f64(has(name + ".f64") ? name + ".f64" : name); }
  /// First value of a tensor: settings are tensors of one element.
  int64_t setting(const std::string& name) const { return i64(name).at(0); }

 private:
  const nlohmann::json& entry(const std::string& name) const {
    if (!has(name)) throw std::runtime_error(file_ + " has no tensor " + name);
    return header_.at(name);
  }

  template <class To, class From>
  std::vector<To> convert(int64_t begin, int64_t end) const {
    std::vector<From> raw((end - begin) / static_cast<int64_t>(sizeof(From)));
    std::memcpy(raw.data(), bytes_.data() + data_ + begin, raw.size() * sizeof(From));
    return {raw.begin(), raw.end()};
  }

  template <class To>
  std::vector<To> values(const std::string& name) const {
    const auto& e = entry(name);
    const int64_t begin = e.at("data_offsets")[0], end = e.at("data_offsets")[1];
    const std::string dtype = e.at("dtype");
    if (dtype == "F32") return convert<To, float>(begin, end);
    if (dtype == "F64") return convert<To, double>(begin, end);
    if (dtype == "I64") return convert<To, int64_t>(begin, end);
    throw std::runtime_error(file_ + ": " + name + " has dtype " + dtype);
  }

  std::string file_;
  std::vector<char> bytes_;
  nlohmann::json header_;
  size_t data_ = 0;
};

/// Result of a comparison; CHECK(compare(...)) prints it when it fails.
struct Comparison {
  bool passed = false;
  std::string text;
  explicit operator bool() const { return passed; }
};
inline std::ostream& operator<<(std::ostream& out, const Comparison& c) { return out << c.text; }

inline double max_abs(std::span<const double> values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

/// Passes if every |got - want| <= tolerance * scale and nothing is NaN; scale < 0: max |want| (1 if that is 0).
/// The text has max abs, max rel, the worst index, both values there and the number of NaNs.
inline Comparison compare(std::span<const double> got, std::span<const double> want, double tolerance,
                          double scale = -1) {
  if (got.size() != want.size() || want.empty()) {
    return {false, "got " + std::to_string(got.size()) + " values, expected " + std::to_string(want.size())};
  }
  if (scale < 0) scale = max_abs(want) > 0 ? max_abs(want) : 1;
  size_t worst = 0, nans = 0;
  double worst_abs = -1, worst_rel = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (std::isnan(error)) ++nans;
    if (error > worst_abs) worst_abs = error, worst = i;
    if (want[i] != 0 && error / std::abs(want[i]) > worst_rel) worst_rel = error / std::abs(want[i]);
  }
  std::ostringstream text;
  text.precision(9);
  text << "max abs " << worst_abs << " at [" << worst << "]: got " << got[worst] << ", expected " << want[worst]
       << "; max rel " << worst_rel << "; allowed " << tolerance * scale << " (" << tolerance << " x scale " << scale
       << "); " << nans << " NaN of " << want.size();
  return {nans == 0 && worst_abs <= tolerance * scale, text.str()};
}

/// compare() for each of `rows` equal pieces with its own scale; the first that fails is reported.
inline Comparison compare_rows(std::span<const double> got, std::span<const double> want, size_t rows,
                               double tolerance) {
  if (got.size() != want.size() || rows == 0 || want.size() % rows != 0) return {false, "sizes do not fit"};
  const size_t n = want.size() / rows;
  for (size_t row = 0; row < rows; ++row) {
    Comparison one = compare(got.subspan(row * n, n), want.subspan(row * n, n), tolerance);
    if (!one.passed) return {false, "row " + std::to_string(row) + ": " + one.text};
  }
  return {true, "all rows within tolerance"};
}

template <class T>
std::vector<double> to_f64(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

}  // namespace ditrain::test
