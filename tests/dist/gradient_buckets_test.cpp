#include "ditrain/dist/gradient_buckets.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "support/quiet_communicator.hpp"

using namespace ditrain;
using namespace ditrain::dist;

namespace {

/// Plays the rank of two whose partner always has the same gradients: a sum doubles. Remembers what was started.
class DoublingCommunicator final : public test::QuietCommunicator {
 public:
  DoublingCommunicator() : QuietCommunicator(2) {}
  struct Slice {
    const float* data;
    int64_t n;
  };
  std::vector<Slice> started;
  int tests = 0;

  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n) override {
    started.push_back({data, n});
    return std::make_unique<Doubling>(*this, data, n);
  }

 private:
  /// Sums in wait_for() only, as MPI may: a reader before finish() sees the old values.
  class Doubling final : public Request {
   public:
    Doubling(DoublingCommunicator& owner, float* data, int64_t n) : owner_(owner), data_(data), n_(n) {}
    bool test() override {
      ++owner_.tests;
      return done_;
    }
    bool wait_for(double) override {
      for (int64_t i = 0; i < n_ && !done_; ++i) data_[i] *= 2;
      return done_ = true;
    }

   private:
    DoublingCommunicator& owner_;
    float* data_;
    int64_t n_;
    bool done_ = false;
  };
};

std::vector<float> counting(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

std::vector<float> doubled(std::vector<float> x) {
  for (float& v : x) v *= 2;
  return x;
}

}  // namespace

TEST_CASE("buckets are slices from the end of the arena and start as soon as they are complete") {
  DoublingCommunicator comm;
  std::vector<float> arena = counting(10);
  GradientBuckets buckets(comm, arena.data(), {10, 4});
  CHECK(buckets.num_buckets() == 3);
  buckets.mark_ready(7, 10);
  CHECK(comm.started.empty());
  buckets.mark_ready(5, 7);  // completes 6..9
  REQUIRE(comm.started.size() == 1);
  CHECK(comm.started[0].data == arena.data() + 6);
  CHECK(comm.started[0].n == 4);
  buckets.mark_ready(0, 5);  // completes 2..5 and 0..1
  REQUIRE(comm.started.size() == 3);
  CHECK(comm.started[1].data == arena.data() + 2);
  CHECK(comm.started[2].data == arena.data());
  CHECK(comm.started[2].n == 2);
  CHECK(comm.tests > 0);  // progress for what is under way
  CHECK(arena == counting(10));
  buckets.finish();
  CHECK(arena == doubled(counting(10)));
}

TEST_CASE("every element is summed once, whatever the sizes and slices") {
  for (const int64_t n : {0, 1, 7, 64, 65})
    for (const int64_t bucket : {1, 2, 16, 64, 1000})
      for (const int64_t slice : {1, 3, 64, 100}) {
        CAPTURE(n, bucket, slice);
        DoublingCommunicator comm;
        std::vector<float> arena = counting(n);
        GradientBuckets buckets(comm, arena.data(), {n, bucket});
        REQUIRE(buckets.num_buckets() == (n + bucket - 1) / bucket);
        for (int64_t end = n; end > 0; end -= slice) buckets.mark_ready(std::max<int64_t>(0, end - slice), end);
        buckets.finish();
        REQUIRE(arena == doubled(counting(n)));
        REQUIRE(int64_t(comm.started.size()) == buckets.num_buckets());
      }
}

TEST_CASE("buckets start in one order even if slices come in another") {
  DoublingCommunicator comm;
  std::vector<float> arena = counting(6);
  GradientBuckets buckets(comm, arena.data(), {6, 2});
  buckets.mark_ready(0, 2);
  buckets.mark_ready(2, 4);
  CHECK(comm.started.empty());
  buckets.mark_ready(4, 6);
  REQUIRE(comm.started.size() == 3);
  for (size_t k = 0; k < 3; ++k) CHECK(comm.started[k].data == arena.data() + 4 - 2 * k);
  buckets.finish();
}

TEST_CASE("steps follow each other, and start_all completes what was not marked") {
  DoublingCommunicator comm;
  std::vector<float> arena = counting(9);
  GradientBuckets buckets(comm, arena.data(), {9, 4});
  buckets.start_all();
  buckets.finish();
  buckets.mark_ready(3, 9);
  CHECK(comm.started.size() == 4);
  buckets.start_all();
  CHECK(comm.started.size() == 6);
  buckets.finish();
  CHECK(arena == doubled(doubled(counting(9))));
  CHECK(buckets.last_step().exposed_s > 0);
}

TEST_CASE("buckets are handed out one by one as they arrive") {
  DoublingCommunicator comm;
  std::vector<float> arena = counting(10);
  GradientBuckets buckets(comm, arena.data(), {10, 4});
  CHECK_THROWS_AS(buckets.finish_next(), LogicFault);
  buckets.start_all();
  auto slice = buckets.finish_next();
  REQUIRE(slice);
  CHECK(slice->begin == 6);
  CHECK(slice->end == 10);
  CHECK(arena[6] == 14);
  CHECK(arena[5] == 6);  // not there yet
  slice = buckets.finish_next();
  REQUIRE(slice);
  CHECK(slice->begin == 2);
  buckets.finish();
  CHECK(arena == doubled(counting(10)));
  // Without an engine nothing is squared, and all communication counts as waited for.
  CHECK_FALSE(buckets.last_step().sum_squares);
  CHECK(buckets.last_step().communication_s == buckets.last_step().exposed_s);
  CHECK(buckets.last_step().hidden_s() == 0);
  buckets.start_all();
  while (buckets.finish_next()) {
  }
  CHECK_FALSE(buckets.finish_next());
  buckets.finish();
  CHECK(arena == doubled(doubled(counting(10))));
}

TEST_CASE("with one rank nothing is done") {
  const auto comm = make_null_communicator();
  std::vector<float> arena = counting(5);
  GradientBuckets buckets(*comm, arena.data(), {5, 2});
  for (int step = 0; step < 2; ++step) {
    buckets.mark_ready(1, 5);
    buckets.mark_ready(0, 1);
    buckets.finish();
  }
  CHECK(arena == counting(5));
}

TEST_CASE("mistakes of the caller are found") {
  DoublingCommunicator comm;
  std::vector<float> arena = counting(8);
  CHECK_THROWS_AS(GradientBuckets(comm, arena.data(), {8, 0}), LogicFault);
  GradientBuckets buckets(comm, arena.data(), {8, 4});
  CHECK_THROWS_AS(buckets.mark_ready(-1, 2), LogicFault);
  CHECK_THROWS_AS(buckets.mark_ready(3, 2), LogicFault);
  CHECK_THROWS_AS(buckets.mark_ready(0, 9), LogicFault);
  buckets.mark_ready(4, 8);
  CHECK_THROWS_AS(buckets.finish(), LogicFault);
  CHECK_THROWS_AS(buckets.mark_ready(6, 7), LogicFault);
}
