// Pages of whole, hostile, broken and long runs.
#include <catch2/catch.hpp>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "run_folder.hpp"

using namespace ditrain;
using namespace ditrain::report;

namespace {

images::ImageU8 noise(int64_t side) {
  images::ImageU8 image{side, side, 3, {}};
  for (uint32_t i = 0, x = 1; i < uint32_t(3 * side * side); ++i)
    image.pixels.push_back(uint8_t((x = x * 1664525 + 1013904223) >> 24));
  return image;
}

std::string all_events(const nlohmann::json& run) { return files::json_text(run.at("events")); }

}  // namespace

TEST_CASE("a page shows curves, phases, texts, grids, the best checkpoint and what happened") {
  const TemporaryFolder scratch;
  const std::string run = scratch / "a";
  write(run + "/metrics.jsonl", metrics_line(1, 2) + metrics_line(2, 1, R"(,"fid_pixels":3.5)") +
                                    metrics_line(3, 4, R"(,"non_finite":"blocks.0")"));
  write(run + "/config.yaml", "train:\n  steps: 3\n");
  write(run + "/topology.txt", "two cores\n");
  write(run + "/log.txt",
        "2026-11-25 12:00:00.000 I ditrain 0.1.0: new run -> a\n2026-11-25 12:00:01.000 I step 1\n"
        "2026-11-25 12:00:02.000 W the disk is full\n");
  std::filesystem::create_directories(run + "/checkpoints");
  std::filesystem::create_symlink("step_00000002", run + "/checkpoints/best");
  std::filesystem::create_directories(run + "/samples");
  images::write_png(run + "/samples/step_00000002.png", noise(16));
  const nlohmann::json data = report_of(run);
  CHECK(data.at("name") == "a");
  const nlohmann::json& series = data.at("curves").at("series");
  CHECK(series.at("loss").at("mean") == nlohmann::json({2, 1, 4}));
  CHECK(series.at("fid_pixels") == nlohmann::json({{"at", {2}}, {"mean", {3.5}}}));
  CHECK(data.at("seconds").at("backward") == 1.5);
  CHECK(data.at("best") == 2);
  CHECK(data.at("grids").size() == 1);
  CHECK(data.at("grids").at(0).at(1).get<std::string>().starts_with("/9j/"));  // a JPEG in base64
  CHECK(data.at("config") == "train:\n  steps: 3\n");
  CHECK(data.at("topology") == "two cores\n");
  CHECK(data.at("status").is_null());
  CHECK(all_events(data).find("the disk is full") != std::string::npos);
  CHECK(all_events(data).find("blocks.0 is not finite") != std::string::npos);
  CHECK(all_events(data).find("\"step 1\"") == std::string::npos);
}

TEST_CASE("names and texts that are markup stay text") {
  const TemporaryFolder scratch;
  const std::string evil = "</script><img src=x onerror=alert(1)><!--";
  const std::string run = scratch / ("r" + evil);  // two folders, as it holds a slash
  write(run + "/metrics.jsonl", metrics_line(1, 2, R"(,"non_finite":")" + evil + R"(",")" + evil + R"(":1)"));
  write(run + "/log.txt", "2026-11-25 12:00:00.000 W " + evil + "\xff\xfe\n");
  write(run + "/config.yaml", evil + " {{DATA}}");
  write(run + "/status.json", R"({"state":"failed","reason":")" + evil + R"(","heartbeat":1})");
  const nlohmann::json data = report_of(run);
  const std::string page = read(run + "/report.html");
  CHECK(page.find("<img") == std::string::npos);
  CHECK(page.find("<!--") == std::string::npos);
  CHECK(data.at("folder") == run);
  CHECK(data.at("status").at("reason") == evil);
  CHECK(data.at("config") == evil + " {{DATA}}");
  CHECK(data.at("curves").at("series").contains(evil));
}

TEST_CASE("of half-written and damaged files the page shows what is there") {
  const TemporaryFolder scratch;
  const std::string run = scratch / "a";
  write(run + "/metrics.jsonl",
        metrics_line(1, 2) +
            "{\"step\":\n\n[1]\n{\"step\":\"x\"}\n{\"step\":2,\"loss\":null,\"seconds\":7}\n{\"step\":3,\"lo");
  write(run + "/status.json", "{\"state\":\"runn");
  write(run + "/samples/step_00000001.png", "\x89PNG no picture");
  write(run + "/samples/step_x.png", "");
  std::filesystem::create_directories(run + "/config.yaml");  // a folder of that name
  const nlohmann::json data = report_of(run);
  CHECK(data.at("curves").at("series").at("loss").at("mean") == nlohmann::json({2}));
  CHECK(data.at("last_step") == 2);
  CHECK(data.at("status").is_null());
  CHECK(data.at("grids").empty());
  CHECK(all_events(data).find("4 damaged line(s)") != std::string::npos);
  CHECK(all_events(data).find("half a line") != std::string::npos);
  CHECK(all_events(data).find("sample grid cannot be shown") != std::string::npos);
}

TEST_CASE("a folder without any file of a run is refused") {
  const TemporaryFolder scratch;
  CHECK_THROWS_WITH(write_report({scratch.path()}, scratch / "report.html"), Catch::Contains("holds no run"));
  CHECK_THROWS_AS(write_report({scratch / "missing"}, scratch / "report.html"), InputError);
}

TEST_CASE("several runs are on one page") {
  const TemporaryFolder scratch;
  write(scratch / "a/metrics.jsonl", metrics_line(1, 2));
  write(scratch / "b/metrics.jsonl", metrics_line(1, 3));
  write_report({scratch / "a", scratch / "b"}, scratch / "both.html");
  const nlohmann::json runs = data_of(read(scratch / "both.html")).at("runs");
  REQUIRE(runs.size() == 2);
  CHECK(runs[1].at("curves").at("series").at("loss").at("mean") == nlohmann::json({3}));
}

TEST_CASE("the page of 100,000 steps and many grids is small") {
  const TemporaryFolder scratch;
  const std::string run = scratch / "a";
  std::string lines;
  for (int64_t step = 1; step <= 100000; ++step)
    lines += metrics_line(step, 1 + 1.0 / double(step) + double(step % 97) / 97);
  write(run + "/metrics.jsonl", lines);
  std::filesystem::create_directories(run + "/samples");
  images::write_png(run + "/samples/step_00001000.png", noise(300));
  for (int64_t step = 2000; step <= 100000; step += 1000)
    std::filesystem::copy_file(run + "/samples/step_00001000.png", fmt::format("{}/samples/step_{:08}.png", run, step));
  const double start_s = now_s();
  const nlohmann::json data = report_of(run);
  const auto bytes = std::filesystem::file_size(run + "/report.html");
  WARN("100,000 steps: " << now_s() - start_s << " s, " << bytes << " bytes");
  CHECK(bytes <= 3 << 20);
  CHECK(data.at("grids").size() == 32);
  CHECK(data.at("grids").front().at(0) == 1000);
  CHECK(data.at("grids").back().at(0) == 100000);
  for (const auto& grid : data.at("grids")) CHECK(grid.at(1).get<std::string>().size() <= (60 << 10) * 4 / 3);
  const nlohmann::json& loss = data.at("curves").at("series").at("loss");
  CHECK(loss.at("mean").size() <= 2000);
  CHECK(loss.at("mean").size() >= 1000);
  CHECK(loss.at("high").at(0) == 2.0103);  // of step 1
}
