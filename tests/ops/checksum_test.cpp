#include "ditrain/ops/checksum.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <utility>

#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

uint64_t checksum_by(int workers, const Tensor& x) {
  Workers crew(workers);
  return ops::checksum(crew.ctx, x);
}

}  // namespace

TEST_CASE("checksum: the same for any team, another one for other sizes and contents") {
  std::set<uint64_t> seen;
  for (const int64_t n : {0, 1, 15, 16, 17, 16383, 16384, 16385, 100001}) {
    CAPTURE(n);
    const Tensor x = random_tensor({n}, 3);
    const uint64_t one = checksum_by(1, x);
    for (const int workers : {2, 3, 7}) CHECK(checksum_by(workers, x) == one);
    CHECK(seen.insert(one).second);
    const Tensor y = random_tensor({n}, 4);
    if (n > 0) CHECK(seen.insert(checksum_by(1, y)).second);
  }
}

TEST_CASE("checksum: sees any bit, a swap of elements or of blocks, and the sign of zero") {
  constexpr int64_t kElements = 40000;  // more than two blocks
  const Tensor x = random_tensor({kElements}, 3);
  const uint64_t before = checksum_by(2, x);
  const Pin<float> p(x);
  for (const int64_t i : {int64_t(0), int64_t(1), int64_t(16383), int64_t(16384), kElements - 1})
    for (int bit = 0; bit < 32; ++bit) {
      uint32_t word;
      std::memcpy(&word, &p[i], 4);
      word ^= uint32_t{1} << bit;
      std::memcpy(&p[i], &word, 4);
      CHECK(checksum_by(2, x) != before);
      word ^= uint32_t{1} << bit;
      std::memcpy(&p[i], &word, 4);
    }
  CHECK(checksum_by(2, x) == before);
  std::swap(p[5], p[6]);
  CHECK(checksum_by(2, x) != before);
  std::swap(p[5], p[6]);
  for (int64_t i = 0; i < 16384; ++i) std::swap(p[i], p[i + 16384]);
  CHECK(checksum_by(2, x) != before);
  for (int64_t i = 0; i < 16384; ++i) std::swap(p[i], p[i + 16384]);
  p[77] = 0;
  const uint64_t plus = checksum_by(2, x);
  p[77] = -0.0f;
  CHECK(checksum_by(2, x) != plus);
}
