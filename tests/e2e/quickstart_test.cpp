// The main job of README, as it is: it learns, its labels matter, and its samples look like their classes.
#include <catch2/catch.hpp>
#include <numeric>

#include "ditrain/files/json.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

double mean(const std::vector<double>& values, size_t first, size_t last) {
  return std::accumulate(values.begin() + int64_t(first), values.begin() + int64_t(last), 0.0) / double(last - first);
}

}  // namespace

TEST_CASE("quickstart: learns, and of its guided samples at least 95 % look like their class", "[long]") {
  const Args model = GENERATE(Args(), sets({"model.kind=uvit", "model.depth=7", "model.patch_overlap=0"}));
  CAPTURE(model);
  const TemporaryFolder scratch;
  const std::string out = scratch / "quickstart";
  const Args job =
      program("ditrain", {"--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml", "--out", out}) + model;
  const Result result = require_ok(mpirun(2, job), {.timeout_s = 850});
  const auto metrics = read_metrics(out);
  REQUIRE(metrics.size() >= 100);
  REQUIRE(steps_are_complete(metrics, int64_t(metrics.size())));

  const std::vector<double> loss = column(metrics, "loss");
  const double first = mean(loss, 0, 10), last = mean(loss, loss.size() - loss.size() / 10, loss.size());
  INFO("mean loss of steps 1 to 10: " << first << ", of the last tenth: " << last);
  CHECK(last < 0.1 * first);

  INFO("last line: " << ditrain::files::json_text(metrics.back()));
  CHECK(metrics.back().at("val_mse").get<double>() < 0.5 * metrics.back().at("val_mse_wrong_label").get<double>());
  CHECK(metrics.back().at("sample_class_accuracy") >= 0.95);
  const std::string picture =
      out + "/samples/" + fs::path(checkpoint_of(out, int64_t(loss.size()))).filename().string() + ".png";
  REQUIRE(fs::is_regular_file(picture));
  CHECK(read_file(picture).starts_with("\x89PNG"));
  WARN("loss " << first << " -> " << last << ", own class " << metrics.back().at("sample_class_accuracy") << ", "
               << result.seconds << " s");
}
