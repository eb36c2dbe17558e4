#include "ditrain/dist/clock_offset.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "thread_world.hpp"

using namespace ditrain;
using namespace ditrain::dist;

TEST_CASE("clocks of other nodes are found within the error that is told, and a node has one") {
  ThreadWorld world{.ranks = 5, .ranks_per_node = 2};
  std::vector<ClockOffset> found(5);
  // Node 1 is 100 s ahead of node 0, node 2 is 3 s behind.
  const double shift[] = {0, 0, 100, 100, -3};
  run_ranks(world, [&](ThreadCommunicator& comm) {
    const size_t rank = size_t(comm.rank());
    found[rank] = measure_clock_offset(comm, [&, rank] { return now_s() + shift[rank]; });
  });
  for (size_t rank = 0; rank < found.size(); ++rank) {
    CAPTURE(rank, found[rank].offset_s, found[rank].error_s);
    CHECK(std::fabs(found[rank].offset_s - shift[rank]) <= found[rank].error_s + 1e-9);
    CHECK((rank < 2) == (found[rank].error_s == 0));
    CHECK(found[rank].error_s < 1);
  }
  CHECK(found[2].offset_s == found[3].offset_s);
}

TEST_CASE("one rank has no clock to be compared with") {
  const auto comm = make_null_communicator();
  CHECK(measure_clock_offset(*comm).offset_s == 0);
  CHECK(measure_clock_offset(*comm).error_s == 0);
}
