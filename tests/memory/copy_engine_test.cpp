// Slow tiers and the copies between them and fast memory.
#include "ditrain/memory/copy_engine.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/platform/pages.hpp"

using namespace ditrain;
using namespace ditrain::memory;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

platform::PageBlock numbers(size_t bytes, unsigned seed) {
  platform::PageBlock block(bytes, platform::PagePolicy::kPlain);
  for (size_t i = 0; i < bytes; ++i) block.data()[i] = std::byte((i * 2654435761u + seed) >> 13);
  return block;
}

std::string copy_now(CopyEngine& engine, Copy copy) {
  std::promise<std::string> done;
  copy.done = [&](const std::string& problem) { done.set_value(problem); };
  engine.submit(copy);
  return done.get_future().get();
}

// What was written comes back, at its place and nowhere else.
void check_round_trip(Backing& backing, size_t bytes) {
  CopyEngine engine({});
  const auto a = numbers(bytes, 1), b = numbers(kBlock, 2);
  platform::PageBlock back(bytes, platform::PagePolicy::kPlain);
  const auto copy = [&](Direction direction, size_t offset, std::byte* fast, size_t n) {
    return copy_now(engine, {.direction = direction, .backing = &backing, .offset = offset, .fast = fast, .bytes = n});
  };
  CHECK(copy(Direction::kOut, kBlock, a.data(), bytes).empty());
  CHECK(copy(Direction::kOut, 0, b.data(), kBlock).empty());
  CHECK(copy(Direction::kIn, kBlock, back.data(), bytes).empty());
  CHECK(std::memcmp(back.data(), a.data(), bytes) == 0);
  CHECK(copy(Direction::kIn, 0, back.data(), kBlock).empty());
  CHECK(std::memcmp(back.data(), b.data(), kBlock) == 0);
  CHECK(engine.totals()[size_t(Direction::kOut)].bytes == double(bytes + kBlock));
  CHECK(engine.totals()[size_t(Direction::kIn)].copies == 2);
}

// A tier that waits for a word before each read, and refuses some.
struct Gate final : Backing {
  std::string name() const override { return "gate"; }
  size_t bytes() const override { return kMiB; }
  void read(size_t offset, std::byte*, size_t) override {
    if (offset == 7 * kBlock) throw RunError({.where = "gate", .what = "broken"});
    begun.set_value();
    opened.get_future().get();
  }
  void write(size_t, const std::byte*, size_t) override {}
  std::promise<void> begun, opened;
};

}  // namespace

TEST_CASE("bulk memory and disk give back what they got") {
  const TemporaryFolder folder;
  const size_t bytes = 11 * kMiB + 3 * kBlock;  // more than a chunk, and not a multiple of one
  check_round_trip(*make_bulk_memory({.bytes = bytes + kBlock}), bytes);
  check_round_trip(*make_disk({.bytes = bytes + kBlock, .folder = folder.path()}), bytes);
  setenv("DITRAIN_NO_IO_URING", "1", 1);
  {
    const auto disk = make_disk({.bytes = bytes + kBlock, .folder = folder.path()});
    CHECK_THAT(disk->notes().back(), Catch::Contains("io_uring: refused"));
    check_round_trip(*disk, bytes);
  }
  unsetenv("DITRAIN_NO_IO_URING");
}

TEST_CASE("the file of the disk tier has no name, so that nothing of it can be left behind") {
  const TemporaryFolder folder;
  const auto disk = make_disk({.bytes = kMiB, .folder = folder.path()});
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(disk->in_place(0) == nullptr);
}

TEST_CASE("a disk tier that cannot be had says what would help") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(make_disk({.bytes = kMiB, .folder = folder.path() + "/none"}),
                    Catch::Contains("No such file") && Catch::Contains("memory.disk_path"));
  std::ofstream(folder / "file") << "no folder";
  CHECK_THROWS_WITH(make_disk({.bytes = kMiB, .folder = folder / "file"}), Catch::Contains("Not a directory"));
  CHECK_THROWS_AS(make_disk({.bytes = size_t{1} << 60, .folder = folder.path()}), InputError);
  CHECK_THROWS_WITH(make_disk({.bytes = size_t{1} << 60, .folder = folder.path()}),
                    Catch::Contains("GiB free") && Catch::Contains("memory.bulk_gib"));
}

TEST_CASE("a copy stream that cannot be bound says what would mend it, and copies") {
  constexpr int kNoSuchCore = 60000;
  CopyEngine engine({.pus = {kNoSuchCore}});
  REQUIRE(engine.notes().size() == kDirections);
  for (const std::string& note : engine.notes())
    CHECK_THAT(note, Catch::StartsWith("a copy stream is not bound: sched_setaffinity: ") && Catch::Contains("cpuset"));
  const auto bulk = make_bulk_memory({.bytes = kMiB});
  const auto data = numbers(kMiB, 1);
  CHECK(copy_now(engine, {.direction = Direction::kOut, .backing = bulk.get(), .fast = data.data(), .bytes = kMiB})
            .empty());
  CHECK(std::memcmp(bulk->in_place(0), data.data(), kMiB) == 0);
}

