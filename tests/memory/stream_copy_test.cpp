// The copy past the caches, on each architecture: all of what was asked for, and nothing beside it.
#include "../../src/memory/stream_copy.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

using namespace ditrain;

namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

std::vector<Line> lines(size_t count, unsigned seed) {
  std::vector<Line> block(count);
  unsigned i = 0;
  for (Line& line : block)
    for (std::byte& b : line.bytes) b = std::byte((i++ * 2654435761u + seed) >> 13);
  return block;
}

}  // namespace

TEST_CASE("stream copy: every byte arrives, and none beside them changes") {
  const size_t count = GENERATE(0, 1, 2, 3, 64, 1000);
  const std::vector<Line> from = lines(count, 1), before = lines(count + 2, 2);
  std::vector<Line> to = before;
  memory::stream_copy(to[1].bytes, count > 0 ? from[0].bytes : nullptr, count * sizeof(Line));
  const auto same = [](const Line& a, const Line& b) { return std::equal(a.bytes, a.bytes + 64, b.bytes); };
  CHECK(std::equal(from.begin(), from.end(), to.begin() + 1, same));
  CHECK(same(to.front(), before.front()));
  CHECK(same(to.back(), before.back()));
}
