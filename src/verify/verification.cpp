#include "verification.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::verify {

namespace {

std::string join(std::initializer_list<const char*> words) {
  std::string text;
  for (const char* word : words) text += (text.empty() ? "" : " or ") + std::string(word);
  return text;
}

}  // namespace

Verification::Verification(const weights::SafetensorsFile& file, ops::Context& ctx, Report& report)
    : file_(file), ctx_(ctx), report_(report) {}

std::vector<std::string> Verification::names() const {
  std::vector<std::string> all;
  for (const weights::TensorView& t : file_.tensors()) all.push_back(t.name);
  return all;
}

Shape Verification::shape(const std::string& name, size_t dims, int64_t largest) const {
  const Shape shape = file_.tensor(name).shape;
  const auto fits = [&](int64_t d) { return d >= 1 && d <= largest; };
  if (shape.size() != dims || !std::all_of(shape.begin(), shape.end(), fits)) {
    throw InputError({.where = file_.path(),
                      .what = name + " has an unexpected shape",
                      .got = to_string(shape),
                      .expected = std::to_string(dims) + " dimensions from 1 to " + std::to_string(largest)});
  }
  return shape;
}

std::string Verification::metadata(const std::string& name, const std::string& otherwise) const {
  const auto entry = file_.metadata().find(name);
  return entry == file_.metadata().end() ? otherwise : entry->second;
}

std::string Verification::title_of(const weights::SafetensorsFile& file) {
  const auto entry = file.metadata().find("file");
  if (entry == file.metadata().end())
    throw InputError(
        {.where = file.path(), .what = "not a reference fixture", .got = "no entry \"file\" in the header's metadata"});
  const std::string name = entry->second, ending = ".safetensors";
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

std::string Verification::suffix() const {
  const auto entry = file_.metadata().find("key_suffix");
  if (entry == file_.metadata().end())
    throw InputError({.where = file_.path(), .what = "the metadata have no key_suffix"});
  return entry->second;
}

const weights::TensorView& Verification::view(const std::string& name, const Shape& shape,
                                              std::initializer_list<const char*> dtypes) {
  const weights::TensorView& t = file_.tensor(name);
  if (t.shape != shape)
    throw InputError({.where = file_.path(),
                      .what = name + " has an unexpected shape",
                      .got = to_string(t.shape),
                      .expected = to_string(shape)});
  if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end())
    throw InputError(
        {.where = file_.path(), .what = name + " has an unexpected dtype", .got = t.dtype, .expected = join(dtypes)});
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
      throw InputError({.where = file_.path(),
                        .what = name + " is out of range",
                        .got = std::to_string(v),
                        .expected = std::to_string(low) + " to " + std::to_string(high)});
  return values;
}

Tensor Verification::tensor(const std::string& name, const Shape& shape) {
  return from_values(shape, f32(name, shape));
}

void Verification::check(const std::string& name, const Shape& shape, const std::vector<double>& got, double tolerance,
                         Per per) {
  const std::vector<double> want = f64(name, shape);
  const int64_t pieces = per.pieces == 0 ? int64_t(want.size()) : per.pieces;
  const std::vector<double> scales = per.absolute ? std::vector<double>{1.0} : piece_scales(want, pieces);
  add(name, "", compare(got, want, tolerance, scales));
}

void Verification::check_both(const std::string& name, const Shape& shape, const std::vector<double>& got,
                              double tolerance, Per per) {
  check(name, shape, got, tolerance, per);
  check(name + ".f64", shape, got, tolerance, per);
}

void Verification::check_both(const std::string& name, const Tensor& got, double tolerance, Per per) {
  check_both(name, got.shape(), to_f64(got), tolerance, per);
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

void Verification::leave_out(std::initializer_list<std::string_view> beginnings) {
  for (const weights::TensorView& t : file_.tensors())
    for (const std::string_view beginning : beginnings)
      if (t.name.starts_with(beginning)) used_.insert(t.name);
}

void Verification::add(const std::string& name, const std::string& quantity, Comparison comparison) {
  comparison.tensor = name, comparison.quantity = quantity;
  if (compared_.insert(name).second) ++report_.compared;
  report_.comparisons.push_back(std::move(comparison));
}

void Verification::leave_out(const std::string& prefix, const std::string& why) {
  int64_t tensors = 0;
  for (const weights::TensorView& t : file_.tensors())
    if (t.name.starts_with(prefix)) used_.insert(t.name), ++tensors;
  if (tensors > 0) report_.left_out.push_back(prefix + "* (" + std::to_string(tensors) + " tensors): " + why);
}

void Verification::expect_all_used() const {
  for (const weights::TensorView& t : file_.tensors())
    if (used_.count(t.name) == 0)
      throw InputError({.where = file_.path(),
                        .what = "unknown tensor: neither a setting nor an input nor anything that can be compared",
                        .got = t.name});
}

std::vector<double> to_f64(const Tensor& t) { return to_f64(to_vector(t)); }

std::vector<double> to_f64(const std::vector<float>& values) { return {values.begin(), values.end()}; }

}  // namespace ditrain::verify
