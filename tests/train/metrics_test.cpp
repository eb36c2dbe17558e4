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
