#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/report/run_files.hpp"
#include "run_folder.hpp"

using namespace ditrain;
using namespace ditrain::report;

TEST_CASE("curves keep minimum, maximum and sum of every interval, however long they are") {
  Curves curves;
  const int64_t steps = 12345, peak = 7001;
  for (int64_t step = 10; step < 10 + steps; ++step) curves.add(step, "a", step == peak ? 1e6 : double(step % 5));
  curves.add(9, "a", -7);  // before the first step
  curves.add(5000, "a", NAN);
  curves.add(5000, "b", -3);
  const auto& a = curves.of("a");
  REQUIRE(int64_t(a.size()) <= Curves::kMaxIntervals);
  CHECK(curves.width() == 8);
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool holds_peak = (peak - 10) / 8 == int64_t(i);
    count += a[i].count;
    CHECK(a[i].high == (holds_peak ? 1e6 : a[i].count < 5 ? a[i].high : 4));
    CHECK(a[i].low == (a[i].count < 5 ? a[i].low : 0));
  }
  CHECK(count == steps);
  CHECK(curves.sum("b") == -3);
  CHECK(curves.to_json([](const std::string&) { return false; }).at("series").at("b").at("at") == nlohmann::json{5000});
  CHECK(curves.of("c").empty());
}

TEST_CASE("names of curves and steps are bounded") {
  Curves curves;
  for (int i = 0; i < 1000; ++i) curves.add(1, std::to_string(i), 1);
  CHECK(curves.all().size() == Curves::kMaxCurves);
  curves.add(INT64_MAX, "0", 1);
  curves.add(int64_t{1} << 50, "0", 2);
  CHECK(int64_t(curves.of("0").size()) <= Curves::kMaxIntervals);
  CHECK(curves.sum("0") == 3);
}

TEST_CASE("grids are spaced in the logarithm of steps") {
  std::vector<int64_t> steps;
  for (int64_t step = 100; step <= 100000; step += 100) steps.push_back(step);
  const std::set<int64_t> chosen = spaced_in_log(steps, 32);
  REQUIRE(chosen.size() == 32);
  CHECK(*chosen.begin() == 100);
  CHECK(*chosen.rbegin() == 100000);
  CHECK(std::distance(chosen.begin(), chosen.upper_bound(3200)) >= 14);  // half of the logarithm
  CHECK(spaced_in_log({5, 6}, 32) == std::set<int64_t>{5, 6});
  CHECK(spaced_in_log({1, 2, 1000}, 2) == std::set<int64_t>{1, 1000});
}

TEST_CASE("a file that grows is read on, and from its beginning when it has become shorter") {
  const TemporaryFolder scratch;
  const std::string path = scratch / "lines";
  std::vector<std::string> lines;
  GrowingFile file(path);
  const auto read_on = [&](size_t most = SIZE_MAX) {
    lines.clear();
    return file.read_on(most, [&](std::string_view line) { lines.emplace_back(line); });
  };
  CHECK_FALSE(read_on());
  write(path, "one\ntwo\nthr");
  CHECK(read_on());
  CHECK(lines == std::vector<std::string>{"one", "two"});
  write(path, "ee\nfour\n");
  CHECK(read_on(6));  // room for "three"
  CHECK(lines == std::vector<std::string>{"three"});
  CHECK_FALSE(read_on());
  CHECK(lines == std::vector<std::string>{"four"});
  std::filesystem::resize_file(path, 4);
  CHECK_FALSE(read_on());
  CHECK(lines == std::vector<std::string>{"one"});
  write(path, "five\nsix\n");
  CHECK(read_on(7));  // room for "five" and a part of "six", which stays whole for the next call
  CHECK(lines == std::vector<std::string>{"five"});
  CHECK_FALSE(read_on());
  CHECK(lines == std::vector<std::string>{"six"});
}
