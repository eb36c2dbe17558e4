#include "ditrain/bench/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>

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
bool is_packed_before(const Row& row) {
  return std::any_of(row.details.begin(), row.details.end(), [](const Field& f) { return f.name == "b"; });
}

bool counts_in_mean(const Row& row) {
  for (const Field& f : row.details)
    if (const auto* size = std::get_if<int64_t>(&f.value); size != nullptr && *size < 256) return false;
  return true;
}

void add_means(Harness& harness, const std::string& dtype) {
  std::vector<const Row*> large, skinny, packed;
  for (const Row& row : harness.report().rows)
    if (row.dtype == dtype) (is_packed_before(row) ? packed : counts_in_mean(row) ? large : skinny).push_back(&row);
  harness.note(mean_share(large, "m, n, k >= 256"));
  harness.note(mean_ratios(large));
  if (skinny.empty()) return;
  const Row& worst = worst_of(skinny);
  harness.note(fmt::format("worst row in {} that memory limits: {:.1f} % of its loop, {}", dtype, 100 * worst.share,
                           worst.name));
  harness.note(mean_share(packed, std::string("B ") + kPackedBefore));
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

std::vector<ModelShape> model_shapes(const std::string& model) {
  if (model.empty()) return {std::begin(kModelShapes), std::end(kModelShapes)};
  for (const ModelShape& shape : kModelShapes)
    if (model_name(model) == std::string("DiT-") + shape.name + "/2") return {shape};
  throw InputError({.where = "command line",
                    .what = "no table of products for this model",
                    .got = "'" + model + "'",
                    .expected = "S, B, L, XL or one of DiT-{S,B,L,XL}/2"});
}

void bench_gemm(Harness& harness, const GemmBench& bench) {
  const std::vector<ModelShape> models = model_shapes(bench.model);
  const Peers peers = bench.peers ? load_peers(harness) : Peers();
  for (const DType precision : bench.precisions)
    for (const ModelShape& model : models)
      for (const ProductShape& shape : product_shapes(model, bench.batch * kTokens)) {
        harness.add(measure_product(harness, shape, precision, peers));
        if (!shape.skinny() && !shape.accumulates())
          harness.add(measure_product(harness, shape, precision, {}, PackingOfB::kBefore));
      }
  for (const DType precision : bench.precisions) add_means(harness, dtype_name(precision));  // with the highest peaks
}

}  // namespace ditrain::bench
