#include "ditrain/bench/quality.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "child.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/band_picture.hpp"
#include "ditrain/eval/sampling.hpp"
#include "ditrain/files/checksum.hpp"
#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "quality_table.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kHoldOut = 0.2;
constexpr int64_t kMostTraining = 20000, kMostHeldOut = 10000;  // images in memory
constexpr size_t kMostTrainingBytes = size_t{2} << 30;          // of them, where they are large
constexpr size_t kMostHeldOutBytes = size_t{1} << 30;
constexpr int64_t kCalibrationSteps = 30;
constexpr int kCalibrationRounds = 6;
constexpr useconds_t kLook_us = 50000;
constexpr double kStop_s = 30;  // for a run to end its step and to write a checkpoint
constexpr uint64_t kImageSeed = 17;
constexpr int64_t kGridRows = 8;
constexpr std::string_view kCalibration = "calibration";
const std::set<std::string> kOwnNames = {"calibration",       "quality.json", "results.jsonl",  "curves.svg",
                                         "curves_guided.svg", "grid.png",     "grid_guided.png"};  // in --out
constexpr std::string_view kFirstMark = "mark_1";  // as sample.guide: the same run's checkpoint of the first mark

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& expected,
                         const std::string& hint = "") {
  ditrain::refuse("ditbench", what, got, expected, hint);
}

struct Recipe {
  std::string name;
  std::string trained_as = name;  // the first recipe from which it differs at most in how samples are drawn
  double last_minutes = 1e300;    // marks beyond it are left out
  config::Config config = {};
  std::vector<int64_t> steps = {};  // of each mark that it has
  double cpu_minutes_per_step = 0;
  double minutes_of(size_t mark) const { return double(steps[mark]) * cpu_minutes_per_step; }
  /// What the guide of guided samples cost besides: of a run that branches off the same trunk its decay.
  double guide_minutes_of(size_t mark) const {
    if (mark == 0 || config.sample.guide != kFirstMark) return 0;
    const bool branches = config.optimizer.schedule == optim::LrSchedule::kWsd;
    return (branches ? config.optimizer.decay_share : 1) * minutes_of(0);
  }
};

/// One set of samples. The order is that of the table.
struct Point {
  bool guided;
  size_t recipe, mark;
  int64_t seed;
  auto operator<=>(const Point&) const = default;
};

Json json_of(const MeasureValues& values) {
  Json j;
  for (size_t m = 0; m < values.size(); ++m)
    j[kMeasures[m].name] = std::isfinite(values[m]) ? Json(values[m]) : Json(nullptr);
  return j;
}

MeasureValues values_of(const nlohmann::json& j) {
  MeasureValues values;
  for (size_t m = 0; m < values.size(); ++m) {
    const auto& value = j.at(kMeasures[m].name);
    values[m] = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  }
  return values;
}

// The whole lines of a file of JSON objects; a last one that a killed program left half-written is none.
std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (auto j = files::parse_json_or_discard(line); j.is_object()) lines.push_back(std::move(j));
  return lines;
}

// cpu_seconds of the steps up to `last` of a run.
std::vector<double> cpu_seconds(const std::string& run, int64_t last) {
  std::vector<double> seconds;
  for (const auto& line : lines_of(run + "/metrics.jsonl"))
    if (line.at("step") <= last) seconds.push_back(line.at("cpu_seconds").get<double>());
  return seconds;
}

// The sampler of a recipe with as many steps as `evaluations` of the model allow; one that is guided counts twice.
diffusion::SamplerConfig sampler_within(const config::Config& c, bool guided, int64_t evaluations) {
  diffusion::SamplerConfig sampler = config::sampler_of(c);
  if (!guided) sampler.cfg_scale = 1;
  const auto process = diffusion::make_process(c.diffusion, c.model.learn_sigma);
  const bool has_steps = c.diffusion.process->name == std::string("ddpm");
  for (int64_t steps = has_steps ? std::min(evaluations, c.diffusion.num_steps) : evaluations; steps >= 1; --steps) {
    sampler.spacing = std::to_string(steps);
    int64_t count = 0;
    for (const double t : diffusion::model_times(*process, sampler))
      count += guided && sampler.cfg_interval.contains(process->data_share(t)) ? 2 : 1;
    if (count <= evaluations) return sampler;
  }
  refuse("no step of the sampler fits into the evaluations of the model", std::to_string(evaluations), "at least 4",
         "--evaluations 50");
}

// Two recipes that differ only in how samples are drawn. (A run of constant learning rate has one checkpoint, of the
// last mark that it has reached.)
bool can_share_runs(const config::Config& a, const config::Config& b) {
  if (a.optimizer.schedule == optim::LrSchedule::kConstant) return false;
  const std::vector<config::Difference> all = config::differences(a, b);
  return std::all_of(all.begin(), all.end(), [](const auto& d) { return d.key.starts_with("sample."); });
}

