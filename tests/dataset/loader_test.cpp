#include "ditrain/dataset/loader.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <thread>

#include "dataset_fixture.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "support/threads.hpp"

using namespace ditrain;
using namespace ditrain::dataset;
using Catch::Contains;
using test::others_sleep;

namespace {

constexpr uint64_t kSeed = 11;

// Samples that say which they are: chw = (index, mirrored), label = index. Broken ones on request.
class Numbered final : public Dataset {
 public:
  explicit Numbered(int64_t size) : Dataset(Config{}, {2, 1, 1}) { size_ = num_classes_ = size; }
  std::string describe() const override { return "numbered"; }
  std::set<int64_t> broken;
  std::atomic<bool> gate = true;  // while it is shut, reads wait
  mutable std::atomic<int64_t> reads{0};

 private:
  void read(int64_t index, bool flip, float* chw, Condition* condition) const override {
    ++reads;
    gate.wait(false);
    if (broken.contains(index)) throw InputError({.where = "numbered", .what = "sample " + std::to_string(index)});
    chw[0] = float(index), chw[1] = flip ? 1.0f : 0.0f;
    condition->label = index;
  }
};

LoaderConfig config_of(int64_t global_batch, int64_t first, int64_t count) {
  LoaderConfig config;
  config.global_batch = global_batch, config.first_in_batch = first, config.count = count, config.seed = kSeed;
  return config;
}

std::vector<int64_t> labels_of(const Batch& batch) {
  std::vector<int64_t> labels;
  for (const Condition& condition : batch.conditions) labels.push_back(condition.label);
  return labels;
}

bool same(const Batch& a, const Batch& b) {
  return a.step == b.step && a.images == b.images && labels_of(a) == labels_of(b);
}

std::vector<Batch> batches_of(const Dataset& data, const LoaderConfig& config, int64_t count) {
  Loader loader(data, EpochSampler(data.size(), kSeed), config);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

}  // namespace

TEST_CASE("batches hold the samples and flips that their positions say") {
  const Numbered data(10);
  const EpochSampler sampler(10, kSeed);
  const auto batches = batches_of(data, config_of(4, 1, 3), 8);  // epochs end inside batches
  int64_t mirrored = 0;
  for (int64_t s = 0; s < 8; ++s) {
    REQUIRE(batches[size_t(s)].step == s);
    REQUIRE(batches[size_t(s)].conditions.size() == 3);
    REQUIRE(batches[size_t(s)].images.size() == 6);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t g = 1 + i, index = sampler.index_at(s * 4 + g);
      const bool flip = RandomKey(kSeed, Stream::kFlip, uint64_t(s), uint64_t(g)).bits(0) & 1u;
      CHECK(batches[size_t(s)].conditions[size_t(i)].label == index);
      CHECK(batches[size_t(s)].images[size_t(2 * i)] == float(index));
      CHECK(batches[size_t(s)].images[size_t(2 * i + 1)] == float(flip));
      mirrored += flip;
    }
  }
  CHECK(mirrored > 4);
  CHECK(mirrored < 20);
}

TEST_CASE("without random_flip nothing is mirrored") {
  const Numbered data(10);
  LoaderConfig config = config_of(8, 0, 8);
  config.random_flip = false;
  for (const Batch& batch : batches_of(data, config, 4))
    for (size_t i = 0; i < 8; ++i) CHECK(batch.images[2 * i + 1] == 0.0f);
}

TEST_CASE("1, 2 and 4 ranks see the same global batches") {
  const Numbered data(37);
  const auto whole = batches_of(data, config_of(8, 0, 8), 10);
  for (int64_t ranks : {2, 4}) {
    std::vector<std::vector<Batch>> parts;
    for (int64_t r = 0; r < ranks; ++r) parts.push_back(batches_of(data, config_of(8, r * 8 / ranks, 8 / ranks), 10));
    for (size_t s = 0; s < 10; ++s) {
      Batch joined{whole[s].step, {}, {}};
      for (const auto& part : parts) {
        joined.images.insert(joined.images.end(), part[s].images.begin(), part[s].images.end());
        joined.conditions.insert(joined.conditions.end(), part[s].conditions.begin(), part[s].conditions.end());
      }
      CHECK(same(joined, whole[s]));
    }
  }
}

