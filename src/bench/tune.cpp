#include "ditrain/bench/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "ditrain/base/clock.hpp"
#include "ditrain/ops/gemm.hpp"
#include "operands.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

using kernels::GemmBlocking;

constexpr size_t kFinalists = 4;  // beside the derived blocks
constexpr double kRowFactors[] = {0.5, 0.75, 1, 1.5, 2};
constexpr int64_t kCols[] = {256, 512, 1152, 2304, 4608};

/// Puts the blocks of this process back.
struct BlockingScope {
  GemmBlocking before = kernels::gemm_blocking();
  ~BlockingScope() { kernels::set_gemm_blocking(before); }
};

double seconds_of(ops::Context& ctx, Operands& operands, const GemmBlocking& blocking, double least_s) {
  kernels::set_gemm_blocking(blocking);
  const double start = now_s();
  int64_t calls = 0;
  operands.with_next([&](const kernels::GemmArgs& args) {
    for (double t = 0; calls == 0 || t < least_s; t = now_s() - start) ops::gemm(ctx, args), ++calls;
  });
  return (now_s() - start) / double(calls);
}

std::vector<DType> precisions() {
  if (kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0) return {DType::kF32, DType::kBF16};
  return {DType::kF32};
}

/// How fast each candidate is relative to the first one, by type: of every product the median over the rounds.
using Speeds = std::vector<std::map<DType, std::vector<double>>>;

// Candidates take turns, forwards and backwards, so that a clock that drifts favours none.
Speeds time_candidates(Harness& harness, const TuneBench& bench, const std::vector<GemmBlocking>& candidates,
                       int64_t rounds) {
  Speeds speeds(candidates.size());
  const ModelShape& model = model_shape(bench.model);
  for (const ProductShape& shape : product_shapes(model, bench.batch * kTokens)) {
    if (shape.layer != "up" && shape.layer != "down") continue;
    for (const DType type : precisions()) {
      Operands operands(harness.ctx(), shape, product_types(shape, type));
      seconds_of(harness.ctx(), operands, candidates.front(), 0);  // pays for page faults
      std::vector<std::vector<double>> ratios(candidates.size());
      for (int64_t round = 0; round < rounds; ++round) {
        std::vector<double> seconds(candidates.size());
        for (size_t i = 0; i < candidates.size(); ++i) {
          const size_t at = round % 2 == 0 ? i : candidates.size() - 1 - i;
          check_stop();
          seconds[at] = seconds_of(harness.ctx(), operands, candidates[at], harness.effort().repeat_s);
        }
        for (size_t i = 0; i < candidates.size(); ++i) ratios[i].push_back(seconds[0] / seconds[i]);
      }
      for (size_t i = 0; i < candidates.size(); ++i) speeds[i][type].push_back(quantile(ratios[i], 0.5));
    }
  }
  return speeds;
}

double speed(const std::map<DType, std::vector<double>>& by_type) {
  std::vector<double> all;
  for (const auto& [type, x] : by_type) all.insert(all.end(), x.begin(), x.end());
  return geometric_mean(all);
}

size_t fastest(const Speeds& speeds) {
  const auto slower = [](const auto& a, const auto& b) { return speed(a) < speed(b); };
  return size_t(std::max_element(speeds.begin(), speeds.end(), slower) - speeds.begin());
}

// The first candidate and the fastest others.
std::vector<GemmBlocking> finalists(const std::vector<GemmBlocking>& candidates, const Speeds& first) {
  std::vector<size_t> order;
  for (size_t i = 1; i < candidates.size(); ++i) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return speed(first[a]) > speed(first[b]); });
  order.resize(std::min(order.size(), kFinalists));
  std::vector<GemmBlocking> best = {candidates.front()};
  for (const size_t i : order) best.push_back(candidates[i]);
  return best;
}

std::string name_of(const GemmBlocking& b) { return fmt::format("blocks {} x {}", b.rows, b.cols); }

Row row_of(const GemmBlocking& blocking, double first) {
  Row row{.name = name_of(blocking), .dtype = "all", .share = std::numeric_limits<double>::quiet_NaN()};
  row.details = {{"block_rows", blocking.rows}, {"block_cols", blocking.cols}, {"first", first}};
  return row;
}

}  // namespace

std::vector<GemmBlocking> tuning_candidates(const GemmBlocking& derived) {
  const int64_t tile = kernels::gemm_tile_rows();
  std::vector<GemmBlocking> all = {derived};
  std::vector<int64_t> cols(std::begin(kCols), std::end(kCols));
  cols.push_back(derived.cols);
  for (const double factor : kRowFactors)
    for (const int64_t c : cols) {
      const int64_t tiles = std::max<int64_t>(1, int64_t(factor * double(derived.rows) / double(tile) + 0.5));
      const auto same = [&](const GemmBlocking& b) { return b.rows == tiles * tile && b.cols == c; };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back({tiles * tile, c});
    }
  return all;
}

GemmBlocking bench_tune(Harness& harness, const TuneBench& bench, const GemmBlocking& derived) {
  const BlockingScope scope;
  const std::vector<GemmBlocking> candidates = tuning_candidates(derived);
  const Speeds first = time_candidates(harness, bench, candidates, 1);
  const std::vector<GemmBlocking> best = finalists(candidates, first);
  const Speeds again = time_candidates(harness, bench, best, harness.effort().repeats);
  for (size_t i = 0; i < candidates.size(); ++i) {
    Row row = row_of(candidates[i], speed(first[i]));
    for (size_t j = 0; j < best.size(); ++j) {
      if (name_of(best[j]) != row.name) continue;
      row.details.push_back({"again", speed(again[j])});
      for (const auto& [type, x] : again[j]) row.details.push_back({dtype_name(type), geometric_mean(x)});
    }
    harness.add(std::move(row));
  }
  const size_t winner = fastest(again);
  const bool worth = speed(again[winner]) > kWorthTuning;
  harness.note(
      fmt::format("speeds are relative to the blocks derived from the caches, {} x {}", derived.rows, derived.cols));
  harness.note(fmt::format("fastest: {}, {:.1f} % faster: {}", name_of(best[winner]), 100 * (speed(again[winner]) - 1),
                           worth ? "taken" : "the derived blocks stay"));
  return worth ? best[winner] : derived;
}

}  // namespace ditrain::bench
