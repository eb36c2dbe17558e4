#include "ditrain/checkpoint/snapshots.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/optim/power_average.hpp"
#include "ditrain/weights/safetensors.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using autograd::Parameter;

constexpr const char* kFolder = "snapshots";

std::string file_of(const std::string& folder) { return (fs::path(folder) / files::kAveragesFile).string(); }

weights::SafetensorsFile open_checked(const std::string& path) {
  if (const auto checks = checks_of(path)) check_file(path, *checks);
  return weights::SafetensorsFile(path);
}

// What `read` makes of a snapshot, or none with a warning where an older one is damaged: an average can do without it.
template <class F>
auto whole_or_none(bool newest, const F& read) -> std::optional<decltype(read())> {
  if (newest) return read();
  try {
    return read();
  } catch (const InputError& damaged) {
    log::warn("left out of the average: {}", damaged.what());
    return std::nullopt;
  }
}

const weights::TensorView& tensor_of(const weights::SafetensorsFile& file, const std::string& name,
                                     const Shape& shape) {
  const weights::TensorView& view = file.tensor(name);
  if (view.shape != shape)
    throw InputError({.where = file.path(),
                      .what = "shape of " + name,
                      .got = to_string(view.shape),
                      .expected = to_string(shape),
                      .hint = "snapshots of one run"});
  return view;
}

// What is never updated is in the checkpoints of the run alone, in each the same.
void read_frozen(const Snapshots& snapshots, Parameter& p) {
  const fs::path run = fs::path(snapshots.all.back().folder).parent_path().parent_path();
  const std::string checkpoints = (run / "checkpoints").string();
  std::vector<int64_t> steps;
  if (fs::exists(checkpoints)) steps = files::list_checkpoints(checkpoints);
  for (; !steps.empty(); steps.pop_back()) try {
      const weights::SafetensorsFile file = open_checked(
          (fs::path(checkpoints) / files::checkpoint_name(steps.back()) / files::kCheckpointFiles[0]).string());
      return weights::read_f32(tensor_of(file, p.name, p.full_shape), Pin<float>(p.value).get());
    } catch (const InputError&) {  // damaged, or deleted by a run that goes on
    }
  const config::Config& config = snapshots.newest.config;
  for (const auto& [key, start] :
       {std::pair{"train.init_from", config.train.init_from}, {"train.branch_from", config.train.branch_from}})
    if (!start.empty())
      log::warn("{}: taken as ditrain computes it: {} has no whole checkpoint, which would tell what {} gave the run",
                p.name, run.string(), key);
}

}  // namespace

std::string snapshots_of(const std::string& run_folder) { return (fs::path(run_folder) / kFolder).string(); }

Snapshots find_snapshots(const std::string& path) {
  const fs::path given = fs::weakly_canonical(fs::path(path) / "state.json").parent_path();
  const fs::path named =
      (fs::absolute(path) / "state.json").lexically_normal().parent_path();  // links as they are called
  const bool is_one = fs::is_regular_file(file_of(given)) &&
                      (given.parent_path().filename() == kFolder || named.parent_path().filename() == kFolder);
  const std::string dir = is_one ? given.parent_path().string() : snapshots_of(path);
  Snapshots found;
  int64_t step = -1;
  std::string config;
  const std::vector<int64_t> all = files::list_kept(dir);
  for (const int64_t kept : all) {
    const std::string folder = (fs::path(dir) / files::checkpoint_name(kept)).string();
    const bool last = kept == all.back() || (is_one && fs::path(folder).filename() == given.filename());
    const auto state = whole_or_none(last, [&] { return read_checkpoint_state(folder); });
    if (!state) continue;
    if (state->optimizer_step > 0) {  // an update has reached the averages
      found.all.push_back({folder, state->optimizer_step});
      step = state->step, config = state->config_yaml;
    }
    if (last) break;
  }
  if (found.all.empty())
    throw InputError({.where = "checkpoint",
                      .what = dir + " has no snapshots of the weights' averages",
                      .expected = "the folder of a run with ema.snapshots_every, or RUN/snapshots/step_N",
                      .hint = "without --ema-width the EMA of a checkpoint is exported"});
  const std::string& newest = found.all.back().folder;
  found.newest = {file_of(newest), config::parse_config(config, newest + "/state.json"), step};
  return found;
}

std::unique_ptr<nn::Model> load_average(const Snapshots& snapshots, double width) {
  struct Stored {
    weights::SafetensorsFile file;
    const std::string* average;
  };
  std::vector<Stored> stored;
  std::vector<optim::AverageProfile> profiles;
  for (const Snapshots::One& one : snapshots.all) {
    const auto file = whole_or_none(&one == &snapshots.all.back(), [&] { return open_checked(file_of(one.folder)); });
    if (!file) continue;
    for (const optim::TrackedAverage& average : optim::tracked_averages()) {
      stored.push_back({*file, &average.name});
      profiles.push_back({double(one.updates), average.exponent});
    }
  }
  double error = 0;
  const std::vector<double> factors =
      optim::solve_average(profiles, {double(snapshots.all.back().updates), optim::exponent_of_width(width)}, &error);
  constexpr double kMuch = 0.05;
  const std::string how = fmt::format("the average of width {} from {} snapshot(s): {:.2g} % of its profile is not met",
                                      width, stored.size() / optim::tracked_averages().size(), 100 * error);
  if (error > kMuch)
    log::warn("{}; a smaller ema.snapshots_every would help", how);
  else
    log::info("{}", how);
  auto model = std::make_unique<nn::Model>(snapshots.newest.config.model);
  model->parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(*model, 0);
  for (Parameter* p : model->parameters().state_dict()) {
    if (!p->trainable) {
      read_frozen(snapshots, *p);
      continue;
    }
    std::vector<double> sum(size_t(p->size()));
    std::vector<float> values(sum.size());
    for (size_t i = 0; i < stored.size(); ++i) {
      const autograd::StateArray array{.name = *stored[i].average};
      weights::read_f32(tensor_of(stored[i].file, array.tensor_of(p->name), p->full_shape), values.data());
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += factors[i] * double(values[k]);
    }
    const Pin<float> to(p->value);
    for (size_t k = 0; k < sum.size(); ++k) {
      to[int64_t(k)] = float(sum[k]);
      if (!std::isfinite(sum[k]))
        throw InputError({.where = snapshots.newest.file,
                          .what = "values that are not finite in the averages of " + p->name,
                          .hint = "RUN/snapshots/step_N of an earlier step"});
    }
  }
  return model;
}

}  // namespace ditrain::checkpoint