TEST_CASE("threads and queue length do not change a batch") {
  const auto data = open_dataset({}, {3, 8, 8}, 8, 1);
  const auto one = batches_of(*data, config_of(5, 0, 5), 12);
  for (int64_t threads : {2, 7})
    for (int64_t queue : {1, 3}) {
      LoaderConfig config = config_of(5, 0, 5);
      config.threads = threads, config.queue_batches = queue;
      const auto many = batches_of(*data, config, 12);
      for (size_t s = 0; s < 12; ++s) CHECK(same(one[s], many[s]));
    }
}

TEST_CASE("a loader resumed at a step goes on as if it had not stopped") {
  const Numbered data(23);
  const auto whole = batches_of(data, config_of(6, 0, 6), 20);
  for (int64_t k : {1, 7, 13}) {
    LoaderConfig config = config_of(6, 0, 6);
    config.first_step = k, config.threads = 2;
    const auto rest = batches_of(data, config, 20 - k);
    for (size_t s = 0; s < rest.size(); ++s) CHECK(same(rest[s], whole[s + size_t(k)]));
  }
}

TEST_CASE("an epoch through the loader shows every sample once") {
  const Numbered data(24);
  std::vector<int> seen(24, 0);
  for (const Batch& batch : batches_of(data, config_of(8, 0, 8), 3))
    for (int64_t label : labels_of(batch)) ++seen[size_t(label)];
  CHECK(seen == std::vector<int>(24, 1));
}

TEST_CASE("a bad sample is rethrown by next() at its own step, and stays") {
  Numbered data(100);
  const EpochSampler sampler(100, kSeed);
  data.broken = {sampler.index_at(2 * 4 + 1), sampler.index_at(2 * 4 + 3)};
  LoaderConfig config = config_of(4, 0, 4);
  config.threads = 3;
  Loader loader(data, sampler, config);
  CHECK(loader.next().step == 0);
  CHECK(loader.next().step == 1);
  const std::string first = "sample " + std::to_string(sampler.index_at(2 * 4 + 1));  // of several, the first
  CHECK_THROWS_AS(loader.next(), InputError);
  CHECK_THROWS_WITH(loader.next(), Contains(first));
}

TEST_CASE("the queue is bounded, and a loader whose queue is full goes at once") {
  Numbered data(1000);
  LoaderConfig config = config_of(4, 0, 4);
  config.queue_batches = 3, config.threads = 2;
  double stop_s = 0;
  {
    Loader loader(data, EpochSampler(1000, kSeed), config);
    loader.next();
    while (data.reads < 16) std::this_thread::yield();
    CHECK(others_sleep());    // both threads wait for room
    CHECK(data.reads == 16);  // one batch taken, three ready
    stop_s = -now_s();
  }
  CHECK(stop_s + now_s() < 5);
}

TEST_CASE("a loader goes while its threads are in the middle of a batch") {
  Numbered data(1000);
  data.gate = false;
  LoaderConfig config = config_of(512, 0, 512);
  config.threads = 2;
  std::thread opener;
  {
    const Loader loader(data, EpochSampler(1000, kSeed), config);
    while (data.reads < 2) std::this_thread::yield();
    opener = std::thread([&data] {
      others_sleep();  // this thread, which ends the loader, too
      data.gate = true, data.gate.notify_all();
    });
  }
  opener.join();
  CHECK(data.reads == 2);  // the rest of the batch is not read
}

