#include "ditrain/platform/affinity.hpp"

#include <catch2/catch.hpp>
#include <thread>

using namespace ditrain::platform;

TEST_CASE("a thread is bound and can be freed again") {
  const std::vector<int> before = affinity_mask();
  REQUIRE(!before.empty());
  std::thread([&] {
    REQUIRE(bind_this_thread(before.back()));
    CHECK(affinity_mask() == std::vector<int>{before.back()});
    REQUIRE(set_affinity_mask(before));
    CHECK(affinity_mask() == before);
  }).join();
  CHECK(affinity_mask() == before);
}

TEST_CASE("a refused binding says why and changes nothing") {
  const std::vector<int> before = affinity_mask();
  for (const int pu : {-1, 65535, 1 << 20}) {
    const BindResult result = bind_this_thread(pu);
    CHECK_FALSE(result);
    CHECK(!result.reason.empty());
    if (pu == 65535) CHECK_THAT(result.reason, Catch::Contains("sched_setaffinity: ") && Catch::Contains("cpuset"));
  }
  CHECK_FALSE(set_affinity_mask({}));
  CHECK(affinity_mask() == before);
}
