#include "ditrain/plan/gradient_plan.hpp"

#include <catch2/catch.hpp>

#include "ditrain/nn/dit.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("dist.adaln: auto takes the factors of layers where they move fewer bytes") {
  config::Config config = small_config();  // width 32: blocks have 192 x 32, the final layer 64 x 32
  nn::Dit model(config.model);
  const auto layers = [&](int64_t global_batch, int replicas) {
    config.train.global_batch = global_batch;
    return plan::plan_gradients(config, model.parameters(), replicas).factors.size();
  };
  CHECK(layers(21, 2) == 4);  // 21 (64 + 32) <= 64 32
  CHECK(layers(22, 2) == 3);
  CHECK(layers(27, 2) == 3);  // 27 (192 + 32) <= 192 32
  CHECK(layers(28, 2) == 0);
  CHECK(layers(4, 1) == 0);
  const auto described = [&](int replicas) {
    return plan::describe_factors(plan::plan_gradients(config, model.parameters(), replicas), config);
  };
  CHECK(described(1) == "");
  config.train.global_batch = 16;
  // (2 - 1) / 2 of 16 x (3 x 224 + 96) and twice that of 3 x (192 x 32 + 192) + 64 x 32 + 64 elements.
  CHECK(described(2) ==
        "adaLN gradients of 4 layers: ranks gather the factors of 16 samples, 24.0 KiB per rank and step instead of "
        "82.5 KiB");
  config.dist.reproducible = true;
  CHECK(layers(4, 2) == 0);
  config.dist.reproducible = false, config.dist.engine = false;
  CHECK(layers(4, 2) == 0);
  config.dist.engine = true, config.dist.adaln = config::AdalnExchange::kReduce;
  CHECK(layers(4, 2) == 0);
}
