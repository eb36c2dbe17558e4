#include "ditrain/train/metrics.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "support/files.hpp"
#include "support/no_more_files.hpp"

using namespace ditrain;
using namespace ditrain::train;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("metrics of a step are found again, and lines after a step are moved aside") {
  TemporaryFolder folder;
  CHECK(!metric_of_step(folder.path(), 1, "fid"));
  CHECK(discard_metrics_after(folder.path(), 1) == 0);
  put_file(folder / "metrics.jsonl", "{\"step\":1,\"fid\":9.5}\n{\"step\":2}\nhalf a li\n{\"step\":3,\"fid\":7}");
  CHECK(metric_of_step(folder.path(), 1, "fid") == 9.5);
  CHECK(metric_of_step(folder.path(), 3, "fid") == 7);
  CHECK(!metric_of_step(folder.path(), 2, "fid"));
  CHECK(discard_metrics_after(folder.path(), 1) == 3);
  CHECK(get_file(folder / "metrics.jsonl") == "{\"step\":1,\"fid\":9.5}\n");
  CHECK(get_file(folder / "metrics.discarded.jsonl") == "{\"step\":2}\nhalf a li\n{\"step\":3,\"fid\":7}\n");
  put_file(folder / "metrics.jsonl", "{\"step\":1,\"fid\":9.5}");  // the next line begins behind its end
  CHECK(discard_metrics_after(folder.path(), 1) == 0);
  CHECK(get_file(folder / "metrics.jsonl") == "{\"step\":1,\"fid\":9.5}\n");
}

TEST_CASE("metrics that cannot be read now are an error, not missing ones") {
  TemporaryFolder folder;
  put_file(folder / "metrics.jsonl", "{\"step\":1,\"fid\":9.5}\n");
  {
    const NoMoreFiles limit;
    CHECK_THROWS_AS(metric_of_step(folder.path(), 1, "fid"), RunError);
    CHECK_THROWS_AS(discard_metrics_after(folder.path(), 0), RunError);
  }
  CHECK(get_file(folder / "metrics.jsonl") == "{\"step\":1,\"fid\":9.5}\n");
  fs::remove(folder / "metrics.jsonl");
  fs::create_symlink("/proc/self/mem", folder / "metrics.jsonl");  // nothing is mapped at its beginning: EIO
  CHECK_THROWS_AS(metric_of_step(folder.path(), 1, "fid"), RunError);
  CHECK_THROWS_AS(discard_metrics_after(folder.path(), 0), RunError);
  CHECK_THROWS_WITH(metric_of_step(folder.path(), 1, "fid"),
                    Contains(folder / "metrics.jsonl") && Contains("Input/output error"));
}

TEST_CASE("a progress line shows means since the last one") {
  IntervalMeans means;
  StepMetrics m;
  m.vb = 0.5, m.loss = 1, m.mse = 0.5, m.grad_norm = 2, m.images_per_second = 10, m.mfu = 0.2;
  means.add(m, 1);
  m.loss = NAN, m.images_per_second = 40, m.mfu = 0.8;
  means.add(m, 0.25);
  StepMetrics overflow = m;
  overflow.loss = 1e40, overflow.grad_norm = 1e30, overflow.non_finite = "gradient norm (overflow)";
  overflow.images_per_second = 0;
  means.add(overflow, 0);
  m.step = 11, m.loss = 3, m.mse = 2.5, m.lr = 2e-4, m.grad_norm = 4;
  m.images_per_second = 20, m.mfu = 0.4, m.rss_bytes = size_t{3} << 29;
  means.add(m, 0.5);
  const StepMetrics shown = means.take(m);  // 30 images in 1.75 s, and one loss that counts for nothing
  CHECK((shown.loss == 2 && shown.mse == 1.5 && shown.grad_norm == 3 && shown.lr == 2e-4));
  CHECK(shown.images_per_second == Approx(30 / 1.75));
  CHECK(shown.mfu == Approx(0.4 * 30 / 1.75 / 20));
  CHECK(progress_text(shown, {.steps = 100, .epoch = 0.125, .elapsed_s = 61, .left_s = 5}) ==
        "step 11/100 (11.0 %)  epoch 0.12  loss 2.0000 (mse 1.5000 vb 0.5000)  lr 2.00e-04  |g| 3  17.1 img/s  MFU "
        "34.3 %  "
        "1.50 GiB  1 min 1 s, 5 s left");
  CHECK(std::isnan([&] {
    StepMetrics bad = m;
    bad.loss = NAN;
    means.add(bad, 1);
    return means.take(bad).loss;
  }()));
  CHECK(means.take(m).loss == 3);  // nothing was added
}
