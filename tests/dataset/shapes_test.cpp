#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "dataset_fixture.hpp"

using namespace ditrain;
using namespace ditrain::dataset;

namespace {
/// The squared distance, or something above `limit` if it is above.
float squared_distance(const std::vector<float>& a, const std::vector<float>& b, float limit) {
  constexpr size_t kPart = 128, kLanes = 8;
  float sum = 0;
  for (size_t part = 0; part < a.size() / kPart && sum <= limit; ++part) {
    const size_t begin = (a.size() / 2 + part * kPart) % a.size();  // from the middle, where shapes differ most
    float lanes[kLanes] = {};                                       // independent sums: faster
    for (size_t i = begin; i < begin + kPart; i += kLanes)
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += (a[i + j] - b[i + j]) * (a[i + j] - b[i + j]);
    for (float lane : lanes) sum += lane;
  }
  return sum;
}
}  // namespace

TEST_CASE("shapes depend on seed and index only, and every class comes up in turn") {
  const auto data = open_dataset({}, {3, 32, 32}, 8, 5), again = open_dataset({}, {3, 32, 32}, 8, 5);
  const auto other = open_dataset({}, {3, 32, 32}, 8, 6);
  for (int64_t i : {9, 3, 49999, 0}) {
    const Sample sample = load(*data, i);
    CHECK(sample.label == i % 8);
    CHECK(sample == load(*again, i));
    CHECK(sample == load(*data, i, true));  // drawn as they are wanted: nothing to mirror
    CHECK(sample.chw != load(*other, i).chw);
    CHECK(sample.chw != load(*data, (i + 8) % 50000).chw);
  }
  CHECK(data->class_names().size() == 8);
  CHECK(data->class_names()[2] == "triangle");
}

TEST_CASE("shapes have values in [-1, 1] at any size and number of bands") {
  for (const SampleShape shape :
       {SampleShape{3, 32, 32}, {1, 8, 8}, {4, 16, 48}, {13, 33, 9}, {3, 1, 1}, {2, 256, 64}}) {
    const auto data = open_dataset({}, shape, 8, 1);
    for (int64_t i = 0; i < 16; ++i) {
      const Sample sample = load(*data, i);
      const auto [low, high] = std::minmax_element(sample.chw.begin(), sample.chw.end());
      CHECK(*low >= -1.0f);  // also false for NaN and for the filling of load()
      CHECK(*high <= 1.0f);
      if (shape.height >= 8 && shape.width >= 8) CHECK(*high - *low > 0.5f);  // a bright shape on a dim ground
    }
  }
}

TEST_CASE("shapes lie on a dim ground that varies little") {
  const auto data = open_dataset({}, {3, 32, 32}, 8, 1);
  for (int64_t i = 0; i < 256; ++i) {
    const Sample sample = load(*data, i);
    float corners = 0;
    for (size_t c = 0; c < 3; ++c)
      for (size_t place : {0, 31, 31 * 32, 31 * 32 + 31}) corners += sample.chw[c * 1024 + place] / 12.0f;
    CHECK(corners < -0.5f);
    CHECK(corners > -0.9f);
  }
}

TEST_CASE("further bands are averages of red, green and blue") {
  const auto rgb = open_dataset({}, {3, 16, 16}, 8, 1), five = open_dataset({}, {5, 16, 16}, 8, 1);
  const auto grey = open_dataset({}, {1, 16, 16}, 8, 1);
  const Sample a = load(*rgb, 4), b = load(*five, 4), c = load(*grey, 4);
  CHECK(std::equal(a.chw.begin(), a.chw.end(), b.chw.begin()));
  for (size_t i = 0; i < 256; ++i) {
    CHECK(b.chw[3 * 256 + i] == Approx(0.5f * (a.chw[i] + a.chw[256 + i])).margin(1e-6));
    CHECK(b.chw[4 * 256 + i] == Approx(0.5f * (a.chw[256 + i] + a.chw[512 + i])).margin(1e-6));
    CHECK(c.chw[i] == Approx((a.chw[i] + a.chw[256 + i] + a.chw[512 + i]) / 3).margin(1e-6));
  }
}

TEST_CASE("the nearest neighbour of a shape in pixel space has its class") {
  constexpr int64_t kDrawn = 4000, kQueries = 400;
  const auto data = open_dataset({}, {3, 32, 32}, 8, 1);
  std::vector<Sample> drawn;
  for (int64_t i = 0; i < kDrawn; ++i) drawn.push_back(load(*data, i));
  int64_t right = 0;
  for (int64_t q = 0; q < kQueries; ++q) {
    float best = std::numeric_limits<float>::infinity();
    int64_t label = -1;
    for (int64_t i = 0; i < kDrawn; ++i) {
      const float d = i == q ? best : squared_distance(drawn[size_t(q)].chw, drawn[size_t(i)].chw, best);
      if (d < best) best = d, label = drawn[size_t(i)].label;
    }
    right += label == drawn[size_t(q)].label;
  }
  INFO(right << " of " << kQueries);
  CHECK(double(right) >= 0.95 * double(kQueries));
}