// Blocks of images side by side, cut at the lowest.
images::ImageU8 beside_each_other(const std::vector<images::ImageU8>& blocks) {
  return images::make_grid(blocks, int64_t(blocks.size()), 6);
}

class QualityMeterOfRecipes {
 public:
  QualityMeterOfRecipes(Harness& harness, const QualityBench& bench);
  void run();

 private:
  void load_recipes();
  void check_out();
  void go_on(const std::string& file);
  void expect_data(const dataset::Dataset& training, const dataset::Dataset& held_out);
  void keep_runs(Recipe& r);
  void write_setup() const { files::write_file_atomically(path("quality.json"), files::json_text(setup_, 1) + "\n"); }
  bool is_not_measured(const Recipe& r) const;
  void expect_equal_cost(const Recipe& r) const;
  void calibrate();
  void read_results();
  void open_images();
  void make_real();

  std::string path(const std::string& name) const { return bench_.out + "/" + name; }
  std::string run_folder(const Recipe& r, int64_t seed) const {
    return path(fmt::format("{}/seed_{}", r.trained_as, seed));
  }
  std::string grid_file(const Recipe& r, bool guided) const {
    return path(fmt::format("{}/grid_of_seed_{}_step_{}{}.png", r.name, bench_.first_seed, r.steps.back(),
                            guided ? "_guided" : ""));
  }
  std::string guide_of(const Recipe& r, int64_t seed) const {
    const std::string& guide = r.config.sample.guide;
    return guide == kFirstMark ? run_folder(r, seed) + "/" + guide : guide;
  }
  [[noreturn]] void stop() const {
    throw Stopped(kExitStoppedEarly, "the same command again: it goes on from " + bench_.out);
  }
  void expect_no_stop() const {
    if (stop_requested()) stop();
  }
  bool guides(const Recipe& r) const { return config::sampler_of(r.config).cfg_scale != 1; }
  bool train(const config::Config& config, const std::string& folder);
  std::string train_to(const Recipe& r, int64_t seed, size_t mark);
  void finish(size_t recipe, int64_t seed, size_t mark);
  static checkpoint::WeightsSource expect_step(const std::string& run, int64_t step);
  LabelledImages draw(const Recipe& r, const std::string& run, const Point& point);
  void write_grid(const Recipe& r, const LabelledImages& images, bool guided) const;

  QualityTable table() const;
  void write_pictures(const QualityTable& table);

  Harness& harness_;
  const QualityBench bench_;
  const std::string ditrain_;
  std::unique_ptr<files::FileLock> lock_;  // of bench_.out
  const AffinityScope all_cores_;          // for children, which inherit the mask of this thread
  std::vector<Recipe> recipes_;
  std::vector<size_t> references_;
  Json setup_;
  std::map<Point, MeasureValues> results_;
  ValuesOfSeeds real_;
  std::optional<QualityMeter> meter_;
  dataset::Config settled_data_;
  int64_t num_classes_ = 0;
};

QualityMeterOfRecipes::QualityMeterOfRecipes(Harness& harness, const QualityBench& bench)
    : harness_(harness),
      bench_(bench),
      ditrain_(program_beside("ditrain", "quality")),
      all_cores_(harness.placement().topology.allowed_pus) {
  load_recipes();
}

