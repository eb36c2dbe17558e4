#include "ditrain/bench/harness.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <limits>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/platform/signals.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

namespace {

double clock_s = 0;  // goes on only as the works of a test say

/// The shortest run, timed by that clock.
Effort counted() {
  Effort effort = Effort::quick();
  effort.clock = [] { return clock_s; };
  return effort;
}
void take_ms(double ms) { clock_s += 1e-3 * ms; }

Work taking(double ours_ms, double limit_ms) {
  return {.name = "work", .call = [=] { take_ms(ours_ms); }, .bytes = 1e6, .limit = [=] { take_ms(limit_ms); }};
}

}  // namespace

TEST_CASE("a row has its times, its share and its peers") {
  Harness harness(1, counted());
  Work work = taking(20, 10);
  work.rivals = {{"slow", [] { take_ms(60); }}};
  work.details = {{"m", int64_t{3}}, {"trans", std::string("NT")}};
  const Row row = harness.measure(work);
  CHECK(row.name == "work");
  CHECK(row.time.median_s == Approx(0.02));
  CHECK(row.time.repeats == 1);
  CHECK(row.gb_s == Approx(1e-3 / 0.02));
  CHECK(row.share == Approx(0.5));
  REQUIRE(row.peers.size() == 1);
  CHECK(row.peers[0].first == "slow");
  CHECK(row.peers[0].second == Approx(3));  // we are three times as fast
}

TEST_CASE("a signal ends a measurement between two calls, and the next one goes on") {
  Harness harness(1, counted());
  platform::install_signal_flags();
  int calls = 0;
  Work work = taking(20, 10);
  work.call = [&] {
    take_ms(20);
    if (++calls == 1) std::raise(SIGTERM);
  };
  CHECK_THROWS_WITH(harness.measure(work), Contains("stopped by a signal"));
  CHECK(calls < 3);  // of the first that warms up
  CHECK(harness.measure(work).time.repeats == 1);
  platform::remove_signal_flags();
}

TEST_CASE("the team is cut into as many clusters as asked for") {
  const auto clusters = [](int64_t threads, int64_t clusters) {
    return Harness(threads, Effort::quick(), clusters).placement().team().num_clusters;
  };
  CHECK((clusters(2, 1) == 1 && clusters(2, 2) == 2));
  CHECK_THROWS_AS(clusters(2, 3), ditrain::InputError);
}

TEST_CASE("an array that no cache holds is larger than all last caches together") {
  constexpr size_t kMiB = 1 << 20, kNode = size_t{384} << 30;
  platform::Topology t;
  CHECK(bytes_beyond_caches(t, kNode) == 64 * kMiB);
  t.l3_bytes = 32 * kMiB, t.l3_caches = 1;
  CHECK(bytes_beyond_caches(t, kNode) == 256 * kMiB);
  t.l3_caches = 12;  // Zen 4, one socket
  CHECK(bytes_beyond_caches(t, kNode) == 4 * 12 * 32 * kMiB);
  CHECK(bytes_beyond_caches(t, 4096 * kMiB) == 256 * kMiB);  // of memory for a few of them
}

TEST_CASE("every repeat calls all contenders in turn") {
  Effort effort = Effort::quick();
  effort.repeats = 3;
  Harness harness(1, effort);
  std::string order;
  Work work{.name = "order", .call = [&] { order += 'a'; }, .flop = 1};
  work.rivals = {{"b", [&] { order += 'b'; }}, {"c", [&] { order += 'c'; }}};
  harness.measure(work);
  // Warm-up, then each once untimed and once timed.
  CHECK(order.ends_with("aabbccaabbccaabbcc"));
}

TEST_CASE("a row in a noisy neighbourhood is measured again, but not for ever") {
  Effort effort = counted();
  effort.repeats = 2;
  effort.max_attempts = 4;
  Harness harness(1, effort);
  int calls = 0;
  Work work = taking(1, 1);
  // The loop of the first repeat takes 1 ms, that of the last 1.1 ms: drift above 3 %.
  work.limit = [&] { take_ms(calls++ % 3 == 2 ? 1.1 : 1); };
  const Row row = harness.measure(work);
  CHECK(row.drift > kMaxDrift);
  CHECK(calls == 3 * effort.max_attempts);  // one to warm up, two repeats
}

TEST_CASE("a share above what the machine can do is an error, not a result") {
  Effort effort = counted();
  effort.max_share = 1.02;
  Harness harness(1, effort);
  harness.add(harness.measure(taking(100, 101)));
  CHECK_NOTHROW(harness.check_shares());
  harness.add(harness.measure(taking(100, 103)));
  CHECK_THROWS_AS(harness.check_shares(), RunError);
  CHECK_THROWS_AS(harness.measure({.name = "no limit", .call = [] {}}), LogicFault);
}

TEST_CASE("work that arithmetic limits is a share of the peak in between") {
  Harness harness(2, counted());
  const Row row = harness.measure({.name = "flop", .call = [] { take_ms(5); }, .flop = 1e6});
  CHECK(row.gflops == Approx(1e-3 / 5e-3));
  CHECK(row.share == Approx(row.gflops / row.limit));
  CHECK(row.limit > 0.1);  // GFLOP/s
  CHECK(harness.report().peak_f32_gflops >= row.limit);
  CHECK(Harness(2, Effort::quick()).report().read_gb_s > 0);
}

