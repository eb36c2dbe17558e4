// What the kernel tests share: the instruction sets of this host, guarded buffers, one tolerance, a comparison that
// says where and how far.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../../src/kernels/instruction_sets.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/kernels/described.hpp"
#include "ditrain/kernels/ref.hpp"
#include "models.hpp"

namespace ditrain::kernels {

/// If the environment has DITRAIN_TEST_ONLY, tests are about the kernels of that name alone, which must be those that
/// this CPU gets (an emulator is slow and is run once for each).
inline const char* only_kernels() { return std::getenv("DITRAIN_TEST_ONLY"); }

/// The kernels of a family that this CPU can run; what it lacks is reported, once. Those on models of a unit come last.
template <class Table>
std::vector<const Table*> usable(const Table* Families::*family) {
  static bool reported = only_kernels() != nullptr;
  std::vector<InstructionSet> sets = instruction_sets();
  for (const InstructionSet& model : models()) sets.push_back(model);
  std::vector<const Table*> tables;
  for (const InstructionSet& set : sets) {
    if (set.kernels.*family == nullptr) continue;
    const bool asked_for = only_kernels() == nullptr || set.name == std::string(only_kernels());
    if (set.obstacle.empty() && asked_for)
      tables.push_back(set.kernels.*family);
    else if (!reported)
      WARN("left out: " << set.name << ", " << (set.obstacle.empty() ? "not asked for" : set.obstacle));
  }
  reported = true;
  return tables;
}
inline std::vector<const ProductKernels*> usable_products(DType arithmetic) {
  return usable(arithmetic == DType::kF32 ? &Families::f32_products : &Families::bf16_products);
}
inline std::vector<const AttentionKernels*> usable_attention(DType type) {
  return usable(type == DType::kF32 ? &Families::f32_attention : &Families::bf16_attention);
}
inline std::vector<const ElementwiseKernels*> usable_elementwise() { return usable(&Families::elementwise); }

/// Empty if the same elements are NaN, +infinity and -infinity and the others are equal within `relative`.
inline std::string mismatch(const std::vector<float>& got, const std::vector<float>& want, double relative) {
  if (got.size() != want.size())
    return "got " + std::to_string(got.size()) + " values, want " + std::to_string(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(double(got[i]) - double(want[i]));
    const bool same = std::isfinite(want[i]) ? error <= relative * (1 + std::abs(want[i]))
                      : std::isnan(want[i])  ? std::isnan(got[i])
                                             : got[i] == want[i];
    if (!same)
      return "at " + std::to_string(i) + " of " + std::to_string(want.size()) + ": got " + std::to_string(got[i]) +
             ", want " + std::to_string(want[i]);
  }
  return "";
}

/// Uniform values in [-1, 1), different for every `salt`.
inline std::vector<float> random_values(int64_t n, uint64_t salt, float magnitude = 1) {
  const RandomKey key(7, Stream::kTest, salt);
  std::vector<float> x(static_cast<size_t>(n));
  key.fill_uniform(x.data(), n);
  for (float& v : x) v = magnitude * (2 * v - 1);
  return x;
}

/// n floats between two zones that nothing may touch. Everything starts as the same NaN pattern, so that a read of what
/// was never written shows in the result.
class Guarded {
 public:
  explicit Guarded(int64_t n) : size_(n), all_(static_cast<size_t>(n + 2 * kZone), mark()) {}
  explicit Guarded(const std::vector<float>& x) : Guarded(static_cast<int64_t>(x.size())) {
    std::copy(x.begin(), x.end(), data());
  }
  float* data() { return all_.data() + kZone; }
  int64_t size() const { return size_; }
  std::vector<float> values() const { return {all_.begin() + kZone, all_.end() - kZone}; }
  bool untouched(int64_t i) const { return std::memcmp(&all_[static_cast<size_t>(i + kZone)], &kMark, 4) == 0; }
  bool zones_untouched() const {
    for (int64_t i = 1; i <= kZone; ++i) {
      if (!untouched(-i) || !untouched(size_ + i - 1)) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kZone = 64;
  static constexpr uint32_t kMark = 0x7fc0beefu;  // a quiet NaN
  static float mark() {
    float x;
    std::memcpy(&x, &kMark, 4);
    return x;
  }
  int64_t size_;
  std::vector<float> all_;
};

/// Scratch of exactly `bytes`, 64-byte aligned, with a guard behind it; starts as NaN.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes), p_(std::aligned_alloc(64, (bytes + kZone + 63) / 64 * 64)) {
    std::memset(p_.get(), 0xff, bytes + kZone);
  }
  void* get() const { return p_.get(); }
  bool zone_untouched() const {
    const auto* zone = static_cast<const unsigned char*>(p_.get()) + bytes_;
    return std::all_of(zone, zone + kZone, [](unsigned char c) { return c == 0xff; });
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static constexpr size_t kZone = 256;
  size_t bytes_;
  std::unique_ptr<void, Free> p_;
};

/// The one tolerance: absolute error allowed to an f32 sum of `terms` values of random sign and of at most `magnitude`.
/// Unit roundoff u = 2^-24. The partial sum of j terms is at most 5 sigma sqrt(j) in all elements of a test (uniform
/// terms: sigma = magnitude / 3); each addition errs by at most u times that, uniformly, so the errors add up to a
/// deviation of 5 sigma u terms / sqrt(6), and four deviations are 2.7 u terms magnitude. 8 pays for what is around the
/// sum.
inline double tolerance(int64_t terms, double magnitude = 1) {
  return 2.7 * std::ldexp(static_cast<double>(terms + 8), -24) * magnitude;
}

/// Empty if every |got - want| <= limit (NaN equals NaN), else a text with the worst element.
inline std::string difference(const std::vector<float>& got, const std::vector<float>& want, double limit) {
  if (got.size() != want.size()) return "sizes differ";
  double worst = -1, worst_relative = 0;
  size_t at = 0, nans = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    nans += std::isnan(got[i]);
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i]) continue;
    double error = std::abs(double(got[i]) - double(want[i]));
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    worst_relative = std::max(worst_relative, error / std::abs(double(want[i])));
    if (error > worst) worst = error, at = i;
  }
  if (worst <= limit) return "";
  return "max abs " + std::to_string(worst) + " (limit " + std::to_string(limit) + ") at " + std::to_string(at) +
         ": got " + std::to_string(got[at]) + ", want " + std::to_string(want[at]) + "; max rel " +
         std::to_string(worst_relative) + ", " + std::to_string(nans) + " NaN of " + std::to_string(got.size());
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace ditrain::kernels