// What a run does beside training is left out, and every run leaves what the bench reads.
void QualityMeterOfRecipes::load_recipes() {
  std::set<std::string> names;
  for (size_t i = 0; i <= bench_.recipes.size(); ++i) {
    const QualityRecipe given = i == 0 ? QualityRecipe{bench_.config} : bench_.recipes[i - 1];
    Recipe r{.name = fs::path(given.file).stem().string(),
             .last_minutes = given.last_minutes,
             .config = config::load_config(bench_.config, bench_.sets,
                                           i == 0 ? std::vector<std::string>() : std::vector{given.file})};
    if (r.last_minutes < bench_.minutes.front())
      refuse("a recipe without a mark: " + r.name, fmt::format("up to {} minutes", r.last_minutes),
             fmt::format("at least the first of --minutes, {}", bench_.minutes.front()));
    if (r.config.sample.guide == kFirstMark && r.config.optimizer.schedule == optim::LrSchedule::kConstant)
      refuse("a run with a constant learning rate keeps no checkpoint of its first mark: " + r.name,
             fmt::format("sample.guide: {}", kFirstMark), "a checkpoint, or optimizer.schedule: wsd or cosine");
    if (!names.insert(r.name).second) refuse("two recipes of one name", r.name, "files of different names");
    if (r.name.starts_with('.') || !is_utf8(r.name) || kOwnNames.contains(r.name))
      refuse("no name for a folder in --out, where the bench has files of its own", r.name, "a file of another name");
    config::Config& c = r.config;
    for (const auto& [key, start] :
         {std::pair{"train.init_from", c.train.init_from}, {"train.branch_from", c.train.branch_from}})
      if (!start.empty())
        refuse(
            "recipes are compared from random weights on: what others cost and which images they saw is not known: " +
                r.name,
            fmt::format("{}: {}", key, start), fmt::format("{}: \"\"", key));
    if (!c.model.metadata.empty() && c.model.metadata_drop == 0)
      refuse("samples are drawn without numbers, which the model would never train without: " + r.name,
             "model.metadata_drop: 0", "model.metadata_drop above 0");
    if (const int64_t last = bench_.first_seed + bench_.seeds - 1;
        c.data.kind->path.empty() && (bench_.first_seed != c.train.seed || last != c.train.seed))
      refuse("drawn images follow train.seed, so that other seeds have other images",
             fmt::format("seeds {} to {}, train.seed {}", bench_.first_seed, last, c.train.seed),
             "one seed, that of the config", fmt::format("--seeds 1 --first-seed {}", c.train.seed));
    if (c.data.hold_out == 0) c.data.hold_out = kHoldOut;
    c.parallel.threads = harness_.num_threads();
    c.eval.every_steps = 0, c.eval.fid_every_steps = 0;
    c.checkpoint.every_steps = 0, c.checkpoint.every_minutes = 10, c.checkpoint.keep_last = 1;
    c.checkpoint.keep_every = 0, c.log.every_steps = 1000, c.log.prometheus.clear();
    if (bench_.quick) c.optimizer.warmup_steps = 0;
    c.sample.every_steps = 1;  // the section is checked where samples are drawn
    config::validate(c);
    c.sample.every_steps = 0;
    for (const bool guided : {false, true})
      if (!guided || guides(r)) sampler_within(c, guided, bench_.evaluations);
    const config::Config& first = recipes_.empty() ? c : recipes_.front().config;
    for (const config::Difference& d : config::differences(first, c))
      if ((d.key.starts_with("data.") && d.key != "data.random_flip" && d.key != "data.augment") ||
          d.key == "model.input_size" || d.key == "model.in_channels" || d.key == "model.num_classes")
        refuse("recipes have other data, so that their samples cannot be compared: " + r.name,
               d.key + ": " + d.new_value, d.old_value);
    for (const Recipe& other : recipes_)
      if (r.trained_as == r.name && can_share_runs(other.config, c)) r.trained_as = other.trained_as;
    recipes_.push_back(std::move(r));
  }
  for (const std::string& name : bench_.against.empty() ? std::vector{recipes_.front().name} : bench_.against) {
    const auto named = std::find_if(recipes_.begin(), recipes_.end(), [&](const Recipe& r) { return r.name == name; });
    if (named == recipes_.end())
      refuse("no recipe of this name to compare with", name, fmt::format("one of {}", fmt::join(names, ", ")));
    const auto number = size_t(named - recipes_.begin());
    if (std::count(references_.begin(), references_.end(), number) > 0)
      refuse("a recipe to compare with is named twice", name, "each once");
    references_.push_back(number);
  }
}

// Seeds and recipes may come to those that are there. Flags are fixed by the first result, recipes by their runs.
void QualityMeterOfRecipes::check_out() {
  setup_ = {{"minutes", bench_.minutes},         {"samples", bench_.samples},
            {"evaluations", bench_.evaluations}, {"quick", bench_.quick},
            {"images", "by number and bytes"},  // earlier versions: by number, and with other labels
            {"recipes", Json::object()},         {"cpu_seconds_per_step", Json::object()},
            {"trained_as", Json::object()},      {"not_measured", Json::array()}};
  lock_ = files::lock_output_folder(bench_.out);
  const std::string file = path("quality.json");
  if (fs::exists(file)) go_on(file);
  for (Recipe& r : recipes_) {
    keep_runs(r);
    Json& there = setup_["recipes"][r.name];
    if (there.is_string() && setup_["cpu_seconds_per_step"].contains(r.trained_as))
      for (const config::Difference& d : config::differences(config::parse_config(there, file), r.config))
        if (d.key != "parallel.threads")  // of another machine
          refuse(fmt::format("{} holds another recipe {}", bench_.out, r.name), d.key + ": " + d.new_value, d.old_value,
                 "--out with a new folder, a file of another name, or the flags of before");
    there = config::to_yaml(r.config);
  }
}