TEST_CASE("a row is rated by the highest peak of the run, also by one that comes after it") {
  Harness harness(1, counted());
  Row row = harness.measure({.name = "flop", .call = [] { take_ms(5); }, .flop = 1e6});
  row.details.push_back({"mfu", 0.0});
  const double low = row.limit / 2;  // as if the machine had been busy beside it
  row.lowest_peak = low;
  harness.add(row);
  Row limited = harness.measure(taking(5, 5));
  limited.lowest_peak = low;
  harness.add(limited);
  // So short peaks scatter: one of these is nearly always higher than those before.
  for (int i = 0; i < 20; ++i) harness.measure({.name = "other", .call = [] { take_ms(1); }, .flop = 1});
  const Report& report = harness.report();
  CHECK(report.rows[0].limit == report.peak_f32_gflops);
  CHECK(report.rows[0].share == Approx(row.gflops / report.peak_f32_gflops));
  CHECK(std::get<double>(report.rows[0].details.back().value) == report.rows[0].share);
  CHECK(report.rows[0].drift == Approx(1 - low / report.peak_f32_gflops));
  CHECK(report.rows[1].limit == limited.limit);
  CHECK(report.rows[1].drift == report.rows[0].drift);
}

TEST_CASE("a peak that a row exceeds is measured again after a rest, but not for ever") {
  Effort effort = Effort::quick();
  effort.max_attempts = 3;
  effort.max_share = 1.02;
  effort.settle_s = 0.02;  // a tenth of the rest
  Harness harness(1, effort);
  const double start = now_s();
  const Row row = harness.measure({.name = "flop", .call = [] {}, .flop = 1e15, .once = true});
  CHECK(now_s() - start >= 2 * 10 * effort.settle_s);
  CHECK(row.share > effort.max_share);
  CHECK(row.limit == harness.report().peak_f32_gflops);
}

TEST_CASE("the stream loop of the harness covers arrays of any length") {
  Harness harness(2, Effort::quick());
  for (const int64_t n : {1, 1024, 5000}) {
    std::vector<float> x(size_t(n), 1.0f), y(size_t(n), 3.0f), z(size_t(n), 0.0f);
    harness.stream({1, 1, 1}, {x.data(), z.data(), y.data()}, n);
    CHECK(x == std::vector<float>(size_t(n), 1.0f));
    CHECK(z == std::vector<float>(size_t(n), 1.0f));
    CHECK(y == std::vector<float>(size_t(n), 2.0f));
  }
}

TEST_CASE("a report is JSON of the contract and a table") {
  Report report{.threads = 2, .peak_f32_gflops = 200, .peak_bf16_gflops = 400, .read_gb_s = 30};
  report.rows.push_back({.name = "S up forward",
                         .dtype = "f32",
                         .time = {2e-3, 1e-3, 3e-3, 5},
                         .gflops = 180,
                         .limit = 200,
                         .share = 0.9,
                         .drift = 0.01,
                         .details = {{"m", int64_t{4096}}, {"trans", std::string("NT")}, {"hidden", 0.5, false}},
                         .peers = {{"onednn", 1.05}}});
  report.rows.push_back({.name = "gelu", .time = {1e-2, 1e-2, 1e-2, 5}, .gb_s = 20, .limit = 21, .drift = 0.2});
  report.rows.back().share = std::numeric_limits<double>::quiet_NaN();
  report.notes = {"geometric mean 0.9"};

  const auto j = files::parse_json(to_json(report));
  for (const char* key : {"host", "commit", "isa"}) CHECK(j.at(key).is_string());
  CHECK(j.at("threads") == 2);
  CHECK(j.at("page_bytes").get<int64_t>() >= 4096);
  CHECK(j.at("huge_pages").is_string());
  CHECK(j.at("peak").at("f32_gflops") == 200);
  CHECK(j.at("peak").at("bf16_gflops") == 400);
  CHECK(j.at("peak").at("read_gb_s") == 30);
  CHECK(j.at("notes") == nlohmann::json::array({"geometric mean 0.9"}));
  const auto& first = j.at("rows").at(0);
  CHECK(first.at("name") == "S up forward");
  CHECK(first.at("dtype") == "f32");
  CHECK(first.at("median_s") == 2e-3);
  CHECK(first.at("gflops") == 180);
  CHECK(first.at("share") == 0.9);
  CHECK(first.at("m") == 4096);
  CHECK(first.at("trans") == "NT");
  CHECK(first.at("hidden") == 0.5);
  CHECK(first.at("peers").at("onednn") == 1.05);
  CHECK_FALSE(first.contains("gb_s"));
  const auto& second = j.at("rows").at(1);
  CHECK(second.at("gb_s") == 20);
  CHECK(second.at("share").is_null());
  CHECK_FALSE(second.contains("gflops"));

  const std::string text = describe(report);
  for (const char* part : {"S up forward", "2.000 ms", "90.0 %", "1.050", "4096", "20.0 %", "geometric mean"})
    CHECK_THAT(text, Contains(part));
  CHECK_THAT(text, !Contains("hidden"));
}

TEST_CASE("geometric mean") {
  CHECK(geometric_mean({}) == 0);
  CHECK(geometric_mean({2, 8}) == Approx(4));
}

TEST_CASE("work that is too slow to repeat is called once") {
  Effort effort = counted();
  effort.repeats = 3;
  effort.max_attempts = 4;
  Harness harness(1, effort);
  int calls = 0;
  const Row row = harness.measure({.name = "slow", .call = [&] { ++calls, take_ms(5); }, .flop = 1, .once = true});
  CHECK(calls == 1);
  CHECK(row.time.repeats == 1);
  CHECK(row.time.median_s == Approx(0.005));
}
