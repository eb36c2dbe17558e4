#include "ditrain/bench/gemm.hpp"

#include <fmt/format.h>

#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/ops/gemm.hpp"
#include "operands.hpp"

namespace ditrain::bench {
namespace {

using kernels::GemmArgs;

int64_t copies_of(Harness& harness, const ProductShape& shape, const ProductTypes& types) {
  if (!shape.skinny()) return 1;
  const auto bytes = shape.accumulates() ? size_t(shape.m * shape.n) * dtype_bytes(types.c)
                                         : size_t(shape.k * shape.n) * dtype_bytes(types.b);
  return int64_t(harness.cold_bytes() / bytes) + 1;
}

std::string types_text(const ProductTypes& t) {
  return fmt::format("{} x {} -> {}", dtype_name(t.a), dtype_name(t.b), dtype_name(t.c));
}

void add_rivals(Work& work, Operands& operands, const Peers& peers) {
  for (const std::unique_ptr<Peer>& peer : peers) {
    bool can = false;
    operands.with_next([&](const GemmArgs& g) { can = peer->can(g); });
    if (!can) continue;
    const auto call = [&operands, &peer] { operands.with_next([&](const GemmArgs& g) { peer->gemm(g); }); };
    for (int i = 0; i < kPeerTrials; ++i) call();
    work.rivals.push_back({peer->name(), call});
  }
}

constexpr const char* kPackedBefore = "packed before";

/// Numbers of the rows of one precision, by the mean that they are part of.
struct RowsOfMeans {
  std::vector<size_t> large = {}, skinny = {}, packed = {};
};

std::vector<const Row*> rows_of(const Report& report, const std::vector<size_t>& numbers) {
  std::vector<const Row*> rows;
  for (const size_t n : numbers) rows.push_back(&report.rows[n]);
  return rows;
}

void add_means(Harness& harness, const RowsOfMeans& numbers) {
  const Report& report = harness.report();
  const std::vector<const Row*> large = rows_of(report, numbers.large), skinny = rows_of(report, numbers.skinny);
  harness.note(mean_share(large, "m, n, k >= 256"));
  harness.note(mean_ratios(large));
  const Row& worst = worst_of(skinny);
  harness.note(fmt::format("worst row in {} that memory limits: {:.1f} % of its loop, {}", worst.dtype,
                           100 * worst.share, worst.name));
  harness.note(mean_share(rows_of(report, numbers.packed), std::string("B ") + kPackedBefore));
}

}  // namespace

Row measure_product(Harness& harness, const ProductShape& shape, DType precision, const Peers& peers,
                    PackingOfB packing) {
  const ProductTypes types = product_types(shape, precision);
  Operands operands(harness.ctx(), shape, types, copies_of(harness, shape, types), packing);
  const auto ours = [&](const GemmArgs& g) { ops::gemm(harness.ctx(), g); };
  Work work{.name = shape.name(), .dtype = precision, .call = [&] { operands.with_next(ours); }};
  if (shape.skinny()) {
    work.bytes = double(operands.weight_bytes()) * (shape.accumulates() ? 2 : 1);
    work.limit = [&] { operands.stream_weight(harness); };
  } else {
    work.flop = shape.flop();
  }
  work.details = {{"m", shape.m},
                  {"n", shape.n},
                  {"k", shape.k},
                  {"trans", std::string(shape.trans())},
                  {"types", types_text(types), false},
                  {"cache", std::string(shape.skinny() ? "cold" : "warm"), false}};
  if (packing == PackingOfB::kBefore) {
    work.name += std::string(", B ") + kPackedBefore;
    work.details.push_back({"b", std::string(kPackedBefore), false});
  }
  add_rivals(work, operands, peers);
  return harness.measure(work);
}

const ModelShape& model_shape(const std::string& model) {
  for (const ModelShape& shape : kModelShapes)
    if (model_name(model) == std::string("DiT-") + shape.name + "/2") return shape;
  refuse("command line", "no table of products for this model", "'" + model + "'",
         "S, B, L, XL or one of DiT-{S,B,L,XL}/2");
}

void bench_gemm(Harness& harness, const GemmBench& bench) {
  std::vector<ModelShape> models(std::begin(kModelShapes), std::end(kModelShapes));
  if (!bench.model.empty()) models = {model_shape(bench.model)};
  const Peers peers = bench.peers ? load_peers(harness) : Peers();
  std::vector<RowsOfMeans> numbers;
  for (const DType precision : bench.precisions) {
    RowsOfMeans& n = numbers.emplace_back();
    for (const ModelShape& model : models)
      for (const ProductShape& shape : product_shapes(model, bench.batch * kTokens)) {
        (shape.skinny() ? n.skinny : n.large).push_back(harness.rows().size());
        harness.add(measure_product(harness, shape, precision, peers));
        if (shape.skinny() || shape.accumulates()) continue;
        n.packed.push_back(harness.rows().size());
        harness.add(measure_product(harness, shape, precision, {}, PackingOfB::kBefore));
      }
  }
  for (const RowsOfMeans& n : numbers) add_means(harness, n);  // with the highest peaks
}

}  // namespace ditrain::bench