// Takes over what quality.json of an earlier command has fixed.
void QualityMeterOfRecipes::go_on(const std::string& file) {
  const Json there = files::parse_json_or_discard<Json>(files::read_text_file(file, size_t{1} << 24));
  const auto value_there = [&](const std::string& key) {
    return there.is_object() && there.contains(key) ? there[key] : Json();
  };
  if (!value_there("recipes").is_object())
    refuse(file + " is damaged", "no recipes", "what the bench wrote", "--out with a new folder");
  const Json marks = value_there("minutes");
  const size_t shared = std::min(marks.size(), bench_.minutes.size());
  if (marks.is_array() && std::equal(marks.begin(), marks.begin() + std::ptrdiff_t(shared), setup_["minutes"].begin()))
    setup_["minutes"] = marks;  // later ones come with their first run
  else
    refuse(bench_.out + " holds another comparison", "minutes " + files::json_text(setup_["minutes"]),
           "minutes " + files::json_text(marks), "--out with a new folder, or marks that begin as those");
  const bool has_results = fs::exists(path("results.jsonl"));
  bool has_runs = has_results;
  for (const auto& recipe : there["recipes"].items()) has_runs = has_runs || fs::exists(path(recipe.key()));
  for (const std::string key : {"samples", "evaluations", "quick", "images"})
    if ((has_results || key == "quick") && value_there(key) != setup_[key])  // --quick measures steps in a hurry
      refuse(bench_.out + " holds another comparison", fmt::format("{} {}", key, files::json_text(setup_[key])),
             fmt::format("{} {}", key, files::json_text(value_there(key))),
             "--out with a new folder, or the flags of before");
  if (has_runs && value_there("data").is_object()) setup_["data"] = there["data"];
  for (const std::string key : {"recipes", "cpu_seconds_per_step", "trained_as"})
    if (value_there(key).is_object()) setup_[key] = there[key];
  if (value_there("not_measured").is_array()) setup_["not_measured"] = there["not_measured"];
}

// Which samples are held out follows from their numbers: with images that came or went, runs of before have seen some.
void QualityMeterOfRecipes::expect_data(const dataset::Dataset& training, const dataset::Dataset& held_out) {
  const Json data = {{"checksum", files::to_hex(files::checksum_of(training.samples_checksum()))},
                     {"training", training.size()},
                     {"held_out", held_out.size()}};
  if (Json& there = setup_["data"]; there.is_null())  // a new folder
    there = data;
  else if (there != data)
    refuse(bench_.out + " holds runs on other data, some of whose training images would count as held out now",
           files::json_text(data), files::json_text(there),
           "--out with a new folder, or the images of before in data.path");
}

// A recipe stays with the runs that it has, whatever recipes come to the folder or are left out.
void QualityMeterOfRecipes::keep_runs(Recipe& r) {
  const Json& known = setup_["cpu_seconds_per_step"];
  for (const Recipe& other : recipes_)  // which may draw from the runs of a third
    if (other.name == r.trained_as) r.trained_as = other.trained_as;
  Json& stored = setup_["trained_as"][r.name];
  if (stored.is_string() && known.contains(stored.get<std::string>())) r.trained_as = stored;
  if (known.contains(r.name)) r.trained_as = r.name;
  stored = r.trained_as;
  if (r.trained_as != r.name) harness_.note(fmt::format("{} draws from the runs of {}", r.name, r.trained_as));
}

// False if it diverged.
bool QualityMeterOfRecipes::train(const config::Config& config, const std::string& folder) {
  fs::create_directories(folder);
  const std::string file = folder + ".yaml";
  files::write_file_atomically(file, config::to_yaml(config));
  Child child({ditrain_, "--config", file, "--out", folder, "--resume", "auto"}, {.output = folder + ".log"});
  while (child.running()) {
    usleep(kLook_us);
    if (!stop_requested()) continue;
    child.stop(kStop_s);
    stop();
  }
  expect_no_stop();
  if (child.exit_code() == kExitDone) return true;
  if (child.exit_code() == kExitStoppedEarly) stop();  // the signal went to the run itself
  if (const auto lines = lines_of(folder + "/metrics.jsonl"); !lines.empty() && lines.back().contains("non_finite"))
    return false;
  child.fail("the run in " + folder);
}

bool QualityMeterOfRecipes::is_not_measured(const Recipe& r) const {
  const Json& names = setup_["not_measured"];
  return std::find(names.begin(), names.end(), Json(r.trained_as)) != names.end();
}

// A step of a recipe without a measured time takes as long as the first recipe's: only keys that cost next to nothing.
void QualityMeterOfRecipes::expect_equal_cost(const Recipe& r) const {
  for (const config::Difference& d : config::differences(recipes_.front().config, r.config)) {
    const auto begins = [&](std::string_view key) { return d.key.starts_with(key); };
    constexpr std::string_view kFree[] = {"diffusion.",       "sample.",          "optimizer.",  "ema.",
                                          "train.layer_sync", "data.random_flip", "data.augment"};
    if (d.key == "optimizer.kind" || d.key == "ema.snapshots_every" || std::none_of(kFree, std::end(kFree), begins))
      refuse("steps of this recipe may take another time than those of the config: " + r.name,
             d.key + ": " + d.new_value, d.old_value, "without --equal-steps");
  }
}

