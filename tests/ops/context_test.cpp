#include "ditrain/ops/context.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/clock.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/gemm.hpp"
#include "support/threads.hpp"

using namespace ditrain;
using namespace ditrain::ops;

namespace {
// Seconds that it took.
double compute_ms(int ms) {
  const double start = now_s();
  while (now_s() < start + 1e-3 * ms) continue;
  return now_s() - start;
}
}  // namespace

TEST_CASE("time goes to the kind of work, and to waiting for the others") {
  parallel::Team team({.num_workers = 2});
  Context ctx(team);
  double share_s = 0, rest_s = 0;
  bool asleep = false;
  ctx.run(WorkKind::kAttention, [&](const parallel::Worker& w) {
    if (w.worker == 0) return void(share_s = compute_ms(2));
    asleep = test::others_sleep();  // worker 0, at the end of its share
    rest_s = compute_ms(2);
  });
  const WorkTimes late = ctx.times();
  REQUIRE(asleep);
  CHECK(late[WorkKind::kAttention] >= share_s);
  CHECK(late.waiting_s >= rest_s);
  const double start_s = now_s();
  ctx.for_range(2, 1, [&](int64_t, int64_t, const parallel::Worker& w) {
    if (w.worker == 0) asleep = test::others_sleep(), share_s = compute_ms(2);  // worker 1 is done
  });
  const double all_s = now_s() - start_s;
  const WorkTimes early = ctx.times();
  REQUIRE(asleep);
  CHECK(early[WorkKind::kElementwise] >= share_s);
  CHECK(early.waiting_s - late.waiting_s <= all_s - share_s);  // only the time to notice
  ctx.run_alone(WorkKind::kProduct, [] { compute_ms(5); });
  CHECK(ctx.times()[WorkKind::kProduct] >= 0.005);
  CHECK(ctx.times()[WorkKind::kAttention] == late[WorkKind::kAttention]);
  CHECK(ctx.times()[WorkKind::kOptimizer] == 0);
}

TEST_CASE("products and attention account for themselves") {
  parallel::Team team({.num_workers = 2});
  Context ctx(team);
  const Tensor a({40, 40}), c({40, 40}), qkv({1, 8, 24}), out({1, 8, 8}), lse({1, 2, 8});
  const Pin<float> pa(a), pc(c);
  gemm(ctx, {.m = 40, .n = 40, .k = 40, .a = pa, .lda = 40, .b = pa, .ldb = 40, .c = pc, .ldc = 40});
  CHECK(ctx.times()[WorkKind::kProduct] > 0);
  CHECK(ctx.times()[WorkKind::kAttention] == 0);
  attention_forward(ctx, qkv, 2, out, lse);
  CHECK(ctx.times()[WorkKind::kAttention] > 0);
  CHECK(ctx.times()[WorkKind::kElementwise] == 0);
}
