// What a run leaves for those who watch it.
#include <catch2/catch.hpp>

#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

nlohmann::json status_of(const std::string& out) { return read_json(out + "/status.json"); }

}  // namespace

TEST_CASE("report: a run leaves a page, its status, event files and a file for Prometheus") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args settings = sets({"log.tensorboard=true", "log.prometheus=" + scratch / "run.prom", "sample.every_steps=2",
                              "sample.num_images=2", "sample.steps=2"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, settings)), 0);
  CHECK(status_of(out).at("state") == "finished");
  CHECK(status_of(out).at("step") == 4);
  CHECK(read_file(out + "/report.html").find("</html>") != std::string::npos);
  CHECK(read_file(scratch / "run.prom").find("ditrain_steps{") != std::string::npos);
  CHECK(std::distance(fs::directory_iterator(out + "/tensorboard"), fs::directory_iterator()) == 1);
  const std::string both = scratch / "both.html";
  REQUIRE_EXIT(run(program("ditrain", {"report", out, out, "--out", both})), 0);
  CHECK(read_file(both).find("</html>") != std::string::npos);
}

TEST_CASE("report: status says why a run ended, and ditrain report what it was asked for wrongly") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  fs::create_directory(scratch / "latents");
  write_latents(scratch / "latents/a.safetensors", std::vector<int64_t>(8, 0), {3});  // the model overflows on it
  REQUIRE_EXIT(run(tiny_ditrain(out, 4, sets(latents_settings(scratch / "latents")))), 1);
  CHECK(status_of(out).at("state") == "failed");
  CHECK(status_of(out).at("reason").get<std::string>().find("not finite") != std::string::npos);
  REQUIRE_EXIT(run(program("ditrain", {"report", out})), 0);
  require_error(program("ditrain", {"report", scratch.path()}), {"holds no run"});
  require_error(program("ditrain", {"report"}), {"no run folder is given"});
  require_error(tiny_ditrain(scratch / "other", 2, sets({"log.prometheus=" + scratch / "no/folder.prom"})),
                {"folder.prom] cannot write this file; got no folder"});
  CHECK_FALSE(fs::exists(scratch / "other"));
}