// CPU time per step of each recipe, from short runs in turns with the first recipe's, once for a folder: what the
// machine does later, or another machine that goes on with the folder, changes neither marks nor minutes. With
// equal_steps new recipes take that of the first one.
void QualityMeterOfRecipes::calibrate() {
  Json& known = setup_["cpu_seconds_per_step"];
  for (const auto& [name, seconds] : known.items())
    if (!seconds.is_number() || !(seconds.get<double>() > 0))
      refuse(path("quality.json") + " is damaged",
             fmt::format("cpu_seconds_per_step of {}: {}", name, files::json_text(seconds)), "a number above 0",
             "--out with a new folder");
  std::vector<const Recipe*> turns;
  const Recipe& reference = recipes_.front();
  const bool has_reference = known.contains(reference.trained_as);
  for (const Recipe& r : recipes_)
    if (r.trained_as == r.name && !known.contains(r.name)) {
      if (!bench_.equal_steps || &r == &reference) {
        turns.push_back(&r);
      } else {
        expect_equal_cost(r);
        setup_["not_measured"].push_back(r.name);
      }
    } else if (bench_.equal_steps && &r != &reference && r.trained_as == r.name && !is_not_measured(r)) {
      harness_.note(fmt::format("{}: was measured before, and keeps its own number of steps", r.name));
    }
  if (!turns.empty()) fs::remove_all(path(std::string(kCalibration)));  // of recipes that came before, at another time
  if (!turns.empty() && has_reference) turns.insert(turns.begin(), &reference);
  std::map<std::string, std::vector<double>> medians;  // of each round
  for (int round = 0; round < (bench_.quick ? 1 : kCalibrationRounds); ++round)
    for (const Recipe* r : turns) {
      config::Config c = r->config;
      c.train.steps = bench_.quick ? 3 : kCalibrationSteps;
      c.optimizer.warmup_steps = 0;
      const std::string folder = path(fmt::format("{}/{}_{}", kCalibration, r->name, round + 1));
      if (!train(c, folder))
        refuse(fmt::format("a run diverges within {} steps", c.train.steps), r->name, "a lower optimizer.lr");
      std::vector<double> seconds = cpu_seconds(folder, c.train.steps);
      seconds.erase(seconds.begin(), seconds.begin() + std::ptrdiff_t(seconds.size() / 3));  // first touches of memory
      medians[r->name].push_back(quantile(seconds, 0.5));
    }
  // Other tenants of a core only slow it down, for seconds to minutes: the fastest round is the one without them.
  const auto fastest = [](const std::vector<double>& rounds) {
    return *std::min_element(rounds.begin(), rounds.end());
  };
  // What comes to a folder is measured beside the reference, as a factor of which it joins.
  const double now = has_reference && !turns.empty()
                         ? known[reference.trained_as].get<double>() / fastest(medians[reference.name])
                         : 1;
  for (const auto& [name, of_rounds] : medians)
    if (!known.contains(name) && !(has_reference && name == reference.name)) known[name] = now * fastest(of_rounds);
  const double of_reference = known[reference.trained_as].get<double>();
  for (const Recipe& r : recipes_) {
    if (!is_not_measured(r)) continue;
    if (!known.contains(r.trained_as)) known[r.trained_as] = of_reference;
    harness_.note(fmt::format("{}: not measured, a step counts as one of {}", r.name, reference.name));
  }
  for (Recipe& r : recipes_) {
    r.cpu_minutes_per_step = known[r.trained_as].get<double>() / 60;
    for (size_t k = 0; k < bench_.minutes.size() && bench_.minutes[k] <= r.last_minutes; ++k) {
      const int64_t least = r.steps.empty() ? 1 : r.steps.back() + 1;
      r.steps.push_back(bench_.quick
                            ? 2 * int64_t(k + 1)
                            : std::max<int64_t>(least, std::llround(bench_.minutes[k] / r.cpu_minutes_per_step)));
    }
    for (const int64_t steps : {r.steps.back(), r.steps.front()}) {
      config::Config c = r.config;
      c.train.steps = steps;
      config::validate(c);
      for (const std::string& warning : bench_.quick ? std::vector<std::string>() : config::warnings(c))
        harness_.note(fmt::format("{} with {} steps: {}", r.name, steps, warning));
      if (r.steps.size() == 1) break;
    }
  }
  write_setup();
}

void QualityMeterOfRecipes::read_results() {
  constexpr size_t kMostBytes = size_t{1} << 30;
  const std::string file = path("results.jsonl"),
                    text = fs::exists(file) ? files::read_text_file(file, kMostBytes) : "";
  if (!text.empty() && text.back() != '\n')  // a line that was cut off would swallow the next one
    files::write_file_atomically(file, text.substr(0, text.rfind('\n') + 1));
  for (const auto& line : lines_of(file)) try {
      const auto recipe =
          std::find_if(recipes_.begin(), recipes_.end(), [&](const Recipe& r) { return line.at("recipe") == r.name; });
      if (recipe == recipes_.end()) continue;
      for (const auto& [key, value] : {std::pair{"samples", bench_.samples}, {"evaluations", bench_.evaluations}})
        if (line.value(key, value) != value)  // earlier versions wrote neither
          refuse(file + " holds results of another command", fmt::format("{} {}", key, line.at(key).get<int64_t>()),
                 fmt::format("{} {}", key, value), "results of one command in each folder");
      const auto mark = line.at("mark").get<size_t>();
      if (mark >= recipe->steps.size() || line.at("steps") != recipe->steps[mark]) continue;  // by another calibration
      results_[{line.at("guided").get<bool>(), size_t(recipe - recipes_.begin()), mark,
                line.at("seed").get<int64_t>()}] = values_of(line.at("values"));
    } catch (const nlohmann::json::exception& e) {
      refuse(file + " is damaged", files::json_problem(e), "lines that the bench wrote", "this file without that line");
    }
}

