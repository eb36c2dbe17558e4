// An operator of fixture ops: inputs OP.NAME are read, results OP.NAME and OP.NAME.f64 are compared after its run.
#pragma once
#include <map>

#include "verification.hpp"

namespace ditrain::verify {

struct Operator;

struct OperatorRow {
  const char* name;
  void (*run)(Operator& o);
  std::map<std::string, double> tolerances;  ///< of results that differ by more than 2e-6
  bool by_row = false;                       ///< errors are relative to each row
};

struct Operator {
  Operator(Verification& v, std::string name) : v(v), ctx(v.ctx()), name(std::move(name)) {}

  /// Inputs: of `dims` dimensions, of that shape, or numbers of rows below `rows`.
  Tensor any(const std::string& input, size_t dims) { return in(input, v.shape(name + "." + input, dims)); }
  Tensor in(const std::string& input, const Shape& shape) { return v.tensor(name + "." + input, shape); }
  std::vector<int64_t> indices(const std::string& input, int64_t rows) {
    return v.i64(name + "." + input, v.shape(name + "." + input, 1), 0, rows - 1);
  }
  /// Where the result has to be written.
  Tensor out(const std::string& result, const Shape& shape) {
    return results_.emplace_back(result, Tensor(shape)).second;
  }
  void out(const std::string& result, const Shape& shape, const std::vector<float>& values) {
    results_.emplace_back(result, from_values(shape, values));
  }
  void check_results(const OperatorRow& row);

  Verification& v;
  ops::Context& ctx;
  std::string name;

 private:
  std::vector<std::pair<std::string, Tensor>> results_;
};

void modulate(Operator& o);
void softmax(Operator& o);
void attention_core(Operator& o);    ///< attention alone
void attention_module(Operator& o);  ///< attention with its two linear layers

}  // namespace ditrain::verify