TEST_CASE("an urgent copy goes before those that wait, and an error reaches its own copy") {
  Gate gate;
  CopyEngine engine({});
  std::promise<void> all;
  std::vector<std::string> order;
  const auto submit = [&](const std::string& name, size_t block, bool urgent) {
    return engine.submit({.direction = Direction::kIn,
                          .backing = &gate,
                          .offset = block * kBlock,
                          .fast = nullptr,
                          .bytes = kBlock,
                          .urgent = urgent,
                          .done = [&, name](const std::string& problem) {
                            order.push_back(name + (problem.empty() ? "" : " failed"));
                            if (name == "last") all.set_value();
                          }});
  };
  submit("first", 0, false);
  gate.begun.get_future().get();
  submit("broken", 7, false);
  const int64_t late = submit("late", 7, false);
  submit("urgent", 7, true);
  submit("last", 7, false);
  engine.make_urgent(late);
  gate.opened.set_value();
  all.get_future().get();
  CHECK(order == std::vector<std::string>{"first", "late failed", "urgent failed", "broken failed", "last failed"});
}

TEST_CASE("what workers copy waits in the queue until they help, slice by slice, urgent copies first") {
  const size_t bytes = 3 * kMiB + kBlock;
  const TemporaryFolder folder;
  const auto bulk = make_bulk_memory({.bytes = 2 * bytes}), disk = make_disk({.bytes = bytes, .folder = folder.path()});
  CopyEngine engine({.by = CopyBy::kWorkers});
  CHECK((engine.needs_help(bulk.get()) && !engine.needs_help(disk.get())));
  const auto a = numbers(bytes, 5), b = numbers(bytes, 6);
  std::vector<std::string> order;
  const auto submit = [&](const std::string& name, size_t offset, std::byte* fast) {
    return engine.submit({.direction = Direction::kOut,
                          .backing = bulk.get(),
                          .offset = offset,
                          .fast = fast,
                          .bytes = bytes,
                          .done = [&order, name](const std::string&) { order.push_back(name); }});
  };
  submit("a", 0, a.data());
  const int64_t urgent = submit("b", bytes, b.data());
  CHECK(copy_now(engine, {.direction = Direction::kOut, .backing = disk.get(), .fast = a.data(), .bytes = bytes})
            .empty());  // by a thread
  CHECK(order.empty());
  engine.make_urgent(urgent);
  int slices = 0;
  while (order.empty()) slices += engine.help();
  CHECK(order == std::vector<std::string>{"b"});
  CHECK(slices > 4);
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i)
    workers.emplace_back([&] {
      while (engine.help()) continue;
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(order == std::vector<std::string>{"b", "a"});
  CHECK(!engine.help());
  CHECK(std::memcmp(bulk->in_place(0), a.data(), bytes) == 0);
  CHECK(std::memcmp(bulk->in_place(bytes), b.data(), bytes) == 0);
  CHECK(engine.totals()[size_t(Direction::kOut)].bytes == 3 * double(bytes));
}

TEST_CASE("a simulated link takes the time of its rate and latency, each direction for itself") {
  const auto bulk = make_bulk_memory({.bytes = 4 * kMiB});
  CopyEngine engine({.simulate = SimulatedBulk{.gb_s = 0.1, .latency_us = 5000}});
  const auto data = numbers(2 * kMiB, 3), other = numbers(2 * kMiB, 4);
  const double start = now_s();
  std::promise<void> out;
  engine.submit({.direction = Direction::kOut,
                 .backing = bulk.get(),
                 .offset = 2 * kMiB,
                 .fast = other.data(),
                 .bytes = 2 * kMiB,
                 .done = [&](const std::string&) { out.set_value(); }});
  CHECK(copy_now(engine, {.backing = bulk.get(), .fast = data.data(), .bytes = 2 * kMiB}).empty());
  out.get_future().get();
  const double least = 2 * kMiB / 0.1e9 + 0.005;
  CHECK(now_s() - start >= least);
  for (const StreamTotals& stream : engine.totals()) CHECK(stream.busy_s >= 0.999 * least);
  const double before = now_s();
  engine.charge_in_place(kMiB);
  CHECK(now_s() - before >= kMiB / 0.1e9);
}

TEST_CASE("a simulated link is that of tiers in memory, not of a disk") {
  const auto backing = make_bulk_memory({.bytes = kMiB});
  CopyEngine engine({.simulate = SimulatedBulk{.gb_s = 1e-5}});  // 100 s for what follows
  const auto data = numbers(kMiB, 3);
  const size_t disk = tier("disk");
  CHECK(copy_now(
            engine,
            {.direction = Direction::kOut, .backing = backing.get(), .tier = disk, .fast = data.data(), .bytes = kMiB})
            .empty());
  CHECK(engine.totals_of(disk)[size_t(Direction::kOut)].bytes == double(kMiB));
  CHECK(engine.totals_of(disk)[size_t(Direction::kOut)].busy_s < 50);
  CHECK(engine.totals_of(tier("bulk"))[size_t(Direction::kOut)].bytes == 0);
}