// Both parts of the data, as models see it.
void QualityMeterOfRecipes::open_images() {
  config::Config c = recipes_.front().config;
  const plan::Inputs inputs = plan::open_inputs(c);
  if (inputs.facts.encoder)
    refuse("pictures that a run encodes are compared with latents", "data.vae: " + c.data.vae,
           "latents of ditdata encode, or a model of pixels");
  if (dataset::condition_of(inputs.facts.data.value_or(c.data)).bands.size() > 0)
    refuse("samples for given bands are not compared", "data.condition", "data without it");
  settled_data_ = inputs.facts.data.value_or(c.data);
  num_classes_ = c.model.num_classes == nn::kClassesOfData ? inputs.facts.num_classes : c.model.num_classes;
  for (Recipe& r : recipes_) {
    r.config.model.num_classes = num_classes_;  // guidance depends on it
    config::Config settled = r.config;
    settled.data = settled_data_;
    if (const std::string& guide = r.config.sample.guide; !guide.empty() && guide != kFirstMark) {
      if (checkpoint::load_guide(guide, settled, inputs.facts.class_names) != nullptr)  // refuses those of other models
        harness_.note(fmt::format("{}: CPU minutes are without those of its guide {}", r.name, guide));
    }
  }
  const auto held_out = dataset::open_dataset(settled_data_, plan::model_shape(c.model), num_classes_,
                                              uint64_t(c.train.seed), dataset::Part::kHeldOut);
  expect_data(*inputs.data, *held_out);
  const int64_t most = bench_.quick ? 16 * bench_.samples : kMostTraining;
  const auto number = [&](const dataset::Dataset& data, int64_t at_most, size_t bytes) {
    return num_images(data.size(), std::min(at_most, most), bytes, data.shape());
  };
  const int64_t of_training = number(*inputs.data, kMostTraining, kMostTrainingBytes),
                of_held_out = number(*held_out, kMostHeldOut, kMostHeldOutBytes);
  plan::check_memory(
      QualityMeter::bytes(held_out->shape(), of_training, of_held_out, bench_.samples, num_classes_), 1,
      fmt::format("{} training and {} held-out images, {} samples and two classifiers of {} classes", of_training,
                  of_held_out, bench_.samples, num_classes_),
      "fewer --samples, smaller images (model.input_size), or without classes and their classifiers (--set "
      "model.num_classes=0)");
  LabelledImages training = load_images(*inputs.data, of_training, kImageSeed);
  LabelledImages others = load_images(*held_out, of_held_out, kImageSeed);
  expect_no_stop();
  harness_.note(fmt::format("{}; compared with {} images of training and {} held-out ones", held_out->describe(),
                            training.size(), others.size()));
  meter_.emplace(harness_.ctx(), QualityMeter::Setup{.training = std::move(training),
                                                     .held_out = std::move(others),
                                                     .num_classes = num_classes_,
                                                     .classifier_steps = bench_.quick ? 2 : 300});
}

void QualityMeterOfRecipes::make_real() {
  for (int64_t s = 0; s < bench_.seeds; ++s) {
    expect_no_stop();
    real_.push_back(
        meter_->of_real(bench_.samples, recipes_[0].config.model.patch_size, uint64_t(bench_.first_seed + s)));
  }
}

// Trains to a mark. Returns the folder whose checkpoint is that of the mark; empty if the run diverged.
std::string QualityMeterOfRecipes::train_to(const Recipe& r, int64_t seed, size_t mark) {
  config::Config c = r.config;
  const std::string run = run_folder(r, seed), own = fmt::format("{}/mark_{}", run, mark + 1);
  c.train.seed = seed;
  c.train.steps = r.steps[mark];
  if (c.sample.guide == kFirstMark) c.sample.guide.clear();  // which other programs do not know
  if (c.optimizer.schedule == optim::LrSchedule::kConstant) {
    return train(c, run + "/run") ? run + "/run" : "";
  }
  if (c.optimizer.schedule == optim::LrSchedule::kWsd && c.optimizer.decay_share < 1) {
    config::Config trunk = c;
    trunk.optimizer.schedule = optim::LrSchedule::kConstant;
    trunk.train.steps = int64_t(std::floor(double(c.train.steps) * (1 - c.optimizer.decay_share)));
    if (trunk.train.steps > 0 && trunk.train.steps < c.train.steps) {
      c.train.branch_from = fs::absolute(run + "/trunk").string();
      if (!fs::exists(own)) {
        if (!train(trunk, c.train.branch_from)) return "";
        expect_step(c.train.branch_from, trunk.train.steps);
      }
    }
  }
  return train(c, own) ? own : "";
}

