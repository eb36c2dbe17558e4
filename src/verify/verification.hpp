// One run of one fixture: typed access to the file, which books every tensor it hands out, and the comparisons. A kind
// is a function that reads settings and inputs, computes, and compares; at the end every tensor must have been used.
#pragma once
#include <set>

#include "ditrain/ops/context.hpp"
#include "ditrain/verify/verify.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::verify {

/// What an error is relative to.
struct Per {
  int64_t pieces = 1;     ///< max |want| of each of this many equal pieces ...
  bool absolute = false;  ///< ... or 1

  static Per tensor() { return {}; }
  static Per row(int64_t rows) { return {rows}; }
  static Per entry() { return {0}; }  ///< every entry its own piece
  static Per unit() { return {1, true}; }
};

class Verification {
 public:
  Verification(const weights::SafetensorsFile& file, ops::Context& ctx, Report& report);

  ops::Context& ctx() const { return ctx_; }

  bool has(const std::string& name) const { return file_.contains(name); }
  /// Names of all tensors, in the order of the file.
  std::vector<std::string> names() const;
  /// Shape as in the file; does not count as use. Errors: InputError if the tensor is missing or not of `dims`
  /// dimensions, each from 1 to `largest`
  Shape shape(const std::string& name, size_t dims, int64_t largest) const;
  /// An entry of the header's metadata, or `otherwise`.
  std::string metadata(const std::string& name, const std::string& otherwise) const;
  /// Its "file", which names the fixture, without the ending.
  std::string title() const { return title_of(file_); }
  static std::string title_of(const weights::SafetensorsFile& file);
  /// What the keys of formula numbers end with.
  std::string suffix() const;

  // Settings and inputs. Errors: InputError if missing, of another dtype or shape, or out of range.
  int64_t setting(const std::string& name, int64_t low, int64_t high);  ///< i64 of one element
  std::vector<float> f32(const std::string& name, const Shape& shape);
  std::vector<double> f64(const std::string& name, const Shape& shape);  ///< f32 or f64 in the file
  std::vector<int64_t> i64(const std::string& name, const Shape& shape, int64_t low, int64_t high);
  Tensor tensor(const std::string& name, const Shape& shape);  ///< f32, as a tensor of ours

  // Comparisons of what we got with a tensor of the file.
  void check(const std::string& name, const Shape& shape, const std::vector<double>& got, double tolerance,
             Per per = {});
  /// The same for `name` and for the float64 run, `name`.f64.
  void check_both(const std::string& name, const Shape& shape, const std::vector<double>& got, double tolerance,
                  Per per = {});
  void check_both(const std::string& name, const Tensor& got, double tolerance, Per per = {});
  /// `name` again, as bf16 gives it: the difference in the L2 norm, relative to the tensor's, stays below `bound`.
  void check_bf16(const std::string& name, const Shape& shape, const std::vector<double>& got, double bound);
  /// Integers, exactly.
  void check_exact(const std::string& name, const Shape& shape, const std::vector<int64_t>& got);
  /// Tensors of what this build does not offer, which are therefore compared with nothing: all whose names start so.
  void leave_out(std::initializer_list<std::string_view> beginnings);
  /// A comparison made elsewhere with values of tensor `name`.
  void add(const std::string& name, const std::string& quantity, Comparison comparison);

  /// Tensors whose names begin so are of something that this program does not have; the report says so.
  void leave_out(const std::string& prefix, const std::string& why);

  /// Errors: InputError naming the first tensor of the file that was never read
  void expect_all_used() const;

 private:
  const weights::TensorView& view(const std::string& name, const Shape& shape,
                                  std::initializer_list<const char*> dtypes);

  const weights::SafetensorsFile& file_;
  ops::Context& ctx_;
  Report& report_;
  std::set<std::string> used_, compared_;
};

std::vector<double> to_f64(const Tensor& t);
std::vector<double> to_f64(const std::vector<float>& values);

}  // namespace ditrain::verify
