// The threads and clusters that ditbench strategies takes; tests/e2e runs it.
#include "ditrain/bench/strategies.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;
using namespace ditrain::bench;

TEST_CASE("strategies: without --clusters all strategies can run with any number of threads") {
  config::Config config;
  config.model.name = "DiT-S/2";  // 6 heads, 1,536 columns in the MLP
  nn::apply_name(config.model);
  config.train.global_batch = 16;
  struct Row {
    int threads, natural, used, clusters;
  };
  for (const Row& row : {Row{1, 1, 1, 1},
                         {2, 1, 2, 2},
                         {3, 1, 2, 2},
                         {4, 1, 4, 2},
                         {5, 1, 4, 2},
                         {6, 1, 6, 2},
                         {7, 1, 6, 2},
                         {8, 1, 8, 2},
                         {9, 1, 8, 2},
                         {10, 1, 10, 2},
                         {12, 1, 12, 2},
                         {16, 4, 16, 2},
                         {12, 3, 12, 2},
                         {16, 2, 16, 2},
                         {64, 2, 64, 2}}) {
    CAPTURE(row.threads, row.natural);
    const ThreadsInClusters cut = clusters_that_divide(row.threads, row.natural, config);
    CHECK(cut.threads == row.used);
    CHECK(cut.clusters == row.clusters);
  }
  config.train.global_batch = 48;
  CHECK(clusters_that_divide(9, 1, config).clusters == 3);
  CHECK(clusters_that_divide(9, 1, config).threads == 9);
  CHECK(clusters_that_divide(12, 3, config).clusters == 3);
  config.train.global_batch = 1;
  CHECK(clusters_that_divide(4, 1, config).clusters == 1);
}