// Where results.jsonl or a branch has been lost, a run may have passed the mark.
checkpoint::WeightsSource QualityMeterOfRecipes::expect_step(const std::string& run, int64_t step) {
  checkpoint::WeightsSource source = checkpoint::find_weights(run, checkpoint::Weights::kEma);
  if (source.step != step)
    refuse("the run has gone on beyond a mark whose result is lost: " + run, fmt::format("step {}", source.step),
           fmt::format("step {}; without this folder the same command trains it anew", step));
  return source;
}

LabelledImages QualityMeterOfRecipes::draw(const Recipe& r, const std::string& run, const Point& p) {
  const checkpoint::WeightsSource source = expect_step(run, r.steps[p.mark]);
  const DType precision = r.config.train.precision;
  const auto model = checkpoint::load_model(source, precision);
  const std::string guide_path = guide_of(r, p.seed);
  const auto guide = p.guided && !guide_path.empty()
                         ? checkpoint::load_guide(guide_path, source.config, source.class_names, precision)
                         : nullptr;
  const auto labels = meter_->labels_of_real(bench_.samples, uint64_t(p.seed));
  const eval::GenerateRequest request{
      .sampler = sampler_within(r.config, p.guided, bench_.evaluations),
      .seed = uint64_t(p.seed),
      .conditions = conditions_of(labels),
      .precision = precision,
      .guide = guide.get(),
      .guide_routes = p.guided ? config::guide_routes(guide_path, source.config) : nn::Routes()};
  LabelledImages images{plan::model_shape(r.config.model), {}, labels};
  images.images = eval::generate(harness_.ctx(), *model, source.config.diffusion, request);
  if (config::learns_pixels(r.config))
    for (float& x : images.images) x = std::clamp(x, -1.0f, 1.0f);
  return images;
}

void QualityMeterOfRecipes::write_grid(const Recipe& r, const LabelledImages& images, bool guided) const {
  const eval::BandPictures picture(config::learns_pixels(r.config) ? settled_data_ : dataset::Config(),
                                   images.shape.channels);
  const auto [columns, numbers] = grid_of_classes(images.labels, num_classes_, kGridRows);
  std::vector<images::ImageU8> pictures;
  for (const int64_t i : numbers) pictures.push_back(picture(images.at(i), images.shape.height, images.shape.width));
  fs::create_directories(path(r.name));  // which has no runs if they are another recipe's
  images::write_png(grid_file(r, guided), images::make_grid(pictures, columns, 1));
}

void QualityMeterOfRecipes::finish(size_t recipe, int64_t seed, size_t mark) {
  const Recipe& r = recipes_[recipe];
  std::vector<Point> missing;
  for (const bool guided : {false, true})
    if (const Point p{guided, recipe, mark, seed}; (!guided || guides(r)) && !results_.contains(p))
      missing.push_back(p);
  if (missing.empty()) return;
  for (size_t k = setup_["minutes"].size(); k <= mark; ++k)  // before the run: a schedule is made for its length
    setup_["minutes"].push_back(bench_.minutes[k]), write_setup();
  const std::string folder = train_to(r, seed, mark);
  for (const Point& p : missing) {
    expect_no_stop();
    const double minutes = r.minutes_of(mark) + (p.guided ? r.guide_minutes_of(mark) : 0);
    const bool has_guide =
        !p.guided || r.config.sample.guide != kFirstMark || !std::isnan(results_.at({false, recipe, 0, seed}).front());
    const bool has_models = !folder.empty() && has_guide;  // none of a run that diverged
    const LabelledImages images = has_models ? draw(r, folder, p) : LabelledImages();
    const bool finite =
        has_models && std::all_of(images.images.begin(), images.images.end(), [](float x) { return std::isfinite(x); });
    MeasureValues values;
    values.fill(std::numeric_limits<double>::quiet_NaN());
    if (finite) {
      if (mark + 1 == r.steps.size() && seed == bench_.first_seed) write_grid(r, images, p.guided);
      values = meter_->measure(images, r.config.model.patch_size, uint64_t(seed));
    }
    results_[p] = values;
    const Json line = {{"recipe", r.name},
                       {"seed", seed},
                       {"mark", mark},
                       {"guided", p.guided},
                       {"steps", r.steps[mark]},
                       {"cpu_minutes", minutes},
                       {"samples", bench_.samples},
                       {"evaluations", bench_.evaluations},
                       {"values", json_of(values)}};
    files::append_line(path("results.jsonl"), files::json_text(line));
    std::string told = finite ? "" : "  diverged";
    for (size_t m = 0; m < kMeasures.size() && finite; ++m)
      told += fmt::format("  {} {:.3g}", kMeasures[m].name, values[m]);
    std::fprintf(stderr, "%s%s seed %ld, %.2f CPU minutes:%s\n", r.name.c_str(), p.guided ? " guided" : "", long(seed),
                 minutes, told.c_str());
  }
}

