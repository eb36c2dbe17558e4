#include "verification.hpp"

#include <algorithm>

#include "ditrain/base/pattern.hpp"
#include "ditrain/verify/formula.hpp"

namespace ditrain::verify {

namespace {

template <class Words>
std::string join(const Words& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Of tensors' names; the groups are what stands for `*` and `#`.
struct NamePattern {
  Pattern expression;
  std::vector<size_t> groups;
};
NamePattern name_pattern(const std::string& pattern) {
  std::string text = "^";
  size_t groups = 0;
  std::vector<size_t> wanted;
  for (const char c : pattern) {
    text += c == '.' ? "\\." : c == '*' ? "(.+)" : c == '#' ? R"((-?[0-9]{1,9}(\.[0-9]{1,9})?))" : std::string(1, c);
    if (c == '*' || c == '#') wanted.push_back(groups + 1), groups += c == '#' ? 2 : 1;
  }
  return {Pattern(text + "$"), wanted};
}

}  // namespace

std::vector<Match> Verification::matches(const std::string& pattern) {
  constexpr size_t kLongestName = 200;  // no fixture has as long ones
  patterns_.insert(pattern);
  const NamePattern names = name_pattern(pattern);
  std::vector<Match> found;
  for (const weights::TensorView& t : file_.tensors()) {
    const Pattern::Match match = t.name.size() <= kLongestName ? names.expression.find(t.name) : Pattern::Match{};
    if (!match) continue;
    found.push_back({t.name, {}});
    for (const size_t group : names.groups) found.back().words.push_back(match.groups[group]);
  }
  return found;
}

Shape Verification::shape(const std::string& name, size_t dims, int64_t largest) const {
  const Shape shape = file_.tensor(name).shape;
  const auto fits = [&](int64_t d) { return d >= 1 && d <= largest; };
  if (shape.size() != dims || !std::all_of(shape.begin(), shape.end(), fits))
    refuse(name + " has an unexpected shape", to_string(shape),
           std::to_string(dims) + " dimensions from 1 to " + std::to_string(largest));
  return shape;
}

std::string Verification::metadata(const std::string& name, const std::string& otherwise) const {
  const auto entry = file_.metadata().find(name);
  return entry == file_.metadata().end() ? otherwise : entry->second;
}

std::string Verification::title_of(const weights::SafetensorsFile& file) {
  const auto entry = file.metadata().find("file");
  if (entry == file.metadata().end())
    ditrain::refuse(file.path(), "not a reference fixture", "no entry \"file\" in the header's metadata");
  const std::string name = entry->second, ending = ".safetensors";
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

std::string Verification::stem() const {
  const std::string name = title();
  return name.ends_with("_stats") ? name.substr(0, name.rfind('_')) : name;
}

std::string Verification::suffix() const {
  const auto entry = file_.metadata().find("key_suffix");
  if (entry == file_.metadata().end()) refuse("the metadata have no key_suffix", "");
  return entry->second;
}

void Verification::refuse(const std::string& what, const std::string& got, const std::string& expected) const {
  ditrain::refuse(file_.path(), what, got, expected);
}

const weights::TensorView& Verification::view(const std::string& name, const Shape& shape,
                                              const std::vector<std::string>& dtypes) {
  const weights::TensorView& t = file_.tensor(name);
  if (t.shape != shape) refuse(name + " has an unexpected shape", to_string(t.shape), to_string(shape));
  if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end())
    refuse(name + " has an unexpected dtype", t.dtype, join(dtypes, " or "));
  used_.insert(name);
  return t;
}

int64_t Verification::setting(const std::string& name, int64_t low, int64_t high) {
  return i64(name, {1}, low, high).front();
}

std::vector<float> Verification::f32(const std::string& name, const Shape& shape) {
  return weights::to_f32(view(name, shape, {"F32"}));
}

std::vector<double> Verification::f64(const std::string& name, const Shape& shape) {
  return weights::to_f64(view(name, shape, {"F32", "F64"}));
}

std::vector<int64_t> Verification::i64(const std::string& name, const Shape& shape, int64_t low, int64_t high) {
  const std::vector<int64_t> values = weights::to_i64(view(name, shape, {"I64"}));
  for (const int64_t v : values)
    if (v < low || v > high)
      refuse(name + " is out of range", std::to_string(v), std::to_string(low) + " to " + std::to_string(high));
  return values;
}

Tensor Verification::tensor(const std::string& name, const Shape& shape) {
  return from_values(shape, f32(name, shape));
}

std::vector<float> Verification::formula(const std::string& name, const Shape& shape, double gain) const {
  std::vector<float> values(size_t(num_elements(shape)));
  fill_by_formula(name, suffix(), shape, 0, int64_t(values.size()), values.data(), gain);
  return values;
}

void Verification::check(const std::string& name, const Shape& shape, const std::vector<double>& got, double tolerance,
                         Per per) {
  const std::vector<double> want = f64(name, shape);
  const int64_t pieces = per.pieces == 0 ? int64_t(want.size()) : per.pieces;
  add(name, "", compare(got, want, tolerance, per.absolute ? std::vector{1.0} : piece_scales(want, pieces)));
}

void Verification::check_both(const std::string& name, const Shape& shape, const std::vector<double>& got,
                              double tolerance, Per per) {
  for (const std::string& variant : {name, name + ".f64"}) check(variant, shape, got, tolerance, per);
}

void Verification::check_both(const std::string& name, const Tensor& got, double tolerance, Per per) {
  check_both(name, got.shape(), to_f64(got), tolerance, per);
}

void Verification::check_both_with(const std::string& name, const Shape& shape, const std::vector<double>& got,
                                   double tolerance, const std::vector<double>& scales, const std::string& scale_name) {
  for (const std::string& variant : {name, name + ".f64"})
    add(variant, "relative to " + scale_name, compare(got, f64(variant, shape), tolerance, scales));
}

void Verification::check_halves(const std::string& name, const Shape& shape, const std::vector<double>& got,
                                double first, double second, int64_t points) {
  const std::vector<double> want = f64(name, shape);
  const size_t piece = want.size() / size_t(points), half = piece / 2;
  for (const bool is_first : {true, false}) {
    std::vector<double> mine, theirs;
    for (size_t from = is_first ? 0 : half; from < want.size(); from += piece) {
      mine.insert(mine.end(), got.begin() + int64_t(from), got.begin() + int64_t(from + half));
      theirs.insert(theirs.end(), want.begin() + int64_t(from), want.begin() + int64_t(from + half));
    }
    add(name, is_first ? "first half" : "second half",
        compare(mine, theirs, is_first ? first : second, piece_scales(theirs, 1)));
  }
}

void Verification::check_bf16(const std::string& name, const Shape& shape, const std::vector<double>& got,
                              double bound) {
  add(name, "bf16, relative L2", compare_l2(got, f64(name, shape), bound));
}

void Verification::check_exact(const std::string& name, const Shape& shape, const std::vector<int64_t>& got) {
  const std::vector<int64_t> want = weights::to_i64(view(name, shape, {"I64"}));
  DITRAIN_CHECK(got.size() == want.size(), "both sides have the same number of entries");
  // Differences are taken as integers, so that large numbers that differ do not meet at the same f64.
  std::vector<double> differences, zeros(want.size(), 0.0);
  for (size_t i = 0; i < want.size(); ++i)
    differences.push_back(got[i] == want[i] ? 0.0 : std::max(1.0, std::abs(double(got[i]) - double(want[i]))));
  Comparison c = compare(differences, zeros, 0, std::vector<double>{1.0});
  c.got = double(got[size_t(c.index)]), c.want = double(want[size_t(c.index)]);
  add(name, "", std::move(c));
}

void Verification::add(const std::string& name, const std::string& quantity, Comparison comparison) {
  comparison.tensor = name, comparison.quantity = quantity;
  if (compared_.insert(name).second) ++report_.compared;
  report_.comparisons.push_back(std::move(comparison));
}

void Verification::leave_out(std::initializer_list<std::string_view> beginnings, const std::string& why) {
  for (const std::string_view beginning : beginnings) {
    int64_t tensors = 0;
    for (const weights::TensorView& t : file_.tensors())
      if (t.name.starts_with(beginning)) used_.insert(t.name), ++tensors;
    if (tensors > 0 && !why.empty())
      report_.left_out.push_back(std::string(beginning) + "* (" + std::to_string(tensors) + " tensors): " + why);
  }
}

void Verification::expect_all_used() const {
  for (const weights::TensorView& t : file_.tensors())
    if (used_.count(t.name) == 0)
      refuse("unknown tensor: neither a setting nor an input nor anything that can be compared", t.name,
             patterns_.empty() ? "" : "a name of this kind, such as " + join(patterns_, ", ") + " (#: a number)");
}

std::vector<double> to_f64(const Tensor& t) { return to_f64(to_vector(t)); }

std::vector<double> to_f64(const std::vector<float>& values) { return {values.begin(), values.end()}; }

namespace {

Tensor exchanged(const Tensor& from, const Shape& shape, int64_t rows, int64_t cols) {
  const Tensor to(shape);
  const Pin<float> x(from), y(to);
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) y[(b * cols + j) * rows + i] = x[(b * rows + i) * cols + j];
  return to;
}

}  // namespace

Tensor to_channels_last(const Tensor& x) {
  const Shape& s = x.shape();
  return exchanged(x, {s[0], s[2], s[3], s[1]}, s[1], s[2] * s[3]);
}

Tensor to_channels_first(const Tensor& x) {
  const Shape& s = x.shape();
  return exchanged(x, {s[0], s[3], s[1], s[2]}, s[1] * s[2], s[3]);
}

std::vector<double> means_over_space(const Tensor& y) {
  const auto B = size_t(y.dim(0)), C = size_t(y.dim(3)), each = size_t(y.size()) / B;
  std::vector<double> mean(B * C, 0.0);
  const std::vector<double> values = to_f64(y);
  for (size_t i = 0; i < values.size(); ++i) mean[i / each * C + i % C] += values[i] * double(C) / double(each);
  return mean;
}

}  // namespace ditrain::verify