TEST_CASE("time blocked in next() is counted") {
  Numbered data(10);
  data.gate = false;
  Loader loader(data, EpochSampler(10, kSeed), config_of(2, 0, 2));
  std::atomic<bool> asks = false, all_sleep = false;
  double blocked_s = 0;
  std::thread opener([&] {
    asks.wait(false);
    all_sleep = others_sleep();  // the loader's thread before the gate, this one in next()
    const double from = now_s();
    while (now_s() - from < 1e-3) others_sleep();  // and they stay there
    blocked_s = now_s() - from;
    data.gate = true, data.gate.notify_all();
  });
  const double start = now_s();
  asks = true, asks.notify_all();
  loader.next();
  const double most = now_s() - start;
  opener.join();
  CHECK(all_sleep);
  CHECK(loader.wait_s() >= blocked_s);
  CHECK(loader.wait_s() <= most);
}

TEST_CASE("each thread calls on_thread_start first, and what it throws reaches next()") {
  const Numbered data(10);
  std::atomic<int64_t> mask{0};
  LoaderConfig config = config_of(2, 0, 2);
  config.threads = 3;
  config.on_thread_start = [&mask](int64_t thread) { mask |= int64_t{1} << thread; };
  const auto plain = batches_of(data, config_of(2, 0, 2), 3), hooked = batches_of(data, config, 3);
  for (size_t s = 0; s < 3; ++s) CHECK(same(plain[s], hooked[s]));
  CHECK(mask == 7);

  config.on_thread_start = [](int64_t) { throw RunError({.where = "pin", .what = "no such core"}); };
  Loader loader(data, EpochSampler(10, kSeed), config);
  CHECK_THROWS_WITH(loader.next(), Contains("no such core"));
}

TEST_CASE("a loader skips bad files by policy whatever the number of threads") {
  const ScratchFolder dir;
  for (int i = 0; i < 6; ++i) dir.write_grey(std::to_string(i) + ".png", uint8_t(i));
  dir.write("3.png", "broken");
  Config folder;
  folder.kind = dataset::find_kind("folder"), folder.path = dir.path(), folder.on_bad_file = dataset::OnBadFile::kSkip;
  LoaderConfig config = config_of(3, 0, 3);
  const auto data = open_dataset(folder, {3, 4, 4}, 0, 1);
  const auto one = batches_of(*data, config, 4);
  config.threads = 4;
  const auto fresh = open_dataset(folder, {3, 4, 4}, 0, 1);
  const auto four = batches_of(*fresh, config, 4);
  for (size_t s = 0; s < 4; ++s) CHECK(same(one[s], four[s]));
  CHECK(data->bad_files() == 1);
  CHECK(fresh->bad_files() == 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space of their own
TEST_CASE("threads that cannot be started end the ones that run") {
  const Numbered data(1000);
  LoaderConfig config = config_of(4, 0, 4);
  config.threads = 1024;  // whose stacks have no room
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_AS, &old) == 0);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * rlim_t(::sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20), old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  std::string message;
  try {
    const Loader loader(data, EpochSampler(1000, kSeed), config);
  } catch (const RunError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_AS, &old);
  CHECK_THAT(message, Contains("cannot start a loader thread") && Contains("data.loader_threads 1024"));
}
#endif

TEST_CASE("impossible loader settings are refused") {
  const Numbered data(10);
  const EpochSampler sampler(10, kSeed);
  LoaderConfig config = config_of(4, 0, 4);
  config.threads = 0;
  CHECK_THROWS_WITH(Loader(data, sampler, config), Contains("data.loader_threads") && Contains("got 0"));
  config.threads = 1, config.queue_batches = 5000;
  CHECK_THROWS_WITH(Loader(data, sampler, config), Contains("data.queue_batches"));
  CHECK_THROWS_AS(Loader(data, sampler, config_of(4, 2, 3)), LogicFault);
  CHECK_THROWS_AS(Loader(data, EpochSampler(11, kSeed), config_of(4, 0, 4)), LogicFault);
}