QualityTable QualityMeterOfRecipes::table() const {
  std::vector<RecipeResults> all;
  for (size_t i = 0; i < recipes_.size(); ++i) {
    const Recipe& r = recipes_[i];
    RecipeResults& results = all.emplace_back(RecipeResults{.name = r.name, .guides = guides(r), .marks = {}});
    for (size_t mark = 0; mark < r.steps.size(); ++mark) {
      const auto of_seeds = [&](bool guided) {
        ValuesOfSeeds values;
        for (int64_t s = 0; s < bench_.seeds && (!guided || guides(r)); ++s)
          values.push_back(results_.at({guided, i, mark, bench_.first_seed + s}));
        return values;
      };
      results.marks.push_back(
          {r.steps[mark], r.minutes_of(mark), of_seeds(false), of_seeds(true), r.guide_minutes_of(mark)});
    }
  }
  return {real_, std::move(all)};
}

void QualityMeterOfRecipes::write_pictures(const QualityTable& table) {
  for (const bool guided : {false, true}) {
    std::vector<images::ImageU8> blocks;
    std::string names;
    for (const Recipe& r : recipes_) {
      const std::string file = grid_file(r, guided);
      if (!fs::exists(file)) continue;
      blocks.push_back(images::read_image(file));
      names += (names.empty() ? "" : ", ") + r.name;
    }
    const std::string end = guided ? "_guided" : "", grid = "grid" + end + ".png";
    if (guided && std::none_of(recipes_.begin(), recipes_.end(), [&](const Recipe& r) { return guides(r); })) continue;
    files::write_file_atomically(path("curves" + end + ".svg"), curves_svg(table.panels(guided)));
    std::string told = fmt::format("{}/curves{}.svg (dashed: real images)", bench_.out, end);
    if (!blocks.empty()) {
      images::write_png(path(grid), beside_each_other(blocks));
      told += fmt::format("; {}/{}, from left to right: {}", bench_.out, grid, names);
    } else {
      fs::remove(path(grid));  // of other marks or seeds
    }
    harness_.note(told);
  }
}

void QualityMeterOfRecipes::run() {
  check_out();
  open_images();
  calibrate();
  read_results();
  make_real();
  for (size_t mark = 0; mark < bench_.minutes.size(); ++mark)
    for (int64_t s = 0; s < bench_.seeds; ++s)
      for (size_t i = 0; i < recipes_.size(); ++i)
        if (mark < recipes_[i].steps.size()) finish(i, bench_.first_seed + s, mark);
  const QualityTable results = table();
  for (Row& row : results.values()) harness_.add(std::move(row));
  for (const bool guided : {false, true})
    for (const size_t reference : references_)
      for (size_t i = 0; i < recipes_.size(); ++i)
        if (i != reference && (!guided || (guides(recipes_[i]) && guides(recipes_[reference]))))
          harness_.add(results.comparison(i, reference, guided));
  write_pictures(results);
  harness_.note(meter_->describe(bench_.samples));
  if (meter_->of_training() < bench_.samples)
    harness_.note(
        fmt::format("real images are the {} for training, fewer than samples: their distances are larger "
                    "for that",
                    meter_->of_training()));
  for (const auto& [point, values] : results_)
    if (point.mark < recipes_[point.recipe].steps.size() && std::isnan(values[0]))
      harness_.note(fmt::format("{}{} with seed {} diverged before {:.2f} CPU minutes, or its samples are not finite",
                                recipes_[point.recipe].name, point.guided ? ", guided," : "", point.seed,
                                recipes_[point.recipe].minutes_of(point.mark)));
  const std::string intervals =
      bench_.seeds < 2 ? "none with one seed"
      : bench_.seeds < 6
          ? "95 % of the resampled means, with three seeds from the least to the most, which have the true mean "
            "between them three times out of four"
          : "95 %, bootstrap over seeds";
  harness_.note(
      fmt::format("{} samples per set with the labels of the real images, {} evaluations of the model for each; {} "
                  "seed(s) from {} on; "
                  "intervals: {}",
                  bench_.samples, bench_.evaluations, bench_.seeds, bench_.first_seed, intervals));
  if (recipes_.size() > 1)
    harness_.note(
        "A / B: CPU time of B / CPU time of A until each has the value of B's last mark (in parentheses: A's minutes); "
        "not decidable: both are as good as training images in this measure; not within its time: A was trained for "
        "less time than B; A - B: the difference at B's only mark, seed by seed: mean, least and most");
}

}  // namespace

void bench_quality(Harness& harness, const QualityBench& bench) { QualityMeterOfRecipes(harness, bench).run(); }

}  // namespace ditrain::bench
