// The picture of the memory plan: a chart for each tier in use, whose rectangles are as large as what they stand for.
#include "ditrain/plan/memory_picture.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/pattern.hpp"
#include "ditrain/plan/run_plan.hpp"

using namespace ditrain;
using automem::Phase;
using Catch::Contains;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBulk = memory::tier("bulk"), kDisk = memory::tier("disk");

// Two blocks of weights and what they keep: 1 s of forward, 3 s of backward with an update inside, an update of 1 s.
automem::Plan small_plan() {
  automem::Plan plan{.uses = {.tensors = {{"a", 6 * kMiB}, {"b", 4 * kMiB}, {"c", 2 * kMiB}}, .points = {}},
                     .capacity = {.fixed_bytes = 2 * kMiB, .pool_bytes = 8 * kMiB, .tier_bytes = {24 * kMiB, 0}},
                     .backing_slots = {{.tier = kBulk, .in_place = true}, {.tier = kBulk}, {.tier = kBulk}},
                     .machine = {}};
  const auto point = [&](Phase phase, const char* name) { plan.uses.points.push_back({phase, name, {}}); };
  point(Phase::kForward, "blocks.0");
  point(Phase::kBackward, "blocks.1");
  point(Phase::kUpdate, "blocks.1.weight");
  point(Phase::kBackward, "blocks.0");
  point(Phase::kUpdate, "blocks.0.weight");
  plan.tier_bytes[kBulk] = 12 * kMiB;
  plan.forecast = {.step_s = 5, .peak_bytes = 8 * kMiB};
  plan.forecast.occupancy = {{1, 8 * kMiB}, {2, 4 * kMiB}, {3, 6 * kMiB}, {4, 2 * kMiB}, {5, 0}};
  return plan;
}

// Of the chart of a tier, "" if it has none.
std::string chart_of(const std::string& svg, const std::string& tier) {
  const size_t begin = svg.find("<g id=\"" + tier + "\"");
  return begin == std::string::npos ? "" : svg.substr(begin, svg.find("<g id=", begin + 1) - begin);
}

struct Rect {
  double x, y, width, height;
};
std::vector<Rect> rects(const std::string& svg, const std::string& kind) {
  const Pattern pattern("<rect class=\"" + kind + R"p(" x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)")p");
  std::vector<Rect> found;
  Pattern::Match m;
  for (size_t at = 0; (m = pattern.find(svg, at)); at = m.end)
    found.push_back({std::stod(m.groups[1]), std::stod(m.groups[2]), std::stod(m.groups[3]), std::stod(m.groups[4])});
  return found;
}

}  // namespace

TEST_CASE("the fast tier is drawn over time: what never moves, and on it the pool at each point") {
  const automem::Plan plan = small_plan();
  const std::string svg = plan::memory_svg({}, &plan), chart = chart_of(svg, "fast");
  const std::vector<Rect> fixed = rects(chart, "fixed"), pool = rects(chart, "pool");
  REQUIRE(fixed.size() == 1);
  REQUIRE(pool.size() == 5);
  const double height = 5 * fixed[0].height;  // 2 of 10 MiB
  for (size_t p = 0; p < 5; ++p) {
    CAPTURE(p);
    const auto& [end_s, bytes] = plan.forecast.occupancy[p];
    CHECK(pool[p].width == Approx(fixed[0].width / 5));
    CHECK(pool[p].x == Approx(pool[p].width * double(p)).margin(0.01));
    CHECK(pool[p].height == Approx(height * double(bytes) / double(10 * kMiB)).margin(0.01));
    CHECK(pool[p].y + pool[p].height == Approx(fixed[0].y));
  }
  CHECK_THAT(chart, Contains("fast tier of 10.0 MiB: at most 10.0 MiB in use, 2.0 MiB of them gradients") &&
                        Contains("<title>update of blocks.1.weight: 6.0 MiB</title>") && Contains(">GiB</text>"));
}

TEST_CASE("a slow tier that has tensors is drawn as a level, what is used in place apart") {
  automem::Plan plan = small_plan();
  std::string svg = plan::memory_svg({}, &plan), chart = chart_of(svg, "bulk");
  CHECK(chart_of(svg, "disk").empty());
  std::vector<Rect> copied = rects(chart, "copied"), in_place = rects(chart, "in-place");
  REQUIRE((copied.size() == 1 && in_place.size() == 1));
  CHECK(copied[0].height == Approx(in_place[0].height));                      // 6 MiB each
  CHECK(in_place[0].y + in_place[0].height == Approx(4 * copied[0].height));  // the whole height is 24 MiB
  CHECK(copied[0].y + copied[0].height == Approx(in_place[0].y));
  CHECK_THAT(chart, Contains("bulk tier of 24.0 MiB: 12.0 MiB in use, 6.0 MiB of them in place"));

  plan.capacity.tier_bytes = {SIZE_MAX, 8 * kMiB};
  plan.backing_slots[2].tier = kDisk, plan.tier_bytes = {10 * kMiB, 2 * kMiB};
  svg = plan::memory_svg({}, &plan);
  CHECK_THAT(chart_of(svg, "bulk"), Contains("bulk tier, as large as needed (memory.bulk_gib): 10.0 MiB in use, 6.0"));
  CHECK_THAT(chart_of(svg, "disk"), Contains("disk tier of 8.0 MiB: 2.0 MiB in use<"));
  CHECK(rects(chart_of(svg, "disk"), "in-place").empty());
  REQUIRE(rects(chart_of(svg, "disk"), "copied").size() == 1);
}

TEST_CASE("phases have their names, updates between nodes of backward are part of it") {
  const automem::Plan plan = small_plan();
  const std::string svg = plan::memory_svg({}, &plan);
  const std::vector<Rect> phases = rects(svg, "phase");
  REQUIRE(phases.size() == 3);
  CHECK(phases[1].width == Approx(3 * phases[0].width));
  CHECK(phases[2].x + phases[2].width == Approx(phases[0].x + 5 * phases[0].width));
  for (const char* name : {">forward</text>", ">backward and update</text>", ">update</text>", ">5 s</text>"})
    CHECK_THAT(svg, Contains(name));
  CHECK_THAT(plan::memory_svg({}), !Contains("tier"));
}

TEST_CASE("the picture of a planned run ends with its step") {
  const config::Config config = config::parse_config(
      "model: {name: custom, hidden_size: 128, num_heads: 4, depth: 4, input_size: 16, patch_size: 2, num_classes: 8}\n"
      "train: {global_batch: 8}\nmemory: {automem: planned, fast_gib: 0.02}\n",
      "test.yaml");
  const plan::RunPlan run = plan::plan_run(config, 1);
  const automem::Forecast& forecast = run.automem->forecast;
  REQUIRE(forecast.occupancy.size() == run.automem->uses.points.size());
  CHECK(forecast.occupancy.back().end_s == Approx(forecast.step_s));
  double before_s = 0;
  for (const auto& [end_s, bytes] : forecast.occupancy) {
    CHECK(end_s >= before_s);
    CHECK(bytes <= forecast.peak_bytes);
    before_s = end_s;
  }
  const std::vector<Rect> pool = rects(chart_of(plan::memory_svg(run.memory, &*run.automem), "fast"), "pool");
  REQUIRE(pool.size() == forecast.occupancy.size());
  CHECK(pool.back().x + pool.back().width == Approx(720).margin(0.1));
}
