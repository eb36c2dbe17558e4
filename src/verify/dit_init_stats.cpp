// Default initialisation of DiT-S/2, or of another model that the file names: the rule of every parameter, the
// statistics that one initialisation of the reference had, and those of ours; random numbers differ, so statistics are
// held against what the rule allows.
#include <algorithm>
#include <cmath>

#include "kinds.hpp"
#include "model.hpp"

namespace ditrain::verify {

namespace {

/// What a parameter declares, and the number of that rule in the file.
struct Rule {
  enum Kind { kZero, kUniform, kNormal, kTable } kind;
  double size;  ///< bound of the uniform, deviation of the normal distribution
};

Rule rule_of(const autograd::Parameter& p) {
  using Kind = autograd::Initial::Kind;
  if (p.initial.kind == Kind::kTable) return {Rule::kTable, 0};
  if (p.initial.kind == Kind::kNormal) return {Rule::kNormal, p.initial.size};
  if (p.initial.kind == Kind::kXavierUniform) return {Rule::kUniform, autograd::xavier_bound(p.full_shape)};
  DITRAIN_CHECK(p.initial.size == 0, p.name + " starts at another constant, which the fixture has no rule for");
  return {Rule::kZero, 0};
}

/// Mean, deviation, min and max.
std::vector<double> statistics(const Tensor& t) {
  const std::vector<double> values = to_f64(t);
  double mean = 0, square = 0;
  for (const double x : values) mean += x / double(values.size());
  for (const double x : values) square += (x - mean) * (x - mean) / double(values.size());
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {mean, std::sqrt(square), *min, *max};
}

/// z at which a standard normal number is larger with probability p.
double normal_tail(double p) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double z = (low + high) / 2;
    (0.5 * std::erfc(z / std::sqrt(2.0)) > p ? low : high) = z;
  }
  return low;
}

/// What the largest of n numbers may be: it is outside with a probability below 1e-12.
struct Interval {
  double low, high;
  double centre() const { return (low + high) / 2; }
  double half_width() const { return (high - low) / 2; }
};
Interval largest_of(const Rule& rule, double n) {
  constexpr double kMisses = 30;  // e^-30 is about 1e-13
  // None of n numbers of a uniform distribution is in the upper share d of [-a, a] with probability e^(-n d / 2).
  if (rule.kind == Rule::kUniform) return {rule.size * (1 - std::min(1.0, 2 * kMisses / n)), rule.size * (1 + 1e-6)};
  return {rule.size * normal_tail(std::min(0.5, kMisses / n)), rule.size * normal_tail(1e-13 / n)};
}

/// Centres and half widths of what mean, deviation, min and max may be.
struct Allowed {
  std::vector<double> centre, half_width;
  void add(double c, double h) { centre.push_back(c), half_width.push_back(h); }
};

void allow(const Rule& rule, const autograd::Parameter& p, const Tensor& table, Allowed& allowed) {
  const double n = double(p.size());
  if (rule.kind == Rule::kZero) {
    for (int i = 0; i < 4; ++i) allowed.add(0, 0);
  } else if (rule.kind == Rule::kTable) {
    for (const double value : statistics(table)) allowed.add(value, 1e-6);
  } else {
    const double deviation = rule.kind == Rule::kUniform ? rule.size / std::sqrt(3.0) : rule.size;
    const Interval largest = largest_of(rule, n);
    allowed.add(0, 5 * deviation / std::sqrt(n));
    allowed.add(deviation, 5 * deviation / std::sqrt(2 * n));
    allowed.add(-largest.centre(), largest.half_width());
    allowed.add(largest.centre(), largest.half_width());
  }
}

}  // namespace

void verify_dit_init_stats(Verification& v) {
  nn::Model model = lay_out(read_dit_config(v, "DiT-S/2"));
  model.parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(model, 0);
  Allowed allowed;
  std::vector<double> rules, ours;
  for (const autograd::Parameter* p : model.parameters().state_dict()) {
    const Rule rule = rule_of(*p);
    rules.insert(rules.end(), {double(rule.kind), rule.size});
    allow(rule, *p, p->value, allowed);
    const std::vector<double> s = statistics(p->value);
    ours.insert(ours.end(), s.begin(), s.end());
  }
  const int64_t rows = int64_t(rules.size()) / 2;
  v.check("init.rule", {rows, 2}, rules, 1e-12, Per::entry());
  v.add("init.stats", "within the rules",
        compare(allowed.centre, v.f64("init.stats", {rows, 4}), 1, allowed.half_width));
  v.add("init.rule", "kept by our own initial weights", compare(ours, allowed.centre, 1, allowed.half_width));
}

}  // namespace ditrain::verify
