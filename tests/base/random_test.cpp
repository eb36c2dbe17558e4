#include "ditrain/base/random.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

using namespace ditrain;

TEST_CASE("philox4x32-10 gives the known answers of Random123's kat_vectors") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("normals have mean 0 and variance 1 and do not depend on where filling starts") {
  const RandomKey key(7, Stream::kNoise, 3, 5);
  std::vector<float> x(100001), part(33);
  key.fill_normal(x.data(), int64_t(x.size()));
  double sum = 0, square = 0;
  for (float v : x) sum += v, square += double(v) * v;
  CHECK(std::fabs(sum / double(x.size())) < 0.015);
  CHECK(std::fabs(square / double(x.size()) - 1) < 0.02);
  key.fill_normal(part.data(), 33, 7);
  for (size_t i = 0; i < part.size(); ++i) {
    CHECK(part[i] == x[i + 7]);
    CHECK(key.normal(i + 7) == x[i + 7]);
  }
}

TEST_CASE("filling with uniform numbers gives those of single calls, wherever it starts and ends") {
  const RandomKey key(7, Stream::kInit, 3);
  for (const uint64_t first : {0, 1, 2, 3, 4, 1001})
    for (const int64_t n : {0, 1, 3, 4, 5, 33}) {
      std::vector<float> x(size_t(n) + 1, -1);
      key.fill_uniform(x.data(), n, first);
      for (int64_t j = 0; j < n; ++j) CHECK(x[size_t(j)] == key.uniform(first + uint64_t(j)));
      CHECK(x.back() == -1);
    }
  std::vector<float> x(100000);
  key.fill_uniform(x.data(), int64_t(x.size()));
  double sum = 0;
  for (float v : x) sum += v;
  CHECK(std::fabs(sum / double(x.size()) - 0.5) < 0.005);  // five standard deviations are 0.0046
  CHECK(*std::min_element(x.begin(), x.end()) >= 0);
  CHECK(*std::max_element(x.begin(), x.end()) < 1);
}

TEST_CASE("each part of the key changes the numbers") {
  const uint32_t base = RandomKey(1, Stream::kNoise, 2, 3).bits(4);
  CHECK(base != RandomKey(2, Stream::kNoise, 2, 3).bits(4));
  CHECK(base != RandomKey(1, Stream::kFlip, 2, 3).bits(4));
  CHECK(base != RandomKey(1, Stream::kNoise, 3, 2).bits(4));
  CHECK(base != RandomKey(1, Stream::kNoise, 2, 4).bits(4));
  CHECK(base != RandomKey(1, Stream::kNoise, 2, 3).bits(5));
}

TEST_CASE("below stays below and reaches all values") {
  const RandomKey key(1, Stream::kTimestep, 0);
  std::vector<int> count(10);
  for (uint64_t i = 0; i < 10000; ++i) ++count[key.below(i, 10)];
  for (int c : count) CHECK(std::abs(c - 1000) < 150);
}
