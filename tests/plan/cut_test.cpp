#include "ditrain/plan/cut.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using Catch::Contains;
using ops::ClusterSplit;

namespace {

config::Config model(const std::string& name) {
  config::Config c;
  c.model.name = name;
  nn::apply_name(c.model);
  return c;
}

}  // namespace

TEST_CASE("auto cuts what clusters would read less of") {
  const config::Config b = model("DiT-B/2"), xl = model("DiT-XL/2");
  CHECK(plan::plan_cut(b, 8, {1}).why == "one cluster: nothing is cut over clusters");
  // 12 C^2 = 7.08 M weights against 7 M C = 11.01 M inputs of 2,048 rows, one of them twice
  CHECK(plan::plan_cut(b, 8, {1, 1}).cut == ClusterSplit::kSamples);
  CHECK_THAT(plan::plan_cut(b, 8, {1, 1}).why,
             Contains("each reads 12.6 M values per block this way, 14.5 M the other way"));
  CHECK(plan::plan_cut(xl, 4, {1, 1}).cut == ClusterSplit::kN);
  CHECK(plan::plan_cut(xl, 8, {1, 1}).cut == ClusterSplit::kSamples);
  CHECK(plan::plan_cut(b, 7, {1, 1}).cut == ClusterSplit::kN);
  CHECK_THAT(plan::plan_cut(b, 7, {1, 1}).why, Contains("7 samples do not divide"));
}

TEST_CASE("samples that do not divide are refused with the key that can be set") {
  config::Config b = model("DiT-B/2");
  b.parallel.cut = config::ClusterSplitChoice::kSamples;
  CHECK_THROWS_WITH(plan::plan_cut(b, 7, {1, 1}),
                    Contains("a train.global_batch of which each rank gets a multiple of 2"));
  b.train.micro_batch = 7;
  CHECK_THROWS_WITH(plan::plan_cut(b, 7, {1, 1}), Contains("a train.micro_batch that is a multiple of 2"));
}

TEST_CASE("auto weighs what lies in other domains by their bandwidth") {
  const config::Config xl = model("DiT-XL/2");
  // W = 15.93 M weights, I = 12.39 M inputs: n reads fewer values, but more of them from the other domain
  CHECK(plan::plan_cut(xl, 6, {1, 1}).cut == ClusterSplit::kN);
  CHECK(plan::plan_cut(xl, 6, {1, 1}, {.own = 40, .other = 40}).cut == ClusterSplit::kN);
  CHECK(plan::plan_cut(xl, 6, {1, 1}, {.own = 40, .other = 16}).cut == ClusterSplit::kSamples);
  CHECK_THAT(plan::plan_cut(xl, 6, {1, 1}, {.own = 40, .other = 16}).why,
             Contains("40 GB/s from its own memory, 16 from others'"));
  CHECK(plan::plan_cut(xl, 2, {1, 1}, {.own = 40, .other = 16}).cut == ClusterSplit::kN);
}

TEST_CASE("bandwidths of domains are measured on arrays that their last caches do not hold") {
  constexpr size_t kMiB = 1 << 20, kNode = size_t{384} << 30;
  platform::Topology t;
  CHECK(plan::bytes_to_measure(t, kNode) == 64 * kMiB);
  t.l3_bytes = 96 * kMiB, t.l3_caches = 16, t.numa_domains = 8;
  CHECK(plan::bytes_to_measure(t, kNode) == 4 * 2 * 96 * kMiB);
  CHECK(plan::bytes_to_measure(t, 8192 * kMiB) == 256 * kMiB);
  t.numa_domains = 2;
  CHECK(plan::bytes_to_measure(t, kNode) == 1024 * kMiB);
}

TEST_CASE("bandwidths of domains are measured where there are clusters") {
  parallel::Team one({.num_workers = 2}), two({.num_workers = 2, .num_clusters = 2});
  ops::Context together(one), apart(two);
  CHECK(plan::measure_domains(together).own == 0);
  const plan::DomainBandwidth b = plan::measure_domains(apart);
  CHECK((b.own > 0.05 && b.other > 0.05));
}

TEST_CASE("auto leaves samples together where small clusters would hold up the large ones") {
  const config::Config b = model("DiT-B/2");
  CHECK(plan::plan_cut(b, 8, {38, 37}).cut == ClusterSplit::kSamples);
  CHECK(plan::plan_cut(b, 8, {4, 3}).cut == ClusterSplit::kN);
  CHECK_THAT(
      plan::plan_cut(b, 8, {4, 3}).why,
      Contains("the smallest has 3 of 7 workers; with equal numbers of samples, 14 % of the workers would wait"));
  config::Config c = b;
  c.parallel.cut = config::ClusterSplitChoice::kSamples;
  CHECK(plan::plan_cut(c, 8, {4, 3}).cut == ClusterSplit::kSamples);
}

TEST_CASE("products of another library are not cut by samples, and the plan says so") {
  config::Config c = model("DiT-B/2");
  c.kernels.gemm = config::Gemm::kRef;
  CHECK(plan::plan_cut(c, 8, {1, 1}).why == "nothing is cut over clusters (kernels.gemm: ref)");
  c.parallel.cut = config::ClusterSplitChoice::kN;
  CHECK(plan::plan_cut(c, 8, {1, 1}).cut == ClusterSplit::kN);
}

TEST_CASE("a cut that is asked for is made, or refused") {
  config::Config c = model("DiT-B/2");
  c.parallel.cut = config::ClusterSplitChoice::kN;
  CHECK(plan::plan_cut(c, 8, {1, 1}).cut == ClusterSplit::kN);
  c.parallel.cut = config::ClusterSplitChoice::kSamples;
  CHECK(plan::plan_cut(c, 4, {1, 1, 1, 1}).cut == ClusterSplit::kSamples);
  CHECK_THROWS_WITH(plan::plan_cut(c, 6, {1, 1, 1, 1}),
                    Contains("got a micro-batch of 6 for 4 clusters, expected a multiple"));
  CHECK_THROWS_AS(plan::plan_cut(c, 6, {1, 1, 1, 1}), InputError);
}
