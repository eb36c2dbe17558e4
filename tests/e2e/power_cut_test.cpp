// Power cuts: a run is recorded down to its writes and syncs, the states that the disk may be in are built from that,
// and runs are resumed from them. Once the log says that a checkpoint is written, it lasts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "disk_states.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

constexpr int64_t kSteps = 4;
const std::string kOut = "/new/folder/run";  // on the disk, which has no folder yet

struct Scenario {
  const char* name;
  int ranks;
  Args settings;
  int64_t resumes_from;  // a second run goes on from this step's checkpoint; 0: there is none
};

const Scenario kScenarios[] = {
    {"one rank that keeps one checkpoint", 1, sets({"checkpoint.async=false", "checkpoint.keep_last=1"}), 0},
    {"two ranks with shards, beside training", 2,
     sets({"checkpoint.async=true", "checkpoint.keep_last=1", "dist.shard_optimizer=true"}), 0},
    {"going on from an older checkpoint", 1, sets({"checkpoint.async=true", "checkpoint.keep_last=3"}), 2},
};

Args job(const Scenario& scenario, const std::string& out, int ranks, const Args& more) {
  const Args always = sets({"dist.reproducible=true", "train.micro_batch=2"});
  const Args command = tiny_ditrain(out, kSteps, scenario.settings + always + more);
  return on_ranks(ranks, command);
}

int64_t step_after(const std::string& line, const std::string& words) {
  const size_t at = line.find(words);
  const size_t step = line.find("step_", at);
  return at == line.npos || step == line.npos ? 0 : std::stoll(line.substr(step + 5));
}

using Files = std::map<std::string, std::string>;

// The files of a checkpoint that are there, by name.
Files checkpoint_in(const DiskState& state, int64_t step) {
  Files files;
  for (const char* name : ditrain::files::kCheckpointFiles)
    if (const auto file = state.files.find(checkpoint_of(kOut, step) + "/" + name); file != state.files.end())
      files[name] = file->second;
  return files;
}

// A run below a folder that stands for the disk, recorded, and what it promised.
class Recorded {
 public:
  explicit Recorded(const Scenario& scenario) : scenario_(scenario) {
    fs::create_directory(disk());
    const RunOptions recording{.environment = {preload(DITRAIN_RECORDING_DISK), "DITRAIN_TEST_DISK=" + disk(),
                                               "DITRAIN_TEST_RECORD=" + scratch_ / "record"}};
    const auto record = [&](const Args& more) {
      REQUIRE_EXIT(
          run(job(scenario, disk() + kOut, scenario.ranks, sets({"checkpoint.every_steps=1"}) + more), recording), 0);
    };
    record({});
    if (scenario.resumes_from > 0) record({"--resume", checkpoint_of(disk() + kOut, scenario.resumes_from)});
    record_.emplace(scratch_ / "record", disk());
    for (size_t cut = 1; cut <= record_->size(); ++cut) {
      const std::string& line = record_->line(cut - 1);
      if (const int64_t written = step_after(line, "checkpoint: "); written > 0)
        promises_[cut] = written, written_.emplace(written, checkpoint_in(record_->state(cut, kAll), written));
      if (const int64_t resumed = step_after(line, ": resuming "); resumed > 0) promises_[cut] = resumed;
    }
    REQUIRE(written_.count(kSteps) > 0);
  }

  DiskRecord& record() { return *record_; }
  const DiskRecord& record() const { return *record_; }
  /// The step of the checkpoint that the log has promised last.
  int64_t promised(size_t cut) const {
    const auto later = promises_.upper_bound(cut);
    return later == promises_.begin() ? 0 : std::prev(later)->second;
  }

  /// What does not hold on a disk that has to before anybody goes on from it; empty: nothing.
  std::string problem_of(const DiskState& state, int64_t promised) const {
    int64_t chosen = 0;
    for (const auto& [path, target] : state.links)
      if (path.ends_with("/latest")) chosen = step_after(target, "");
    if (chosen < promised)
      return "latest names step " + std::to_string(chosen) + ", promised was " + std::to_string(promised);
    const auto [first, last] = written_.equal_range(chosen);
    const Files files = checkpoint_in(state, chosen);
    if (chosen > 0 && std::none_of(first, last, [&](const auto& written) { return written.second == files; }))
      return "latest names step " + std::to_string(chosen) + ", which is not what was written";
    const auto config = state.files.find(kOut + "/config.yaml");
    if (promised > 0 && config == state.files.end()) return "no config.yaml";
    if (config != state.files.end() && !config->second.ends_with('\n')) return "half a config.yaml";
    return "";
  }

