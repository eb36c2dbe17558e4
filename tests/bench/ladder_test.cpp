#include "ditrain/bench/ladder.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/platform/cpu.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;
using Json = nlohmann::json;

namespace {

LadderBench tiny_ladder() {
  return {.models = {"custom"},
          .batch = 1,
          .sets = {"model.hidden_size=32", "model.depth=1", "model.num_heads=2", "model.patch_size=8"}};
}

/// The default tuning file, which the user may have or not, for the time of a test: none at first.
class ScratchTuning {
 public:
  ScratchTuning() : before_(std::getenv("DITRAIN_TUNING") == nullptr ? "" : std::getenv("DITRAIN_TUNING")) {
    setenv("DITRAIN_TUNING", path().c_str(), 1);
  }
  ~ScratchTuning() { before_.empty() ? unsetenv("DITRAIN_TUNING") : setenv("DITRAIN_TUNING", before_.c_str(), 1); }
  void write(const kernels::GemmBlocking& derived) const {
    plan::write_tuning({platform::cpu_model_name(), kernels::chosen_isa(), derived, {28, 256}}, path());
  }

 private:
  std::string path() const { return folder_ / "tuning.json"; }
  TemporaryFolder folder_;
  std::string before_;
};

}  // namespace

TEST_CASE("ladder: every rung is a row, or a note that says why it is left out") {
  const ScratchTuning tuning;
  const bool tuned = GENERATE(false, true);
  Harness harness(1, Effort::quick());
  if (tuned) tuning.write(plan::derived_blocking(harness.placement().topology));
  bench_ladder(harness, tiny_ladder());
  const Json j = files::parse_json<Json>(to_json(harness.report()));
  int left_out = 0;
  for (const std::string& note : harness.report().notes) left_out += note.find(": left out; ") != std::string::npos;
  CHECK(j.at("rows").size() + size_t(left_out) == ladder_rungs().size());
  CHECK(left_out == (tuned ? 0 : 1));  // the keys of all others are there
  const Json& own_row = *std::find_if(j.at("rows").begin(), j.at("rows").end(),
                                      [](const Json& row) { return row.at("name") == "custom own products"; });
  const double baseline_s = own_row.at("median_s");
  std::vector<std::string> own;
  for (const Json& row : j.at("rows")) {
    CAPTURE(files::json_text(row));
    CHECK(row.at("speedup").get<double>() == Approx(baseline_s / row.at("median_s").get<double>()));
    CHECK(row.at("images_per_second").get<double>() > 0);
    if (row.at("products").get<std::string>().starts_with("products: own")) own.push_back(row.at("name"));
  }
  std::vector<std::string> expected = {"custom own products", "custom + fused operators"};
  if (tuned) expected.push_back("custom + tuning");
  CHECK(own == expected);
  const std::vector<std::string>& notes = harness.report().notes;
  const auto of_tuning = [](const std::string& note) {
    return note.starts_with("custom + tuning: left out; ") && note.find("derived from caches") != note.npos;
  };
  CHECK(std::any_of(notes.begin(), notes.end(), of_tuning) == !tuned);
}

TEST_CASE("ladder: keys in which rungs differ are refused") {
  Harness harness(1, Effort::quick());
  for (const Rung& rung : ladder_rungs())
    for (const std::string& set : rung.sets) {
      LadderBench bench = tiny_ladder();
      bench.sets.push_back(set);
      CHECK_THROWS_WITH(bench_ladder(harness, bench), Contains(set.substr(0, set.find('=')) + " is not measured here"));
    }
}

TEST_CASE("ladder: a key that is not there is named") {
  Harness harness(1, Effort::quick());
  LadderBench bench = tiny_ladder();
  bench.sets.push_back("model.depht=3");
  CHECK_THROWS_WITH(bench_ladder(harness, bench), Contains("model.depht"));
}

TEST_CASE("ladder: refused rungs are left out with the reason, and all refused is an error") {
  Harness harness(1, Effort::quick());
  LadderBench bench = tiny_ladder();
  bench.sets.push_back("model.num_heads=3");
  CHECK_THROWS_AS(bench_ladder(harness, bench), InputError);
  CHECK(harness.report().rows.empty());
  CHECK_THAT(harness.report().notes.at(0), Contains("custom reference loops: left out; [model]"));
}

TEST_CASE("ladder: reference loops that would take minutes are left out") {
  Harness harness(1, Effort::quick());
  LadderBench bench = tiny_ladder();
  bench.models = {"XL"};
  bench.sets = {"model.input_size=31"};  // no multiple of the patch: all other rungs are refused before they start
  CHECK_THROWS_AS(bench_ladder(harness, bench), InputError);
  CHECK_THAT(harness.report().notes.at(0), Contains("XL reference loops: left out; a step would take some"));
}
