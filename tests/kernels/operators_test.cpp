// Every operator of ditrain/kernels/operators.inc in every instruction set of this host, by its description alone:
// against the reference, on bf16 against f32, at other addresses, without what may be null, cut into parts, and with
// NaN and infinity in each of its arrays. Guard zones lie around every array, and inputs must stay as they are. Errors
// are those of a few roundings; what an operator promises beyond that is tested in a file of its own.
#include "ditrain/kernels/described.hpp"
#include "ditrain/kernels/ref.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain;
using namespace ditrain::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// An operator as an instruction set has it, the same on f32, and the reference.
struct Row {
  std::string isa;
  Operator kernel, on_f32, reference;
  std::string text() const { return isa + " " + kernel.name; }
};

std::vector<Row> all_rows() {
  using F32 = described::Descriptions<float>;
  using BF16 = described::Descriptions<BFloat16>;
  std::vector<Row> rows;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    const std::string isa = table->name;
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments)              \
  rows.push_back({isa, described::describe<F32::name>(#name, title, table->name), \
                  described::describe<F32::name>(#name, title, table->name),      \
                  described::describe<F32::name>(#name, title, ref::name)});
#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments)                             \
  rows.push_back({isa, described::describe<F32::name>(#name, title, table->f32.name),              \
                  described::describe<F32::name>(#name, title, table->f32.name),                   \
                  described::describe<F32::name>(#name, title, ref::name)});                       \
  rows.push_back({isa, described::describe<BF16::name>(#name " of bf16", title, table->bf16.name), \
                  described::describe<F32::name>(#name, title, table->f32.name),                   \
                  described::describe<F32::name>(#name, title, ref::name)});
#include "ditrain/kernels/operators.inc"
  }
  return rows;
}

struct Shape {
  int64_t rows, cols;  // of an operator without rows: one row
  int64_t stride() const { return cols + 3; }
  int64_t size(Length length) const {
    switch (length) {
      case Length::kPerRow:
        return rows;
      case Length::kPerColumn:
        return cols;
      case Length::kStrided:
        return rows * stride();
      default:
        return rows * cols;
    }
  }
  /// Where row r begins.
  int64_t offset(Length length, int64_t r) const {
    return length == Length::kPerColumn ? 0
           : length == Length::kPerRow  ? r
           : length == Length::kStrided ? r * stride()
                                        : r * cols;
  }
};

/// The arrays of an operator: those of its parameters, four for a NormalKl.
std::vector<Parameter> arrays_of(const Operator& op) {
  std::vector<Parameter> arrays;
  for (const Parameter& p : op.parameters) {
    if (p.is_array()) arrays.push_back(p);
    if (p.role == Role::kNormalKl) arrays.insert(arrays.end(), kNormalKlArrays, {Role::kIn});
  }
  return arrays;
}

/// Elements of the type of a parameter between two zones that nothing may touch, `zone` elements long.
class TypedArray {
 public:
  TypedArray(DType type, const std::vector<float>& x, int64_t zone)
      : type_(type), zone_(zone), n_(int64_t(x.size())), bytes_(size_t(n_ + 2 * zone) * dtype_bytes(type), 0xa5) {
    for (int64_t i = 0; i < n_; ++i) {
      const BFloat16 half = to_bf16(x[size_t(i)]);
      std::memcpy(at(i), type == DType::kBF16 ? static_cast<const void*>(&half) : &x[size_t(i)], dtype_bytes(type));
    }
  }
  unsigned char* at(int64_t i) { return bytes_.data() + size_t(zone_ + i) * dtype_bytes(type_); }
  std::vector<float> values() {
    std::vector<float> x(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) {
      BFloat16 half;
      if (type_ == DType::kBF16)
        std::memcpy(&half, at(i), 2), x[size_t(i)] = to_f32(half);
      else
        std::memcpy(&x[size_t(i)], at(i), 4);
    }
    return x;
  }
  bool zones_untouched() const {
    const auto zone = int64_t(size_t(zone_) * dtype_bytes(type_));
    const auto kept = [](unsigned char c) { return c == 0xa5; };
    return std::all_of(bytes_.begin(), bytes_.begin() + zone, kept) &&
           std::all_of(bytes_.end() - zone, bytes_.end(), kept);
  }

 private:
  DType type_;
  int64_t zone_, n_;
  std::vector<unsigned char> bytes_;
};

using Arrays = std::vector<std::vector<float>>;

/// Random contents of all arrays, as their types can hold them; the gaps of strided rows and what is to be overwritten
/// are NaN, so that a read of them shows in the results.
Arrays random_arrays(const Operator& op, const Shape& shape) {
  Arrays all;
  for (const Parameter& p : arrays_of(op)) {
    std::vector<float> x = random_values(shape.size(p.length), 500 + all.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (p.not_negative) x[i] = std::abs(x[i]);
      if (p.type == DType::kBF16) x[i] = to_f32(to_bf16(x[i]));
      const bool gap = p.length == Length::kStrided && int64_t(i) % shape.stride() >= shape.cols;
      if (gap || p.role == Role::kOut) x[i] = kNan;
    }
    all.push_back(std::move(x));
  }
  return all;
}

struct Outcome {
  double result = 0;  // of the last part
  Arrays arrays;
  bool within_bounds = true;  // no guard zone and no input was written
};

struct How {
  int64_t zone = 33;   // elements before an array: its address is that of no vector
  unsigned nulls = 0;  // bit i: the i-th array that may be null is
  int64_t parts = 1;   // calls, each on some of the rows, or of the elements if there are no rows
};

Outcome run(const Operator& op, const Shape& shape, const Arrays& start, const How& how = {}) {
  const std::vector<Parameter> parameters = arrays_of(op);
  std::vector<TypedArray> arrays;
  for (size_t i = 0; i < start.size(); ++i) arrays.emplace_back(parameters[i].type, start[i], how.zone);
  // Without rows a part is some elements: as many rows of one element each.
  const Shape units = op.has(Role::kRows) ? shape : Shape{shape.rows * shape.cols, 1};
  Outcome outcome;
  for (int64_t part = 0; part < how.parts; ++part) {
    const int64_t first = units.rows * part / how.parts, count = units.rows * (part + 1) / how.parts - first;
    size_t next = 0, may_be_null = 0;
    const auto array = [&] {
      const Parameter& p = parameters[next];
      void* at = arrays[next++].at(units.offset(p.length, first));
      return p.or_null && (how.nulls >> may_be_null++ & 1u) ? nullptr : at;
    };
    AdamWStep step = some_adamw_step();
    NormalKl kl;
    std::vector<Value> values;
    for (const Parameter& p : op.parameters) {
      switch (p.role) {
        case Role::kCount:
          values.push_back({nullptr, double(count)});
          break;
        case Role::kRows:
          values.push_back({nullptr, double(count)});
          break;
        case Role::kColumns:
          values.push_back({nullptr, double(shape.cols)});
          break;
        case Role::kStride:
          values.push_back({nullptr, double(shape.stride())});
          break;
        case Role::kNumber:
          values.push_back({nullptr, 0.3 / double(values.size() + 1)});
          break;  // each another one
        case Role::kAdamWStep:
          values.push_back({&step});
          break;
        case Role::kNormalKl: {
          const float* in[kNormalKlArrays];
          for (const float*& x : in) x = static_cast<const float*>(array());
          kl = some_normal_kl(in[0], in[1], in[2], in[3]);
          values.push_back({&kl});
          break;
        }
        default:
          values.push_back({array()});
      }
    }
    outcome.result = op.call(values);
  }
  for (size_t i = 0; i < arrays.size(); ++i) {
    outcome.arrays.push_back(arrays[i].values());
    if (!arrays[i].zones_untouched()) outcome.within_bounds = false;
    if (parameters[i].role == Role::kIn && !same_bits(outcome.arrays[i], start[i])) outcome.within_bounds = false;
  }
  return outcome;
}

void check_against_reference(const Row& row, const Shape& shape, const Arrays& start) {
  const std::vector<Parameter> parameters = arrays_of(row.kernel);
  const Outcome got = run(row.kernel, shape, start), want = run(row.reference, shape, start);
  CHECK(got.within_bounds);
  for (size_t i = 0; i < start.size(); ++i) {
    CAPTURE(i);  // the array, in the order of the parameters
    CHECK(mismatch(got.arrays[i], want.arrays[i], parameters[i].type == DType::kBF16 ? 0x1p-7 : 1e-5) == "");
  }
  CHECK(mismatch({float(got.result)}, {float(want.result)}, 1e-6) == "");
}

/// Whole vectors and parts of them for every instruction set.
std::vector<Shape> shapes_of(const Operator& op) {
  std::vector<Shape> shapes;
  if (op.has(Role::kRows)) {
    for (const int64_t cols : {1, 2, 5, 16, 33, 70, 129})
      for (const int64_t rows : {0, 1, 3}) shapes.push_back({rows, cols});
  } else {
    for (const int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257})
      shapes.push_back({1, n});
  }
  return shapes;
}

bool is_result(const Parameter& p) { return p.role == Role::kOut || p.role == Role::kUpdate; }

constexpr Shape kThreeRows = {3, 53};  // three vectors of 16 lanes and a rest
Shape shape_of(const Row& row) { return row.kernel.has(Role::kRows) ? kThreeRows : Shape{1, 159}; }

}  // namespace

TEST_CASE("operators: every one equals its reference, for any length") {
  for (const Row& row : all_rows())
    for (const Shape& shape : shapes_of(row.kernel)) {
      CAPTURE(row.text(), shape.rows, shape.cols);
      check_against_reference(row, shape, random_arrays(row.kernel, shape));
    }
}

TEST_CASE("operators: on bf16 they are those on f32 with rounded results") {
  for (const Row& row : all_rows())
    for (const Shape& shape : shapes_of(row.kernel)) {
      CAPTURE(row.text(), shape.rows, shape.cols);
      const Arrays start = random_arrays(row.kernel, shape);
      Outcome got = run(row.kernel, shape, start), want = run(row.on_f32, shape, start);
      CHECK((got.result == want.result));
      const std::vector<Parameter> half = arrays_of(row.kernel), full = arrays_of(row.on_f32);
      for (size_t i = 0; i < half.size(); ++i) {
        CAPTURE(i);
        if (!is_result(half[i])) continue;
        for (float& x : want.arrays[i])
          if (half[i].type != full[i].type) x = to_f32(to_bf16(x));
        CHECK(same_bits(got.arrays[i], want.arrays[i]));
      }
    }
}

TEST_CASE("operators: the same bits again, at other addresses, and without what may be null") {
  for (const Row& row : all_rows()) {
    CAPTURE(row.text());
    const Shape shape = shape_of(row);
    const Arrays start = random_arrays(row.kernel, shape);
    const std::vector<Parameter> parameters = arrays_of(row.kernel);
    const Outcome once = run(row.kernel, shape, start);
    for (const int64_t zone : {33, 48, 66}) {
      const Outcome again = run(row.kernel, shape, start, {.zone = zone});
      CHECK((again.result == once.result));
      for (size_t i = 0; i < start.size(); ++i) CHECK(same_bits(again.arrays[i], once.arrays[i]));
    }
    const auto may_be_null =
        std::count_if(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.or_null; });
    for (unsigned nulls = 1; nulls < 1u << may_be_null; ++nulls) {
      const Outcome without = run(row.kernel, shape, start, {.nulls = nulls});
      CHECK((without.result == once.result));
      for (size_t i = 0, bit = 0; i < start.size(); ++i) {
        const bool null = parameters[i].or_null && (nulls >> bit++ & 1u);
        CHECK(same_bits(without.arrays[i], null ? start[i] : once.arrays[i]));
      }
    }
  }
}

TEST_CASE("operators: any cut of rows or elements gives the same bits") {
  for (const Row& row : all_rows()) {
    const Shape shape = row.kernel.has(Role::kRows) ? Shape{7, 53} : Shape{1, 203};
    const std::vector<Parameter> parameters = arrays_of(row.kernel);
    const Arrays start = random_arrays(row.kernel, shape);
    const Outcome whole = run(row.kernel, shape, start);
    for (const int64_t parts : {2, 3, 7}) {
      CAPTURE(row.text(), parts);
      const Outcome cut = run(row.kernel, shape, start, {.parts = parts});
      CHECK(cut.within_bounds);
      for (size_t i = 0; i < start.size(); ++i)  // sums over rows are those of the last part
        if (parameters[i].length != Length::kPerColumn) CHECK(same_bits(cut.arrays[i], whole.arrays[i]));
    }
  }
}

TEST_CASE("operators: NaN and infinity reach what depends on them, as in the reference, and nothing else") {
  for (const Row& row : all_rows()) {
    const Shape shape = shape_of(row);
    const Arrays start = random_arrays(row.kernel, shape);
    const std::vector<Parameter> parameters = arrays_of(row.kernel);
    for (const float special : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (size_t where = 0; where < start.size(); ++where) {
        if (parameters[where].role == Role::kOut) continue;
        CAPTURE(row.text(), special, where);
        Arrays bad = start;  // inside a whole vector and at the end; of three rows one stays finite
        std::vector<float>& x = bad[where];
        const auto last =
            parameters[where].length == Length::kStrided ? size_t(2 * shape.stride() + shape.cols) : x.size();
        x[std::min<size_t>(5, last - 1)] = x[last - 1] = special;
        check_against_reference(row, shape, bad);
      }
    }
  }
}

TEST_CASE("operators: the public functions are those of the chosen kernels") {
  const std::string isa = process_kernels().kernels.elementwise->name;
  std::vector<Operator> functions = operators(DType::kF32), halves = operators(DType::kBF16);
  functions.insert(functions.end(), halves.begin(), halves.end());
  for (const Row& row : all_rows()) {
    if (row.isa != isa) continue;
    CAPTURE(row.text());
    const bool on_bf16 = row.kernel.name.ends_with(" of bf16");
    const Operator& function = *std::find_if(functions.begin(), functions.end(), [&](const Operator& f) {
      return f.name == row.reference.name && (!on_bf16 || &f >= &functions[functions.size() - halves.size()]);
    });
    const Shape shape = shape_of(row);
    const Arrays start = random_arrays(row.kernel, shape);
    const Outcome got = run(function, shape, start), want = run(row.kernel, shape, start);
    CHECK((got.result == want.result));
    for (size_t i = 0; i < start.size(); ++i) CHECK(same_bits(got.arrays[i], want.arrays[i]));
  }
}