  /// Goes on from a disk, on one rank: to the same bits as the run that nobody disturbed.
  void expect_resumes(const DiskState& state, int64_t promised) const {
    const TemporaryFolder scratch;
    state.write(scratch / "disk");
    const std::string out = scratch / "disk" + kOut;
    const Result result = require_ok(job(scenario_, out, 1, {"--resume", "auto"}));
    INFO(result.text());
    CHECK(step_after(result.out, ": resuming ") >= promised);
    CHECK(different_files(checkpoint_of(out, kSteps), checkpoint_of(disk() + kOut, kSteps)).empty());
    CHECK(steps_increase(read_metrics(out)));
  }

 private:
  std::string disk() const { return fs::canonical(scratch_.path()).string() + "/disk"; }
  static Fate kAll(size_t) { return Fate::kDone; }

  const Scenario& scenario_;
  const TemporaryFolder scratch_;
  std::optional<DiskRecord> record_;
  std::map<size_t, int64_t> promises_;     // steps, by the operation after which they hold
  std::multimap<int64_t, Files> written_;  // checkpoints that were whole, by step
};

using Visit = std::function<void(const DiskState&, int64_t promised)>;

// Every different state once: at each moment nothing that is pending lasts, or all of it; where a name has just
// changed, one pending name alone, or all but one; at each `random_every`-th moment (0: none) any subset, whose writes
// may be torn. Returns their number. States that differ in metrics.jsonl alone, whose lines are never synced, count as
// one.
size_t visit_states(const Recorded& recorded, size_t random_every, const Visit& visit) {
  const DiskRecord& record = recorded.record();
  std::mt19937 numbers(1);
  std::set<std::pair<uint64_t, int64_t>> seen;
  for (size_t cut = 0; cut <= record.size(); ++cut) {
    const int64_t promised = recorded.promised(cut);
    const auto see = [&](const std::function<Fate(size_t)>& fate) {
      const DiskState state = record.state(cut, fate);
      if (!seen.emplace(state.hash("/metrics.jsonl"), promised).second) return;
      INFO("cut after " << cut << " of " << record.size() << " operations");
      visit(state, promised);
    };
    see([](size_t) { return Fate::kLost; });
    see([](size_t) { return Fate::kDone; });
    const auto one_is = [&](size_t one, Fate fate, Fate others) {
      see([&](size_t i) { return i == one ? fate : others; });
    };
    if (cut > 0 && record.is_of_names(cut - 1))
      for (const size_t one : record.pending(cut))
        if (record.is_of_names(one)) one_is(one, Fate::kLost, Fate::kDone), one_is(one, Fate::kDone, Fate::kLost);
    if (random_every > 0 && cut % random_every == 0) see([&](size_t) { return Fate(numbers() % 4); });
  }
  return seen.size();
}

}  // namespace

TEST_CASE("power cut: what the log said is written lasts, whatever else does") {
  const Scenario& scenario = GENERATE(from_range(std::begin(kScenarios), std::end(kScenarios)));
  INFO(scenario.name);
  const Recorded recorded(scenario);
  std::set<int64_t> resumed;  // one state for each promise
  const size_t states = visit_states(recorded, /*random_every=*/0, [&](const DiskState& state, int64_t promised) {
    CHECK(recorded.problem_of(state, promised) == "");
    if (resumed.insert(promised).second) recorded.expect_resumes(state, promised);
  });
  CHECK(states > 300);
}

TEST_CASE("power cut: each place that syncs is needed, or the states would not show it if it were gone", "[long]") {
  std::map<std::string, std::string> problems;  // by place
  for (const Scenario& scenario : kScenarios) {
    Recorded recorded(scenario);
    for (const std::string& site : recorded.record().sync_sites()) {
      recorded.record().leave_out_sync_site(site);
      visit_states(recorded, /*random_every=*/0, [&](const DiskState& state, int64_t promised) {
        if (problems[site].empty()) problems[site] = recorded.problem_of(state, promised);
      });
    }
  }
  CHECK(problems.size() >= 6);
  for (const auto& [site, problem] : problems) {
    INFO("at" << site << " of the program's addresses");
    CHECK(problem != "");
  }
}

TEST_CASE("power cut: a run resumes from every state of the disk", "[long]") {
  size_t states = 0;
  for (const Scenario& scenario : kScenarios) {
    INFO(scenario.name);
    const Recorded recorded(scenario);
    states += visit_states(recorded, /*random_every=*/4, [&](const DiskState& state, int64_t promised) {
      CHECK(recorded.problem_of(state, promised) == "");
      recorded.expect_resumes(state, promised);
    });
  }
  WARN(states << " states, each resumed");
  CHECK(states >= 500);
}
